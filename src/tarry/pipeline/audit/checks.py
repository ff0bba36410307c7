"""The checks: functions from data frames to the data frame of those who offend. Each offence has a name and a line of text.

Everything that is said of one message is brought together in one row, its account, and so is what is said of one version and
of one end. Each rule is a condition on such a row, so that the work is three groupings, however many rules there are.

`facts` is what the ledger says, from its first seq that is left (`facts.py`). `waiting` is the view `scheduled` and `ended` the
view `history`, of the same moment. What is left of the ledger is compared with the tables record by record. What was
reclaimed is judged by the tables alone: no message twice in the history, none in the history that waits, and as many
messages as were ever accepted. A message that has failed and is retried is accepted once more, and ends once more.
"""

from functools import reduce
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

from tarry.ledger.record import FIRST_BATCH_SEQ

OFFENCES: Final = {
    "lost": "accepted, and neither scheduled nor finalised",
    "scheduled twice": "two versions of one message wait",
    "finalised twice": "one message has ended more than once",
    "scheduled and finalised": "a message that has ended still waits",
    "never accepted": "scheduled or finalised, and no record accepts it",
    "version ended twice": "two records end the same version",
    "unknown version ended": "a record ends a version that is not there",
    "dead version scheduled": "a version waits that a record has ended",
    "sent without an end": "published into a topic by a record that ends no message",
    "sent early": "sent before its due instant",
    "sent after its cancel": "sent although its cancel was recorded before",
    "not in the history": "a record ends it, and the history does not know",
    "not in the ledger": "the history has an end that no record says",
    "batch does not add up": "scheduled and finalised messages of a batch are not as many as were adopted",
    "books do not balance": "accepted messages are not as many as the scheduled and the finalised together",
}
"""Every offence, and what it means."""


def single(ended: DataFrame) -> DataFrame:
    """Ends of single messages; the others are of whole batches."""
    return ended.filter("not whole")


def messages(waiting: DataFrame) -> DataFrame:
    """Messages that wait, without the delayed entries of topics: those were published, and wait to be ready."""
    return waiting.filter("not entry")


def offence(name: str, when: str, seq: str, origin_seq: str = "origin_seq", detail: str = "''") -> Column:
    """One rule over a row: the offender, or null. What it takes is SQL."""
    return sf.when(
        sf.expr(when),
        sf.struct(
            sf.lit(name).alias("offence"),
            sf.expr(seq).cast("long").alias("seq"),
            sf.expr(origin_seq).cast("long").alias("origin_seq"),
            sf.expr(detail).alias("detail"),
        ),
    )


def offenders(rows: DataFrame, *rules: Column) -> DataFrame:
    """All offenders among rows; a row may break several rules."""
    return rows.select(sf.inline(sf.array_compact(sf.array(*rules))))


# Messages: every accepted one is scheduled or finalised, exactly once


def accounts_of_messages(facts: DataFrame, waiting: DataFrame, ended: DataFrame) -> DataFrame:
    """One row for each message, by the seq of its first version."""
    # A version that replaces none accepts a message, or accepts one that has failed once more.
    accepted = facts.filter("fact = 'put' and (seq = origin_seq or kills_seq is null)").selectExpr(
        "origin_seq", "if(seq = origin_seq, 1, 0) as accepted", "if(seq = origin_seq, 0, 1) as retried",
        "null as wait_seq", "null as end_seq", "null as outcome",
    )  # fmt: skip
    waits = messages(waiting).selectExpr("origin_seq", "0", "0", "seq", "null", "null")
    ends = single(ended).selectExpr("origin_seq", "0", "0", "null", "seq", "outcome")
    return (
        accepted.union(waits)
        .union(ends)
        .groupBy("origin_seq")
        .agg(
            sf.expr("sum(accepted) as accepted"),
            sf.expr("sum(retried) as retried"),
            sf.expr("count_if(outcome = 'failed') as failed"),
            sf.expr("max(if(outcome = 'failed', end_seq, null)) as failed_seq"),
            sf.expr("min(if(outcome != 'failed', end_seq, null)) as last_seq"),
            sf.expr("count(wait_seq) as waits"),
            sf.expr("max(wait_seq) as wait_seq"),
            sf.expr("count(end_seq) as ends"),
            sf.expr("max(end_seq) as end_seq"),
            sf.expr("min(if(outcome = 'cancelled', end_seq, null)) as cancel_seq"),
            sf.expr("max(if(outcome = 'sent', end_seq, null)) as sent_seq"),
        )
    )


