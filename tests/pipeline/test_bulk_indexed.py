"""Batches on their whole way: staged, adopted, added to the index by the stream, and delivered from there by the server."""

from pathlib import Path

import pyarrow as pa
import pytest

from tarry.core.limits import DAY_MS, HOUR_MS
from tarry.engine.admission.adoption import BatchView
from tarry.index.incoming import Mapping
from tarry.index.manifest import new_token
from tarry.index.staging import Stager, manifest_of
from tarry.pipeline import stream
from tarry.testing.insides import InsidesOf
from tests.pipeline.kit import START_MS, Writer, index_locally, tables_of


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Writer:
    monkeypatch.setattr(stream, "now_ms", lambda: START_MS)
    return Writer(tmp_path, indexed=True)


def bulk(writer: Writer, name: str, dues_ms: list[int]) -> BatchView:
    """Schedule messages with these due instants as one batch."""
    index = tables_of(writer).index.uri.removeprefix("file://").rstrip("/")
    place = writer.engine.batches.place(index, lambda namespace: True)
    stager = Stager(place, Mapping(destination="orders"), name, new_token(name))
    payloads = [f"{name} {at}" for at in range(len(dues_ms))]
    stager.add(pa.record_batch({"due": pa.array(dues_ms, pa.int64()), "payload": payloads}))
    view: BatchView = writer.settle(writer.engine.batches.adopt(name, manifest_of(place, [stager.finish()])))
    return view


def index_all(writer: Writer) -> None:
    """Let the index stream pass everything, and the server see it."""
    index_locally(writer, tables_of(writer), first_seq=tables_of(writer).index.cursor() + 1)
    writer.run(5_000)
    assert InsidesOf(writer.engine).horizon.view.cursor == tables_of(writer).index.cursor()


def delivered(writer: Writer) -> list[str]:
    """The topic's entries, in order."""
    sub = writer.settle(writer.engine.topics.subscribe("orders", "reader", "shared", start="earliest"))
    got: list[str] = []
    reader = sub.attach("r", lambda entries: got.extend(entry.payload.decode() for entry in entries))
    reader.flow(100_000)
    writer.run(0)
    reader.close()
    return got


def test_a_batch_is_delivered_from_the_index(writer: Writer) -> None:
    bulk(writer, "far", [START_MS + 2 * DAY_MS + n * HOUR_MS for n in range(24)])
    bulk(writer, "off", [START_MS + 2 * DAY_MS + n * HOUR_MS for n in range(24)])
    bulk(writer, "now", [START_MS - 1, START_MS])
    writer.run(1_000)
    index_all(writer)
    # What was delivered before it was indexed, and what is cancelled after it was, does not come again.
    assert writer.settle(writer.engine.batches.cancel("off")).cancelled == 24
    for _ in range(4):
        writer.run(DAY_MS)
    assert delivered(writer) == ["now 0", "now 1", *(f"far {n}" for n in range(24))]
    for name in ("far", "off", "now"):
        assert writer.settle(writer.engine.batches.batch(name)).remaining == 0


def test_a_restart_reads_what_is_indexed_from_the_index_and_the_rest_from_where_it_was_staged(
    writer: Writer,
) -> None:
    bulk(writer, "first", [START_MS + 2 * DAY_MS + n for n in range(5)])
    bulk(writer, "off", [START_MS + 2 * DAY_MS + n for n in range(5)])
    index_all(writer)
    bulk(writer, "second", [START_MS + 2 * DAY_MS + 10 + n for n in range(5)])
    writer.settle(writer.engine.batches.cancel("off"))
    for _ in range(3):
        writer.restart()
        writer.run(DAY_MS)
    assert delivered(writer) == [f"{name} {n}" for name in ("first", "second") for n in range(5)]


def test_a_batch_that_is_indexed_while_it_joins_comes_once(writer: Writer) -> None:
    writer.schedule(10 * 60_000, payload=b"single")
    writer.run(60_000)
    bulk(writer, "near", [START_MS + 61_000 + n for n in range(50)])
    index_locally(writer, tables_of(writer))
    writer.run(5_000)
    writer.run(HOUR_MS)
    assert delivered(writer) == [*(f"near {n}" for n in range(50)), "single"]
