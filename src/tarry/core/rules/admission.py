"""Rules of admission: what a message may be, how long it may wait, and when it goes out.

Every rule stands here once, and is asked by each way in: a message by itself, the columns of a batch, rows that are staged
as files, entries of topics. Rules about numbers are expressions that hold for an `int` and for an array alike, so that
the outcome of a row depends neither on its path nor on its neighbours.

Rules are asked in the order in which they stand here; the first one that is broken is the answer. After those of this
module come the ones that need the engine's state: the place, the group, and the limits of the owner.

The last rule is about a message's largest later record, which has to fit into a segment of the ledger. A message is written once
more when it is fired, carried, or becomes a dead letter, then a little larger; and as one of a group, with the ends of all others
in the same unit. A unit has half of its space for the one, and half for the others.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from tarry.core import limits
from tarry.core.errors import DelayTooLong, Invalid, TarryError, TooLarge
from tarry.core.rules.policy import Level

BESIDE_BYTES: Final = 32 * 1024
"""Maximum bytes of a message beside its payload: headers, names, and its destination a second time where it is fired."""

GROWTH_BYTES: Final = 512
"""By how much a record is larger than its texts and payload: numbers, keys, and the lengths of fields."""

_HEADER_BYTES: Final = 10
"""Bytes of a header beside its name and value: their lengths."""

Errors = dict[int, TarryError]
"""Row -> why it is refused."""


def mark(errors: Errors, broken: NDArray[np.bool_], error: TarryError) -> None:
    """Note an error at the rows of a mask; the first error of a row stays."""
    for row in np.flatnonzero(broken).tolist():
        errors.setdefault(row, error)


class Rule(NamedTuple):
    """An expression that is true of a number that breaks the rule, or of each of an array, and the error that says so."""

    broken: Callable[[Any], Any]
    error: Callable[[], TarryError]

    def check(self, number: int) -> None:
        """Raise the error if a number breaks the rule."""
        if self.broken(number):
            raise self.error()

    def mark(self, errors: Errors, numbers: NDArray[Any], given: Any = True) -> None:
        """Note the error at the rows whose number is given and breaks the rule."""
        broken = self.broken(numbers) & given
        # Nearly always none: then neither rows nor the error are made.
        if broken.any():
            mark(errors, broken, self.error())


def _at_most(field: str, limit: int) -> Rule:
    return Rule(lambda size: size > limit, lambda: TooLarge(field, limit))


# What a message may be

DESTINATION_SIZE: Final = _at_most("destination", limits.MAX_DESTINATION_BYTES)
PAYLOAD_SIZE: Final = _at_most("payload", limits.MAX_PAYLOAD_BYTES)
NO_DESTINATION: Final = Rule(lambda code: code < 0, lambda: Invalid("destination", "is missing"))
"""In a coded column, -1 is the code of a row without a destination."""
HEADERS: Final = Rule(
    lambda count: count > limits.MAX_HEADERS,
    lambda: Invalid("headers", f"there are more than {limits.MAX_HEADERS}"),
)
HEADERS_SIZE: Final = _at_most("headers", limits.MAX_HEADERS_BYTES)
KEY_SIZE: Final = _at_most("key", limits.MAX_KEY_BYTES)
OWNER_SIZE: Final = _at_most("owner", limits.MAX_OWNER_BYTES)
GROUP_SIZE: Final = _at_most("group", limits.MAX_GROUP_BYTES)
IDEMPOTENCY_KEY_SIZE: Final = _at_most("idempotency_key", limits.MAX_IDEMPOTENCY_KEY_BYTES)
SUBJECT_SIZE: Final = _at_most("subject", limits.MAX_GROUP_BYTES)
TTL: Final = Rule(
    lambda ttl_ms: (ttl_ms < 1) | (ttl_ms > limits.MAX_DELAY_MS),
    lambda: Invalid("ttl_ms", "is not between 1 ms and 100 years"),
)


def utf8_bytes(field: str, text: str) -> int:
    """The length of a text in UTF-8; raises `Invalid` for one that has none."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise Invalid(field, "is not valid Unicode") from None