def message_offenders(accounts: DataFrame, first_seq: int) -> DataFrame:
    """Messages that are nowhere, or in two places, or that nobody accepted."""
    # Further back than the ledger goes, nobody can say what was accepted. Messages of batches have no records.
    known = f"origin_seq >= {first_seq} and origin_seq < {FIRST_BATCH_SEQ}"
    after = "coalesce(sent_seq > cancel_seq, false)"
    # One that has failed may be retried, and then ends once more. As long as all that was said of it is in the ledger, there is
    # a retry for each further end, and for one that waits; else only the order of the ends can be judged.
    whole = f"(accepted > 0 and origin_seq >= {first_seq})"
    twice = f"ends - failed > 1 or coalesce(failed_seq > last_seq, false) or ({whole} and ends > retried + 1)"
    both = f"waits > 0 and ends > 0 and (ends > failed or ({whole} and ends > retried))"
    return offenders(
        accounts,
        offence("lost", f"accepted > 0 and waits = 0 and ends <= if({whole}, retried, 0)", "origin_seq"),
        offence("scheduled twice", "waits > 1", "wait_seq", detail="concat(waits, ' versions')"),
        offence("finalised twice", f"({twice}) and not {after}", "end_seq", detail="concat(ends, ' ends')"),
        offence("sent after its cancel", after, "sent_seq", detail="concat('cancelled by seq ', cancel_seq)"),
        offence("scheduled and finalised", both, "wait_seq"),
        offence("never accepted", f"accepted = 0 and {known}", "coalesce(end_seq, wait_seq)"),
    )


# Versions: each is ended or replaced by one record at most


def accounts_of_versions(facts: DataFrame, waiting: DataFrame) -> DataFrame:
    """One row for each version, by its seq."""
    puts = facts.filter("fact = 'put'").selectExpr(
        "version_seq", "origin_seq as put_origin", "null as kill_seq", "null as kill_origin", "null as wait_seq",
        "null as claim_seq", "null as cancel_seq",
    )  # fmt: skip
    # A carried entry replaces an entry, and those that are not delayed are no facts.
    kills = facts.filter("kills_seq is not null").selectExpr(
        "kills_seq", "null", "seq", "if(fact = 'entry', null, origin_seq)", "null", "null",
        "if(outcome = 'cancelled', seq, null)",
    )  # fmt: skip
    waits = waiting.selectExpr("seq", "null", "null", "null", "seq", "null", "null")
    claims = facts.filter("fact = 'claim'").selectExpr(
        "version_seq", "null", "null", "null", "null", "seq", "null"
    )
    return (
        puts.union(kills)
        .union(waits)
        .union(claims)
        .groupBy("version_seq")
        .agg(
            sf.expr("max(put_origin) as put_origin"),
            sf.expr("count(kill_seq) as kills"),
            sf.expr("max(kill_seq) as kill_seq"),
            sf.expr("max(kill_origin) as origin_seq"),
            sf.expr("max(wait_seq) as wait_seq"),
            sf.expr("max(claim_seq) as claim_seq"),
            sf.expr("min(cancel_seq) as cancel_seq"),
        )
    )


def version_offenders(accounts: DataFrame, first_seq: int) -> DataFrame:
    """Versions that end twice, that end and were never there, that wait or go out although they have ended."""
    known = f"version_seq >= {first_seq} and version_seq < {FIRST_BATCH_SEQ}"
    strange = "put_origin is null or put_origin != origin_seq or kill_seq <= version_seq"
    version, by = "concat('version ', version_seq)", "concat('ended by seq ', kill_seq)"
    return offenders(
        accounts,
        offence("version ended twice", "kills > 1", "kill_seq", detail=version),
        offence(
            "unknown version ended", f"origin_seq is not null and {known} and ({strange})", "kill_seq", detail=version
        ),
        offence("dead version scheduled", "wait_seq is not null and kills > 0", "wait_seq", detail=by),
        offence(
            "sent after its cancel", "claim_seq > cancel_seq", "claim_seq",
            detail="concat('cancelled by seq ', cancel_seq)",
        ),
    )  # fmt: skip


# Ends: the history says what the ledger says


def accounts_of_ends(facts: DataFrame, ended: DataFrame) -> DataFrame:
    """One row for each end, by the seq of its record."""
    said = facts.filter("fact in ('end', 'cancel_batch')").selectExpr(
        "seq", "concat(origin_seq, coalesce(outcome, 'cancelled')) as said", "null as told", "origin_seq"
    )
    told = ended.selectExpr("seq", "null", "concat(origin_seq, outcome)", "origin_seq")
    return (
        said.union(told)
        .groupBy("seq")
        .agg(
            *(sf.max(name).alias(name) for name in ("said", "told", "origin_seq")),
            sf.count("told").alias("n"),
        )
    )


def end_offenders(accounts: DataFrame, first_seq: int) -> DataFrame:
    """Ends that the history lacks, has twice, tells otherwise or makes up."""
    return offenders(
        accounts,
        offence("not in the history", "said is not null and (told is null or told != said)", "seq"),
        offence("not in the ledger", f"said is null and seq >= {first_seq}", "seq"),
        offence("finalised twice", "n > 1", "seq", detail="'twice in the history'"),
    )


# Never early

