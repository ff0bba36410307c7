"""The operations on repeats that doors call: set, look at, list, pause, resume and remove them by name."""

from typing import Final, Literal

import msgspec
from msgspec import Struct

from tarry.core.errors import Conflict, Invalid, NotFound, TarryError
from tarry.core.messages.repeat import (
    MAX_REPEATS,
    MAX_REPEATS_BYTES,
    SHOWN,
    Occurrences,
    Repeat,
    RepeatProgress,
    check_repeat_name,
)
from tarry.core.messages.shapes import RepeatFacts
from tarry.core.names import parse_namespace
from tarry.core.time.clock import Clock
from tarry.engine.answer import Answer, failed
from tarry.engine.journal.journal import Journal
from tarry.engine.namespaces.namespace_shares import NamespaceShares
from tarry.engine.namespaces.repeat_state import HeldRepeat, RepeatName, asked, come_to
from tarry.engine.repeats.repeating import Repeating
from tarry.engine.repeats.zone_files import offset_of
from tarry.engine.state.engine_state import EngineState
from tarry.ledger.record import Record

RepeatCondition = Literal["active", "paused", "over"]

MAX_LISTED: Final = 100
"""Repeats in one page: what it costs is the reckoning of their next instants."""


class RepeatView(RepeatFacts, frozen=True, kw_only=True):
    """A repeat as it can be shown."""

    headers: dict[str, str]
    payload: bytes


class RepeatPage(Struct, frozen=True):
    """One page of a list, by name."""

    repeats: list[RepeatView]
    next_page: str | None


