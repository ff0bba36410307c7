"""A repeat: a message that is sent again and again, and when. Pure: what is asked for, how far it has come, and its next occurrences.

An occurrence is known by its planned instant, which the rhythm gives; it is due then, or later by its jitter.
"""

import hashlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice
from typing import Final, Literal

from msgspec import Struct

from tarry.core.errors import Invalid, TooLarge
from tarry.core.limits import DAY_MS, MAX_DELAY_MS, MAX_HEADERS
from tarry.core.messages.message import Message
from tarry.core.names import check_name
from tarry.core.schedules.civil import Period
from tarry.core.schedules.cron import Cron
from tarry.core.schedules.rhythm import ByMonths, OnClock, Rhythm, Steady, latest_ms
from tarry.core.schedules.zones import Offset, utc
from tarry.core.time.times import format_instant

Missed = Literal["all", "latest", "none"]
"""Which missed occurrences are sent late, once the server runs again or the repeat is resumed."""

OffsetOf = Callable[[str], Offset]
"""The offset of a zone by its name; raises `Invalid` for a name that is none."""

MAX_PAYLOAD_BYTES: Final = 64 * 1024
"""Payload of a repeat: every repeat is held in memory as a whole."""
MAX_REPEATS: Final = 100_000
MAX_REPEATS_BYTES: Final = 64 * 1024 * 1024
"""Maximum number of repeats on a server, and bytes of their payloads and headers."""
MAX_COUNT: Final = (1 << 53) - 1
NAME_HEADER: Final = "tarry-repeat"
"""Header of an occurrence: the name of its repeat."""
PLANNED_HEADER: Final = "tarry-occurrence"
"""Header of an occurrence: its planned instant, which no other occurrence of the repeat has."""
SHOWN: Final = 5
"""Next instants that are shown of a repeat."""


