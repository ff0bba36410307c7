"""Publishing, the same for both protocols: from a request to bytes at a broker or to a message in the ledger.

A request is read whole before anything happens, so that one that is wrong changes nothing. What has a
`scheduledSendTime` is never published at once: it is scheduled, or it is refused.

Into one of Tarry's own topics a scheduled message goes straight, exactly once (R5). Everything else is bound for
`dapr://app/component/topic` and leaves by the outlet, which asks the component's scopes once more.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct, structs

from tarry.core.errors import Invalid, TarryError
from tarry.core.message import Message, Scheduled
from tarry.doors.dapr import cloudevents, errors
from tarry.doors.dapr.cloudevents import Place, Trace
from tarry.doors.dapr.delayed import DelayedTopic
from tarry.doors.dapr.delayed_message import Delayed
from tarry.doors.dapr.errors import Refusal, refusal_of
from tarry.doors.dapr.mounting import Mounted, Mounts
from tarry.engine.answer import Answer
from tarry.engine.engine import Engine
from tarry.outlets.dapr.brokers.tarry import OwnTopicsComponent, own_message
from tarry.outlets.dapr.component import BulkEntry, Feature
from tarry.outlets.dapr.delivery import destination, headers_of
from tarry.outlets.dapr.properties import ttl_ms_of
from tarry.outlets.dapr.times import FIELD as SCHEDULED
from tarry.outlets.dapr.times import due_at_ms

RAW: Final = "rawPayload"
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


class Entry(Struct, frozen=True):
    """One message of a bulk publish, as it came."""

    entry_id: str
    data: bytes
    content_type: str = ""
    metadata: Mapping[str, str] = {}


class BulkResult(Struct, frozen=True):
    """What became of a bulk publish."""

    failed: dict[str, str]
    """Why, by entry id; empty if nothing failed."""
    ids: list[str]
    """The message ids of what was scheduled, in the order of the entries."""


class Publishing:
    """Publishes for one application."""

    def __init__(self, app_id: str, mounts: Mounts, engine: Engine, *, preview: bool) -> None:
        self._app_id = app_id
        self._mounts = mounts
        self._engine = engine
        self._preview = preview
        """Whether the configuration allows delayed messaging at all."""
        self.delayed: dict[str, DelayedTopic] = {}
        """The delayed topics by component, where there are any."""

    # Reading

    def plan(
        self,
        pubsub: str,
        topic: str,
        data: bytes,
        content_type: str,
        metadata: dict[str, str],
        trace: Trace | None,
    ) -> Planned:
        """Read one publish; raises `Refusal`."""
        mounted = self.find(pubsub, topic)
        raw = self._is_raw(mounted, metadata)
        return self._planned(mounted, topic, data, content_type, metadata, trace, raw)

    def plan_bulk(
        self,
        pubsub: str,
        topic: str,
        entries: Sequence[Entry],
        metadata: dict[str, str],
        trace: Trace | None,
    ) -> list[Planned]:
        """Read a bulk publish; raises `Refusal` if any of it is wrong."""
        mounted = self.find(pubsub, topic)
        # Whether the payloads are raw is said of the request, not of an entry.
        raw = self._is_raw(mounted, metadata)
        seen: set[str] = set()
        for entry in entries:
            if not entry.entry_id or entry.entry_id in seen:
                what = "is duplicated" if entry.entry_id else "is not set"
                error = f"entryId {entry.entry_id} {what} in bulk publish request".replace("  ", " ")
                raise Refusal(
                    errors.EVENTS,
                    f"error marshaling events to bytes for topic {topic} pubsub {pubsub}. error: {error}",
                    pubsub=pubsub,
                    metadata={"error": error},
                )
            seen.add(entry.entry_id)
        return [
            self._planned(
                mounted,
                topic,
                entry.data,
                entry.content_type,
                {**metadata, **entry.metadata} if entry.metadata else metadata,
                trace,
                raw,
            )
            for entry in entries
        ]

    def find(self, pubsub: str, topic: str) -> Mounted:
        """The component of this name, if the application may publish to the topic there; raises `Refusal`."""
        if not pubsub:
            raise Refusal(errors.NAME_EMPTY, "pubsub name is empty", metadata={"appID": self._app_id})
        if not self._mounts:
            raise Refusal(errors.NOT_CONFIGURED, "pubsub is not configured", pubsub=pubsub)
        mounted = self._mounts.get(pubsub)
        if mounted is None:
            raise Refusal(errors.NOT_FOUND, f"pubsub {pubsub} is not found", pubsub=pubsub)
        if not topic:
            raise Refusal(errors.TOPIC_EMPTY, f"topic is empty in pubsub {pubsub}", pubsub=pubsub)
        if not mounted.may_publish(topic):
            message = f"topic {topic} is not allowed for app id {self._app_id}"
            raise Refusal(
                errors.FORBIDDEN, message, pubsub=pubsub, metadata={"topic": topic, "error": message}
            )
        return mounted

    def _is_raw(self, mounted: Mounted, metadata: Mapping[str, str]) -> bool:
        given = metadata.get(RAW)
        if given is None or given in _FALSE:
            return False
        if given in _TRUE:
            return True
        raise _bad_metadata(mounted, Invalid(RAW, f"{given!r} is neither true nor false"))

    def _planned(
        self,
        mounted: Mounted,
        topic: str,
        data: bytes,
        content_type: str,
        metadata: dict[str, str],
        trace: Trace | None,
        raw: bool,
    ) -> Planned:
        now_ms = self._engine.clock.now_ms()
        due_ms: int | None = None
        if SCHEDULED in metadata:
            due_ms = self._due_at_ms(mounted, metadata[SCHEDULED], now_ms)
            metadata = {name: value for name, value in metadata.items() if name != SCHEDULED}
        elif mounted.definition.delayed:
            _check_spelling(mounted, metadata)
        if not raw:
            expires_at_ms: int | None = None
            if "ttlInSeconds" in metadata and (ttl_ms := ttl_ms_of(metadata)) is not None:
                if due_ms is not None:
                    expires_at_ms = max(due_ms, now_ms) + ttl_ms
                elif Feature.MESSAGE_TTL not in mounted.component.features:
                    expires_at_ms = now_ms + ttl_ms
            place = Place(mounted.name, topic, self._app_id)
            trace = trace or cloudevents.new_trace()
            try:
                data = cloudevents.make(data, content_type, metadata, place, trace, now_ms, expires_at_ms)
            except Invalid as error:
                raise Refusal(
                    errors.CLOUD_EVENT,
                    f"cannot create cloudevent: {error.reason}",
                    pubsub=mounted.name,
                    metadata={"appID": self._app_id, "error": error.reason},
                ) from None
            content_type = cloudevents.CONTENT_TYPE
        return Planned(mounted, topic, data, content_type, metadata, due_ms)

    def _due_at_ms(self, mounted: Mounted, text: str, now_ms: int) -> int:
        if not self._preview or not mounted.definition.delayed:
            where = (
                f"set enableDelayedMessaging in the metadata of component {mounted.name}"
                if self._preview
                else "switch on the preview feature DelayedMessaging in the configuration"
            )
            raise Refusal(
                errors.DELAYED_OFF,
                f"{SCHEDULED} is given and delayed messaging is not enabled: {where}",
                pubsub=mounted.name,
                metadata={"appID": self._app_id},
            )
        try:
            return max(0, due_at_ms(text, now_ms))
        except Invalid as error:
            raise _bad_metadata(mounted, error) from None

    # Doing

    def message(self, planned: Planned) -> Message:
        """A publish that is to be scheduled, as a message."""
        component = planned.mounted.component
        ttl_ms = ttl_ms_of(planned.metadata)
        if isinstance(component, OwnTopicsComponent) and not planned.mounted.scoped:
            own = own_message(planned.data, planned.metadata, planned.content_type)
            return Message(
                destination=component.destination(planned.mounted.at_broker(planned.topic)),
                payload=own.data,
                headers=own.headers,
                key=own.key,
                owner=self._app_id,
                door="dapr",
                due_at_ms=planned.due_at_ms,
                ttl_ms=ttl_ms,
            )
        return Message(
            destination=destination(self._app_id, planned.mounted.name, planned.topic),
            payload=planned.data,
            headers=headers_of(planned.metadata, planned.content_type),
            key=planned.metadata.get("partitionKey"),
            owner=self._app_id,
            door="dapr",
            due_at_ms=planned.due_at_ms,
            ttl_ms=ttl_ms,
        )

    def schedule(self, planned: Planned) -> Answer[Scheduled]:
        """Schedule what has a time; the answer comes when that is durable."""
        return self._engine.schedule(self.message(planned))

    async def publish(self, planned: Planned) -> str | None:
        """Do one publish; gives the message id if it was scheduled. Raises `Refusal`."""
        name, topic = planned.mounted.name, planned.topic
        try:
            if planned.due_at_ms is not None and planned.mounted.definition.custody == "ledger":
                return (await self.schedule(planned)).id
            if planned.due_at_ms is not None:
                await self.delayed[name].publish(
                    topic, planned.data, planned.content_type, planned.metadata, planned.due_at_ms
                )
                return None
            await planned.mounted.component.publish(
                planned.mounted.at_broker(topic), planned.data, planned.metadata, planned.content_type
            )
        except TarryError as error:
            raise refusal_of(error, name, topic) from error
        return None

    async def publish_bulk(
        self, entries: Sequence[Entry], plans: Sequence[Planned], metadata: Mapping[str, str]
    ) -> BulkResult:
        """Do a bulk publish: what has a time is scheduled, the rest goes to the broker together."""
        failed: dict[str, str] = {}
        ids: list[str] = []
        timed = [at for at, one in enumerate(plans) if one.due_at_ms is not None]
        if timed and plans[0].mounted.definition.custody == "broker":
            failed |= await self._write_delayed([(entries[at].entry_id, plans[at]) for at in timed])
        elif timed:
            scheduled = await self._engine.schedule_many([self.message(plans[at]) for at in timed])
            for at, one in zip(timed, scheduled, strict=True):
                if isinstance(one, TarryError):
                    failed[entries[at].entry_id] = str(one)
                else:
                    ids.append(one.id)
        if len(timed) < len(plans):
            failed |= await self._publish_at_once(entries, plans, metadata)
        return BulkResult(failed, ids)

    async def _write_delayed(self, plans: Sequence[tuple[str, Planned]]) -> dict[str, str]:
        """Write entries of a bulk to the delayed topic; gives why not, by entry id."""

        async def write(entry_id: str, one: Planned) -> None:
            entry = BulkEntry(
                entry_id=entry_id, data=one.data, content_type=one.content_type, metadata=one.metadata
            )
            await self.delayed[one.mounted.name].publish_entry(one.topic, entry, one.due_at_ms or 0)

        done = await asyncio.gather(*(write(*one) for one in plans), return_exceptions=True)
        failed = {}
        for (entry_id, _), outcome in zip(plans, done, strict=True):
            if isinstance(outcome, TarryError):
                failed[entry_id] = str(outcome)
            elif outcome is not None:
                raise outcome
        return failed

    async def take(self, mounted: Mounted, delayed: Delayed, at_ms: int, key: str | None) -> None:
        """Schedule a message that somebody wrote to the delayed topic; raises `TarryError`."""
        data, content_type, metadata = delayed.message, delayed.content_type, delayed.metadata
        if delayed.bulk:
            entry = delayed.entry()
            data, content_type, metadata = entry.data, entry.content_type or content_type, entry.metadata
        planned = Planned(mounted, delayed.topic, data, content_type, metadata, max(0, at_ms))
        await self._engine.schedule(structs.replace(self.message(planned), idempotency_key=key))

    async def _publish_at_once(
        self, entries: Sequence[Entry], plans: Sequence[Planned], metadata: Mapping[str, str]
    ) -> dict[str, str]:
        mounted = plans[0].mounted
        ready = [
            BulkEntry(
                entry_id=entry.entry_id, data=one.data, content_type=one.content_type, metadata=one.metadata
            )
            for entry, one in zip(entries, plans, strict=True)
            if one.due_at_ms is None
        ]
        try:
            failed = await mounted.component.bulk_publish(mounted.at_broker(plans[0].topic), ready, metadata)
        except TarryError as error:
            return {entry.entry_id: str(error) for entry in ready}
        return {entry_id: str(error) for entry_id, error in failed.items()}


def _check_spelling(mounted: Mounted, metadata: Mapping[str, str]) -> None:
    """A key that differs from `scheduledSendTime` in its case only would mean: at once. It is refused."""
    for name in metadata:
        if len(name) == len(SCHEDULED) and name.lower() == SCHEDULED.lower():
            raise _bad_metadata(mounted, Invalid(name, f"is written {SCHEDULED}"))


def _bad_metadata(mounted: Mounted, error: Invalid) -> Refusal:
    return Refusal(
        errors.METADATA,
        f"failed deserializing metadata. Error: {error}",
        pubsub=mounted.name,
        metadata={"error": str(error)},
    )
