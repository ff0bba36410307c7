"""The messages after a failed attempt: another attempt after a wait, or a dead letter.

Both are messages: the entry's payload, headers and key, scheduled for the subscription's retry topic or its
dead-letter topic, and the entry is acknowledged after that. So attempts and waits survive workers and servers, a long wait holds
nothing up, and waiting entries can be listed, sent and cancelled like all messages. An idempotency key made of the entry keeps
a worker that is killed between the two from doing the first one twice.
"""

import hashlib
import random
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from tarry.client import operations
from tarry.client.call import ClientCall
from tarry.client.consuming import Entry
from tarry.client.shapes import Scheduled
from tarry.core.errors import Invalid
from tarry.core.time.backoff import after_attempts, spread
from tarry.core.time.times import parse_duration_ms

ATTEMPT: Final = "tarry-attempt"
"""Header: which attempt this one will be."""
FAILED_TOPIC: Final = "tarry-topic"
"""Header of a dead letter: the topic that it was in."""
FAILURE: Final = "tarry-error"
"""Header: why the last attempt failed."""
MAX_FAILURE_CHARS: Final = 500

Duration = str | timedelta
"""Like `"30s"` or `"1h30m"`, or a timedelta."""


def duration_ms(duration: Duration, field: str) -> int:
    """A duration in milliseconds, rounded up."""
    if isinstance(duration, str):
        return parse_duration_ms(duration, field)
    if duration < timedelta():
        raise Invalid(field, "is negative; give 0 or more")
    return -(-duration // timedelta(milliseconds=1))


@dataclass(frozen=True)
class Backoff:
    """Growing waits between attempts: doubled each time up to `longest`, and spread so that failures do not come back together."""

    first: Duration = "1s"
    longest: Duration = "5m"


BackoffLike = Backoff | Duration | Callable[[int], Duration]
"""Growing waits, the same wait each time, or a function of the number of failed attempts."""


def waits_of(backoff: BackoffLike) -> Callable[[int, str], int]:
    """The wait in milliseconds after so many failed attempts of the entry with this name."""
    if isinstance(backoff, Backoff):
        first_ms, longest_ms = duration_ms(backoff.first, "backoff"), duration_ms(backoff.longest, "backoff")

        def growing(failed: int, name: str) -> int:
            # The name decides about the spread: an attempt that is scheduled again is the same request.
            return round(spread(after_attempts(failed, first_ms, longest_ms), random.Random(name).random))

        return growing
    if callable(backoff):
        return lambda failed, _: duration_ms(backoff(failed), "backoff")
    same_ms = duration_ms(backoff, "backoff")
    return lambda _failed, _: same_ms


@dataclass(frozen=True)
class RetryTopics:
    """The topics around one subscription of a worker."""

    topic: str
    subscription: str
    dead_letters: str

    @property
    def retries(self) -> str:
        """The topic of entries that wait for another attempt. Its name is Pulsar's."""
        return f"{self.topic}-{self.subscription}-RETRY"

    def name_of(self, entry: Entry, topic: str) -> str:
        """A name that no other entry has, nor an entry of a deleted topic of the same name."""
        name = f"{topic}/{self.subscription}/{entry.entry_id}/{entry.published_at_ms}"
        return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()

    def again(
        self, entry: Entry, topic: str, attempt: int, delay_ms: int, error: BaseException
    ) -> ClientCall[Scheduled]:
        """The call that schedules the attempt of this number."""
        headers = {**entry.headers, ATTEMPT: str(attempt), FAILURE: _said(error)}
        return operations.schedule(
            self.retries, entry.payload, delay_ms=delay_ms, headers=headers, key=entry.key,
            idempotency_key=f"retry-{self.name_of(entry, topic)}",
        )  # fmt: skip

    def dead_letter(
        self, entry: Entry, topic: str, attempt: int, error: BaseException
    ) -> ClientCall[Scheduled]:
        """The call that makes an entry a dead letter, after the attempt of this number."""
        headers = {**entry.headers, ATTEMPT: str(attempt), FAILED_TOPIC: self.topic, FAILURE: _said(error)}
        return operations.schedule(
            self.dead_letters, entry.payload, delay_ms=0, headers=headers, key=entry.key,
            idempotency_key=f"dead-{self.name_of(entry, topic)}",
        )  # fmt: skip


def attempt_of(entry: Entry) -> int:
    """Which attempt this is, from 1 on."""
    attempt = entry.headers.get(ATTEMPT, "1")
    return int(attempt) if attempt.isascii() and attempt.isdigit() else 1


def _said(error: BaseException) -> str:
    words = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return "".join(char if char.isprintable() else " " for char in words[:MAX_FAILURE_CHARS])
