"""Names whose servers are silent hold up names of their own domain, and no others."""

import asyncio
import contextlib
import gc
import threading

import pytest

from tarry.outlets.webhook import resolver
from tarry.outlets.webhook.resolver import NameResolver
from tests.waiting import until

WITHIN_S = 30


async def test_silent_name_servers_hold_up_names_of_their_domain_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answering = threading.Event()
    asked: list[str] = []

    def lookup(host: str, *_: object) -> list[tuple[int, int, str]]:
        asked.append(host)
        if host.lower().rstrip(".").endswith("silent.example"):
            answering.wait(WITHIN_S)
        return [(2, 6, "192.0.2.1")]

    monkeypatch.setattr(resolver, "_lookup", lookup)
    names = NameResolver(threads=6, of_domain=4)
    asking = [asyncio.ensure_future(names.resolve(f"n{n}.Silent.example.")) for n in range(20)]
    async with asyncio.timeout(WITHIN_S):
        await until(lambda: len(asked) == 4, WITHIN_S)
        # Who gives up does not free the thread that asks for it.
        for one in asking[:4]:
            one.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*asking[:4])
        for n in range(20):
            (found,) = await names.resolve(f"n{n}.quick.example")
            assert found["host"] == "192.0.2.1"
        assert sum(host.lower().rstrip(".").endswith("silent.example") for host in asked) == 4
        answering.set()
        await asyncio.gather(*asking[4:])
    await names.close()
    # Nothing is kept of names that nobody asks for any more.
    del asking, one

    def forgotten() -> bool:
        gc.collect()
        return not dict(names._asking)

    await until(forgotten, WITHIN_S)
