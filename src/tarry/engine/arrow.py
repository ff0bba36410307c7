"""Scheduling from Arrow: columns in, checked and encoded as columns, with no `Message` in between.

A record batch is checked as columns, and its bodies are encoded as columns too. In the ledger its rows are
records like any others (ADR 0005 says why not Arrow). Rows that cannot be taken are answered one by one.

Columns, by name: `destination`, `payload` (binary or string), `due_at_ms` (integer milliseconds or a timestamp) or
`delay_ms`, `key`, `owner`, `ttl_ms`, `headers` (a map of strings). Those that are missing, and nulls, are
taken from the defaults of the request.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Final

import google_crc32c
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from numpy.typing import NDArray

from tarry.core import limits
from tarry.core.errors import DelayTooLong, Invalid, RateLimited, TarryError, TooLarge, TooManyPending
from tarry.core.message import Message
from tarry.core.policy import Effective
from tarry.core.runs import Due
from tarry.ledger.puts import PutBodies, binary, check_sizes, headers_of, integers, mark, numbers, text, truth
from tarry.ledger.record import Encoded, lane_of

COLUMNS: Final = frozenset(
    {"destination", "payload", "due_at_ms", "delay_ms", "key", "owner", "ttl_ms", "headers"}
)

FRAME_ROWS: Final = 8_192
FRAME_BYTES: Final = 8 * 1024 * 1024

Place = Callable[[str, str | None], tuple[str, str, Effective]]


class ArrowScheduled(Struct, frozen=True):
    """The answer to a record batch, row by row."""

    ids: NDArray[np.bytes_]
    """The id of each row, empty where it was not taken."""
    due_at_ms: NDArray[np.int64]
    errors: dict[int, TarryError]
    """Row -> why it was not taken."""


class Plan(Struct, frozen=True):
    """A checked batch: its records, and which rows of the request they are."""

    unit: list[Encoded]
    rows: NDArray[np.int64]
    fire_at_ms: NDArray[np.int64]
    due_at_ms: NDArray[np.int64]
    lanes: NDArray[np.uint16]
    owners: Counter[str]


def frames_of(batch: pa.RecordBatch) -> Iterator[tuple[int, pa.RecordBatch]]:
    """A batch in pieces that each fit a frame well, with the row at which each begins."""
    per_row = max(1, batch.nbytes // max(1, batch.num_rows))
    rows = max(1, min(FRAME_ROWS, FRAME_BYTES // per_row))
    for start in range(0, batch.num_rows, rows):
        yield start, batch.slice(start, rows)


class Planner:
    """Checks a record batch against limits and policies."""

    def __init__(
        self, place: Place, floor_ms: int, now_ms: int, pending: Counter[str], charge: Callable[..., int]
    ) -> None:
        self._place = place
        self._floor_ms = floor_ms
        self._now_ms = now_ms
        self._pending = pending
        self._charge = charge

    def plan(self, batch: pa.RecordBatch, defaults: Message) -> tuple[Plan | None, dict[int, TarryError]]:
        """The rows that can be taken, ready to be written, and the errors of the others."""
        unknown = set(batch.schema.names) - COLUMNS
        if unknown:
            raise Invalid(min(unknown), "is not a column that is known here")
        if len(set(batch.schema.names)) != len(batch.schema.names):
            raise Invalid("columns", "a name stands there twice")
        errors: dict[int, TarryError] = {}
        count = batch.num_rows
        destinations = text(batch, "destination", defaults.destination or None)
        owners = text(batch, "owner", defaults.owner)
        keys = text(batch, "key", defaults.key, dictionary=False)
        payloads = binary(batch, defaults.payload)
        headers = headers_of(batch, defaults.headers)
        ttls = integers(batch, "ttl_ms", defaults.ttl_ms)
        check_sizes(payloads, keys, owners, headers, errors)
        mark(errors, truth(pc.less(ttls, 1)), Invalid("ttl_ms", "is not between 1 ms and 100 years"))
        mark(
            errors,
            truth(pc.greater(ttls, limits.MAX_DELAY_MS)),
            Invalid("ttl_ms", "is not between 1 ms and 100 years"),
        )
        places, codes = self._places(destinations, defaults, errors)
        due, delays = self._due(batch, defaults, errors, count)
        fire = self._fire(due, places, codes, errors)
        lanes, counts = self._admit(owners, places, codes, errors, count)
        taken = np.setdiff1d(np.arange(count), np.fromiter(errors, np.int64, len(errors)), assume_unique=True)
        if not len(taken):
            return None, errors
        named = PutBodies.places(codes, [place[:2] if place else None for place in places])
        encoded = PutBodies(self._now_ms, defaults.door).encode(
            fire, due, delays, named, keys, owners, ttls, payloads, headers, taken
        )
        bodies: list[bytes] = encoded.to_pylist()
        fires, row_lanes = fire[taken], lanes[taken]
        columns = zip(
            repeat(1),
            row_lanes.tolist(),
            map(google_crc32c.value, bodies),
            fires.tolist(),
            repeat(0),
            repeat(0),
            bodies,
        )
        unit = list(map(Encoded._make, columns))
        return Plan(unit, taken, fires, due[taken], row_lanes, counts), errors

    def _places(
        self, destinations: pa.DictionaryArray, defaults: Message, errors: dict[int, TarryError]
    ) -> tuple[list[tuple[str, str, Effective] | None], NDArray[np.int32]]:
        codes = destinations.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
        mark(errors, codes < 0, Invalid("destination", "is missing"))
        places: list[tuple[str, str, Effective] | None] = []
        for code, destination in enumerate(destinations.dictionary.to_pylist()):
            try:
                if len(destination.encode()) > limits.MAX_DESTINATION_BYTES:
                    raise TooLarge("destination", limits.MAX_DESTINATION_BYTES)
                places.append(self._place(destination, defaults.namespace))
            except TarryError as error:
                places.append(None)
                mark(errors, codes == code, error)
        # Rows in error keep some code that exists: they are left out before anybody looks.
        return places or [None], np.maximum(codes, 0)

    def _due(
        self, batch: pa.RecordBatch, defaults: Message, errors: dict[int, TarryError], count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        due = integers(batch, "due_at_ms", None)
        delay = integers(batch, "delay_ms", None)
        has_due, has_delay = truth(due.is_valid()), truth(delay.is_valid())
        mark(errors, has_due & has_delay, Invalid("delay_ms", "give a due instant or a delay, not both"))
        neither = ~has_due & ~has_delay
        dues = numbers(due)
        delays = numbers(delay)
        mark(errors, has_due & (dues < 0), Invalid("due_at_ms", "is before 1970"))
        mark(errors, has_delay & (delays < 0), Invalid("delay_ms", "is negative"))
        mark(errors, has_delay & (delays > limits.MAX_DELAY_MS), DelayTooLong(limits.MAX_DELAY_MS))
        mark(errors, has_due & (dues - self._now_ms > limits.MAX_DELAY_MS), DelayTooLong(limits.MAX_DELAY_MS))
        if neither.any():
            if defaults.due_at_ms is None and defaults.delay_ms is None:
                mark(errors, neither, Invalid("due_at_ms", "give a due instant or a delay"))
            elif defaults.due_at_ms is not None:
                dues[neither] = defaults.due_at_ms
            else:
                delays[neither] = defaults.delay_ms or 0
                has_delay |= neither
        # Rows in error may hold anything: keep the sums below from overflowing.
        bad = np.fromiter(errors, np.int64, len(errors))
        dues[bad] = self._now_ms
        delays[bad] = 0
        dues = np.where(has_delay, self._now_ms + delays, dues)
        return dues, np.maximum(dues - self._now_ms, 0)

    def _fire(
        self,
        due: NDArray[np.int64],
        places: list[tuple[str, str, Effective] | None],
        codes: NDArray[np.int32],
        errors: dict[int, TarryError],
    ) -> NDArray[np.int64]:
        policies = [place[2] if place else None for place in places]
        off = np.array([policy is not None and not policy.delayed_delivery for policy in policies])[codes]
        due[off] = np.minimum(due[off], self._now_ms)
        for code, policy in enumerate(policies):
            if policy is not None and policy.max_delay_ms:
                over = (codes == code) & (due - self._now_ms > policy.max_delay_ms)
                mark(errors, over, DelayTooLong(policy.max_delay_ms))
        ticks = np.array([policy.tick_ms if policy else 1 for policy in policies], np.int64)[codes]
        # The due instant that is answered is the rounded one, except for what was due already.
        rounded = -(-due // ticks) * ticks
        due[:] = np.where(due >= self._now_ms, rounded, due)
        fire: NDArray[np.int64] = np.maximum(rounded, max(self._now_ms, self._floor_ms))
        return fire

    def _admit(
        self,
        owners: pa.DictionaryArray,
        places: list[tuple[str, str, Effective] | None],
        codes: NDArray[np.int32],
        errors: dict[int, TarryError],
        count: int,
    ) -> tuple[NDArray[np.uint16], Counter[str]]:
        names: list[str] = owners.dictionary.to_pylist()
        owner_codes = owners.indices.to_numpy(zero_copy_only=False)
        lanes = np.array([lane_of(name) for name in names], np.uint16)[owner_codes]
        limited = [
            code for code, place in enumerate(places)
            if place is not None and (place[2].max_pending_per_owner or place[2].accept_per_second)
        ]  # fmt: skip
        counts: Counter[str] = Counter()
        for row in np.flatnonzero(np.isin(codes, limited)).tolist() if limited else ():
            place = places[codes[row]]
            if row in errors or place is None:
                continue
            owner, (_, namespace, policy) = names[owner_codes[row]], place
            if policy.max_pending_per_owner:
                if self._pending.get(owner, 0) + counts[owner] >= policy.max_pending_per_owner:
                    errors[row] = TooManyPending(policy.max_pending_per_owner)
                    continue
            if policy.accept_per_second:
                wait_ms = self._charge((namespace, owner), policy.accept_per_second, self._now_ms)
                if wait_ms:
                    errors[row] = RateLimited(wait_ms)
                    continue
            counts[owner] += 1
        taken = np.ones(count, np.bool_)
        taken[np.fromiter(errors, np.int64, len(errors))] = False
        sums = np.bincount(owner_codes[taken], minlength=len(names))
        return lanes, Counter({names[at]: int(sums[at]) for at in np.flatnonzero(sums).tolist()})


def due_of(plan: Plan, first_seq: int) -> Due:
    """The entries of a written batch for the wheel."""
    return Due(plan.fire_at_ms, np.arange(first_seq, first_seq + len(plan.rows), dtype=np.int64), plan.lanes)
