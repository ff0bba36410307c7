"""How many deliveries are under way, by host and in all.

Waiting for a turn is not the receiver's fault, so it must not eat up the time allowed for its answer:
that is why the waiting is done here and not inside the HTTP client's connection pool.
"""

import asyncio


class HostSlots:
    """Turns, first come first served. Remembers a host only while deliveries to it wait or run."""

    def __init__(self, total: int, per_host: int) -> None:
        self._per_host = per_host
        self._total = asyncio.Semaphore(total)
        self._hosts: dict[str, _HostTurns] = {}

    async def acquire(self, host: str) -> None:
        """Wait for a turn. Cancelling the wait gives up the place in the queue."""
        turns = self._hosts.get(host)
        if turns is None:
            turns = self._hosts[host] = _HostTurns(self._per_host)
        turns.users += 1
        try:
            # The host first: whoever waits for a slow host must not hold one of the common places.
            await turns.free.acquire()
            try:
                await self._total.acquire()
            except BaseException:
                turns.free.release()
                raise
        except BaseException:
            self._leave(host, turns)
            raise

    def release(self, host: str) -> None:
        """Give a turn back."""
        turns = self._hosts[host]
        self._total.release()
        turns.free.release()
        self._leave(host, turns)

    def __len__(self) -> int:
        """How many hosts are remembered."""
        return len(self._hosts)

    def _leave(self, host: str, turns: "_HostTurns") -> None:
        turns.users -= 1
        if turns.users == 0:
            del self._hosts[host]


class _HostTurns:
    __slots__ = ("free", "users")

    def __init__(self, turns: int) -> None:
        self.free = asyncio.Semaphore(turns)
        self.users = 0
