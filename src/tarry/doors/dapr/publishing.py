"""Publishing, the same for both protocols: from what was asked for to bytes at a broker or messages in the ledger.

Into one of Tarry's own topics a scheduled message goes straight, exactly once (R5). Everything else is bound for
`dapr://app/component/topic` and leaves by the outlet, which asks the component's scopes once more.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from msgspec import Struct, structs

from tarry.core.errors import TarryError
from tarry.core.messages.message import Message
from tarry.doors.dapr.columns import schedule
from tarry.doors.dapr.delayed import DelayedTopic
from tarry.doors.dapr.delayed_message import WaitingMessage
from tarry.doors.dapr.errors import refusal_of
from tarry.doors.dapr.mounting import Mounted, Mounts
from tarry.doors.dapr.planning import BulkItem, Planned, Planning
from tarry.engine.answer import Answer, failed
from tarry.engine.engine import Engine
from tarry.outlets.dapr.brokers.tarry import OwnTopicsComponent, own_message
from tarry.outlets.dapr.component import BulkEntry
from tarry.outlets.dapr.delivery import destination, headers_of
from tarry.outlets.dapr.properties import ttl_ms_of


class BulkResult(Struct, frozen=True):
    """The outcome of a bulk publish."""

    failed: dict[str, str]
    """Why, by entry id; empty if nothing failed."""
    ids: list[str]
    """The message ids of what was scheduled, in the order of the entries."""


class Publishing(Planning):
    """Publishes for one application."""

    def __init__(self, app_id: str, mounts: Mounts, engine: Engine, *, preview: bool) -> None:
        super().__init__(app_id, mounts, engine.clock, preview=preview)
        self._engine = engine
        self.delayed: dict[str, DelayedTopic] = {}
        """The delayed topics by component, where there are any."""

    def message(self, planned: Planned) -> Message:
        """A publish that is to be scheduled, as a message."""
        component = planned.mounted.component
        ttl_ms = ttl_ms_of(planned.metadata)
        if isinstance(component, OwnTopicsComponent) and not planned.mounted.scoped and not planned.repeat:
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
            headers=headers_of(planned.metadata, planned.content_type, planned.repeat),
            key=planned.metadata.get("partitionKey"),
            owner=self._app_id,
            door="dapr",
            due_at_ms=planned.due_at_ms,
            ttl_ms=ttl_ms,
        )

    def _messages(self, plans: Sequence[Planned]) -> list[Message]:
        """The messages of one bulk, which mostly differ in their data only."""
        messages: list[Message] = []
        alike: Planned | None = None
        for one in plans:
            if alike is None or one.metadata is not alike.metadata or one.content_type != alike.content_type:
                alike = one
                messages.append(self.message(one))
            else:
                messages.append(structs.replace(messages[-1], payload=one.data, due_at_ms=one.due_at_ms))
        return messages

    def publish(self, planned: Planned) -> Answer[str] | Coroutine[Any, Any, None]:
        """Do one publish; gives the message id if it is scheduled, once that is durable. Its errors are `Refusal`s."""
        if planned.due_at_ms is None or planned.mounted.definition.custody != "ledger":
            return self._publish_at_broker(planned)
        name, topic = planned.mounted.name, planned.topic
        scheduled: Answer[str] = self._engine.schedule(self.message(planned)).map(lambda one: one.id)
        return scheduled.or_else(lambda error: failed(refusal_of(error, name, topic)))

    async def _publish_at_broker(self, planned: Planned) -> None:
        name, topic = planned.mounted.name, planned.topic
        try:
            if planned.due_at_ms is not None:
                await self.delayed[name].publish(
                    topic, planned.data, planned.content_type, planned.metadata, planned.due_at_ms
                )
                return
            await planned.mounted.component.publish(
                planned.mounted.at_broker(topic), planned.data, planned.metadata, planned.content_type
            )
        except TarryError as error:
            raise refusal_of(error, name, topic) from error

    async def publish_bulk(
        self, entries: Sequence[BulkItem], plans: Sequence[Planned], metadata: Mapping[str, str]
    ) -> BulkResult:
        """Do a bulk publish: what has a time is scheduled, the rest goes to the broker together."""
        failed: dict[str, str] = {}
        ids: list[str] = []
        timed = [at for at, one in enumerate(plans) if one.due_at_ms is not None]
        if timed and plans[0].mounted.definition.custody == "broker":
            failed |= await self._write_delayed([(entries[at].entry_id, plans[at]) for at in timed])
        elif timed:
            scheduled = await schedule(self._engine, self._messages([plans[at] for at in timed]))
            for at, one in zip(timed, scheduled, strict=True):
                if isinstance(one, TarryError):
                    failed[entries[at].entry_id] = str(one)
                else:
                    ids.append(one)
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

    async def take(self, mounted: Mounted, delayed: WaitingMessage, at_ms: int, key: str | None) -> None:
        """Schedule a message that somebody wrote to the delayed topic; raises `TarryError`."""
        data, content_type, metadata = delayed.message, delayed.content_type, delayed.metadata
        if delayed.bulk:
            entry = delayed.entry()
            data, content_type, metadata = entry.data, entry.content_type or content_type, entry.metadata
        planned = Planned(mounted, delayed.topic, data, content_type, metadata, max(0, at_ms))
        await self._engine.schedule(structs.replace(self.message(planned), idempotency_key=key))

    async def _publish_at_once(
        self, entries: Sequence[BulkItem], plans: Sequence[Planned], metadata: Mapping[str, str]
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
