"""The rows of a batch as they come in: which column is what, and what its values mean (R10).

Columns go by name, or by what a mapping calls them:

- `due`: a timestamp with a zone is that instant; one without a zone is read in the mapping's time zone (UTC unless told
  otherwise; where clocks were set, the later of what it may mean). A whole number counts milliseconds since 1970. A
  string is ISO 8601 with a time, with or without a zone, or such a number. Fractions are rounded up: never early.
- `delay_ms` instead: milliseconds from the beginning of the job, by the server's clock.
- `payload`: binary as it is, a string as UTF-8, a struct, map or list as JSON. Null is empty.
- `destination`, `namespace`, `owner`, `key`: strings. `headers`: a map of strings. `ttl_ms`: a whole number.
  Whole numbers may be written as text.

Nothing else is known here. A row that cannot be taken is named with its reason; nothing is guessed.
"""

import re
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any, Final
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct
from numpy.typing import NDArray

from tarry.core import limits
from tarry.core.errors import Invalid, TarryError
from tarry.core.names import DEFAULT_NAMESPACE, TOPIC_SCHEME, parse_destination, parse_namespace
from tarry.core.rules import admission
from tarry.core.rules.admission import MANY, Errors, Timings, mark
from tarry.index.manifest import StagingPlace, Terms
from tarry.ledger.columns import Coded, Contents, Numbers, numbers_of
from tarry.ledger.reading import few_texts, headers_of, integers_of, keys_of, payloads_of

FIELDS: Final = (
    "due",
    "delay_ms",
    "payload",
    "destination",
    "namespace",
    "owner",
    "key",
    "headers",
    "ttl_ms",
)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_NUMBER: Final = re.compile(r"[0-9]{1,15}")
_WHOLE: Final = re.compile(r"-?[0-9]{1,18}")
_TIMED: Final = re.compile(r"[0-9]{4}-?[0-9]{2}-?[0-9]{2}[Tt ][0-9]{2}.*")
_FINE: Final = re.compile(r"[.,][0-9]{6}[0-9]*[1-9]")
_QUARTER_MS: Final = 15 * limits.MINUTE_MS
_LAST_MS: Final = 250_000_000_000_000
"""In the year 9892: no calendar goes far beyond."""
_PER_MS: Final = {"s": 0, "ms": 1, "us": 1_000, "ns": 1_000_000}


class Mapping(Struct, frozen=True, kw_only=True):
    """Which column is what, and what holds where a row says nothing."""

    columns: dict[str, str] = {}
    """By field: what its column is called, where that is not the field's own name."""
    destination: str | None = None
    namespace: str | None = None
    owner: str = ""
    timezone: str = "UTC"
    """For timestamps without a zone."""

    def zone(self) -> tzinfo:
        """The time zone; raises `Invalid`."""
        try:
            return ZoneInfo(self.timezone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise Invalid("timezone", f"{self.timezone} is not a time zone that is known here") from None

    def field_of(self) -> dict[str, str]:
        """By column: the field that it is."""
        unknown = set(self.columns) - set(FIELDS)
        if unknown:
            raise Invalid(min(unknown), f"is not a field; there are {', '.join(FIELDS)}")
        return {self.columns.get(field, field): field for field in FIELDS}

    def check(self, names: list[str]) -> None:
        """Raise `Invalid` unless these columns can make messages."""
        self.zone()
        fields = self.field_of()
        missing = set(self.columns.values()) - set(names)
        if missing:
            raise Invalid(min(missing), "there is no such column")
        for name in names:
            if name not in fields:
                raise Invalid(name, f"is not a column that is known here; there are {', '.join(FIELDS)}")
        if len(set(names)) != len(names):
            raise Invalid("columns", "a name stands there twice")
        known = {fields[name] for name in names}
        if len(known & {"due", "delay_ms"}) != 1:
            raise Invalid("due", "there must be one column, due or delay_ms")
        if "destination" not in known and self.destination is None:
            raise Invalid("destination", "there is neither such a column nor a default")


class Incoming(Struct, frozen=True):
    """Checked rows, as columns."""

    fire_at_ms: NDArray[np.int64]
    due_at_ms: NDArray[np.int64]
    delay_ms: NDArray[np.int64]
    asked: NDArray[np.int64]
    """The due instant or the delay, as it was given."""
    slot_ms: NDArray[np.int64]
    """The finest slot size that holds for the row."""
    places: list[tuple[str, str]]
    """Destinations with their namespaces."""
    codes: NDArray[np.int32]
    """The code of each row's place."""
    contents: Contents
    errors: Errors
    """Row -> why it cannot be taken. If there are any, nothing else here counts."""


def read(batch: pa.RecordBatch, mapping: Mapping, place: StagingPlace) -> Incoming:
    """Read and check rows; raises `Invalid` for a column that is of no use as a whole."""
    fields = mapping.field_of()
    batch = batch.rename_columns([fields[name] for name in batch.schema.names])
    errors: Errors = {}
    # In the order of all rules of admission.
    destinations, spaces = _names(batch, mapping, errors)
    contents = _contents(batch, mapping, errors)
    contents.check(errors)
    asked, due, has_time = _times(batch, mapping, place.now_ms, errors)
    mark(errors, ~has_time, Invalid("due", "is missing"))
    places, terms, codes = _places(destinations, spaces, place, errors)
    # Rows in error may hold anything: keep the sums below from overflowing.
    due[np.fromiter(errors, np.int64, len(errors))] = place.now_ms
    delay = np.maximum(due - place.now_ms, 0)
    timings = Timings.of(terms, codes)
    admission.mark_delays(errors, delay, timings)
    due, fire = admission.instants(due, place.now_ms, 0, timings, MANY)
    contents.check_records(place.unit_max_bytes, places, codes, errors)
    slots = np.array([term.slot_ms for term in terms], np.int64)[codes]
    return Incoming(fire, due, delay, asked, slots, places, codes, contents, errors)


def _contents(batch: pa.RecordBatch, mapping: Mapping, errors: Errors) -> Contents:
    count = batch.num_rows
    ttls = _column(batch, "ttl_ms")
    return Contents(
        count,
        few_texts(_column(batch, "owner"), "owner", mapping.owner, count),
        _payloads(batch),
        keys_of(_column(batch, "key"), None, count),
        None if ttls is None else _whole_numbers(ttls, "ttl_ms", errors),
        headers_of(_column(batch, "headers"), {}, count),
    )


def _column(batch: pa.RecordBatch, name: str) -> Any:
    at = batch.schema.get_field_index(name)
    return None if at < 0 else batch.column(at)


def _truth(mask: Any) -> NDArray[np.bool_]:
    """A column of booleans as an array; null is false."""
    return mask.fill_null(False).to_numpy(zero_copy_only=False)  # type: ignore[no-any-return]


def _numbers(column: Any) -> NDArray[np.int64]:
    """A column of integers as an array of its own; null is 0."""
    return column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64, copy=True)  # type: ignore[no-any-return]


