"""Records that the server was told to set aside: the pipeline passes them over, and keeps count of their seqs."""

import logging
import time
from pathlib import Path

import google_crc32c
import msgspec
import pytest

from tarry.client import Client
from tarry.core.errors import Damage
from tarry.core.limits import DAY_MS, HOUR_MS
from tarry.core.time.clock import SystemClock
from tarry.index.state import CommitState
from tarry.ledger.aside import NAME, SET_ASIDE, publish, published
from tarry.ledger.disk import RealDisk
from tarry.ledger.ledger import Ledger, LedgerSettings
from tarry.ledger.record import Encoded, Kind, encode
from tarry.pipeline.remote import ServerFollower
from tests.pipeline.kit import START_MS, Writer, index_folder, live, put, tables_of
from tests.pipeline.test_program import once
from tests.processes import ServerProcess


@pytest.fixture
def writer(tmp_path: Path) -> Writer:
    return Writer(tmp_path)


def unreadable(fire_at_ms: int, kills_seq: int = 0) -> Encoded:
    """A version whose body is proved by its checksum and cannot be decoded."""
    body = b"\xc1" * 40
    killed_ms = fire_at_ms if kills_seq else 0
    return encode(put(fire_at_ms))._replace(
        body=body, crc=google_crc32c.value(body), kills_seq=kills_seq, kills_fire_at_ms=killed_ms
    )


def append(ledger: Ledger, *records: Encoded) -> int:
    ledger.append(list(records), lambda _: None)
    ledger.commit()
    return ledger.durable_seq


def test_it_stops_at_a_record_that_it_cannot_decode_and_goes_on_without_it(
    writer: Writer, caplog: pytest.LogCaptureFixture
) -> None:
    tomorrow_ms = START_MS + DAY_MS
    good = [append(writer.ledger, encode(put(tomorrow_ms))) for _ in range(3)]
    # It replaces the second one: what it killed stays dead.
    bad = append(writer.ledger, unreadable(tomorrow_ms, kills_seq=good[1]))
    good.append(append(writer.ledger, encode(put(tomorrow_ms))))
    with pytest.raises(msgspec.DecodeError):
        index_folder(writer.folder)
    publish(writer.folder, {bad})
    with caplog.at_level(logging.WARNING, "tarry.pipeline.stream"):
        index_folder(writer.folder)
    assert caplog.messages == [f"seq {bad} is set aside: it is passed over"]
    tables = tables_of(writer)
    assert live(tables) == [(tomorrow_ms, seq) for seq in (good[0], good[2], good[3])]
    assert tables.index.cursor() == writer.ledger.durable_seq
    # Its end is a record of its own, so that it counts as accepted unless it replaced another.
    assert msgspec.convert(tables.index.state(), CommitState).accepted == 4


def test_one_that_was_the_first_of_its_message_counts_as_accepted(writer: Writer) -> None:
    bad = append(writer.ledger, unreadable(START_MS + DAY_MS))
    publish(writer.folder, {bad})
    index_folder(writer.folder)
    assert msgspec.convert(tables_of(writer).index.state(), CommitState).accepted == 1


def test_the_file_says_what_the_server_says(tmp_path: Path) -> None:
    folder = str(tmp_path)
    publish(folder, [])
    assert (published(folder), list(tmp_path.iterdir())) == (frozenset(), [])
    publish(folder, {7, 3})
    assert (published(folder), (tmp_path / NAME).read_text()) == (frozenset({3, 7}), "[3,7]")
    (tmp_path / NAME).write_text("[3,")
    with pytest.raises(Damage, match=NAME):
        published(folder)
    publish(folder, [])
    assert published(folder) == frozenset()


def test_the_real_pipeline_passes_over_what_a_real_server_has_set_aside(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with ServerProcess(data) as server:
        server.start()
        with Client(server.url) as client:
            kept = client.schedule("orders", b"kept", delay="1h").id
        server.stop()
        settings = LedgerSettings(segment_bytes=1 << 20)
        ledger = Ledger.open(RealDisk(), str(data / "ledger"), settings, SystemClock())
        bad = append(ledger, unreadable(time.time_ns() // 1_000_000 + HOUR_MS))
        ledger.close()
        assert f"`tarry serve --set-aside {bad}` starts without it" in server.refused()
        server.start(arguments=["--set-aside", str(bad)])
        with Client(server.url) as client:
            client.schedule("orders", b"later", delay="1h")
            over_http = ServerFollower(server.url, None)
            assert over_http.set_aside() == {bad}
            (frame,) = (one for one in over_http.frames(bad, bad))
            assert frame.fixed["kind"].tolist() == [Kind.PUT | SET_ASIDE]
            ran = once(data)
            assert (ran.returncode, f"seq {bad} is set aside: it is passed over" in ran.stderr) == (
                0,
                True,
            ), ran.stderr
            # Its index is one that the server takes.
            assert client.get(kept).state == "scheduled"
        server.stop()
        server.start()
        with Client(server.url) as client:
            assert client.get(kept).state == "scheduled"
            assert published(str(data / "ledger")) == {bad}
