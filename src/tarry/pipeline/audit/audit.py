"""The audit as a job: reads everything as of one moment, counts, and finds who offends.

What it can prove depends on what is left. With the whole ledger, every message is followed from its acceptance. Where the
beginning was reclaimed, the tables stand for it: the history says which messages have ended, the index which ones wait, and the
index's own count of what was ever accepted says whether one is missing.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from tarry.core.errors import NotFound, Unavailable
from tarry.core.time.clock import SystemClock
from tarry.index.kept import HistoryState
from tarry.ledger.record import FIRST_BATCH_SEQ
from tarry.pipeline.audit.acks import FIFO, UNKNOWN, early_acks
from tarry.pipeline.audit.checks import (
    BY_COMMAND,
    all_offenders,
    batch_offenders,
    messages,
    offence,
    offenders,
    single,
)
from tarry.pipeline.audit.facts import facts_of
from tarry.pipeline.views.place import Moment, TableState, find, need_tables

SHOWN: Final = 50
"""Offenders that are shown; all are counted."""


class Offender(Struct, frozen=True):
    """One message or record that breaks a rule. Seqs are no credentials."""

    offence: str
    seq: int
    origin_seq: int | None
    detail: str


class AuditFindings(Struct, frozen=True):
    """The findings of an audit."""

    counts: dict[str, int]
    offences: dict[str, int]
    """By name, how many."""
    shown: list[Offender]
    notes: list[str]
    """Notes on facts that could not be proved, and why."""

    @property
    def balanced(self) -> bool:
        """Whether nobody offends."""
        return not self.offences


class Books(Struct, frozen=True):
    """Everything that is judged, of one moment."""

    facts: DataFrame
    waiting: DataFrame
    ended: DataFrame
    first_seq: int
    """The first seq of the ledger that is left."""
    cursor: int
    accepted_upto_cursor: int | None
    """How many messages the index stream has seen accepted; None where that is not known."""
    kept: HistoryState = HistoryState()
    """How much of the history was let go."""
    now_ms: int = 0
    """The instant. That a delayed entry of a topic is due is in no record: it is so from its instant on."""
    began: int = 0
    """The last seq that the ledger had let go of when the index began."""


def open_books(spark: SparkSession, options: Mapping[str, str], now_ms: int) -> Books:
    """Read the ledger and the tables as of this moment; raises `NotFound` where there is nothing to judge."""
    place = find(options)
    index, history = need_tables(place)
    if place.ledger is None:
        raise NotFound(f"{place.tables}: the ledger is not beside the tables; say where it is")
    follower = place.ledger.follower()
    head, first_seq = follower.durable_seq(), follower.first_seq()
    if first_seq > min(index.cursor, history.cursor) + 1 or index.cursor > head:
        raise Unavailable(
            f"the ledger has seqs {first_seq} to {head}, and the tables end at {index.cursor}: they do not meet"
        )
    moment = Moment(head, index.version, history.version)
    return Books(
        facts_of(spark.read.format("tarry-ledger").options(**place.source, upto=str(head)).load()),
        _view(spark, options, moment, "scheduled", "seq,origin_seq,entry,fire_at_ms"),
        _view(
            spark, options, moment, "history",
            "seq,origin_seq,outcome,version_seq,fire_at_ms,due_at_ms,finalised_at_ms,messages,batch,door",
        ).withColumn("whole", sf.expr("batch is not null and door is null")),
        first_seq, index.cursor, _accepted(index), msgspec.convert(history.state, HistoryState), now_ms,
        index.state.get("began", 0),
    )  # fmt: skip


def _accepted(index: TableState) -> int | None:
    accepted: int | None = index.state.get("accepted")
    return accepted


def _view(
    spark: SparkSession, options: Mapping[str, str], moment: Moment, view: str, columns: str
) -> DataFrame:
    reader = spark.read.format("tarry").options(**options)
    return reader.options(view=view, columns=columns, as_of=moment.option()).load()


def judge(books: Books, step: Callable[[str], None] = lambda _: None) -> AuditFindings:
    """Count everything and find who offends."""
    step("counting messages")
    kept = [frame.persist() for frame in (books.facts, books.waiting, books.ended)]
    facts, waiting, ended = kept
    try:
        sums = _sums(books, facts, waiting, ended)
        step("looking for lost, doubled and early messages")
        found = all_offenders(facts, waiting, ended, books.first_seq, books.kept.kept_from_day)
        if sums["batches"]:
            found = found.union(batch_offenders(facts, waiting, ended))
        apart: dict[str, int] = {}
        if sums["delayed"]:
            early = early_acks(facts).persist()
            kept.append(early)
            apart = _apart(early)
            found = found.union(_acknowledged_early(early))
        counts, notes = totals(books, sums, _ended_with_their_batch(waiting, ended) if sums["batches"] else 0)
        step("comparing ledger, index and history")
        offences, shown = _collected(found)
    finally:
        for frame in kept:
            frame.unpersist()
    if missing := missing_in(books, counts):
        offences["books do not balance"] = abs(missing)
        shown.append(Offender("books do not balance", 0, None, f"{missing:+} messages"))
    return AuditFindings(counts | apart, offences, shown, notes)


def _collected(found: DataFrame) -> tuple[dict[str, int], list[Offender]]:
    offences = {
        row.offence: row.n for row in found.groupBy("offence").agg(sf.count("*").alias("n")).collect()
    }
    if not offences:
        return {}, []
    rows = found.orderBy("offence", "seq").limit(SHOWN).collect()
    return offences, [Offender(row.offence, row.seq, row.origin_seq, row.detail) for row in rows]


def _sums(books: Books, facts: DataFrame, waiting: DataFrame, ended: DataFrame) -> dict[str, int]:
    """Everything that is counted, in one job."""
    # Above the cursor, where the index stream has counted what is below.
    above = 0 if books.first_seq == 1 else books.cursor
    first = "fact = 'put' and (seq = origin_seq or kills_seq is null)"
    older = f"fact in ('put', 'end') and kills_seq <= {books.began}"
    of_facts = facts.selectExpr(
        f"sum(if(seq > {above} and ({first} or {older}), 1, 0)) as accepted",
        f"sum(if(seq > {above} and fact = 'adopt', messages, 0)) as adopted",
        "count_if(fact = 'entry') as delayed",
        "count_if(fact in ('adopt', 'cancel_batch')) as batches",
    )
    of_waiting = waiting.selectExpr(
        "count_if(not entry) as scheduled", f"count_if(entry and fire_at_ms > {books.now_ms}) as entries"
    )
    of_ended = ended.selectExpr(
        *(
            f"count_if(not whole and outcome = '{name}') as {name}"
            for name in ("sent", "cancelled", "failed")
        ),
        f"count_if(not whole and outcome = 'sent' and ({BY_COMMAND})) as by_command",
        "count_if(whole) as cancelled_batches",
    )
    row = of_facts.crossJoin(of_waiting).crossJoin(of_ended).first()
    assert row is not None
    sums = {name: int(value or 0) for name, value in row.asDict().items()}
    sums["batches"] += sums.pop("cancelled_batches")
    return sums


def totals(books: Books, sums: dict[str, int], ended_with_batch: int) -> tuple[dict[str, int], list[str]]:
    """The totals, and the sums that they cannot prove."""
    notes: list[str] = []
    cancelled = sums["cancelled"] + ended_with_batch
    finalised = sums["sent"] + cancelled + sums["failed"]
    accepted = sums["accepted"] + sums["adopted"]
    if books.first_seq > 1:
        notes.append(
            f"records below seq {books.first_seq} were reclaimed: what they said is judged by the index and the history"
        )
        if books.accepted_upto_cursor is None:
            notes.append(
                "how many messages were accepted before is not known: that none is missing is not proved"
            )
            accepted = sums["scheduled"] + finalised + books.kept.forgotten
        else:
            accepted += books.accepted_upto_cursor
    if books.kept.forgotten:
        notes.append(
            f"the history before {books.kept.kept_from_day} was let go: {books.kept.forgotten} messages are only counted"
        )
    counts = {
        "accepted": accepted, "scheduled": sums["scheduled"], "finalised": finalised, "sent": sums["sent"],
        "cancelled": cancelled, "failed": sums["failed"], "sent by command": sums["by_command"],
        "delayed entries waiting in topics": sums["entries"],
    }  # fmt: skip
    return counts, notes


def missing_in(books: Books, counts: dict[str, int]) -> int:
    """How many messages are missing, or below zero too many."""
    missing = counts["accepted"] - counts["scheduled"] - counts["finalised"] - books.kept.forgotten
    # Of a whole batch that was let go nobody knows any more which of its messages had ended before.
    return max(missing, 0) if books.kept.forgotten_batches else missing


def _ended_with_their_batch(waiting: DataFrame, ended: DataFrame) -> int:
    """Messages that ended when their batch was cancelled.

    That is all of them, but those that were being sent and are not counted in its row, those that had ended before, and those with
    a version of their own. Whoever was sent afterwards without having been spared is one too many.
    """
    batches = ended.filter("whole").selectExpr(
        "origin_seq as first_seq", "version_seq as last_seq", "messages as ended", "seq as cancel_seq"
    )
    inside = sf.expr("origin_seq >= first_seq and origin_seq <= last_seq")
    ends = (
        single(ended)
        .filter(sf.col("origin_seq") >= FIRST_BATCH_SEQ)
        .select("origin_seq", "version_seq", "seq")
    )
    moved = (
        messages(waiting)
        .filter(f"origin_seq >= {FIRST_BATCH_SEQ} and seq != origin_seq")
        .select("origin_seq")
    )
    before = ends.join(sf.broadcast(batches), inside).filter("seq < cancel_seq or version_seq != origin_seq")
    own = before.count() + moved.join(sf.broadcast(batches), inside).count()
    whole: Any = batches.agg(sf.sum("ended")).first()
    return (whole[0] or 0) - own


def _acknowledged_early(early: DataFrame) -> DataFrame:
    """On shared subscriptions, and entry by entry: nobody is given such an entry before it is due."""
    return offenders(
        early,
        offence(
            "sent early", f"single and type not in {(*FIFO, UNKNOWN)}", "seq", "null",
            "concat('acknowledged before it was due: entry ', entry_id, ' of ', topic)",
        ),
    )  # fmt: skip


def _apart(early: DataFrame) -> dict[str, int]:
    rows = early.groupBy("type").agg(sf.count("*").alias("n")).collect()
    kinds = {row.type: row.n for row in rows}
    counts = {"read in order before they were due": sum(kinds.get(kind, 0) for kind in FIFO)}
    if kinds.get(UNKNOWN):
        counts["read early by subscriptions of unknown type"] = kinds[UNKNOWN]
    return counts


def audit(
    spark: SparkSession,
    options: Mapping[str, str],
    now_ms: int | None = None,
    step: Callable[[str], None] = lambda _: None,
) -> AuditFindings:
    """Judge the books of a data folder, or of tables and a ledger, at an instant: the present one.

    `step` is told what is done next.
    """
    step("reading the ledger and the tables")
    return judge(open_books(spark, options, SystemClock().now_ms() if now_ms is None else now_ms), step)
