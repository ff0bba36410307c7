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
from typing import Any, Final

import google_crc32c
import msgspec
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
        destinations = _text(batch, "destination", defaults.destination or None)
        owners = _text(batch, "owner", defaults.owner)
        keys = _text(batch, "key", defaults.key, dictionary=False)
        payloads = _binary(batch, defaults.payload)
        headers = _headers(batch, defaults.headers)
        ttls = _integers(batch, "ttl_ms", defaults.ttl_ms)
        _check_sizes(payloads, keys, owners, headers, errors)
        _mark(errors, _truth(pc.less(ttls, 1)), Invalid("ttl_ms", "is not between 1 ms and 100 years"))
        _mark(
            errors,
            _truth(pc.greater(ttls, limits.MAX_DELAY_MS)),
            Invalid("ttl_ms", "is not between 1 ms and 100 years"),
        )
        places, codes = self._places(destinations, defaults, errors)
        due, delays = self._due(batch, defaults, errors, count)
        fire = self._fire(due, places, codes, errors)
        lanes, counts = self._admit(owners, places, codes, errors, count)
        taken = np.setdiff1d(np.arange(count), np.fromiter(errors, np.int64, len(errors)), assume_unique=True)
        if not len(taken):
            return None, errors
        bodies = PutBodies(self._now_ms, defaults.door).encode(
            fire, due, delays, _coded(codes, places), keys, owners, ttls, payloads, headers, taken
        )
        fires, row_lanes = fire[taken], lanes[taken]
        columns = zip(
            repeat(1), row_lanes.tolist(), map(_crc, bodies), fires.tolist(), repeat(0), repeat(0), bodies
        )
        unit = list(map(Encoded._make, columns))
        return Plan(unit, taken, fires, due[taken], row_lanes, counts), errors

    def _places(
        self, destinations: pa.DictionaryArray, defaults: Message, errors: dict[int, TarryError]
    ) -> tuple[list[tuple[str, str, Effective] | None], NDArray[np.int32]]:
        codes = destinations.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int32)
        _mark(errors, codes < 0, Invalid("destination", "is missing"))
        places: list[tuple[str, str, Effective] | None] = []
        for code, destination in enumerate(destinations.dictionary.to_pylist()):
            try:
                if len(destination.encode()) > limits.MAX_DESTINATION_BYTES:
                    raise TooLarge("destination", limits.MAX_DESTINATION_BYTES)
                places.append(self._place(destination, defaults.namespace))
            except TarryError as error:
                places.append(None)
                _mark(errors, codes == code, error)
        # Rows in error keep some code that exists: they are left out before anybody looks.
        return places or [None], np.maximum(codes, 0)

    def _due(
        self, batch: pa.RecordBatch, defaults: Message, errors: dict[int, TarryError], count: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        due = _integers(batch, "due_at_ms", None)
        delay = _integers(batch, "delay_ms", None)
        has_due, has_delay = _truth(due.is_valid()), _truth(delay.is_valid())
        _mark(errors, has_due & has_delay, Invalid("delay_ms", "give a due instant or a delay, not both"))
        neither = ~has_due & ~has_delay
        dues = _numbers(due)
        delays = _numbers(delay)
        _mark(errors, has_due & (dues < 0), Invalid("due_at_ms", "is before 1970"))
        _mark(errors, has_delay & (delays < 0), Invalid("delay_ms", "is negative"))
        _mark(errors, has_delay & (delays > limits.MAX_DELAY_MS), DelayTooLong(limits.MAX_DELAY_MS))
        _mark(
            errors, has_due & (dues - self._now_ms > limits.MAX_DELAY_MS), DelayTooLong(limits.MAX_DELAY_MS)
        )
        if neither.any():
            if defaults.due_at_ms is None and defaults.delay_ms is None:
                _mark(errors, neither, Invalid("due_at_ms", "give a due instant or a delay"))
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
                _mark(errors, over, DelayTooLong(policy.max_delay_ms))
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


# Columns


def _text(batch: pa.RecordBatch, name: str, default: str | None, *, dictionary: bool = True) -> Any:
    column = _column(batch, name)
    if column is None:
        column = pa.nulls(batch.num_rows, pa.string())
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not (
        pa.types.is_string(column.type)
        or pa.types.is_large_string(column.type)
        or pa.types.is_null(column.type)
    ):
        raise Invalid(name, f"is a column of {column.type} and not of strings")
    column = _valid(column.cast(pa.string()), name)
    if default is not None:
        column = column.fill_null(default)
    return column.dictionary_encode() if dictionary else column


def _binary(batch: pa.RecordBatch, default: bytes) -> Any:
    column = _column(batch, "payload")
    if column is None:
        return pa.repeat(pa.scalar(default, pa.binary()), batch.num_rows)
    types = pa.types
    if not any(
        is_(column.type)
        for is_ in (types.is_binary, types.is_large_binary, types.is_string, types.is_large_string)
    ):
        raise Invalid("payload", f"is a column of {column.type} and not of binary or strings")
    column = column.cast(pa.binary())
    return column.fill_null(default) if column.null_count else column


def _integers(batch: pa.RecordBatch, name: str, default: int | None) -> Any:
    column = _column(batch, name)
    if column is None:
        column = pa.nulls(batch.num_rows, pa.int64())
    if pa.types.is_timestamp(column.type):
        # Up to the next millisecond: never early.
        column = pc.ceil_temporal(column, unit="millisecond").cast(pa.timestamp("ms")).cast(pa.int64())
    elif pa.types.is_integer(column.type) or pa.types.is_null(column.type):
        try:
            column = column.cast(pa.int64())
        except pa.ArrowInvalid as error:
            raise Invalid(name, "holds a number beyond 64 bits") from error
    else:
        raise Invalid(name, f"is a column of {column.type} and not of whole milliseconds")
    return column if default is None else column.fill_null(default)


def _headers(batch: pa.RecordBatch, default: dict[str, str]) -> Any:
    column = _column(batch, "headers")
    wanted = pa.map_(pa.string(), pa.string())
    if column is None:
        return pa.array(
            [list(default.items()) or None] * batch.num_rows if default else [None] * batch.num_rows, wanted
        )
    if not pa.types.is_map(column.type):
        raise Invalid("headers", f"is a column of {column.type} and not a map of strings")
    try:
        column = _valid(column.cast(wanted), "headers")
    except pa.ArrowException as error:
        raise Invalid("headers", "is not a map of strings") from error
    if default and column.null_count:
        rows = [list(default.items()) if pairs is None else pairs for pairs in column.to_pylist()]
        column = pa.array(rows, wanted)
    return column


def _valid(column: Any, name: str) -> Any:
    """A column of text, once it is known to be UTF-8.

    Nothing after this looks, and a body that does not decode could never be sent.
    """
    try:
        column.validate(full=True)
    except pa.ArrowInvalid as error:
        raise Invalid(name, "is not valid UTF-8") from error
    return column


def _column(batch: pa.RecordBatch, name: str) -> Any:
    at = batch.schema.get_field_index(name)
    return None if at < 0 else batch.column(at)


def _check_sizes(payloads: Any, keys: Any, owners: Any, headers: Any, errors: dict[int, TarryError]) -> None:
    _mark(
        errors, _truth(pc.greater(pc.binary_length(payloads), limits.MAX_PAYLOAD_BYTES)),
        TooLarge("payload", limits.MAX_PAYLOAD_BYTES),
    )  # fmt: skip
    _mark(
        errors,
        _truth(pc.greater(pc.binary_length(keys), limits.MAX_KEY_BYTES)),
        TooLarge("key", limits.MAX_KEY_BYTES),
    )
    long = [len(name.encode()) > limits.MAX_OWNER_BYTES for name in owners.dictionary.to_pylist()]
    if any(long):
        over = np.array(long)[owners.indices.to_numpy(zero_copy_only=False)]
        _mark(errors, over, TooLarge("owner", limits.MAX_OWNER_BYTES))
    if headers.null_count == len(headers):
        return
    for row, pairs in enumerate(headers.to_pylist()):
        if pairs and row not in errors:
            try:
                if any(value is None for _, value in pairs):
                    raise Invalid("headers", "a value is missing")
                Message(destination="x", delay_ms=0, headers=dict(pairs)).check()
            except TarryError as error:
                errors[row] = error


def _truth(mask: Any) -> NDArray[np.bool_]:
    """A column of booleans as an array; null is false."""
    return mask.fill_null(False).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _numbers(column: Any) -> NDArray[np.int64]:
    """A column of integers as an array of its own; null is 0."""
    return column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64, copy=True)  # type: ignore[no-any-return]