def check_destination(destination: str) -> None:
    """Raise unless a destination is there and not too long."""
    DESTINATION_SIZE.check(utf8_bytes("destination", destination))
    if not destination:
        raise NO_DESTINATION.error()


def mark_destinations(errors: Errors, destinations: Sequence[str], codes: NDArray[np.int32]) -> None:
    """Note the rows whose destination, by its code, is missing or too long."""
    NO_DESTINATION.mark(errors, codes)
    for code, destination in enumerate(destinations):
        try:
            check_destination(destination)
        except TarryError as error:
            mark(errors, codes == code, error)


def check_owner(owner: str) -> None:
    """Raise for an owner whose name is too long."""
    OWNER_SIZE.check(utf8_bytes("owner", owner))


def check_headers(headers: Mapping[str, str | None]) -> None:
    """Raise for headers that are too many, too long, or without a name or a value."""
    HEADERS.check(len(headers))
    size_bytes = 0
    for name, value in headers.items():
        if not name:
            raise Invalid("headers", "a name is empty")
        if value is None:
            raise Invalid("headers", "a value is missing; each header has a text")
        size_bytes += utf8_bytes("headers", name) + utf8_bytes("headers", value)
    HEADERS_SIZE.check(size_bytes)


# When it is due

DUE: Final = Rule(lambda due_at_ms: due_at_ms < 0, lambda: Invalid("due_at_ms", "is before 1970"))
DELAY: Final = Rule(lambda delay_ms: delay_ms < 0, lambda: Invalid("delay_ms", "is negative; give 0 or more"))
TWO_TIMES: Final = Rule(
    lambda both: both != 0, lambda: Invalid("delay_ms", "give a due instant or a delay, not both")
)
NO_TIME: Final = Rule(lambda timed: timed == 0, lambda: Invalid("due_at_ms", "give a due instant or a delay"))


# How long it may wait, and when it goes out


class Form(NamedTuple):
    """Whether the numbers in an expression are single ones or arrays: what differs is how these are compared."""

    least: Callable[[Any, Any], Any]
    most: Callable[[Any, Any], Any]
    choose: Callable[[Any, Any, Any], Any]
    """The second where the first is true, else the third."""


ONE: Final = Form(min, max, lambda which, yes, no: yes if which else no)
MANY: Final = Form(np.minimum, np.maximum, np.where)


class Timing(Protocol):
    """As much of a policy as says when messages go out; `Timings` has that of many rows."""

    @property
    def delayed_delivery(self) -> Any:
        """Whether messages may be delayed; where not, they are due at once."""

    @property
    def tick_ms(self) -> Any:
        """Due instants are rounded up to a multiple of this."""

    @property
    def longest_ms(self) -> Any:
        """The longest delay."""


class Timings(NamedTuple):
    """The timing of each row."""

    delayed_delivery: NDArray[np.bool_]
    tick_ms: NDArray[np.int64]
    longest_ms: NDArray[np.int64]

    @classmethod
    def of(cls, policies: Sequence[Timing], codes: NDArray[np.int32]) -> "Timing":
        """The timing of rows whose policies have these codes; that of one policy where all say the same."""
        if len({(policy.delayed_delivery, policy.tick_ms, policy.longest_ms) for policy in policies}) == 1:
            return policies[0]
        return cls(
            np.array([policy.delayed_delivery for policy in policies], np.bool_)[codes],
            np.array([policy.tick_ms for policy in policies], np.int64)[codes],
            np.array([policy.longest_ms for policy in policies], np.int64)[codes],
        )