BY_COMMAND: Final = "version_seq != origin_seq and fire_at_ms < due_at_ms and finalised_at_ms >= fire_at_ms"
"""A later version whose instant is before the due instant was made by a command: send it now."""


def early_offenders(ended: DataFrame, facts: DataFrame) -> DataFrame:
    """Messages that were sent before their due instant, and not by command; and entries that end no message."""
    early = f"finalised_at_ms < fire_at_ms or (finalised_at_ms < due_at_ms and not ({BY_COMMAND}))"
    sent = offence(
        "sent early", f"outcome = 'sent' and ({early})", "seq",
        detail="concat(greatest(fire_at_ms, due_at_ms) - finalised_at_ms, ' ms')",
    )  # fmt: skip
    hasty = offence(
        "sent early", "fact = 'put' and kills_seq is null and fire_at_ms < due_at_ms", "seq",
        detail="'accepted to go out before it is due'",
    )  # fmt: skip
    stray = offence("sent without an end", "fact = 'stray'", "seq", detail="topic")
    return offenders(single(ended), sent).union(offenders(facts, hasty, stray))


# Batches


def batch_offenders(facts: DataFrame, waiting: DataFrame, ended: DataFrame) -> DataFrame:
    """Batches whose messages are not all there, and messages that went out after their batch was cancelled."""
    cancels = facts.filter("fact = 'cancel_batch'").selectExpr(
        "origin_seq as first_seq", "messages", "spared", "seq as cancel_seq"
    )
    return _batches_off(facts, cancels, waiting, ended).union(_sent_after(cancels, ended))


def _batches_off(facts: DataFrame, cancels: DataFrame, waiting: DataFrame, ended: DataFrame) -> DataFrame:
    """A cancelled batch keeps no message that waits as it was adopted, but the spared ones."""
    adopted = facts.filter("fact = 'adopt'").selectExpr(
        "seq as adopt_seq", "origin_seq as first_seq", "messages"
    )
    members = (
        messages(waiting)
        .selectExpr("origin_seq", "seq", "true as waits")
        .union(single(ended).selectExpr("origin_seq", "version_seq", "false"))
        .filter(sf.col("origin_seq") >= FIRST_BATCH_SEQ)
    )
    batches = sf.broadcast(adopted.join(cancels.drop("messages"), "first_seq", "left"))
    left_over = "waits and seq = origin_seq and cancel_seq is not null and not array_contains(spared, seq)"
    counted = (
        batches.join(
            members, sf.expr("origin_seq >= first_seq and origin_seq < first_seq + messages"), "left"
        )
        .groupBy("adopt_seq", "first_seq", "messages", "cancel_seq")
        .agg(sf.expr("count(origin_seq) as n"), sf.expr(f"count_if({left_over}) as left_over"))
    )
    return offenders(
        counted,
        offence(
            "batch does not add up", "n > messages or left_over > 0 or (cancel_seq is null and n != messages)",
            "adopt_seq", "first_seq", "concat(n, ' of ', messages)",
        ),
    )  # fmt: skip


def _sent_after(cancels: DataFrame, ended: DataFrame) -> DataFrame:
    """Sent as they were adopted, after their batch was cancelled, and not being sent at that moment."""
    inside = "version_seq >= first_seq and version_seq < first_seq + messages"
    of_batches = single(ended).filter(sf.col("version_seq") >= FIRST_BATCH_SEQ).drop("messages")
    return offenders(
        of_batches.join(sf.broadcast(cancels), sf.expr(inside)),
        offence(
            "sent after its cancel",
            "outcome = 'sent' and seq > cancel_seq and not array_contains(spared, version_seq)",
            "seq", detail="concat('batch cancelled by seq ', cancel_seq)",
        ),
    )  # fmt: skip


def with_forgotten(facts: DataFrame, ended: DataFrame, kept_from_day: str) -> DataFrame:
    """The ends of the history, and those of the ledger that are older than the history keeps."""
    old = facts.filter("fact = 'end'").filter(
        sf.expr("date_format(timestamp_millis(at_ms), 'yyyy-MM-dd')") < kept_from_day
    )
    told = ("seq", "origin_seq", "outcome", "version_seq")
    return single(ended).select(*told).union(old.join(ended, "seq", "left_anti").select(*told))


def all_offenders(
    facts: DataFrame, waiting: DataFrame, ended: DataFrame, first_seq: int, kept_from_day: str = ""
) -> DataFrame:
    """Everybody who offends against any of the rules, but those about batches."""
    whole = ended
    if kept_from_day:
        old = with_forgotten(facts, ended, kept_from_day).withColumn("whole", sf.lit(False))
        whole = old.unionByName(ended.filter("whole").select(*old.columns))
    checks = (
        message_offenders(accounts_of_messages(facts, waiting, whole), first_seq),
        version_offenders(accounts_of_versions(facts, waiting), first_seq),
        end_offenders(accounts_of_ends(facts, whole), first_seq),
        early_offenders(ended, facts),
    )
    return reduce(DataFrame.union, checks)