def _mark(errors: dict[int, TarryError], mask: NDArray[np.bool_], error: TarryError) -> None:
    for row in np.flatnonzero(mask).tolist():
        errors.setdefault(row, error)


def _coded(codes: NDArray[np.int32], places: list[tuple[str, str, Effective] | None]) -> pa.DictionaryArray:
    """Namespace and destination of each row, as they stand in a body."""
    texts = [_encode(place[1]) + _encode(place[0]) if place else b"" for place in places]
    return pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), pa.array(texts, pa.binary()))


# Bodies


class PutBodies:
    """Encodes the bodies of many first versions at once, as `tarry.ledger.record.encode` would each.

    A `Put` is a msgpack array; here its columns are laid side by side and joined, so that a row costs a
    fraction of a microsecond. Integers take their longest form, which decodes the same.
    """

    def __init__(self, accepted_at_ms: int, door: str) -> None:
        accepted = _integer(accepted_at_ms)
        # Array of 18: the tag and the fields up to `delay_ms`; those after it have their defaults.
        self._front = b"\xdc\x00\x12\x01"
        self._accepted = accepted
        self._door = _encode(door) + _NIL

    def encode(
        self,
        fire: NDArray[np.int64],
        due: NDArray[np.int64],
        delay: NDArray[np.int64],
        places: pa.DictionaryArray,
        keys: Any,
        owners: pa.DictionaryArray,
        ttls: Any,
        payloads: Any,
        headers: Any,
        taken: NDArray[np.int64],
    ) -> list[bytes]:
        """The bodies of the rows that are taken, in order."""
        rows = pa.array(taken)
        count = len(taken)
        lengths = _numbers(pc.binary_length(payloads.take(rows)))
        owner_texts = pa.array(
            [_encode(name) + self._door for name in owners.dictionary.to_pylist()], pa.binary()
        )
        parts = [
            _matrix(count, self._front, fire[taken], due[taken], self._accepted),
            places.take(rows).cast(pa.binary()),
            _strings(keys.take(rows)),
            owner_texts.take(owners.indices.take(rows)),
            _optional_integers(ttls.take(rows)),
            # No origin, no attempts, not listed; then the payload's length, in four bytes.
            _matrix(count, _NIL + b"\x00\xc2\xc6", lengths.astype(">u4")),
            payloads.take(rows),
            _header_maps(headers.take(rows)),
            _matrix(count, self._accepted, delay[taken]),
        ]
        return pc.binary_join_element_wise(*parts, pa.scalar(b"", pa.binary())).to_pylist()  # type: ignore[no-any-return]


