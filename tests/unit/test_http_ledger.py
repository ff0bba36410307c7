"""The ledger over HTTP: the same records as in the folder, byte for byte, for admins only."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tarry.core.errors import Damage, Forbidden, NotFound, Unavailable
from tarry.doors.http.settings import HttpSettings
from tarry.ledger.follow import FolderFollower, Follower
from tarry.pipeline.remote import ServerFollower
from tarry.testing.insides import InsidesOf
from tests.certificates import certificate
from tests.serving import Serving, serving
from tests.waiting import until

TOKENS = [
    {"name": "all", "token": "secret-of-all", "roles": ["admin"]},
    {"name": "some", "token": "secret-of-some", "roles": ["admin"], "namespaces": ["public/default"]},
    {"name": "producer", "token": "secret-of-producer", "roles": ["produce"]},
]


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving(tmp_path / "data", tokens=TOKENS) as server:
        server.client.headers["authorization"] = "Bearer secret-of-all"
        yield server


async def fill(served: Serving, count: int = 6) -> int:
    """Some records, over more than one segment of a mebibyte; gives the durable head."""
    for n in range(count):
        body = {"destination": "t", "delay": "1h", "payload": f"{n}" * 500_000}

        async def taken(body: dict[str, str] = body) -> bool:
            answer = await served.client.post("/v1/messages", json=body)
            # Where the disk is slow, the next segment may not be filled yet: come again, as it says.
            assert answer.status_code in (201, 503)
            return answer.status_code == 201

        await until(taken)
    return InsidesOf(served.engine).durable_seq


def records(follower: Follower, from_seq: int, upto_seq: int) -> list[tuple[int, bytes]]:
    return [
        (frame.first_seq + i, frame.body(i))
        for frame in follower.frames(from_seq, upto_seq)
        for i in range(frame.count)
    ]


def remote(served: Serving, token: str = "secret-of-all", patience_s: float = 20) -> ServerFollower:
    return ServerFollower(served.url, token, patience_s)


async def test_it_shows_what_the_folder_holds(served: Serving, tmp_path: Path) -> None:
    head = await fill(served)
    folder, server = FolderFollower(str(tmp_path / "data/ledger")), remote(served)
    assert len(folder.bounds()) > 2
    shown = await asyncio.to_thread(
        lambda: (server.ledger_id(), server.first_seq(), server.bounds(), records(server, 2, head))
    )
    assert shown == (folder.ledger_id(), 1, folder.bounds(), records(folder, 2, head))
    assert [seq for seq, _ in shown[3]] == list(range(2, head + 1))


async def test_frames_are_those_of_the_disk_up_to_the_durable_head(served: Serving, tmp_path: Path) -> None:
    head = await fill(served, 1)
    answer = await served.client.get("/v1/ledger/frames", params={"upto_seq": head + 1_000})
    assert answer.headers["tarry-last-seq"] == str(head)
    offset = int(answer.headers["tarry-offset"])
    disk = (tmp_path / "data/ledger/00000001.seg").read_bytes()
    assert answer.content == disk[offset : offset + len(answer.content)]
    # Then come zeros, or what was made durable meanwhile: a frame of its own.
    assert disk[offset + len(answer.content) :][:4] in (b"\0\0\0\0", b"TYfr")
    beyond = await served.client.get("/v1/ledger/frames", params={"from_seq": head + 1_000})
    assert (beyond.status_code, beyond.json()["code"]) == (404, "not-found")


@pytest.mark.parametrize(
    ("token", "status"), [("secret-of-some", 403), ("secret-of-producer", 403), ("no", 401)]
)
async def test_only_an_admin_of_everything_reads_it(served: Serving, token: str, status: int) -> None:
    for path in ("/v1/ledger", "/v1/ledger/frames"):
        refused = await served.client.get(path, headers={"authorization": f"Bearer {token}"})
        assert refused.status_code == status
    with pytest.raises(Forbidden, match="does not show its ledger"):
        await asyncio.to_thread(remote(served, token).durable_seq)


async def test_what_was_reclaimed_is_told(served: Serving) -> None:
    await fill(served)
    ledger = InsidesOf(served.engine).ledger
    assert ledger.reclaim(ledger.segments()[1].first_seq)
    with pytest.raises(NotFound, match="seq 1 has been reclaimed"):
        await asyncio.to_thread(records, remote(served), 1, 3)
    first = await asyncio.to_thread(remote(served).first_seq)
    assert first == ledger.first_seq > 1


async def test_what_is_being_read_stays_readable_when_it_is_reclaimed(served: Serving) -> None:
    await fill(served)
    ledger = InsidesOf(served.engine).ledger
    stretch = ledger.stretch(1, 1)
    before = stretch.file.read(stretch.size_bytes, stretch.offset)
    assert ledger.reclaim(ledger.segments()[1].first_seq)
    assert stretch.file.read(stretch.size_bytes, stretch.offset) == before


@pytest.mark.parametrize("place", [100, 200_000], ids=["in the table", "in a body"])
async def test_damage_is_told_with_its_place_both_ways(served: Serving, tmp_path: Path, place: int) -> None:
    await fill(served, 3)
    path = tmp_path / "data/ledger/00000001.seg"
    offset = InsidesOf(served.engine).ledger.stretch(2, 2).offset
    with path.open("r+b") as file:
        file.seek(offset + place)
        byte = file.read(1)[0]
        file.seek(offset + place)
        file.write(bytes([byte ^ 1]))
    for follower in (FolderFollower(str(path.parent)), remote(served)):
        with pytest.raises(Damage) as damage:
            await asyncio.to_thread(records, follower, 1, 3)
        assert (damage.value.offset, damage.value.file.endswith("00000001.seg")) == (offset, True)


async def test_a_damaged_header_is_told_with_its_place_too(served: Serving, tmp_path: Path) -> None:
    await fill(served, 3)
    ledger = InsidesOf(served.engine).ledger
    offset = ledger.stretch(1, 1).offset
    with (tmp_path / "data/ledger/00000001.seg").open("r+b") as file:
        file.seek(offset)
        file.write(b"\1" * 40)
    with pytest.raises(Damage) as damage:
        await asyncio.to_thread(records, remote(served), 1, 1)
    assert (damage.value.offset, damage.value.file) == (offset, f"{served.url} 00000001.seg")


async def test_a_stream_that_breaks_is_taken_up_where_it_broke(served: Serving) -> None:
    head = await fill(served)
    with breaking_proxy(served.port, after_bytes=700_000) as (port, broken):
        found = await asyncio.to_thread(
            records, ServerFollower(f"http://127.0.0.1:{port}", "secret-of-all"), 1, head
        )
    assert [seq for seq, _ in found] == list(range(1, head + 1))
    assert broken


async def test_more_readers_than_there_is_room_for_come_again(tmp_path: Path) -> None:
    door = HttpSettings(max_ledger_readers=1)
    async with serving(tmp_path / "data", door=door, ledger__segment_bytes=64 << 20) as served:
        for n in range(8):
            body = {"destination": "t", "delay": "1h", "payload": f"{n}" * 4_000_000}
            assert (await served.client.post("/v1/messages", json=body)).status_code == 201
        async with served.connect() as (reader, writer):
            # It asks for more than the sockets between hold, and takes none of it yet.
            writer.write(b"GET /v1/ledger/frames HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
            assert b"200" in await reader.readline()
            refused = await served.client.get("/v1/ledger/frames")
            assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
            with pytest.raises(Unavailable, match="already has 1 readers"):
                await asyncio.to_thread(records, ServerFollower(served.url, None, 0.3), 1, 1)

        async def room() -> bool:
            return (await served.client.get("/v1/ledger/frames")).status_code == 200

        await until(room)


async def test_over_tls_the_certificate_must_be_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cert, key = certificate(tmp_path)
    async with serving(tmp_path / "data", http__tls_cert=str(cert), http__tls_key=str(key)) as served:
        ledger_id = InsidesOf(served.engine).ledger.ledger_id
        follower = ServerFollower(served.url, None, patience_s=0)
        with pytest.raises(Unavailable, match="CERTIFICATE_VERIFY_FAILED"):
            await asyncio.to_thread(follower.ledger_id)
        monkeypatch.setenv("SSL_CERT_FILE", str(cert))
        assert await asyncio.to_thread(follower.ledger_id) == ledger_id


@contextmanager
def breaking_proxy(target: int, after_bytes: int) -> Iterator[tuple[int, list[Any]]]:
    """Passes connections on; the first one that brings more than this is cut."""
    listener = socket.create_server(("127.0.0.1", 0))
    broken: list[Any] = []

    def serve() -> None:
        while True:
            try:
                inward, _ = listener.accept()
            except OSError:
                return
            with inward, socket.create_connection(("127.0.0.1", target)) as outward:
                outward.sendall(inward.recv(65536))
                passed = 0
                while data := outward.recv(65536):
                    passed += len(data)
                    if passed > after_bytes and not broken:
                        broken.append(passed)
                        break
                    inward.sendall(data)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield listener.getsockname()[1], broken
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()
