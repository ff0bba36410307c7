"""Server-side request forgery: nothing leads the outlet to an address that is not allowed."""

import asyncio
import socket

import pytest
from aiohttp.abc import ResolveResult

from tarry.core.messages.delivery import Delivered, Refused, Retry
from tests.unit.webhook_kit import (
    ScriptedResolver,
    receiving,
    sending,
    to,
)


async def test_internal_addresses_are_refused_when_sending() -> None:
    async with receiving() as (receiver, port), sending(allow=()) as outlet:
        for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "0x7f.1", "2130706433"):
            verdict = await outlet.send(to(f"http://{host}:{port}/"))
            assert isinstance(verdict, Refused), host
    assert receiver.peers == []


@pytest.mark.parametrize("address", ["127.0.0.1", "::ffff:127.0.0.1", "::ffff:7f00:1"])
async def test_a_name_that_leads_inside_is_refused(address: str) -> None:
    resolver = ScriptedResolver([address])
    async with receiving() as (receiver, port), sending(resolver, allow=()) as outlet:
        outlet.check(f"http://inside.example:{port}/")  # nothing is wrong with the name itself
        verdict = await outlet.send(to(f"http://inside.example:{port}/x?token=secret"))
        assert verdict == Refused(
            "inside.example is or leads to a loopback address, which is not allowed here (setting: webhook.allow)"
        )
    assert resolver.asked == ["inside.example"]
    assert receiver.peers == []


async def test_the_same_name_by_the_real_resolver() -> None:
    async with receiving() as (receiver, port):
        async with sending(allow=("no.example",)) as outlet:
            # Resolved by the C library: «localhost.» and «127.1» are stopped before, so go below `check`.
            outlet._check = lambda target: None  # type: ignore[method-assign]
            verdict = await outlet.send(to(f"http://localhost:{port}/"))
            assert isinstance(verdict, Refused)
            assert "loopback" in verdict.reason
        assert receiver.peers == []
        async with sending(allow=("localhost",)) as outlet:
            assert await outlet.send(to(f"http://localhost:{port}/")) == Delivered()


async def test_a_name_that_changes_its_address_is_refused() -> None:
    """DNS rebinding: first an allowed address, then, once it is trusted, one inside."""
    resolver = ScriptedResolver(["127.0.0.2"], ["127.0.0.1"])
    async with receiving() as (receiver, port), sending(resolver, allow=("127.0.0.2",)) as outlet:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            other_port = unused.getsockname()[1]
            first = await outlet.send(to(f"http://rebound.example:{other_port}/"))
        assert first == Retry("connection refused (rebound.example)")
        second = await outlet.send(to(f"http://rebound.example:{port}/"))
        assert isinstance(second, Refused)
    assert len(resolver.asked) == 2
    assert receiver.peers == []


async def test_of_several_addresses_only_the_allowed_are_tried() -> None:
    async with receiving() as (receiver, port):
        for order in (["127.0.0.2", "127.0.0.1"], ["127.0.0.1", "127.0.0.2"]):
            # Nobody listens at 127.0.0.2, the allowed one: it may work later, and the other stays shut.
            async with sending(ScriptedResolver(order), allow=("127.0.0.2",)) as outlet:
                assert isinstance(await outlet.send(to(f"http://mixed.example:{port}/")), Retry)
        assert receiver.peers == []
        for order in (["10.0.0.1", "127.0.0.1"], ["127.0.0.1", "10.0.0.1"]):
            async with sending(ScriptedResolver(order)) as outlet:
                assert await outlet.send(to(f"http://mixed.example:{port}/")) == Delivered()
        async with sending(ScriptedResolver(["127.0.0.1", "10.0.0.1", "::1"]), allow=()) as outlet:
            assert isinstance(await outlet.send(to(f"http://mixed.example:{port}/")), Refused)


async def test_an_allowed_name_may_lead_inside_and_no_other() -> None:
    resolver = ScriptedResolver(["127.0.0.1"])
    async with receiving() as (_, port), sending(resolver, allow=("hooks.internal",)) as outlet:
        assert await outlet.send(to(f"http://hooks.internal:{port}/")) == Delivered()
        assert isinstance(await outlet.send(to(f"http://other.internal:{port}/")), Refused)
        results = await asyncio.gather(
            *(outlet.send(to(f"http://{name}.internal:{port}/")) for name in ("hooks", "other") * 10)
        )
        assert [type(result) for result in results] == [Delivered, Refused] * 10


async def test_a_resolver_that_answers_with_a_name_is_not_believed() -> None:
    resolver = ScriptedResolver(["localhost"])
    async with receiving() as (receiver, port), sending(resolver) as outlet:
        verdict = await outlet.send(to(f"http://odd.example:{port}/"))
        assert not isinstance(verdict, Delivered)
    assert receiver.peers == []


async def test_an_unknown_name_is_tried_again() -> None:
    async with sending(ScriptedResolver([])) as outlet:
        verdict = await outlet.send(to("http://unknown.example/"))
    assert verdict == Retry("the name could not be resolved (unknown.example)")


async def test_a_slow_name_times_out() -> None:
    class Slow(ScriptedResolver):
        async def resolve(
            self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
        ) -> list[ResolveResult]:
            await asyncio.Event().wait()
            return []

    async with sending(Slow([]), total_timeout_ms=100) as outlet:
        assert await outlet.send(to("http://slow.example/")) == Retry(
            "timed out (slow.example)", uncertain=True
        )


async def test_proxies_in_the_environment_are_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    async with receiving() as (receiver, port), receiving() as (proxy, proxy_port), sending() as outlet:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy_port}")
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        assert await outlet.send(to(f"http://127.0.0.1:{port}/")) == Delivered()
    assert (len(receiver.requests), len(proxy.requests)) == (1, 0)


async def test_a_bad_destination_is_refused_and_not_raised() -> None:
    async with sending() as outlet:
        verdict = await outlet.send(to("http://user:secret@127.0.0.1/"))
    assert verdict == Refused("a user name or password in the URL is not allowed; use a header")


def test_the_guard_holds_on_uvloop() -> None:
    uvloop = pytest.importorskip("uvloop")

    async def scenario() -> None:
        async with receiving() as (receiver, port):
            async with sending(ScriptedResolver(["127.0.0.1"]), allow=()) as outlet:
                assert isinstance(await outlet.send(to(f"http://inside.example:{port}/")), Refused)
            assert receiver.peers == []
            async with sending(ScriptedResolver(["127.0.0.1"])) as outlet:
                assert await outlet.send(to(f"http://inside.example:{port}/")) == Delivered()
                assert outlet._sockets.open_count() == 1
            assert outlet._sockets.open_count() == 0

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scenario())
