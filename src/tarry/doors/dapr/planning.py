"""Reading publishes, the same for both protocols: what is asked for, or why it cannot be.

A request is read whole before anything happens, so that one that is wrong changes nothing. What has a
`scheduledSendTime` has a due instant or is refused: it is never taken for one that goes out at once.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from tarry.core.errors import Invalid
from tarry.core.time.clock import Clock
from tarry.doors.dapr import errors
from tarry.doors.dapr.cloudevents import CONTENT_TYPE, NO_TRACE, EventOrigin, Trace, make
from tarry.doors.dapr.errors import Refusal
from tarry.doors.dapr.mounting import Mounted, Mounts
from tarry.outlets.dapr.component import Feature
from tarry.outlets.dapr.properties import ttl_ms_of
from tarry.outlets.dapr.repeats import FIELD as REPEAT
from tarry.outlets.dapr.repeats import repeat_of
from tarry.outlets.dapr.times import FIELD as SCHEDULED
from tarry.outlets.dapr.times import due_at_ms

RAW: Final = "rawPayload"
MAX_ENTRIES: Final = 10_000
"""Entries of one bulk. Some of what is done for them is done in one turn of the loop."""
PLANNED_AT_ONCE: Final = 256
"""Entries that are read in one turn of the loop: some milliseconds."""
_WHEN: Final = {name.lower(): name for name in (SCHEDULED, REPEAT)}
_TRUE: Final = frozenset(("1", "t", "T", "true", "TRUE", "True"))
_FALSE: Final = frozenset(("0", "f", "F", "false", "FALSE", "False"))


class Planned(Struct, frozen=True):
    """A publish that is good: what goes out, where, and when."""

    mounted: Mounted
    topic: str
    data: bytes
    content_type: str
    metadata: dict[str, str]
    due_at_ms: int | None
    """None: at once."""
    repeat: str | None = None
    """The occurrences still to come after this one, of a repeat."""


class BulkItem(Struct, frozen=True):
    """One message of a bulk publish, as it came."""

    entry_id: str
    data: bytes
    content_type: str = ""
    metadata: Mapping[str, str] = {}


class PublishTiming(Struct, frozen=True):
    """The times in the metadata of a publish, and the metadata without them."""

    due_at_ms: int | None
    expires_at_ms: int | None
    metadata: dict[str, str]
    repeat: str | None = None


class Planning:
    """Reads the publishes of one application."""

    def __init__(self, app_id: str, mounts: Mounts, clock: Clock, *, preview: bool) -> None:
        self._app_id = app_id
        self._mounts = mounts
        self._clock = clock
        self._preview = preview
        """Whether the configuration allows delayed messaging at all."""

    def plan(
        self,
        pubsub: str,
        topic: str,
        data: bytes,
        content_type: str,
        metadata: dict[str, str],
        trace: Trace | None,
        *,
        traced_raw: bool = False,
    ) -> Planned:
        """Read one publish; raises `Refusal`.

        With `traced_raw` the trace context of a raw payload goes into its metadata, as Dapr does it over gRPC.
        """
        mounted = self.find(pubsub, topic)
        raw = self._is_raw(mounted, metadata)
        trace = trace or NO_TRACE
        if raw and traced_raw:
            metadata = metadata | {"traceid": trace.parent, "tracestate": trace.state}
        timing = self._timing(mounted, metadata)
        return self._planned(mounted, topic, data, content_type, timing, trace, raw)

    async def plan_bulk(
        self,
        pubsub: str,
        topic: str,
        entries: Sequence[BulkItem],
        metadata: dict[str, str],
        trace: Trace | None,
    ) -> list[Planned]:
        """Read a bulk publish; raises `Refusal` if any part of it is wrong."""
        mounted = self.find(pubsub, topic)
        # Whether the payloads are raw is said of the request, not of an entry.
        raw = self._is_raw(mounted, metadata)
        trace = trace or NO_TRACE
        seen: set[str] = set()
        for entry in entries:
            if not entry.entry_id or entry.entry_id in seen:
                error = "entryId is duplicated or not present for entry"
                raise Refusal(
                    errors.EVENTS,
                    f"error marshaling events to bytes for topic {topic} pubsub {pubsub}. error: {error}",
                    pubsub=pubsub,
                    metadata={"appID": self._app_id, "error": error, "entryId": entry.entry_id},
                )
            seen.add(entry.entry_id)
        shared = self._timing(mounted, metadata)
        plans: list[Planned] = []
        for start in range(0, len(entries), PLANNED_AT_ONCE):
            if start:
                await asyncio.sleep(0)
            plans += [
                self._planned(
                    mounted,
                    topic,
                    entry.data,
                    entry.content_type,
                    self._timing(mounted, {**metadata, **entry.metadata}) if entry.metadata else shared,
                    trace,
                    raw,
                )
                for entry in entries[start : start + PLANNED_AT_ONCE]
            ]
        return plans

    def find(self, pubsub: str, topic: str) -> Mounted:
        """The component of this name, if the application may publish to the topic there; raises `Refusal`."""
        if not pubsub:
            raise Refusal(
                errors.NAME_EMPTY, "pubsub name is empty", pubsub="", metadata={"appID": self._app_id}
            )
        mounted = self._mounts.get(pubsub)
        if mounted is None:
            raise errors.not_found(pubsub)
        if not topic:
            raise Refusal(errors.TOPIC_EMPTY, f"topic is empty in pubsub {pubsub}", pubsub=pubsub)
        if not mounted.may_publish(topic):
            message = f"topic {topic} is not allowed for app id {self._app_id}"
            raise Refusal(
                errors.FORBIDDEN, message, pubsub=pubsub, metadata={"topic": topic, "error": message}
            )
        return mounted

    def check_stray(self, pubsub: str, name: str) -> None:
        """Raise `Refusal` for a key of a query that was meant to say when, where that would count."""
        right = _WHEN.get(name.lower().removeprefix("metadata."))
        if right is None or (mounted := self._mounts.get(pubsub)) is None:
            return
        if self._preview and mounted.definition.delayed:
            raise _bad_metadata(mounted, Invalid(name, f"is written metadata.{right}"))

    def _is_raw(self, mounted: Mounted, metadata: Mapping[str, str]) -> bool:
        given = metadata.get(RAW)
        if not given or given in _FALSE:
            return False
        if given in _TRUE:
            return True
        raise _refused_metadata(mounted, f"{RAW} value must be a valid boolean: actual is '{given}'")

    def _timing(self, mounted: Mounted, metadata: dict[str, str]) -> PublishTiming:
        now_ms = self._clock.now_ms()
        due_ms: int | None = None
        repeat: str | None = None
        if SCHEDULED in metadata or REPEAT in metadata:
            due_ms, repeat = self._due(mounted, metadata, now_ms)
            metadata = {name: value for name, value in metadata.items() if name not in (SCHEDULED, REPEAT)}
        if self._preview and mounted.definition.delayed:
            _check_spelling(mounted, metadata)
        expires_at_ms: int | None = None
        if "ttlInSeconds" in metadata and (ttl_ms := ttl_ms_of(metadata)) is not None:
            if due_ms is not None:
                expires_at_ms = max(due_ms, now_ms) + ttl_ms
            elif Feature.MESSAGE_TTL not in mounted.component.features:
                expires_at_ms = now_ms + ttl_ms
        return PublishTiming(due_ms, expires_at_ms, metadata, repeat)

    def _planned(
        self,
        mounted: Mounted,
        topic: str,
        data: bytes,
        content_type: str,
        timing: PublishTiming,
        trace: Trace,
        raw: bool,
    ) -> Planned:
        if not raw:
            place = EventOrigin(mounted.name, topic, self._app_id)
            now_ms = self._clock.now_ms()
            try:
                data = make(data, content_type, timing.metadata, place, trace, now_ms, timing.expires_at_ms)
            except Invalid as error:
                raise Refusal(
                    errors.CLOUD_EVENT,
                    "cannot create cloudevent",
                    pubsub=mounted.name,
                    metadata={"appID": self._app_id, "error": error.reason},
                ) from None
            content_type = CONTENT_TYPE
        return Planned(mounted, topic, data, content_type, timing.metadata, timing.due_at_ms, timing.repeat)

    def _due(self, mounted: Mounted, metadata: Mapping[str, str], now_ms: int) -> tuple[int, str | None]:
        """The due instant, and the occurrences that follow it; raises `Refusal`."""
        if not self._preview or not mounted.definition.delayed:
            where = (
                f"set enableDelayedMessaging in the metadata of component {mounted.name}"
                if self._preview
                else "switch on the preview feature DelayedMessaging in the configuration"
            )
            raise Refusal(
                errors.DELAYED_OFF,
                f"{SCHEDULED if SCHEDULED in metadata else REPEAT} is given and delayed messaging is not enabled: {where}",
                pubsub=mounted.name,
                metadata={"appID": self._app_id},
            )
        try:
            if REPEAT not in metadata:
                return max(0, due_at_ms(metadata[SCHEDULED], now_ms)), None
            repeat = repeat_of(metadata[REPEAT])
            if repeat.left == 0 or mounted.definition.custody != "ledger":
                raise Invalid(REPEAT, "repeats never" if repeat.left == 0 else "needs the ledger's custody")
            if SCHEDULED in metadata:
                return max(0, due_at_ms(metadata[SCHEDULED], now_ms)), repeat.written()
            first_ms = repeat.next_ms(now_ms, now_ms)
            if first_ms is None:
                raise Invalid(REPEAT, f"{metadata[REPEAT]!r} does not come round any more")
            return first_ms, repeat.written()
        except Invalid as error:
            raise _bad_metadata(mounted, error) from None


def check_entries(count: int, pubsub: str) -> None:
    """Raise `Refusal` for a bulk of too many entries."""
    if count > MAX_ENTRIES:
        raise Refusal(
            errors.TOO_LARGE,
            f"a bulk of {count} entries; {MAX_ENTRIES} are the most: send several",
            pubsub=pubsub,
        )


def _check_spelling(mounted: Mounted, metadata: Mapping[str, str]) -> None:
    """A key that is nearly `scheduledSendTime` would mean: at once. It is refused."""
    for name in metadata:
        if (right := _WHEN.get(name.lower().removeprefix("metadata."))) is not None:
            raise _bad_metadata(mounted, Invalid(name, f"is written {right}"))


def _bad_metadata(mounted: Mounted, error: Invalid) -> Refusal:
    return _refused_metadata(mounted, str(error))


def _refused_metadata(mounted: Mounted, reason: str) -> Refusal:
    message = f"failed deserializing metadata. Error: {reason}"
    return Refusal(errors.METADATA, message, pubsub=mounted.name, metadata={"error": reason})