class Repeats:
    """Sets repeats and shows them."""

    def __init__(
        self,
        journal: Journal,
        state: EngineState,
        repeating: Repeating,
        clock: Clock,
        shares: NamespaceShares,
    ) -> None:
        self._shares = shares
        self._journal = journal
        self._state = state
        self._held = state.repeats
        self._repeating = repeating
        self._clock = clock

    def __len__(self) -> int:
        return len(self._held.by_name)

    def set(self, namespace: str, name: str, repeat: Repeat) -> Answer[RepeatView]:
        """Begin a repeat, or begin it anew as it is asked for now; one that is asked for as it is goes on."""
        try:
            key = RepeatName(parse_namespace(namespace), name)
            check_repeat_name(name)
            repeat.check()
            self._journal.check_shown()
            before = self._held.by_name.get(key)
            if before is not None and before.repeat == repeat:
                return self._shown(key)
            now_ms = self._clock.now_ms()
            first_ms = Occurrences(repeat, key.full, offset_of).first_at_ms(now_ms)
            if first_ms is None:
                raise Invalid("end_at_ms", "there is no occurrence: the first one would be after the end")
            new = HeldRepeat(key, repeat, RepeatProgress(next_at_ms=first_ms, since_ms=now_ms))
            # An occurrence is refused now for whatever it would be refused for later.
            self._repeating.version(new, first_ms, max(first_ms, now_ms), now_ms)
            self._check_limit(new, before)
            ends = [] if before is None else self._repeating.taken_back(before, now_ms)[0]
            return self._write(key, [*ends, asked(key, repeat), come_to(key, new.progress)])
        except TarryError as error:
            return failed(error)

    def _check_limit(self, new: HeldRepeat, before: HeldRepeat | None) -> None:
        state, freed_bytes = self._held, 0 if before is None else before.repeat.size_bytes
        if before is None and len(state.by_name) >= MAX_REPEATS:
            raise Conflict(
                f"there are {MAX_REPEATS} repeats, as many as a server may have: remove some", "full"
            )
        if state.size_bytes - freed_bytes + new.repeat.size_bytes > MAX_REPEATS_BYTES:
            raise Conflict(
                f"the payloads and headers of all repeats would be more than {MAX_REPEATS_BYTES >> 20} MiB: remove some"
                " repeats, or keep large content elsewhere and send its address",
                "full",
            )
        self._check_share(new.name.namespace, before is None, new.repeat.size_bytes - freed_bytes)
        if before is None or before.holder != new.holder:
            policy = self._repeating.policy(new)
            level = self._state.policies.level_at(new.repeat.destination, new.holder.namespace)
            self._state.pending.check(
                new.holder, policy.max_pending_per_owner, level, state.by_holder[new.holder]
            )

    def _check_share(self, namespace: str, is_new: bool, more_bytes: int) -> None:
        state = self._held
        if is_new:
            self._shares.check(
                namespace, MAX_REPEATS, len(state.by_name), state.by_namespace[namespace], 1,
                f"the {MAX_REPEATS} repeats", "remove some there",
            )  # fmt: skip
        if more_bytes > 0:
            self._shares.check(
                namespace, MAX_REPEATS_BYTES, state.size_bytes, state.bytes_by_namespace[namespace], more_bytes,
                f"{MAX_REPEATS_BYTES >> 20} MiB for the payloads and headers of repeats",
                "remove some there, or keep large content elsewhere and send its address",
            )  # fmt: skip

    def get(self, namespace: str, name: str) -> Answer[RepeatView]:
        """A repeat as it is now."""
        try:
            return self._shown(self._find(namespace, name).name)
        except TarryError as error:
            return failed(error)

    def page(
        self, namespace: str | None, *, limit: int = MAX_LISTED, after: str | None = None
    ) -> Answer[RepeatPage]:
        """A page of the repeats of a namespace or of all, by name."""
        try:
            low = None if after is None else RepeatName.parse(after)
        except ValueError:
            return failed(Invalid("page", "is no page of this list; use next_page of its last answer"))
        limit = max(1, min(limit, MAX_LISTED))
        names = self._held.names(namespace, low, limit + 1)
        shown = names[:limit]
        now_ms = self._clock.now_ms()

        def made() -> RepeatPage:
            held = [self._held.by_name[name] for name in shown if name in self._held.by_name]
            views = [self._view(one, now_ms, 1) for one in held]
            return RepeatPage(views, shown[-1].full if len(names) > len(shown) else None)

        return self._journal.once_durable(made)

    def pause(self, namespace: str, name: str) -> Answer[RepeatView]:
        """Accept no more occurrences, and take back those that are not due; one that is paused stays so."""
        try:
            held = self._find(namespace, name)
            if held.progress.paused_at_ms is not None:
                return self._shown(held.name)
            now_ms = self._clock.now_ms()
            ends, progress = self._repeating.taken_back(held, now_ms)
            if progress.over_at_ms is not None:
                raise Conflict("the repeat is over: its last occurrence was due", "over")
            paused = msgspec.structs.replace(progress, paused_at_ms=now_ms)
            return self._write(held.name, [*ends, come_to(held.name, paused)])
        except TarryError as error:
            return failed(error)

    def resume(self, namespace: str, name: str) -> Answer[RepeatView]:
        """Go on: occurrences planned for the pause are missed. One that is not paused goes on as it is."""
        try:
            held = self._find(namespace, name)
            if held.progress.paused_at_ms is None:
                return self._shown(held.name)
            now_ms = self._clock.now_ms()
            progress = msgspec.structs.replace(held.progress, paused_at_ms=None, since_ms=now_ms)
            return self._write(held.name, [come_to(held.name, progress)])
        except TarryError as error:
            return failed(error)

    def remove(self, namespace: str, name: str) -> Answer[None]:
        """End a repeat. Once this is answered, no occurrence that was not due by then goes out."""
        try:
            held = self._find(namespace, name)
            ends, _ = self._repeating.taken_back(held, self._clock.now_ms())
            records = [*ends, *self._held.ends_of(held.name)]
            return self._journal.write(records, lambda: None, essential=True)
        except TarryError as error:
            return failed(error)

    def _find(self, namespace: str, name: str) -> HeldRepeat:
        self._journal.check_shown()
        held = self._held.by_name.get(RepeatName(parse_namespace(namespace), name))
        if held is None:
            raise NotFound(f"there is no repeat {name} in {namespace}")
        return held

    def _write(self, name: RepeatName, records: list[Record]) -> Answer[RepeatView]:
        answer = self._journal.write(records, lambda: view)
        view = self._view(self._held.by_name[name], self._clock.now_ms())
        return answer

    def _shown(self, name: RepeatName) -> Answer[RepeatView]:
        """A repeat as it is, told once it is durable."""
        view = self._view(self._held.by_name[name], self._clock.now_ms())
        return self._journal.once_durable(lambda: view)

    def _view(self, held: HeldRepeat, now_ms: int, instants: int = SHOWN) -> RepeatView:
        progress, repeat = held.progress, held.repeat
        state: RepeatCondition = "active"
        if progress.paused_at_ms is not None:
            state = "paused"
        elif progress.over_at_ms is not None:
            state = "over"
        by_clock = repeat.cron is not None
        return RepeatView(
            name=held.name.name, namespace=held.name.namespace, state=state, destination=repeat.destination,
            owner=repeat.owner, door=repeat.door, key=repeat.key, ttl_ms=repeat.ttl_ms,
            every_ms=None if by_clock else repeat.every_ms, every_months=repeat.every_months or None, cron=repeat.cron,
            zone=repeat.zone or "UTC" if by_clock else None, start_at_ms=repeat.start_at_ms, end_at_ms=repeat.end_at_ms,
            count=repeat.count, jitter_ms=repeat.jitter_ms, missed=repeat.missed,
            next_due_at_ms=self._repeating.occurrences(held).shown(progress, now_ms, instants), made=progress.made,
            last_at_ms=progress.last_at_ms, paused_at_ms=progress.paused_at_ms,
            trouble=self._repeating.troubles.get(held.name), headers=repeat.headers, payload=repeat.payload,
        )  # fmt: skip