class Repeat(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request to send a message again and again, by an interval or by cron."""

    destination: str
    payload: bytes = b""
    headers: dict[str, str] = {}
    key: str | None = None
    owner: str = ""
    ttl_ms: int | None = None
    """Time to live of each occurrence, from its due instant."""
    door: str = "http"
    every_ms: int = 0
    """The interval. It is time that passes: clocks that are set do not change it."""
    every_months: int = 0
    """Months of the interval by the calendar, in UTC."""
    cron: str | None = None
    zone: str = ""
    """The IANA time zone of cron; UTC if empty."""
    start_at_ms: int | None = None
    """No occurrence is before this. With an interval it is the first one."""
    end_at_ms: int | None = None
    """No occurrence is after this."""
    count: int | None = None
    """How many occurrences there are in all; those that were missed and are not sent do not count."""
    jitter_ms: int = 0
    """Each occurrence is due up to so much later than planned, but never as late as the next one is planned."""
    missed: Missed = "latest"

    def check(self) -> None:
        """Raise `Invalid` or `TooLarge` for fields that can never be a repeat."""
        self.occurrence("repeat", 0, 0).check()
        if len(self.payload) > MAX_PAYLOAD_BYTES:
            raise TooLarge("payload", MAX_PAYLOAD_BYTES)
        if len(self.headers) > MAX_HEADERS - 2:
            raise Invalid(
                "headers", f"there are more than {MAX_HEADERS - 2}: an occurrence has two of its own"
            )
        if NAME_HEADER in self.headers or PLANNED_HEADER in self.headers:
            raise Invalid("headers", f"{NAME_HEADER} and {PLANNED_HEADER} are set by the repeat")
        if (self.cron is None) == (not self.every_ms and not self.every_months):
            raise Invalid("every", "give an interval or cron, and not both")
        if self.cron is None and not 1 <= self.every_ms + self.every_months * 28 * DAY_MS <= MAX_DELAY_MS:
            raise Invalid("every", "is not between 1 ms and 100 years")
        if self.every_ms < 0 or self.every_months < 0:
            raise Invalid("every", "is negative; give 0 or more")
        if self.zone and self.cron is None:
            raise Invalid("zone", "is for cron: an interval is time that passes, the same in every zone")
        for field in ("start_at_ms", "end_at_ms"):
            if (getattr(self, field) or 0) < 0:
                raise Invalid(field, "is before 1970")
        if self.start_at_ms is not None and self.end_at_ms is not None and self.end_at_ms < self.start_at_ms:
            raise Invalid("end_at_ms", "is before the start; give a later instant")
        if self.count is not None and not 1 <= self.count <= MAX_COUNT:
            raise Invalid("count", "is not between 1 and 2^53")
        if not 0 <= self.jitter_ms <= DAY_MS:
            raise Invalid("jitter_ms", "is not between 0 and a day")

    @property
    def size_bytes(self) -> int:
        """About how many bytes of memory its content takes."""
        return len(self.payload) + sum(len(name) + len(value) for name, value in self.headers.items()) + 512

    def occurrence(
        self, name: str, planned_at_ms: int, due_at_ms: int, namespace: str | None = None
    ) -> Message:
        """One occurrence as a message. Limits of its owner count the repeat, and not each of its messages."""
        return Message(
            destination=self.destination, payload=self.payload, key=self.key, owner=self.owner, door=self.door,
            headers=self.headers | {NAME_HEADER: name, PLANNED_HEADER: format_instant(planned_at_ms)},
            namespace=namespace, due_at_ms=due_at_ms, ttl_ms=self.ttl_ms, follows=True,
        )  # fmt: skip


class RepeatProgress(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far a repeat has come."""

    next_at_ms: int | None
    """The planned instant of the next occurrence; None after the last."""
    made: int = 0
    """Occurrences that were accepted as messages."""
    last_at_ms: int | None = None
    """The planned instant of the last of these."""
    since_ms: int = 0
    """Occurrences planned for an earlier instant are missed: when it was resumed."""
    paused_at_ms: int | None = None
    over_at_ms: int | None = None
    """When its last occurrence was accepted."""
    ahead: tuple[tuple[int, int, int], ...] = ()
    """Occurrences that were accepted ahead of their instants: fire instant, seq and planned instant of each."""


class PlannedOccurrence(Struct, frozen=True):
    """One occurrence to come."""

    planned_at_ms: int
    due_at_ms: int
    following_at_ms: int | None
    """The planned instant of the one after it; None for the last."""


def check_repeat_name(name: str) -> None:
    """Raise `Invalid` unless this can name a repeat."""
    check_name(name, "name")


class Occurrences:
    """The occurrences of one repeat."""

    def __init__(self, repeat: Repeat, identity: str, offset_of: OffsetOf) -> None:
        """Jitter depends on the identity: the same for every attempt to make an occurrence, another for each repeat."""
        self._repeat = repeat
        self._identity = identity
        if repeat.cron is not None:
            self._rhythm: Rhythm = _on_clock(repeat.cron, repeat.zone, offset_of)
        elif repeat.every_months:
            self._rhythm = ByMonths(Period(repeat.every_months, repeat.every_ms))
        else:
            self._rhythm = Steady(repeat.every_ms)

    def first_at_ms(self, now_ms: int) -> int | None:
        """The planned instant of the first occurrence of a repeat that is made now; None if there is none."""
        start_ms = self._repeat.start_at_ms
        if self._repeat.cron is not None:
            first_ms = self._rhythm.next_ms(0, max(now_ms, (start_ms or 0) - 1))
        elif start_ms is None:
            first_ms = self._rhythm.next_ms(now_ms, now_ms)
        else:
            first_ms = start_ms if start_ms >= now_ms else self._rhythm.next_ms(start_ms, now_ms - 1)
        return self._bounded(first_ms)

    def planned(self, at_ms: int, made: int) -> PlannedOccurrence:
        """The occurrence at a planned instant, which so many came before."""
        after_ms = self._rhythm.next_ms(at_ms, at_ms)
        due_at_ms = at_ms
        if self._repeat.jitter_ms:
            span_ms = (
                self._repeat.jitter_ms
                if after_ms is None
                else min(self._repeat.jitter_ms, after_ms - at_ms - 1)
            )
            due_at_ms += self._jitter_ms(at_ms, span_ms)
        last = self._repeat.count is not None and made + 1 >= self._repeat.count
        return PlannedOccurrence(at_ms, due_at_ms, None if last else self._bounded(after_ms))

    def after_missed(self, at_ms: int, before_ms: int) -> int | None:
        """The occurrence with which to go on if those before an instant are missed, the first of them at `at_ms`."""
        if self._repeat.missed == "all":
            return at_ms
        if self._repeat.missed == "none":
            return self._bounded(self._rhythm.next_ms(at_ms, before_ms - 1))
        end_ms = self._repeat.end_at_ms
        return latest_ms(self._rhythm, at_ms, before_ms - 1 if end_ms is None else min(end_ms, before_ms - 1))

    def shown(self, progress: RepeatProgress, now_ms: int, most: int = SHOWN) -> list[int]:
        """The due instants of the next occurrences after now; of a paused repeat, those if it were resumed now."""
        return list(islice(self._to_come(progress, now_ms), most))

    def _to_come(self, progress: RepeatProgress, now_ms: int) -> Iterator[int]:
        yield from (fire_at_ms for fire_at_ms, *_ in progress.ahead if fire_at_ms > now_ms)
        at_ms, made = progress.next_at_ms, progress.made
        if at_ms is not None and at_ms <= now_ms:
            at_ms = self._bounded(self._rhythm.next_ms(at_ms, now_ms))
        while at_ms is not None:
            planned = self.planned(at_ms, made)
            yield planned.due_at_ms
            at_ms, made = planned.following_at_ms, made + 1

    def _bounded(self, at_ms: int | None) -> int | None:
        end_ms = self._repeat.end_at_ms
        return None if at_ms is None or (end_ms is not None and at_ms > end_ms) else at_ms

    def _jitter_ms(self, at_ms: int, most_ms: int) -> int:
        digest = hashlib.blake2b(f"{self._identity}\n{at_ms}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % (most_ms + 1)


@lru_cache(maxsize=4096)
def _on_clock(cron: str, zone: str, offset_of: OffsetOf) -> OnClock:
    return OnClock(Cron(cron), offset_of(zone) if zone else utc)