# Times


def _times(
    batch: pa.RecordBatch, mapping: Mapping, now_ms: int, errors: Errors
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """The delays that rows ask for, their due instants, and which rows have any."""
    delay = _column(batch, "delay_ms")
    if delay is not None:
        found, said = _whole_numbers(delay, "delay_ms", errors)
        delays = found.copy()
        admission.DELAY.mark(errors, delays, said)
        # Longer than any policy allows, and no number for the sums below.
        delays = np.minimum(delays, limits.MAX_DELAY_MS + 1)
        delays[np.fromiter(errors, np.int64, len(errors))] = 0
        return delays, now_ms + delays, said
    column = _column(batch, "due")
    said = _truth(column.is_valid())
    due = _instants(column, mapping.zone(), errors)
    mark(errors, admission.DUE.broken(due) & said, Invalid("due", "is before 1970"))
    return due, np.minimum(due, now_ms + limits.MAX_DELAY_MS + 1), said


def _whole_numbers(column: Any, name: str, errors: Errors) -> Numbers:
    """A column of whole numbers, which may be written as text."""
    if pa.types.is_timestamp(column.type):
        raise Invalid(name, f"is a column of {column.type} and not of whole milliseconds")
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return integers_of(column, name, len(column))
    said = column.to_pylist()
    wrong = [text is not None and not _WHOLE.fullmatch(text) for text in said]
    mark(errors, np.array(wrong, np.bool_), Invalid(name, "is not a whole number"))
    values = [None if text is None or bad else int(text) for text, bad in zip(said, wrong, strict=True)]
    return numbers_of(pa.array(values, pa.int64()))


def _instants(column: Any, zone: tzinfo, errors: Errors) -> NDArray[np.int64]:
    """Milliseconds since 1970; null is 0."""
    types = pa.types
    if types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if types.is_integer(column.type):
        return _numbers(column)
    if types.is_timestamp(column.type):
        ticks, per_ms = _numbers(column.cast(pa.int64())), _PER_MS[column.type.unit]
        found = -(-ticks // per_ms) if per_ms else ticks * limits.SECOND_MS
        return found if column.type.tz is not None else _utc(found, zone)
    if not (types.is_string(column.type) or types.is_large_string(column.type)):
        raise Invalid("due", f"is a column of {column.type}, and neither timestamps nor numbers nor strings")
    found = np.zeros(len(column), np.int64)
    for row, said in enumerate(column.to_pylist()):
        if said is not None:
            try:
                found[row] = _instant(said, zone)
            except (ValueError, OverflowError):
                errors.setdefault(
                    row,
                    Invalid(
                        "due", "is not an instant like 2031-05-04T09:30:00Z, nor milliseconds since 1970"
                    ),
                )
    return found


def _instant(said: str, zone: tzinfo) -> int:
    if _NUMBER.fullmatch(said):
        return int(said)
    if not _TIMED.fullmatch(said):
        raise ValueError(said)
    at = datetime.fromisoformat(said)
    if at.tzinfo is None:
        at = _latest(at, zone)
    # What is finer than a microsecond was dropped.
    micros = (at - _EPOCH) // timedelta(microseconds=1) + (_FINE.search(said) is not None)
    return -(-micros // 1000)


def _utc(local_ms: NDArray[np.int64], zone: tzinfo) -> NDArray[np.int64]:
    """Instants from readings of a zone's clocks.

    Not by Arrow, which knows no summer time after 2037. Clocks are set at quarters of an hour, so that one look a quarter
    is enough.
    """
    quarters, inverse = np.unique(np.clip(local_ms, 0, _LAST_MS) // _QUARTER_MS, return_inverse=True)
    starts = [
        _EPOCH.replace(tzinfo=None) + timedelta(milliseconds=at) for at in (quarters * _QUARTER_MS).tolist()
    ]
    shifts = [
        (start.replace(tzinfo=UTC) - _latest(start, zone)) // timedelta(milliseconds=1) for start in starts
    ]
    return local_ms - np.array(shifts, np.int64)[inverse]


def _latest(reading: datetime, zone: tzinfo) -> datetime:
    """The instant of a clock's reading; where clocks were set, the later one of two: never early."""
    return max(reading.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1))


# Payloads and places


def _payloads(batch: pa.RecordBatch) -> Any:
    column = _column(batch, "payload")
    if column is None or not pa.types.is_nested(column.type):
        return payloads_of(column, b"", batch.num_rows)
    encode = msgspec.json.Encoder().encode
    values = column.to_pylist(maps_as_pydicts="strict")
    return pa.array([b"" if value is None else encode(value) for value in values], pa.binary())


def _names(batch: pa.RecordBatch, mapping: Mapping, errors: Errors) -> tuple[Coded[str], Coded[str]]:
    """The destination and the namespace of each row, as they were given."""
    count = batch.num_rows
    destinations = few_texts(_column(batch, "destination"), "destination", mapping.destination, count)
    admission.mark_destinations(errors, *destinations)
    return destinations, few_texts(_column(batch, "namespace"), "namespace", mapping.namespace, count)


def _places(
    destinations: Coded[str], spaces: Coded[str], place: StagingPlace, errors: Errors
) -> tuple[list[tuple[str, str]], list[Terms], NDArray[np.int32]]:
    codes, space_codes = destinations.codes.astype(np.int64), spaces.codes.astype(np.int64)
    width = len(spaces.values) + 1
    pairs, inverse = np.unique(np.maximum(codes, 0) * width + space_codes + 1, return_inverse=True)
    names = destinations.values or [""]
    space_names: list[str | None] = [None, *spaces.values]
    places: list[tuple[str, str]] = []
    terms: list[Terms] = []
    for code, pair in enumerate(pairs.tolist()):
        try:
            found, term = place_of(names[pair // width], space_names[pair % width], place)
        except TarryError as error:
            found, term = ("", ""), place.broker
            mark(errors, inverse == code, error)
        places.append(found)
        terms.append(term)
    return places, terms, inverse.astype(np.int32)


def place_of(destination: str, namespace: str | None, place: StagingPlace) -> tuple[tuple[str, str], Terms]:
    """The full destination with its namespace, and the policy in force there; raises `Invalid`."""
    scheme, separator, rest = destination.partition("://")
    if separator and scheme in place.outlets:
        if not rest or not rest.isprintable() or " " in rest:
            raise Invalid("destination", "is not a whole address")
        namespace = DEFAULT_NAMESPACE if namespace is None else parse_namespace(namespace)
        return (destination, namespace), place.namespaces.get(namespace, place.broker)
    if separator and not destination.startswith(TOPIC_SCHEME):
        raise Invalid("destination", f"there is no outlet for {scheme}:// there")
    topic = parse_destination(destination)
    if namespace is not None and namespace != topic.namespace_name:
        raise Invalid("namespace", f"the destination is in {topic.namespace_name}")
    terms = place.topics.get(topic.full) or place.namespaces.get(topic.namespace_name, place.broker)
    return (topic.full, topic.namespace_name), terms
