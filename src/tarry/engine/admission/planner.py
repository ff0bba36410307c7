"""Rules asked of columns: the rows that break none become units of the ledger, without an object for a row.

The rules and their order are those of rows (`first_versions`), and `tests/property/test_admission.py` holds the two against
each other: columns are the other layout of the same thing, for where a row may cost a fraction of a microsecond.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tarry.core.errors import TarryError
from tarry.core.limits import MAX_DELAY_MS
from tarry.core.messages.message import Message
from tarry.core.rules import admission
from tarry.core.rules.admission import MANY, Errors, Timings, mark
from tarry.core.rules.policy import Level, effective
from tarry.core.tenants.holder import Holder
from tarry.engine.admission.columns import Columns, Plan
from tarry.engine.admission.destinations import Bound, Destinations, OwnerLimits
from tarry.engine.admission.request_keys import AskedTimes, RequestKeys
from tarry.engine.journal.journal import Journal
from tarry.engine.records.changes import Versions, Written
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.columns import Coded, Numbers, count_holders, holders_of, lanes_of, lengths_of
from tarry.ledger.frame import ROW_BYTES
from tarry.ledger.puts import encode_bodies, place_text, unit_of_puts

UNIT_ROWS: Final = 8_192
UNIT_BYTES: Final = 8 * 1024 * 1024
"""Maximum bytes of one unit of columns: a frame is written and synced as a whole."""

_NOWHERE: Final = Bound("", "", effective())
"""Rows that are refused because of their destination have this one, until they are left out."""


class Planner:
    """Asks the rules, and lays out the rows that break none."""

    def __init__(
        self, journal: Journal, state: EngineState, destinations: Destinations, owner_limits: OwnerLimits
    ) -> None:
        self._journal = journal
        self._state = state
        self._destinations = destinations
        self._owner_limits = owner_limits

    def plan(
        self, columns: Columns, defaults: Message, now_ms: int, trace: bytes | None = None
    ) -> tuple[list[Plan], Errors]:
        """The rows that can be taken, in units, and the errors of the others."""
        errors: Errors = {}
        contents = columns.contents
        if not contents.count:
            return [], errors
        admission.mark_destinations(errors, *columns.destinations)
        contents.check(errors)
        times = times_of(columns, defaults)
        asked, delay = _delays(times, now_ms, errors)
        keys = None if columns.line_keys is None else RequestKeys.of(columns.line_keys)
        if keys is not None:
            admission.IDEMPOTENCY_KEY_SIZE.mark(errors, lengths_of(keys.column))
        bounds, codes = self._bounds(columns.destinations, defaults.namespace, errors)
        timings = Timings.of([bound.policy for bound in bounds], codes)
        levels = [self._state.policies.level_at(bound.destination, bound.namespace) for bound in bounds]
        admission.mark_delays(errors, delay, timings, lambda row, field: levels[codes[row]](field))
        due, fire = admission.instants(asked, now_ms, self._state.floor_ms, timings, MANY)
        places = [(bound.destination, bound.namespace) for bound in bounds]
        contents.check_records(
            self._journal.unit_max_bytes, places, codes, errors, keys.texts if keys is not None else None
        )
        self._mark_limits(contents.owners, bounds, levels, codes, now_ms, errors)
        rows = np.arange(contents.count)
        if errors:
            rows = np.delete(rows, _rows(errors))
            if not len(rows):
                return [], errors
            contents, codes, fire, due, delay = (
                contents.take(rows), codes[rows], fire[rows], due[rows], delay[rows],
            )  # fmt: skip
            keys = keys.at(rows) if keys is not None else None
            times = times.at(rows)
        texts = [place_text(namespace, destination) for destination, namespace in places]
        if keys is not None:
            keys.ask(contents, columns.destinations.at(rows), times, defaults)
        bodies = encode_bodies(
            contents, Coded(texts, codes), fire, due, delay, now_ms, defaults.door, trace, keys
        )
        holders = holders_of(Coded([bound.namespace for bound in bounds], codes), contents.owners)
        lanes = lanes_of(holders, defaults.door)
        plans = []
        for part in _units_of(lengths_of(bodies), self._journal.unit_max_bytes):
            piece = bodies[part]
            unit = unit_of_puts(piece, fire[part], lanes[part])
            held = Coded(holders.values, holders.codes[part])
            counts = count_holders(held)
            keyed = () if keys is None else keys.answers(part, held, fire[part], due[part], now_ms)
            plans.append(
                Plan(Written(unit, [Versions(counts, (), keyed)]), rows[part], fire[part], due[part])
            )
        return plans, errors

    def _bounds(
        self, destinations: Coded[str], namespace: str | None, errors: Errors
    ) -> tuple[list[Bound], NDArray[np.int32]]:
        bounds: list[Bound] = []
        for code, destination in enumerate(destinations.values):
            try:
                bounds.append(self._destinations.find(destination, namespace))
            except TarryError as error:
                bounds.append(_NOWHERE)
                mark(errors, destinations.codes == code, error)
        # Rows without a destination keep some code that exists: they are left out before anybody looks.
        return bounds or [_NOWHERE], np.maximum(destinations.codes, 0)

    def _mark_limits(
        self,
        owners: Coded[str],
        bounds: list[Bound],
        levels: list[Level],
        codes: NDArray[np.int32],
        now_ms: int,
        errors: Errors,
    ) -> None:
        limited = [code for code, bound in enumerate(bounds) if self._owner_limits.applies(bound.policy)]
        before: Counter[Holder] = Counter()
        for row in np.flatnonzero(np.isin(codes, limited)).tolist() if limited else ():
            if row in errors:
                continue
            _, namespace, policy = bounds[codes[row]]
            level = levels[codes[row]]
            holder = Holder(namespace, owners.values[owners.codes[row]])
            try:
                self._owner_limits.charge(holder, policy, level, now_ms, before[holder])
                before[holder] += 1
            except TarryError as error:
                errors[row] = error


def times_of(columns: Columns, defaults: Message) -> AskedTimes:
    """The times that each row gives, or the defaults if it gives none."""
    neither = ~(columns.due_at_ms.given | columns.delay_ms.given)
    return AskedTimes(
        _filled(columns.due_at_ms, defaults.due_at_ms, neither),
        _filled(columns.delay_ms, defaults.delay_ms, neither),
    )


def _delays(times: AskedTimes, now_ms: int, errors: Errors) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The due instant that each row asks for, and how far ahead it is."""
    (dues, has_due), (delays, has_delay) = times
    admission.TWO_TIMES.mark(errors, has_due & has_delay)
    admission.DUE.mark(errors, dues, has_due)
    admission.DELAY.mark(errors, delays, has_delay)
    admission.NO_TIME.mark(errors, has_due | has_delay)
    # Beyond all policies a delay is as good as any other, and no number for the sums below.
    beyond_ms = MAX_DELAY_MS + 1
    asked = np.where(has_delay, now_ms + np.minimum(delays, beyond_ms), np.minimum(dues, now_ms + beyond_ms))
    if errors:
        # Rows in error may hold anything.
        asked[_rows(errors)] = now_ms
    return asked, np.maximum(asked - now_ms, 0)


def _filled(numbers: Numbers, default: int | None, neither: NDArray[np.bool_]) -> Numbers:
    """A column with the default in the rows that say nothing."""
    if default is None or not neither.any():
        return numbers
    most = np.iinfo(np.int64).max
    return Numbers(np.where(neither, min(default, most), numbers.values), numbers.given | neither)


def _units_of(sizes: NDArray[np.int32], unit_max_bytes: int) -> Iterator[slice]:
    """The rows in pieces, each of which fits a unit."""
    ends = np.cumsum(sizes + ROW_BYTES, dtype=np.int64)
    most_bytes, low = min(UNIT_BYTES, unit_max_bytes), 0
    while low < len(ends):
        before = int(ends[low - 1]) if low else 0
        high = int(np.searchsorted(ends, before + most_bytes, side="right"))
        # A row that fits no unit by itself is one all the same: the ledger says what is too large.
        high = max(low + 1, min(high, low + UNIT_ROWS))
        yield slice(low, high)
        low = high


def _rows(errors: Errors) -> NDArray[np.int64]:
    return np.fromiter(errors, np.int64, len(errors))
