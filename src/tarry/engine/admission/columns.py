"""Checking a batch as columns: which rows can be taken, and what is written for them.

The same rules as for one message at a time (`tarry.engine.admission.scheduling`), with no `Message` in between. Rows that
cannot be taken are answered one by one.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from tarry.core import limits
from tarry.core.errors import DelayTooLong, Invalid, RateLimited, TarryError, TooLarge, TooManyPending
from tarry.core.holder import Holder
from tarry.core.message import Message
from tarry.core.policy import Effective
from tarry.core.timers.run import Due
from tarry.ledger.columns import (
    Coded,
    Contents,
    Numbers,
    count_holders,
    holders_of,
    lanes_of,
    lengths_of,
    mark,
)
from tarry.ledger.frame import Unit
from tarry.ledger.puts import encode_bodies, place_text, unit_of_puts

Place = Callable[[str, str | None], tuple[str, str, Effective]]
"""The full destination, the namespace and the policy of a destination and namespace as they were given."""
BESIDE_BYTES: Final = 32 * 1024
"""Bytes that a message can have beside its payload, with the entry that fires it."""

Places = list[tuple[str, str, Effective] | None]


class Columns(Struct, frozen=True):
    """What the rows of a batch ask for."""

    destinations: Coded[str]
    due_at_ms: Numbers
    delay_ms: Numbers
    contents: Contents


class ColumnsScheduled(Struct, frozen=True):
    """The answer to a batch, row by row."""

    ids: NDArray[np.bytes_]
    """The id of each row, empty where it was not taken."""
    due_at_ms: NDArray[np.int64]
    errors: dict[int, TarryError]
    """Row -> why it was not taken."""


class Plan(Struct, frozen=True):
    """A checked batch: its records, and which rows of the request they are."""

    unit: Unit
    sizes: NDArray[np.int32]
    """Of the bodies."""
    rows: NDArray[np.int64]
    fire_at_ms: NDArray[np.int64]
    due_at_ms: NDArray[np.int64]
    lanes: NDArray[np.uint16]
    holders: Counter[Holder]

    def due(self, first_seq: int) -> Due:
        """Its entries for the wheel, once it is written."""
        seqs = np.arange(first_seq, first_seq + len(self.rows), dtype=np.int64)
        return Due(self.fire_at_ms, seqs, self.lanes)


class Planner:
    """Checks a batch against limits and policies."""

    def __init__(
        self,
        place: Place,
        floor_ms: int,
        now_ms: int,
        pending: Mapping[Holder, int],
        charge: Callable[..., int],
        unit_max_bytes: int,
    ) -> None:
        self._place = place
        self._floor_ms = floor_ms
        self._now_ms = now_ms
        self._pending = pending
        self._charge = charge
        # Whatever else a row has, its entry must fit into a segment of the ledger as well.
        self._max_payload_bytes = max(unit_max_bytes - BESIDE_BYTES, unit_max_bytes // 2)

    def plan(
        self, columns: Columns, defaults: Message, trace: bytes | None = None
    ) -> tuple[Plan | None, dict[int, TarryError]]:
        """The rows that can be taken, ready to be written, and the errors of the others."""
        errors: dict[int, TarryError] = {}
        contents = columns.contents
        if not contents.count:
            return None, errors
        contents.check(errors)
        large = lengths_of(contents.payloads) > self._max_payload_bytes
        mark(errors, large, TooLarge("payload", self._max_payload_bytes))
        places, codes = self._places(columns.destinations, defaults.namespace, errors)
        due, delay = self._due(columns.due_at_ms, columns.delay_ms, defaults, errors)
        fire = self._fire(due, places, codes, errors)
        self._admit(contents.owners, places, codes, errors)
        taken = np.delete(np.arange(contents.count), _rows(errors))
        if not len(taken):
            return None, errors
        if errors:
            contents, codes, fire, due, delay = (
                contents.take(taken), codes[taken], fire[taken], due[taken], delay[taken],
            )  # fmt: skip
        owners = contents.owners
        texts = [place_text(place[1], place[0]) if place else b"" for place in places]
        bodies = encode_bodies(
            contents, Coded(texts, codes), fire, due, delay, self._now_ms, defaults.door, trace
        )
        namespaces = [place[1] if place else "" for place in places]
        holders = holders_of(Coded(namespaces, codes), owners)
        lanes = lanes_of(holders, defaults.door)
        unit = unit_of_puts(bodies, fire, lanes)
        return Plan(unit, lengths_of(bodies), taken, fire, due, lanes, count_holders(holders)), errors

    def _places(
        self, destinations: Coded[str], namespace: str | None, errors: dict[int, TarryError]
    ) -> tuple[Places, NDArray[np.int32]]:
        codes = destinations.codes
        mark(errors, codes < 0, Invalid("destination", "is missing"))
        places: Places = []
        for code, destination in enumerate(destinations.values):
            try:
                if len(destination.encode()) > limits.MAX_DESTINATION_BYTES:
                    raise TooLarge("destination", limits.MAX_DESTINATION_BYTES)
                places.append(self._place(destination, namespace))
            except TarryError as error:
                places.append(None)
                mark(errors, codes == code, error)
        # Rows in error keep some code that exists: they are left out before anybody looks.
        return places or [None], np.maximum(codes, 0)

    def _due(
        self, due: Numbers, delay: Numbers, defaults: Message, errors: dict[int, TarryError]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The due instant of each row, and how far ahead it is."""
        now_ms, most_ms = self._now_ms, limits.MAX_DELAY_MS
        has_due, has_delay = due.given, delay.given
        dues, delays = due.values.copy(), delay.values.copy()
        mark(errors, has_due & has_delay, Invalid("delay_ms", "give a due instant or a delay, not both"))
        mark(errors, dues < 0, Invalid("due_at_ms", "is before 1970"))
        mark(errors, delays < 0, Invalid("delay_ms", "is negative"))
        # Longer than any policy allows, and no number for the sums below: which policy it is that refuses it is seen there.
        delays = np.minimum(delays, most_ms + 1)
        dues = np.minimum(dues, now_ms + most_ms + 1)
        neither = ~(has_due | has_delay)
        if neither.any():
            if defaults.due_at_ms is None and defaults.delay_ms is None:
                mark(errors, neither, Invalid("due_at_ms", "give a due instant or a delay"))
            elif defaults.due_at_ms is not None:
                dues[neither] = defaults.due_at_ms
            else:
                delays[neither] = defaults.delay_ms or 0
                has_delay = has_delay | neither
        # Rows in error may hold anything: keep the sums below from overflowing.
        bad = _rows(errors)
        dues[bad] = now_ms
        delays[bad] = 0
        dues = np.where(has_delay, now_ms + delays, dues)
        return dues, np.maximum(dues - now_ms, 0)

    def _fire(
        self, due: NDArray[np.int64], places: Places, codes: NDArray[np.int32], errors: dict[int, TarryError]
    ) -> NDArray[np.int64]:
        """When each row goes out; `due` becomes what is answered."""
        policies = [place[2] if place else None for place in places]
        for code, policy in enumerate(policies):
            if policy is not None:
                # Also where nothing is delayed: what is kept of it has to be a number that can be stored.
                longest_ms = policy.longest_ms if policy.delayed_delivery else limits.MAX_DELAY_MS
                over = (codes == code) & (due - self._now_ms > longest_ms)
                mark(errors, over, DelayTooLong(policy.longest_ms))
        off = np.array([policy is not None and not policy.delayed_delivery for policy in policies])[codes]
        due[off] = np.minimum(due[off], self._now_ms)
        ticks = np.array([policy.tick_ms if policy else 1 for policy in policies], np.int64)
        # The due instant that is answered is the rounded one, except for what was due already.
        rounded = due.copy() if (ticks == 1).all() else -(-due // ticks[codes]) * ticks[codes]
        due[:] = np.where(due >= self._now_ms, rounded, due)
        fire: NDArray[np.int64] = np.maximum(rounded, max(self._now_ms, self._floor_ms))
        return fire

    def _admit(
        self, owners: Coded[str], places: Places, codes: NDArray[np.int32], errors: dict[int, TarryError]
    ) -> None:
        """Refuse what is over a limit on pending messages or on the rate, row by row."""
        limited = [
            code for code, place in enumerate(places)
            if place is not None and (place[2].max_pending_per_owner or place[2].accept_per_second)
        ]  # fmt: skip
        counts: Counter[Holder] = Counter()
        for row in np.flatnonzero(np.isin(codes, limited)).tolist() if limited else ():
            place = places[codes[row]]
            if row in errors or place is None:
                continue
            _, namespace, policy = place
            holder = Holder(namespace, owners.values[owners.codes[row]])
            if policy.max_pending_per_owner:
                if self._pending.get(holder, 0) + counts[holder] >= policy.max_pending_per_owner:
                    errors[row] = TooManyPending(policy.max_pending_per_owner)
                    continue
            if policy.accept_per_second:
                wait_ms = self._charge(holder, policy.accept_per_second, self._now_ms)
                if wait_ms:
                    errors[row] = RateLimited(wait_ms)
                    continue
            counts[holder] += 1


def _rows(errors: dict[int, TarryError]) -> NDArray[np.int64]:
    return np.fromiter(errors, np.int64, len(errors))