LONGEST_DELAY: Final = Rule(
    lambda delay_ms: delay_ms > limits.MAX_DELAY_MS, lambda: DelayTooLong(limits.MAX_DELAY_MS)
)
"""The longest delay wherever a message goes."""


def longest_delay(policy: Timing, form: Form = ONE) -> Any:
    """The longest delay that is taken. Where all goes out at once it is the engine's: a delay is kept all the same."""
    return form.choose(policy.delayed_delivery, policy.longest_ms, limits.MAX_DELAY_MS)


def check_delay(delay_ms: int, policy: Timing, level: Level) -> None:
    """Raise `DelayTooLong` for a delay that is longer than its policy takes; `level` has set a field of the policy."""
    longest_ms = longest_delay(policy)
    if delay_ms > longest_ms:
        raise DelayTooLong(longest_ms, level("max_delay_ms"))


def mark_delays(
    errors: Errors,
    delay_ms: NDArray[np.int64],
    policies: Timing,
    level: Callable[[int, str], str] = lambda _row, _field: "",
) -> None:
    """Note the rows whose delays are longer than their policies take; `level` has set a field of a row's policy."""
    longest_ms = longest_delay(policies, MANY)
    broken = delay_ms > longest_ms
    if not broken.any():
        return
    for row in np.flatnonzero(broken).tolist():
        longest = int(np.broadcast_to(longest_ms, broken.shape)[row])
        errors.setdefault(row, DelayTooLong(longest, level(row, "max_delay_ms")))


def earliest(due_at_ms: Any, now_ms: int, floor_ms: int, form: Form = ONE) -> Any:
    """The fire instant of a message that is due then: never early, never in the past, never below the watermark (R4)."""
    return form.most(form.most(due_at_ms, now_ms), floor_ms)


def instants(due_at_ms: Any, now_ms: int, floor_ms: int, policy: Timing, form: Form = ONE) -> tuple[Any, Any]:
    """The due instant that is kept, and the fire instant, of a message that asks for this due instant.

    A due instant is rounded up to the tick, and one that has passed is kept as it is. Where nothing is delayed, at once
    means at once: the tick is for delays.
    """
    delayed = policy.delayed_delivery
    due_at_ms = form.choose(delayed, due_at_ms, form.least(due_at_ms, now_ms))
    tick_ms = form.choose(delayed, policy.tick_ms, 1)
    rounded_ms = -(-due_at_ms // tick_ms) * tick_ms
    kept_ms = form.choose(due_at_ms >= now_ms, rounded_ms, due_at_ms)
    return kept_ms, earliest(rounded_ms, now_ms, floor_ms, form)


def is_large(payload_bytes: Any, unit_max_bytes: int) -> Any:
    """Whether a payload, or each of an array, is so large that its record has to be measured: nearly none is."""
    return payload_bytes > unit_max_bytes - BESIDE_BYTES


def check_record(
    unit_max_bytes: int,
    payload_bytes: int,
    headers: Mapping[str, str],
    destination: str,
    names: tuple[str | None, ...],
    *,
    group: bool = False,
    listed: bool = False,
) -> None:
    """Raise `TooLarge` for a message whose later records may not fit; `names` are its other texts."""
    headers_bytes = sum(len(name.encode()) + len(value.encode()) for name, value in headers.items())
    names_bytes = sum(len(name.encode()) for name in names if name is not None)
    record_bytes = (
        payload_bytes
        + headers_bytes
        + len(headers) * _HEADER_BYTES
        + 2 * len(destination.encode())
        + names_bytes
        + GROWTH_BYTES
    )
    limit = unit_max_bytes // 2 if group else unit_max_bytes
    if record_bytes > limit:
        raise TooLarge("a message of a group" if group else "the message", limit)
    # Of a listed message all that it was is in its end.
    limit = unit_max_bytes // 2 // limits.MAX_GROUP_MEMBERS
    if group and listed and payload_bytes + headers_bytes > limit:
        raise TooLarge("a listed message of a group", limit)
