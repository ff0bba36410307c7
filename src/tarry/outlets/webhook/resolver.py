"""Names to addresses, in threads of its own.

The C library's resolver blocks, for many seconds when a name server is silent, and whoever schedules
webhooks chooses the names. In the event loop's shared threads a few such names would hold up everything
else that runs there; here they hold up at most the other webhooks.
"""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor

from aiohttp.abc import AbstractResolver, ResolveResult

_NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


class NameResolver(AbstractResolver):
    """Asks the operating system, with at most `threads` questions at a time."""

    def __init__(self, threads: int = 16) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="tarry-webhook-dns")

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Every address of a name, as numbers. Raises `OSError` if there is none."""
        found = await asyncio.get_running_loop().run_in_executor(self._threads, _lookup, host, port, family)
        return [
            ResolveResult(
                hostname=host, host=address, port=port, family=each_family, proto=protocol, flags=_NUMERIC
            )
            for each_family, protocol, address in found
        ]

    async def close(self) -> None:
        """Forget the questions not yet asked. Those under way end by themselves."""
        self._threads.shutdown(wait=False, cancel_futures=True)


def _lookup(host: str, port: int, family: socket.AddressFamily) -> list[tuple[int, int, str]]:
    found = socket.getaddrinfo(host, port, family, socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [(each_family, protocol, str(address[0])) for each_family, _, protocol, _, address in found]
