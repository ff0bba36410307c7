"""The Pulsar door on real sockets: the bound on connections, garbage, silence, and a stop."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tarry.config.pulsar import Pulsar
from tarry.core.tenants.access import Access
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.frames import Frames, frame
from tarry.serve.composition.pulsar import PulsarDoor
from tarry.serve.transport.connection_budget import ConnectionBudget
from tarry.serve.transport.listener import ListenError
from tests.unit.engine_kit import Bench

Type = wire.BaseCommand
HELLO = frame(
    wire.BaseCommand(type=Type.CONNECT, connect=wire.CommandConnect(client_version="x", protocol_version=20))
)
WITHIN_S = 30


@contextlib.asynccontextmanager
async def opened(access: Access | None = None, **settings: Any) -> AsyncIterator[tuple[PulsarDoor, int]]:
    """A door on a free port, with an engine behind it that nobody steps."""
    door = PulsarDoor(Pulsar(port=0, **settings), access or Access.open(), ConnectionBudget())
    (url,) = door.bind()
    await door.start(Bench().engine)
    try:
        yield door, int(url.rpartition(":")[2])
    finally:
        await door.stop()
        await door.close()


async def read_all(reader: asyncio.StreamReader) -> list[wire.BaseCommand]:
    """Every command until the connection ends."""
    async with asyncio.timeout(WITHIN_S):
        try:
            data = await reader.read()
        except ConnectionResetError:
            data = b""
    return [wire.BaseCommand.FromString(body) for body, _ in Frames(1 << 20).feed(data)]


async def hear(reader: asyncio.StreamReader) -> wire.BaseCommand:
    async with asyncio.timeout(WITHIN_S):
        size = int.from_bytes(await reader.readexactly(4), "big")
        ((body, _),) = Frames(1 << 20).feed(size.to_bytes(4, "big") + await reader.readexactly(size))
    return wire.BaseCommand.FromString(body)


async def test_as_many_as_are_allowed() -> None:
    async with opened(max_connections=1) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HELLO)
        assert (await hear(reader)).type == Type.CONNECTED
        refused, other = await asyncio.open_connection("127.0.0.1", port)
        assert await read_all(refused) == []
        other.close()
        writer.close()
        await writer.wait_closed()
        for _ in range(500):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(HELLO)
            try:
                assert (await hear(reader)).type == Type.CONNECTED
                break
            except (asyncio.IncompleteReadError, ConnectionResetError):
                await asyncio.sleep(0.01)
        else:
            pytest.fail("there is never room again")
        writer.close()


async def test_a_client_before_connect_makes_room_for_another() -> None:
    async with opened(max_connections=1) as (_, port):
        silent, first = await asyncio.open_connection("127.0.0.1", port)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HELLO)
        assert (await hear(reader)).type == Type.CONNECTED
        assert await read_all(silent) == []
        for one in (first, writer):
            one.close()


async def test_garbage_ends_it_with_a_reason() -> None:
    async with opened() as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HELLO + b"\xff" * 64)
        told = await read_all(reader)
        assert [command.type for command in told] == [Type.CONNECTED, Type.ERROR]
        assert "frame" in told[1].error.message
        writer.close()


async def test_who_stays_silent_is_pinged_and_closed() -> None:
    async with opened(keep_alive_ms=1_000) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HELLO)
        told = await read_all(reader)
        assert [command.type for command in told] == [Type.CONNECTED, Type.PING, Type.ERROR]
        writer.close()


async def test_a_stop_closes_every_connection() -> None:
    async with opened() as (door, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HELLO)
        assert (await hear(reader)).type == Type.CONNECTED
        await door.stop()
        assert await read_all(reader) == []
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        writer.close()


async def test_a_taken_address_is_told_in_words() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        door = PulsarDoor(Pulsar(port=taken.getsockname()[1]), Access.open(), ConnectionBudget())
        with pytest.raises(ListenError, match=r"doors.pulsar.port"):
            door.bind()
