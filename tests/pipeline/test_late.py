"""A pipeline that is first started when the ledger has let go of its beginning: it begins with what is there."""

from collections.abc import Callable
from pathlib import Path

import httpx
import msgspec
import pytest
from pyspark.sql import SparkSession

from tarry.core.errors import Conflict, Unavailable
from tarry.ledger.record import NO_PUT, Entry, Key, encode
from tarry.pipeline.audit.audit import audit
from tarry.pipeline.ledger_parts import LedgerAddress
from tarry.pipeline.verify import pin
from tests.pipeline.kit import (
    START_MS,
    Writer,
    history,
    index_folder,
    index_locally,
    live,
    put,
    record,
    tables_of,
)
from tests.pipeline.test_audit import end
from tests.pipeline.test_backup import CONFIG, SUBSCRIPTION, scheduled
from tests.processes import running
from tests.waiting import wait_until

HOUR_MS = 3_600_000


def first_seq(client: httpx.Client) -> int:
    return int(client.get("/v1/ledger").json()["first_seq"])


def churned(client: httpx.Client, upto_seq: int, each: Callable[[], None] = lambda: None) -> None:
    """Messages that come and go, until the ledger begins above a seq."""

    def reclaimed() -> bool:
        each()
        for id_ in scheduled(client, 5, "7200000", "noise"):
            client.delete(f"/v1/messages/{id_}")
        return first_seq(client) > upto_seq

    wait_until(reclaimed, lambda: "nothing was reclaimed")


def test_it_begins_with_what_is_left_and_nothing_is_missing(spark: SparkSession, tmp_path: Path) -> None:
    data = tmp_path / "data"
    with (
        running(data, CONFIG) as server,
        httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client,
    ):
        client.put(SUBSCRIPTION, json={"start": "earliest"})
        far = scheduled(client, 10, "7200000", "far")
        due = scheduled(client, 3, "90000", "due")
        churned(client, 13)
        assert client.delete(f"/v1/messages/{far[0]}").status_code == 200
        # The server goes on with it: what waits is in the index, and the ledger lets go of that too.
        churned(client, first_seq(client), lambda: index_folder(str(data / "ledger")))
        states = [client.get(f"/v1/messages/{id_}").json()["state"] for id_ in far]
        assert states == ["cancelled"] + ["scheduled"] * 9
        for id_ in due:
            assert client.post(f"/v1/messages/{id_}/send").status_code == 200
        came: list[str] = []

        def all_came() -> bool:
            got = client.post(f"{SUBSCRIPTION}/receive", json={"wait_ms": 1000, "max": 100}).json()
            came.extend(one["key"] for one in got["messages"])
            return len(came) >= len(due)

        wait_until(all_came)
        assert sorted(came) == ["due-0", "due-1", "due-2"]
    verdict = audit(spark, {"path": str(data)})
    assert verdict.balanced, verdict


def reclaimed(folder: Path) -> tuple[Writer, Key]:
    """A ledger whose first segment is gone, and the last key in it. What lived there was replaced or has ended since."""
    writer = Writer(folder, segment_bytes=16 << 10)
    fire_ms = START_MS + HOUR_MS
    while len(writer.ledger.segments()) < 2:
        record(writer, put(fire_ms))
    last = writer.ledger.segments()[0].last_seq
    carried, sent, cancelled, copied = (Key(fire_ms, last - n) for n in range(4))
    again = msgspec.structs.replace(put(fire_ms), kills=carried, origin=Key(fire_ms, 1))
    fired = Entry("orders", 0, fire_ms, 1, sent, msgspec.Raw(encode(put(fire_ms)).body))
    entry = Entry("orders", 0, fire_ms, 0, None, msgspec.Raw(NO_PUT), carries=copied)
    record(writer, again, fired, end(cancelled, "cancelled", fire_ms), entry)
    assert writer.ledger.reclaim(last)
    return writer, carried


def test_what_is_older_than_the_index_counts_when_it_is_first_heard_of(tmp_path: Path) -> None:
    writer, last = reclaimed(tmp_path)
    tables = tables_of(writer)
    tables.begin(writer.ledger.first_seq)
    assert (tables.index.cursor(), tables.history.cursor()) == (last.seq, last.seq)
    index_locally(writer, tables, first_seq=writer.ledger.first_seq)
    new = writer.ledger.durable_seq - last.seq - 4
    state = tables.index.state()
    # The carried one, the sent one and the cancelled one; not the entry of a topic.
    assert (state["began"], state["accepted"]) == (last.seq, new + 3)
    assert len(live(tables)) == new + 1
    assert sorted(row["outcome"] for row in history(tables)) == ["cancelled", "sent"]
    # The carried one is cancelled in its turn: it was counted before.
    record(writer, end(Key(last.fire_at_ms, last.seq + new + 1), "cancelled", last.fire_at_ms))
    index_locally(writer, tables, first_seq=writer.ledger.durable_seq)
    assert (tables.index.state()["accepted"], len(live(tables))) == (new + 3, new)


def test_a_beginning_is_made_once(tmp_path: Path) -> None:
    writer, last = reclaimed(tmp_path)
    tables, others = tables_of(writer), tables_of(writer)
    tables.begin(last.seq + 1)
    with pytest.raises(Conflict, match="another commit came first"):
        others.begin(last.seq + 1)
    others.refresh()
    others.begin(last.seq + 2)
    assert others.index.cursor() == last.seq
    # A driver that died between the two tables left the history ahead.
    died = tables_of(Writer(tmp_path / "other"))
    died.history.append([], 1, 5, {})
    died.begin(9)
    assert (died.index.cursor(), died.history.cursor()) == (8, 8)


def test_an_index_that_the_ledger_has_left_behind_is_refused(tmp_path: Path) -> None:
    writer, _ = reclaimed(tmp_path)
    tables = tables_of(writer)
    tables.begin(2)
    with pytest.raises(Unavailable, match="the index ends at seq 1, but the ledger begins at"):
        pin(tables.index, LedgerAddress.of({"folder": writer.folder}))
    tables.begin(writer.ledger.first_seq)
    assert tables.index.cursor() == 1