_NIL: Final = b"\xc0"
_encode: Final = msgspec.msgpack.encode
_crc: Final = google_crc32c.value


def _integer(value: int) -> bytes:
    return b"\xcf" + value.to_bytes(8, "big")


def _matrix(count: int, *parts: Any) -> Any:
    """Columns of fixed width side by side: bytes stand in every row, integers as msgpack, lengths as they are."""
    columns = []
    for part in parts:
        if isinstance(part, bytes):
            columns.append(np.broadcast_to(np.frombuffer(part, np.uint8), (count, len(part))))
            continue
        if part.dtype == np.int64:
            columns.append(np.full((count, 1), 0xCF, np.uint8))
            part = part.astype(">u8")
        columns.append(np.ascontiguousarray(part).view(np.uint8).reshape(count, part.dtype.itemsize))
    rows = np.ascontiguousarray(np.hstack(columns))
    fixed = pa.FixedSizeBinaryArray.from_buffers(pa.binary(rows.shape[1]), count, [None, pa.py_buffer(rows)])
    return fixed.cast(pa.binary())


def _strings(column: Any) -> Any:
    """A column of strings as msgpack, null as nil."""
    if column.null_count == len(column):
        return pa.repeat(pa.scalar(_NIL, pa.binary()), len(column))
    texts = column.cast(pa.binary())
    lengths = _numbers(pc.binary_length(texts))
    heads = _matrix(len(column), b"\xdb", lengths.astype(">u4"))
    joined = pc.binary_join_element_wise(heads, texts, pa.scalar(b"", pa.binary()))
    return joined.fill_null(_NIL)


def _optional_integers(column: Any) -> Any:
    """A column of integers as msgpack, null as nil."""
    if column.null_count == len(column):
        return pa.repeat(pa.scalar(_NIL, pa.binary()), len(column))
    return pc.if_else(column.is_valid(), _matrix(len(column), _numbers(column)), pa.scalar(_NIL, pa.binary()))


def _header_maps(column: Any) -> Any:
    """A column of maps as msgpack; null is empty."""
    if column.null_count == len(column):
        return pa.repeat(pa.scalar(b"\x80", pa.binary()), len(column))
    return pa.array([_encode(dict(pairs or ())) for pairs in column.to_pylist()], pa.binary())


def due_of(plan: Plan, first_seq: int) -> Due:
    """The entries of a written batch for the wheel."""
    return Due(plan.fire_at_ms, np.arange(first_seq, first_seq + len(plan.rows), dtype=np.int64), plan.lanes)
