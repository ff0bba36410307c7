"""Tokens that are added, changed and removed while the server runs: at a SIGHUP, in the real process, with whatever is open."""

import asyncio
import signal
from functools import partial
from pathlib import Path

import grpc
import httpx
import pytest
from dapr.proto.runtime.v1 import pubsub_pb2

from tarry.core.tenants.access import Access, Token
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.frames import frame
from tests.processes import ServerProcess, free_port, running
from tests.unit.test_dapr_grpc import Client as Calls
from tests.unit.test_dapr_grpc import opening
from tests.unit.test_serve_pulsar import read_all
from tests.waiting import until, wait_until

WITHIN_S = 30
TOPIC = "/v1/topics/public/default/t"
SUB = TOPIC + "/subscriptions/s"
LATER = {"destination": "persistent://public/default/t", "payload": "x", "delay": "1h"}


def table(name: str, *, secret: str = "", roles: str = '["admin"]', more: str = "") -> str:
    return (
        f'[[tokens]]\nname = "{name}"\ntoken = "{secret or name + "-long-enough"}"\nroles = {roles}\n{more}\n'
    )


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}-long-enough"}


class Renewed:
    """A server process whose tokens stand in its file."""

    def __init__(self, server: ServerProcess) -> None:
        self.server = server
        self.base = server.file.read_text().partition("[[tokens]]")[0]

    def renew(self, *tokens: str) -> str:
        """Write these tokens to the file and send the signal; gives what was logged."""
        self.server.file.write_text(self.base + "".join(tokens))
        return self.again()

    def again(self) -> str:
        before = self.server.said()
        self.server.signal(signal.SIGHUP)
        wait_until(lambda: "read again" in self.server.said()[len(before) :])
        return self.server.said()[len(before) :]


ONE = table("one")
TWO = table("two")


SEGMENTS = "[ledger]\nsegment_bytes = 1048576\n"


async def test_consumers_and_kept_heads_of_a_token_that_is_gone_end(tmp_path: Path) -> None:
    with running(tmp_path / "d", SEGMENTS + ONE + TWO) as server:
        async with (
            asyncio.timeout(WITHIN_S),
            httpx.AsyncClient(base_url=server.url, timeout=WITHIN_S, trust_env=False) as http,
        ):
            await http.put(SUB, json={}, headers=bearer("one"))
            # The same head again and again: it is answered by what is kept of the first.
            for _ in range(3):
                assert (await http.post("/v1/messages", json=LATER, headers=bearer("one"))).status_code == 201
            async with (
                http.stream("GET", f"{SUB}/events?consumer=one", headers=bearer("one")) as gone,
                http.stream("GET", f"{SUB}/events?consumer=two", headers=bearer("two")) as kept,
            ):
                gone_lines, kept_lines = gone.aiter_lines(), kept.aiter_lines()
                assert await anext(gone_lines) == await anext(kept_lines) == ": open"
                asked = {"consumer": "p", "wait_ms": 50_000}
                # Both poll as one consumer, which the first of them has opened.
                polls = []
                for name in ("one", "two"):
                    polls.append(
                        asyncio.create_task(http.post(SUB + "/receive", json=asked, headers=bearer(name)))
                    )
                    await until(partial(waiting, http, len(polls)))
                assert "tokens=1" in await asyncio.to_thread(Renewed(server).renew, TWO)

                assert "".join([line async for line in gone_lines]) == ""
                for refused in [await poll for poll in polls]:
                    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
                    assert "the token that opened this consumer is gone" in refused.json()["detail"]
                asked = {"consumer": "p", "wait_ms": 0}
                for name, status in (("one", 401), ("two", 200)):
                    answer = await http.post(SUB + "/receive", json=asked, headers=bearer(name))
                    assert answer.status_code == status
                for _ in range(2):
                    answer = await http.post("/v1/messages", json=LATER, headers=bearer("one"))
                    assert answer.status_code == 401
                # And nothing happened to the other one's.
                entry = await http.post(TOPIC + "/messages", json={"payload": "x"}, headers=bearer("two"))
                assert entry.is_success
                while not (await anext(kept_lines)).startswith("data:"):
                    pass


async def test_grpc_streams_of_a_token_that_is_gone_end(tmp_path: Path) -> None:
    port = free_port()
    door = f"[doors.dapr]\nenabled = true\nport = {free_port()}\ngrpc_port = {port}\n"
    with running(tmp_path / "d", SEGMENTS + door + ONE + TWO) as server:
        async with (
            asyncio.timeout(WITHIN_S),
            grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel,
        ):
            calls = {}
            for name in ("one", "two"):
                call = calls[name] = Calls(channel).stream((("dapr-api-token", f"{name}-long-enough"),))
                await call.write(opening(f"to-{name}"))
                assert (await call.read()).HasField("initial_response")
            await asyncio.to_thread(Renewed(server).renew, TWO)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await calls["one"].read()
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
            event = pubsub_pb2.PublishEventRequest(pubsub_name="pubsub", topic="to-two", data=b"x")
            await channel.unary_unary("/dapr.proto.runtime.v1.Dapr/PublishEvent")(
                event.SerializeToString(), metadata=(("dapr-api-token", "two-long-enough"),)
            )
            assert (await calls["two"].read()).HasField("event_message")
            calls["two"].cancel()


