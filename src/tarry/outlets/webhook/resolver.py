"""Names to addresses, in threads of its own.

The C library's resolver blocks, for many seconds when a name server is silent, and whoever schedules
webhooks chooses the names. In the event loop's shared threads a few such names would hold up everything
else that runs there; here they hold up at most the other webhooks. And of those only the ones in their own domain: of
the questions that are asked at a time, few are about names of one domain, whose servers are mostly the same.
"""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from weakref import WeakValueDictionary

from aiohttp.abc import AbstractResolver, ResolveResult

_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class NameResolver(AbstractResolver):
    """Asks the operating system, with at most `threads` questions at a time, and `of_domain` about names of one domain."""

    def __init__(self, threads: int = 16, of_domain: int = 4) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tarry-webhook-dns")
        self._of_domain = of_domain
        self._asking: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """By domain: those who ask, or wait to. It lasts for as long as somebody does."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Every address of a name, as numbers. Raises `OSError` if there is none."""
        turn = self._turn(host)
        await turn.acquire()
        try:
            asking = asyncio.get_running_loop().run_in_executor(self._threads, _lookup, host, port, family)
        except RuntimeError:
            turn.release()
            raise
        # Whoever asked may give up; its thread is free only when the system has answered.
        asking.add_done_callback(lambda _: turn.release())
        found = await asyncio.shield(asking)
        return [
            ResolveResult(
                hostname=host, host=address, port=port, family=each_family, proto=protocol, flags=_NUMERIC
            )
            for each_family, protocol, address in found
        ]

    def _turn(self, host: str) -> asyncio.Semaphore:
        domain = ".".join(host.lower().rstrip(".").rsplit(".", 2)[-2:])
        turn = self._asking.get(domain)
        if turn is None:
            turn = self._asking[domain] = asyncio.Semaphore(self._of_domain)
        return turn

    async def close(self) -> None:
        """Forget the questions not yet asked. Those under way end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _lookup(host: str, port: int, family: socket.AddressFamily) -> list[tuple[int, int, str]]:
    found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [(each_family, protocol, str(address[0])) for each_family, _, protocol, _, address in found]
