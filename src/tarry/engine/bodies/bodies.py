"""Bodies of records, wherever they are: in memory, in the ledger, or in the index alone.

What is in memory or in the ledger is read at once; of messages that are commanded by their ids, those touched last are
in memory: a heartbeat follows the one before it within seconds, and reading the ledger for it costs as much as writing
to it. What only the index has (its segment was reclaimed, or it came with a batch) is *absent*: it is fetched on another
thread and then *held* in memory until its version is dead. What is due soon is fetched ahead, so that a due message
rarely waits for it.
"""

import logging
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from tarry.core.errors import Damage, NotFound, TarryError
from tarry.core.time.clock import Clock
from tarry.engine.due.horizon import Horizon, Offload
from tarry.engine.due.postponed import Postponed
from tarry.index.index import IndexMoved
from tarry.ledger.frame import Unit
from tarry.ledger.ledger import Ledger
from tarry.ledger.record import FIRST_BATCH_SEQ, NO_KEY, Key, Put, decode_put

log = logging.getLogger(__name__)

Body = bytes | Damage | None
"""A body, or `Damage` in the place of one that is not what was written, or None where there is none."""

AHEAD_BYTES: Final = 64 * 1024 * 1024
"""When so much is held, nothing more is fetched ahead."""

AHEAD_MS: Final = 3_000
AHEAD_EVERY_MS: Final = 500
AHEAD_ENTRIES: Final = 20_000

FETCH_BYTES: Final = 16 * 1024 * 1024
"""Fetched in one piece, about."""

AGAIN_MS: Final = 200
"""How soon a fetch that failed is tried again."""


RECENT_BYTES: Final = 16 * 1024 * 1024
"""Bytes of the bodies that were written last. Ten thousand heartbeats are four million."""


class BodyNotAtHand(Exception):
    """A body is in the index alone: fetch it, and look again."""


class Fetch(NamedTuple):
    """A request for the bodies of some keys, in order, and the callback that takes them, perhaps in several pieces."""

    keys: Sequence[Key]
    found: Callable[[Sequence[Key], list[Body]], None]


class Enqueued:
    """The units that are not durable yet, in the order of their seqs."""

    def __init__(self) -> None:
        self._units: dict[int, Unit] = {}
        self._firsts: list[int] = []
        """The first seq of each, and before these, up to `_gone`, those of units that are written."""
        self._gone = 0

    def add(self, first_seq: int, unit: Unit) -> None:
        """Take the newest unit."""
        self._units[first_seq] = unit
        self._firsts.append(first_seq)

    def remove(self, first_seq: int) -> None:
        """Let go of the oldest unit, and now and then of the place where it stood."""
        del self._units[first_seq]
        self._gone += 1
        if self._gone * 2 >= len(self._firsts):
            del self._firsts[: self._gone]
            self._gone = 0

    def body(self, seq: int) -> bytes | None:
        """The body of a record in one of them."""
        if not self._units or seq < self._firsts[self._gone]:
            return None
        first_seq = self._firsts[bisect_right(self._firsts, seq) - 1]
        unit = self._units[first_seq]
        return unit.body(seq - first_seq) if seq < first_seq + unit.records else None