async def test_pulsar_connections_of_a_token_that_is_gone_end(tmp_path: Path) -> None:
    port = free_port()
    door = f"[doors.pulsar]\nenabled = true\nport = {port}\n"
    with running(tmp_path / "d", SEGMENTS + door + ONE + TWO) as server:
        async with asyncio.timeout(WITHIN_S):
            gone, kept = await connected(port, "one"), await connected(port, "two")
            await asyncio.to_thread(Renewed(server).renew, TWO)
            last = (await read_all(gone[0]))[-1]
            assert last.error.message == "the token is not in force any more"
            ping = frame(wire.BaseCommand(type=wire.BaseCommand.PING, ping=wire.CommandPing()))
            kept[1].write(ping)
            assert await kept[0].read(1)
            for _, writer in (gone, kept):
                writer.transport.abort()


async def waiting(http: httpx.AsyncClient, count: int) -> bool:
    """Whether so many polls wait as one consumer."""
    stats = (await http.get(TOPIC, headers=bearer("two"))).json()
    consumers = stats["subscriptions"]["s"]["consumers"]
    return bool([one["permits"] for one in consumers if one["name"] == "p"] == [count])


async def connected(port: int, name: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    connect = wire.CommandConnect(
        client_version="x", protocol_version=20, auth_data=f"{name}-long-enough".encode()
    )
    writer.write(frame(wire.BaseCommand(type=wire.BaseCommand.CONNECT, connect=connect)))
    size = int.from_bytes(await reader.readexactly(4), "big")
    assert (
        wire.BaseCommand.FromString((await reader.readexactly(size))[4:]).type == wire.BaseCommand.CONNECTED
    )
    return reader, writer


def test_tokens_come_and_change_and_what_cannot_be_changes_nothing(tmp_path: Path) -> None:
    with running(tmp_path / "d", SEGMENTS + ONE) as server:
        renewed = Renewed(server)

        def status(name: str, path: str = "/v1/status") -> int:
            return httpx.get(server.url + path, headers=bearer(name), trust_env=False).status_code

        assert (status("one"), status("two")) == (200, 401)
        renewed.renew(ONE, TWO)
        assert (status("one"), status("two")) == (200, 200)
        renewed.renew(ONE, table("two", roles='["consume"]'))
        assert (status("one"), status("two"), status("two", "/v1/overview")) == (200, 403, 200)
        # Another secret under the same name.
        renewed.renew(table("one", secret="three-long-enough"), TWO)
        assert (status("one"), status("three"), status("two")) == (401, 200, 200)
        for tokens, reason in (
            (
                (),
                "the tokens stay as they were: without any, everybody may do everything; that takes a restart",
            ),
            ((ONE, ONE), "two tokens are called one"),
            (("[[tokens]]\nname = 1\n",), "the tokens stay as they were"),
            (("no = toml = ",), "is not TOML"),
            ((table("one", more="operations_per_second = 0.5"),), "operations_per_second is at least 1"),
            (("[ledger]\nnonsense = 1\n",), "the tokens stay as they were"),
        ):
            assert reason in renewed.renew(*tokens)
            assert (status("one"), status("three"), status("two")) == (401, 200, 200)
        server.file.unlink()
        assert "there is no configuration file" in renewed.again()
        assert status("three") == 200


def test_a_rate_changes_without_ending_anything(tmp_path: Path) -> None:
    access = Access([Token.of("one", "one-long-enough", ["admin"], per_second=1)])
    caller = access.known(b"one-long-enough")
    assert caller is not None
    caller.standing.spend()
    access.replace([Token.of("one", "one-long-enough", ["admin"])])
    assert access.known(b"one-long-enough") is caller
    for _ in range(100):
        caller.standing.spend()
    access.replace([Token.of("one", "one-long-enough", ["admin"], ["public/default"])])
    assert not caller.standing.in_force
    assert access.known(b"one-long-enough") is not caller


def test_where_tokens_come_in_nobody_stays_who_showed_none(tmp_path: Path) -> None:
    with running(tmp_path / "d") as server, httpx.Client(base_url=server.url, trust_env=False) as http:
        for _ in range(3):
            assert http.post("/v1/messages", json=LATER).status_code == 201
        assert http.get("/v1/me").json()["open"]
        Renewed(server).renew(ONE)
        for _ in range(2):
            assert http.post("/v1/messages", json=LATER).status_code == 401
        assert http.post("/v1/messages", json=LATER, headers=bearer("one")).status_code == 201
        assert not http.get("/v1/me", headers=bearer("one")).json()["open"]


@pytest.mark.parametrize(
    ("before", "after", "authorization", "name"),
    [
        pytest.param(ONE + TWO, TWO, b"Authorization: Bearer one-long-enough\r\n", b"one", id="token"),
        pytest.param("", ONE, b"", b"anybody", id="nobody"),
    ],
)
async def test_a_batch_under_way_ends_with_what_let_it_in(
    before: str, after: str, authorization: bytes, name: bytes, tmp_path: Path
) -> None:
    line = b'{"destination":"t","delay_ms":3600000}\n'
    with running(tmp_path / "d", SEGMENTS + before) as server:
        async with asyncio.timeout(WITHIN_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(
                b"POST /v1/messages/batch HTTP/1.1\r\nHost: localhost\r\n"
                + authorization
                + b"Content-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n"
            )
            piece = b"%x\r\n%b\r\n" % (len(line), line)
            writer.write(piece)
            assert b"200" in await reader.readuntil(b"\r\n")
            await reader.readuntil(b'"id"')
            await asyncio.to_thread(Renewed(server).renew, after)
            writer.write(piece)
            answer = await reader.readuntil(b"\r\n0\r\n\r\n")
            assert b"the token " + name + b" is not in force any more" in answer
            assert b'"id"' not in answer
            writer.transport.abort()
