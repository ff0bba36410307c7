"""Plans of the cascade for the files of one version of a table. Pure: files in, a plan out.

A file is rewritten when its slot has come near and is to be split, when small files have gathered in its slot, or when it
holds messages of a batch that was cancelled meanwhile. A file below the watermark goes, and so does a staged file of a
cancelled batch. How many files live is bounded thereby: `FILES_PER_SLOT` small ones in each slot, and the full ones.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Final

from msgspec import Struct

from tarry.core.timers.slots import LEVELS, lead_of, parse_slot
from tarry.index.files import FULL_ROWS
from tarry.index.state import Cancelled, CommitState
from tarry.index.table import IndexFile

FILES_PER_SLOT: Final = 8
"""More small files than this in one slot are put together."""
SMALL_ROWS: Final = FULL_ROWS // 2
SMALL_BYTES: Final = 64 << 20
"""A file is small as long as it has fewer rows and takes less on disk."""
FILES_PER_REWRITE: Final = 16
"""How many files one task reads side by side: a row group of each is in its memory."""
ROUND_ROWS: Final = 20_000_000
"""About how much one round rewrites; the rest waits for the next one."""


class Rewrite(Struct, frozen=True):
    """Files of one slot to be written anew, and others whose rows they may concern."""

    files: list[IndexFile]
    beside: list[IndexFile] = []
    """Files that overlap them: a del of theirs may end a put of these, and the other way round."""

    @property
    def rows(self) -> int:
        """How many rows are read to be written."""
        return sum(file.rows for file in self.files)


class UpkeepPlan(Struct, frozen=True):
    """The work on the files of one version."""

    expired: list[IndexFile]
    """Wholly dead: nothing in them is needed."""
    rewrites: list[Rewrite]

    def within(self, rows: int) -> "UpkeepPlan":
        """The first rewrites, up to about so many rows; at least one."""
        chosen: list[Rewrite] = []
        for rewrite in self.rewrites:
            rows -= rewrite.rows
            if chosen and rows < 0:
                break
            chosen.append(rewrite)
        return UpkeepPlan(self.expired, chosen)


def plan(files: Sequence[IndexFile], state: CommitState, default_ms: int, now_ms: int) -> UpkeepPlan:
    """Decide which files of the index go and which are rewritten, the nearest first."""
    expired: list[IndexFile] = []
    live: list[IndexFile] = []
    for file in files:
        dead = file.last_ms < state.watermark[0] or _is_cancelled(file, state.cancelled)
        (expired if dead else live).append(file)
    by_slot: dict[str, list[IndexFile]] = defaultdict(list)
    for file in live:
        by_slot[file.partition].append(file)
    finest_ms = state.finest_ms(default_ms)
    rewrites: list[Rewrite] = []
    for name in sorted(by_slot, key=lambda name: parse_slot(name).start_ms):
        members = by_slot[name]
        must = [
            file for file in members if _is_coarse(file, state, finest_ms, now_ms) or _is_touched(file, state)
        ]
        chosen = {file.path for file in must}
        rewrites += map(Rewrite, _groups(must))
        rest = [file for file in members if file.path not in chosen]
        rewrites += [Rewrite(group) for group in _groups(crowd(rest)) if len(group) > 1]
    return UpkeepPlan(expired, [Rewrite(one.files, _beside(one.files, live)) for one in rewrites])


def plan_history(files: Sequence[IndexFile], keep_from_day: str) -> UpkeepPlan:
    """Decide which files of the history go, being too old, and which are put together."""
    by_day: dict[str, list[IndexFile]] = defaultdict(list)
    for file in files:
        by_day[file.partition].append(file)
    expired = [file for day, members in by_day.items() if day < keep_from_day for file in members]
    kept = [members for day, members in sorted(by_day.items()) if day >= keep_from_day]
    groups = [group for members in kept for group in _groups(crowd(members)) if len(group) > 1]
    return UpkeepPlan(expired, [Rewrite(group) for group in groups])


def crowd(files: Iterable[IndexFile]) -> list[IndexFile]:
    """The small files of one slot that are to be put together; none while there are few.

    The smallest, and as many more as are not larger than those before them together: so a row is written anew only
    when its file grows by a good part, however many flushes there are.
    """
    small = sorted(
        (file for file in files if file.rows < SMALL_ROWS and file.size < SMALL_BYTES),
        key=lambda one: one.size,
    )
    if len(small) <= FILES_PER_SLOT:
        return []
    taken = small[:FILES_PER_SLOT]
    for file in small[FILES_PER_SLOT:]:
        if file.size > sum(one.size for one in taken):
            break
        taken.append(file)
    return taken


def _is_cancelled(file: IndexFile, cancelled: Sequence[Cancelled]) -> bool:
    """Whether it is a staged file whose messages have all ended with their batch."""
    return bool(file.base) and any(batch.ends_all(file.base, file.rows) for batch in cancelled)


def _is_touched(file: IndexFile, state: CommitState) -> bool:
    """Whether it may hold messages of a batch that was cancelled after it was written."""
    low_seq, high_seq = file.low_seq + file.base, file.high_seq + file.base
    return file.written_ms <= state.revised_at_ms and any(
        batch.covers(low_seq, high_seq) for batch in state.cancelled
    )


def _is_coarse(file: IndexFile, state: CommitState, finest_ms: int, now_ms: int) -> bool:
    """Whether it may hold rows that belong into finer slots by now.

    When it was written, its rows were given their slots by that instant and by the granularities of that time. If its slot was
    near even then, those in it belong there, unless a granularity has become finer since.
    """
    slot = parse_slot(file.partition)
    near_ms = slot.start_ms - lead_of(slot.size_ms)
    if slot.size_ms <= finest_ms or now_ms <= near_ms:
        return False
    was_far = slot.size_ms in LEVELS and file.written_ms <= near_ms
    return bool(file.base) or was_far or file.written_ms <= state.revised_at_ms


def _groups(files: Sequence[IndexFile]) -> list[list[IndexFile]]:
    """Files divided among tasks: none reads too many at once, or too much while others have nothing to do."""
    groups: list[list[IndexFile]] = []
    rows = FULL_ROWS
    for file in files:
        if not groups or len(groups[-1]) == FILES_PER_REWRITE or rows + file.rows > FULL_ROWS:
            groups.append([])
            rows = 0
        groups[-1].append(file)
        rows += file.rows
    return groups


def _beside(files: Sequence[IndexFile], live: Sequence[IndexFile]) -> list[IndexFile]:
    """The files whose dels may concern these, or whose puts the dels of these."""
    low, high = min(file.first_ms for file in files), max(file.last_ms for file in files)
    paths = {file.path for file in files}
    has_dels = any(file.dels for file in files)
    return [
        file for file in live
        if file.path not in paths and file.first_ms <= high and file.last_ms >= low and (has_dels or file.dels)
    ]  # fmt: skip