class Bodies:
    """Reads bodies and holds those that took long to get."""

    def __init__(
        self, ledger: Ledger, horizon: Horizon, postponed: Postponed, offload: Offload, clock: Clock
    ) -> None:
        self._enqueued = Enqueued()
        self._postponed = postponed
        self._ledger = ledger
        self._horizon = horizon
        self._offload = offload
        self._clock = clock
        self._recent: OrderedDict[int, bytes] = OrderedDict()
        self._recent_bytes = 0
        self._held: dict[int, Body] = {}
        self._held_bytes = 0
        self._fetches: deque[Fetch] = deque()
        self._fetching = False
        self._again_at_ms: int | None = None
        self._next_ahead_ms = 0

    # At once

    def one(self, seq: int) -> bytes:
        """The body of one record, checked (R3); raises `BodyNotAtHand`, `Damage` or `NotFound`."""
        body: Body = self._enqueued.body(seq) or self._recent.get(seq)
        if body is None:
            if self._in_ledger(seq):
                return self._ledger.read(seq).body
            if seq not in self._held:
                raise BodyNotAtHand
            body = self._held[seq]
        if isinstance(body, Damage):
            raise body
        if body is None:
            raise NotFound(f"there is no record at seq {seq}")
        return body

    def version(self, seq: int) -> Put:
        """The version that one record holds; raises as `one` does, and `Damage` for a record of another kind."""
        return version_of(seq, self.one(seq))

    def enqueue(self, first_seq: int, unit: Unit) -> None:
        """A unit is enqueued: until it is written its bodies cannot be read from the ledger."""
        self._enqueued.add(first_seq, unit)

    def written(self, first_seq: int, unit: Unit, recent: Sequence[int]) -> None:
        """The oldest unit can be read from the ledger now, or never will be; some of its bodies stay at hand for a while."""
        self._enqueued.remove(first_seq)
        for place in recent:
            # It may have been replaced since it was enqueued.
            if first_seq + place not in self._horizon.dead:
                self._keep_recent(first_seq + place, unit.body(place))

    def _keep_recent(self, seq: int, body: bytes) -> None:
        self._recent[seq] = body
        self._recent_bytes += len(body)
        while self._recent_bytes > RECENT_BYTES:
            self._recent_bytes -= len(self._recent.popitem(last=False)[1])

    def many(self, seqs: NDArray[np.int64]) -> list[Body]:
        """The bodies of records that are not absent."""
        try:
            return list(self._ledger.bodies(seqs))
        except (Damage, NotFound):
            return [self._body_or_damage(seq) for seq in seqs.tolist()]

    def _body_or_damage(self, seq: int) -> Body:
        if seq in self._held:
            return self._held[seq]
        try:
            return self._ledger.read(seq).body
        except Damage as damage:
            return damage
        except NotFound:
            return None

    def entries(self, seqs: NDArray[np.int64]) -> list[Body]:
        """The bodies of topic entries, which are always in memory or in the ledger; None where there is no seq."""
        wanted = seqs.tolist()
        # An entry that is being carried forward has its new place already, which may not be durable yet.
        found: list[Body] = list(map(self._enqueued.body, wanted))
        missing = [at for at, body in enumerate(found) if body is None and wanted[at]]
        if missing:
            for at, body in zip(missing, self.many(seqs[missing]), strict=True):
                found[at] = body
        return found

    def _in_ledger(self, seq: int) -> bool:
        return self._ledger.first_seq <= seq < FIRST_BATCH_SEQ

    # From the index

    def absent(self, seqs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Which of these have to be fetched first."""
        absent: NDArray[np.bool_] = (seqs < self._ledger.first_seq) | (seqs >= FIRST_BATCH_SEQ)
        for at in np.flatnonzero(absent).tolist():
            absent[at] = int(seqs[at]) not in self._held
        return absent

    def hold(self, keys: Sequence[Key], done: Callable[[], None]) -> None:
        """Fetch bodies and hold them; calls back once none is absent."""
        left = len(keys)

        def found(some: Sequence[Key], bodies: list[Body]) -> None:
            nonlocal left
            self._hold(some, bodies)
            left -= len(some)
            if not left:
                done()

        self._fetch(Fetch(sorted(keys), found))

    def look_up(self, key: Key, then: Callable[[Body], None]) -> None:
        """Fetch one body without holding it."""
        self._fetch(Fetch([key], lambda _, bodies: then(bodies[0])))

    def _fetch(self, fetch: Fetch) -> None:
        self._fetches.append(fetch)
        self._fetch_on()

    def forget(self, seq: int) -> None:
        """A version is dead: its body is wanted no more."""
        recent = self._recent.pop(seq, None)
        if recent is not None:
            self._recent_bytes -= len(recent)
        body = self._held.pop(seq, None)
        if isinstance(body, bytes):
            self._held_bytes -= len(body)

    def forget_many(self, seqs: NDArray[np.int64]) -> None:
        """Let go of the bodies of versions that are dead."""
        if self._recent or self._held:
            for seq in [seq for seq in seqs.tolist() if seq in self._recent or seq in self._held]:
                self.forget(seq)

    def turn(self, now_ms: int) -> None:
        """Try failed fetches again, and fetch the bodies of messages due soon ahead."""
        if self._again_at_ms is not None:
            if 0 < self._again_at_ms - now_ms <= AGAIN_MS:
                return
            self._again_at_ms = None
            self._fetch_on()
        if abs(self._next_ahead_ms - now_ms) > AHEAD_EVERY_MS or now_ms >= self._next_ahead_ms:
            self._next_ahead_ms = now_ms + AHEAD_EVERY_MS
            self._fetch_ahead(now_ms)

    def _fetch_ahead(self, now_ms: int) -> None:
        if self._fetching or not self._horizon.view.may_hold(NO_KEY, Key(now_ms + AHEAD_MS, 0)):
            return
        if self._held_bytes >= AHEAD_BYTES:
            # Those of a batch that was cancelled as a whole ended without a word.
            for seq in [seq for seq in self._held if seq in self._horizon.dead]:
                self.forget(seq)
            if self._held_bytes >= AHEAD_BYTES:
                return
        due = self._horizon.wheel.entries(Key(0, 0), AHEAD_ENTRIES)
        soon = due.at(due.fire_at_ms <= now_ms + AHEAD_MS)
        wanted = soon.at(self.absent(soon.seqs) & ~self._horizon.dead.contains_many(soon.seqs))
        keys = list(map(self._postponed.key_of, wanted.fire_at_ms.tolist(), wanted.seqs.tolist()))
        if keys:
            self.hold(keys, lambda: None)

    def _fetch_on(self) -> None:
        if self._fetching or self._again_at_ms is not None or not self._fetches:
            return
        self._fetching = True
        keys, found = self._fetches.popleft()
        view = self._horizon.view
        bodies: list[Body] = []

        def work() -> None:
            bodies.extend(view.bodies(keys, FETCH_BYTES))

        def fetched(error: Exception | None) -> None:
            self._fetching = False
            if error is not None:
                self._failed(error)
                self._fetches.appendleft(Fetch(keys, found))
                return
            if len(bodies) < len(keys):
                self._fetches.appendleft(Fetch(keys[len(bodies) :], found))
            found(keys[: len(bodies)], bodies)
            self._fetch_on()

        self._offload(work, fetched)

    def _failed(self, error: Exception) -> None:
        if isinstance(error, IndexMoved):
            self._horizon.follow_soon()
        elif isinstance(error, TarryError | OSError):
            log.error("bodies cannot be read from the index, and are tried again: %s", error)
        else:
            raise error
        self._again_at_ms = self._clock.now_ms() + AGAIN_MS

    def _hold(self, keys: Sequence[Key], bodies: list[Body]) -> None:
        for key, body in zip(keys, bodies, strict=False):
            # It may have ended while its body was on the way.
            if key.seq not in self._horizon.dead and key.seq not in self._held:
                self._held[key.seq] = body
                if isinstance(body, bytes):
                    self._held_bytes += len(body)


def version_of(seq: int, body: bytes) -> Put:
    """The version in the body of a record; raises `Damage` if it is none: whole bytes can be wrong all the same."""
    try:
        return decode_put(body)
    except msgspec.MsgspecError as error:
        raise Damage(
            f"the record at seq {seq}", 0, f"the record is no version ({type(error).__name__})"
        ) from None
