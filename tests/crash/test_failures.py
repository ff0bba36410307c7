"""A server on a bad disk or folder: a clear line and exit code 1, or a clear answer, and nothing that was answered is lost."""

import contextlib
import os
import re
import shutil
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Final

import google_crc32c
import pytest

from tarry.client import Client
from tarry.core.errors import Conflict, TarryError, Unavailable
from tests.disks import mounted
from tests.processes import ROOT, ServerProcess

pytestmark = pytest.mark.crash

SMALL: Final = "[ledger]\nsegment_bytes = 1048576\n"
TOPIC: Final = "persistent://public/default/t"
BIG: Final = b"x" * 100_000


def flip(file: Path, offset: int) -> None:
    """Flip one bit of one byte."""
    with file.open("r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)[0]
        stream.seek(offset)
        stream.write(bytes([byte ^ 0x10]))


def filled(server: ServerProcess, count: int = 3, payload: bytes = b"x") -> list[str]:
    """Start it, schedule some messages that are far away, stop it cleanly; gives their ids."""
    server.start()
    with Client(server.url) as client:
        ids = [client.schedule(TOPIC, payload, delay="1h").id for _ in range(count)]
    assert server.stop() == 0
    return ids


def holds(server: ServerProcess, ids: list[str]) -> None:
    """Start it: everything is there."""
    server.start()
    with Client(server.url) as client:
        assert {client.get(id_).state for id_ in ids} == {"scheduled"}


# Folders that cannot be written


def test_a_read_only_folder_is_refused(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "16m"), ServerProcess(tmp_path / "disk" / "data", SMALL) as server:
        ids = filled(server)
        # Its log and its configuration are elsewhere from here on.
        server.log = tmp_path / "log"
        server.log.touch()
        subprocess.run(["mount", "-o", "remount,ro", tmp_path / "disk"], check=True)
        assert server.refused().endswith(
            "is on a read-only file system; remount it or set `data` to another folder"
        )
        # A new folder there cannot be made either.
        new = ServerProcess(tmp_path / "new", SMALL)
        new.folder = tmp_path / "disk" / "new"
        assert "is on a read-only file system" in new.refused()
        subprocess.run(["mount", "-o", "remount,rw", tmp_path / "disk"], check=True)
        holds(server, ids)


def test_a_disk_too_small_for_one_segment_is_refused(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "900k"):
        server = ServerProcess(tmp_path / "data", SMALL)
        server.folder = tmp_path / "disk" / "data"
        assert "space" in server.refused()
        # And again, now that the folder is there.
        assert "space" in server.refused()


def test_a_full_disk_refuses_new_work_and_keeps_the_rest(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "12m"):
        server = ServerProcess(tmp_path / "data", SMALL)
        server.folder = tmp_path / "disk" / "data"
        with server:
            server.start()
            with Client(server.url, retry_for_s=0) as client:
                client.subscribe(TOPIC, "s", start="earliest")
                near = client.schedule(TOPIC, "near", delay_ms=3_000)
                cancelled = [client.schedule(TOPIC, "never", delay_ms=3_000).id for _ in range(5)]
                ballast = tmp_path / "disk" / "ballast"
                _fill(ballast)
                far = _schedule_until_refused(client)
                assert far, "there was room for some"
                assert not client.ready()
                # What ends things still works, and what is due is not lost, whether it can go out yet or not.
                for id_ in cancelled:
                    assert client.cancel(id_).state == "cancelled"
            # Neither a stop nor a crash while the disk is full changes anything of that.
            _fill(ballast)
            assert server.stop() == 0
            _fill(ballast)
            server.start()
            server.kill()
            server.start()
            with Client(server.url, retry_for_s=0) as client:
                assert not client.ready()
                with pytest.raises(Unavailable, match="space"):
                    client.schedule(TOPIC, BIG, delay="1h")
                far.append(cancelled_far := far.pop())
                assert client.cancel(cancelled_far).state == "cancelled"
                ballast.unlink()
                _wait_ready(client)
                far.append(client.schedule(TOPIC, BIG, delay="1h").id)
                received = client.receive(TOPIC, "s", wait_ms=20_000)
                assert [entry.payload for entry in received] == [b"near"]
                assert received[0].published_at_ms >= (near.due_at_ms or 0)
                assert {client.get(id_).state for id_ in far[:-2]} == {"scheduled"}
                assert client.receive(TOPIC, "s", wait_ms=300) == []
        assert "Traceback" not in server.said()


def _fill(file: Path) -> None:
    with file.open("ab") as stream, contextlib.suppress(OSError):
        while True:
            os.write(stream.fileno(), bytes(1 << 12))


def _schedule_until_refused(client: Client) -> list[str]:
    taken: list[str] = []
    with pytest.raises(Unavailable, match="space"):
        while True:
            taken.append(client.schedule(TOPIC, BIG, delay="1h").id)
    return taken


def _wait_ready(client: Client) -> None:
    deadline = time.monotonic() + 30
    while not client.ready():
        assert time.monotonic() < deadline, client.status()
        time.sleep(0.05)


# Folders that are not what they should be


def test_damage_to_a_segment_is_named_and_refused(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data", SMALL)
    with server:
        ids = filled(server, 18, BIG)
        oldest, newest = sorted(server.folder.glob("ledger/0*.seg"))[:2]
        for file in (oldest, newest):
            # In the body of one of the first frames, which others follow.
            flip(file, 4096 + 5_000)
            said = re.fullmatch(
                rf"tarry: {file}: damaged at byte (\d+): .*checksum does not match.*", server.refused()
            )
            assert said is not None
            assert 4096 <= int(said[1]) < 4096 + 5_000
            flip(file, 4096 + 5_000)
        holds(server, ids)


def test_a_folder_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data", SMALL)
    with server:
        ids = filled(server)
        (file,) = server.folder.glob("ledger/0*.seg")
        content = file.read_bytes()
        block = bytearray(content[:4096])
        block[12:16] = (99).to_bytes(4, "little")
        block[8:12] = google_crc32c.value(bytes(block[12:])).to_bytes(4, "little")
        file.write_bytes(bytes(block) + content[4096:])
        said = server.refused()
        assert f"{file} was written by a newer Tarry, in format version 99" in said
        assert "run the newer program" in said
        file.write_bytes(content)
        holds(server, ids)


def test_backups_of_different_times_and_servers(tmp_path: Path) -> None:
    server, other = ServerProcess(tmp_path / "one", SMALL), ServerProcess(tmp_path / "two", SMALL)
    with server, other:
        old = filled(server)
        shutil.copytree(server.folder, tmp_path / "old")
        new = filled(server)
        filled(other)
        ledger, registry, kept = server.folder / "ledger", server.folder / "registry", tmp_path / "kept"

        # An older ledger under the registry: what the registry knows would be lost.
        ledger.rename(kept)
        shutil.copytree(tmp_path / "old" / "ledger", ledger)
        assert "the ledger is older than the registry" in server.refused()

        # The ledger of another server.
        shutil.rmtree(ledger)
        shutil.copytree(other.folder / "ledger", ledger)
        assert "two backups" in server.refused()

        # The key of another server: no id that was given out could be read.
        key = server.folder / "id.key"
        own = key.read_bytes()
        key.write_bytes((other.folder / "id.key").read_bytes())
        shutil.rmtree(ledger)
        shutil.copytree(kept, ledger)
        assert "id.key and the ledger do not belong together" in server.refused()
        key.write_bytes(own)

        # An older registry is no loss: the ledger brings it up to date.
        shutil.rmtree(ledger)
        kept.rename(ledger)
        shutil.rmtree(registry)
        shutil.copytree(tmp_path / "old" / "registry", registry)
        holds(server, old + new)


@pytest.mark.parametrize("place", ["header", "row"])
def test_a_damaged_registry_is_replaced_by_its_snapshot(tmp_path: Path, place: str) -> None:
    often = "[engine]\nflush_every_ms = 50\nreclaim_every_ms = 50\nsnapshot_every_ms = 50\n"
    server = ServerProcess(tmp_path / "data", SMALL + often)
    with server:
        server.start()
        with Client(server.url) as client:
            client.subscribe(TOPIC, "the-subscription", start="earliest")
            first = client.schedule(TOPIC, "x", delay="1h", owner="somebody").id
            snapshot = server.folder / "registry" / "registry-1.snapshot.sha256"
            deadline = time.monotonic() + 20
            while not snapshot.exists():
                assert time.monotonic() < deadline
                client.publish(TOPIC, "y")
                time.sleep(0.05)
            # Not in any snapshot for sure.
            second = client.schedule(TOPIC, "z", delay="1h", owner="somebody").id
            entries = client.topic_stats(TOPIC)["next_entry"]
        assert server.stop() == 0
        file = server.folder / "registry" / "registry.sqlite"
        with contextlib.closing(sqlite3.connect(file)) as connection:
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        flip(file, 3 if place == "header" else _where(file, b"the-subscription"))
        server.start()
        assert "the registry was damaged" in server.said()
        with Client(server.url) as client:
            assert {client.get(id_).state for id_ in (first, second)} == {"scheduled"}
            received = client.receive(TOPIC, "the-subscription", max=1000)
            assert [entry.entry_id for entry in received] == list(range(entries))


def test_a_damaged_registry_without_a_snapshot_is_made_anew_from_the_ledger(tmp_path: Path) -> None:
    """Nothing was reclaimed yet, so the ledger holds everything."""
    server = ServerProcess(tmp_path / "data", SMALL)
    with server:
        ids = filled(server)
        flip(server.folder / "registry" / "registry.sqlite", 3)
        holds(server, ids)
        assert "the registry was damaged" in server.said()


def _where(file: Path, content: bytes) -> int:
    at = file.read_bytes().rfind(content)
    assert at > 0
    return at


def test_a_server_killed_while_it_makes_its_folder(tmp_path: Path) -> None:
    server = ServerProcess(tmp_path / "data", SMALL)
    with server:
        for wait_s in (0.6, 0.9, 1.2):
            server.launch()
            deadline = time.monotonic() + 20
            # From the moment that there is a folder; the moments of its making follow.
            while not server.folder.exists() and time.monotonic() < deadline:
                time.sleep(0.005)
            time.sleep((wait_s - 0.6) / 10)
            server.kill()
        filled(server)


# A disk that fails

BROKEN_SYNC: Final = """
import errno, os, pathlib
_sync, _switch = os.fdatasync, pathlib.Path(os.environ["BROKEN_WHILE"])
def fdatasync(descriptor):
    if _switch.exists():
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    _sync(descriptor)
os.fdatasync = fdatasync
"""
"""Put before the server: every sync fails while a file is there, as on a dying disk."""


def test_a_failed_sync_ends_the_server_and_loses_nothing(tmp_path: Path) -> None:
    (tmp_path / "before").mkdir()
    (tmp_path / "before" / "sitecustomize.py").write_text(BROKEN_SYNC)
    switch = tmp_path / "broken"
    environment = {
        "PYTHONPATH": f"{tmp_path / 'before'}{os.pathsep}{ROOT / 'src'}",
        "BROKEN_WHILE": str(switch),
    }
    with ServerProcess(tmp_path / "data", SMALL) as server:
        server.start(**environment)
        with Client(server.url, retry_for_s=0) as client:
            client.subscribe(TOPIC, "s", start="earliest")
            kept = client.schedule(TOPIC, "kept", delay="1h").id
            near = client.schedule(TOPIC, "near", delay_ms=1_500)
            switch.touch()
            with pytest.raises(Unavailable, match="may or may not be stored"):
                client.schedule(TOPIC, "unknown", delay="1h")
            # For good: the disk may be well again, but nobody knows what it has.
            switch.unlink()
            for refused in (lambda: client.schedule(TOPIC, "no", delay="1h"), lambda: client.cancel(kept)):
                with pytest.raises(Unavailable, match="the disk failed"):
                    refused()
            assert not client.ready()
            # What is in memory may be more than what is on disk, so nothing is told of it.
            with pytest.raises(Unavailable, match="the disk failed"):
                client.get(kept)
        # By itself, so that its supervisor starts it again: only a start finds out what the disk has.
        assert server.reap() == 1
        assert "the ledger has stopped for good" in server.said()
        assert server.said().splitlines()[-1].endswith("start it again")
        server.start()
        with Client(server.url) as client:
            assert client.get(kept).state == "scheduled"
            (entry,) = client.receive(TOPIC, "s")
            assert entry.payload == b"near"
            assert entry.published_at_ms >= (near.due_at_ms or 0)
        assert "Traceback" not in server.said()


def test_damage_that_shows_while_running_is_said_and_the_next_start_mends_it(tmp_path: Path) -> None:
    """The row of a group cannot be read: whether a sibling was sent is not known, so nothing is done to its members."""
    with ServerProcess(tmp_path / "data", SMALL) as server:
        server.start()
        with Client(server.url) as client:
            client.subscribe(TOPIC, "s", start="earliest")
            ids = [client.schedule(TOPIC, f"of a group {n}", delay="1h", group="g").id for n in range(2)]
            client.schedule(TOPIC, "alone", delay="1h")
        assert server.stop() == 0
        server.start()
        # The start reads every group; it goes bad afterwards.
        with contextlib.closing(sqlite3.connect(server.folder / "registry" / "registry.sqlite")) as registry:
            registry.execute("UPDATE groups SET crc = crc + 1")
            registry.commit()
        with Client(server.url) as client:
            # Look-ups read from one view between two flushes, which does not see the change: this makes a new one.
            client.schedule(TOPIC, "another", delay="1h")
            assert list(client.list(state="finalised")) == []
        with Client(server.url, retry_for_s=0) as client:
            with pytest.raises(TarryError, match="not what was written"):
                client.send(ids[0])
            assert client.receive(TOPIC, "s", wait_ms=200) == []
        assert "registry table groups" in server.said()
        assert server.stop() == 0
        server.start()
        assert "the registry was damaged" in server.said()
        with Client(server.url) as client:
            with contextlib.suppress(Conflict):
                # Unless that is what happened before the end.
                client.send(ids[0])
            (entry,) = client.receive(TOPIC, "s")
            assert entry.payload == b"of a group 0"
            assert client.get(ids[1]).state == "cancelled"
            assert (
                client.receive(TOPIC, "s", wait_ms=200) == [] or client.topic_stats(TOPIC)["next_entry"] == 1
            )
