"""The server at a glance: what is coming, what is happening, how full the slots are, who lags behind.

All of it is figures; `core/tenants/rights.py` says who may see them. How much it costs does not follow how much waits.
"""

import asyncio
import heapq
from collections.abc import Callable, Iterator
from typing import Final

from tarry.core.errors import Unavailable
from tarry.core.limits import HOUR_MS
from tarry.core.names import parse_topic
from tarry.core.tenants.access import Access, Caller
from tarry.doors.http.bodies import read_query
from tarry.doors.http.messages.batches import BatchEndpoints
from tarry.doors.http.operator.figures import (
    BacklogAnswer,
    BacklogsAnswer,
    BacklogsQuery,
    ClusterFigures,
    LedgerFigures,
    MeAnswer,
    OverviewAnswer,
    PipelineFigures,
    SlotAnswer,
    SlotsAnswer,
    UpcomingQuery,
)
from tarry.doors.http.operator.sent import Sent
from tarry.doors.http.operator.status import reasons_of
from tarry.doors.http.responses import json_response
from tarry.doors.http.topics.sessions import Sessions
from tarry.engine.api import Subscription
from tarry.engine.engine import Engine
from tarry.http.request import Request
from tarry.http.response import Response
from tarry.index.progress import Progress

MAX_SLOTS: Final = 5_000
SUBSCRIPTIONS_AT_ONCE: Final = 500
"""Subscriptions looked at before others have their turn."""


class OverviewEndpoints:
    """The endpoints that the dashboard is drawn from."""

    def __init__(
        self,
        engine: Engine,
        version: str,
        access: Access,
        sent: Sent,
        sessions: Sessions,
        batches: BatchEndpoints,
        progress: Callable[[], Progress | None],
        cluster: Callable[[], ClusterFigures | None],
    ) -> None:
        self._engine = engine
        self._version = version
        self._access = access
        self._sent = sent
        self._sessions = sessions
        self._batches = batches
        self._progress = progress
        self._cluster = cluster

    async def me(self, request: Request) -> Response:
        """GET /v1/me."""
        caller = request.caller
        reach = None if caller.namespaces is None else sorted(caller.namespaces)
        return json_response(
            MeAnswer(
                name=caller.name, roles=sorted(caller.roles), namespaces=reach, open=self._access.is_open
            )
        )

    async def overview(self, request: Request) -> Response:
        """GET /v1/overview."""
        self._let_see(request)
        engine = self._engine
        reasons, stats, now_ms = reasons_of(engine), engine.stats(), engine.clock.now_ms()
        return json_response(
            OverviewAnswer(
                version=self._version,
                now_ms=now_ms,
                ready=not reasons,
                reasons=reasons,
                pending=stats.pending,
                in_wheel=stats.in_wheel,
                in_tail=stats.in_tail,
                sending=stats.sending,
                owners=stats.owners,
                topics=stats.topics,
                sessions=len(self._sessions),
                batches=self._batches.under_way,
                next_due_at_ms=stats.next_due_at_ms,
                watermark_ms=stats.watermark_ms,
                horizon_ms=stats.horizon_ms,
                counters=stats.counters,
                recent=self._sent.recent(),
                ledger=self._ledger(),
                pipeline=self._pipeline(now_ms),
                cluster=self._cluster(),
            )
        )

    def _ledger(self) -> LedgerFigures:
        ledger = self._engine.ledger
        segments = ledger.segments()
        return LedgerFigures(
            first_seq=ledger.first_seq,
            durable_seq=ledger.durable_seq,
            next_seq=ledger.next_seq,
            segments=len(segments),
            used_bytes=sum(segment.used_bytes for segment in segments),
            low_space=ledger.low_space,
            failed=ledger.failed is not None,
        )

    def _pipeline(self, now_ms: int) -> PipelineFigures | None:
        progress = self._progress()
        if progress is None:
            return None
        lag = max(0, self._engine.ledger.durable_seq - progress.cursor)
        return PipelineFigures(
            up=progress.is_up(now_ms),
            state=progress.state,
            cursor=progress.cursor,
            lag=lag,
            behind_ms=max(0, progress.behind_ms + now_ms - progress.at_ms) if lag else 0,
            last_commit_at_ms=progress.last_commit_at_ms,
            commits=progress.commits,
            failures=progress.failures,
        )

    async def upcoming(self, request: Request) -> Response:
        """GET /v1/upcoming."""
        self._let_see(request)
        query = read_query(request.query, UpcomingQuery)
        from_ms = self._engine.clock.now_ms() if query.from_ms is None else query.from_ms
        to_ms = from_ms + HOUR_MS if query.to_ms is None else query.to_ms
        return json_response(await self._engine.upcoming(from_ms, to_ms, query.buckets))

    async def slots(self, request: Request) -> Response:
        """GET /v1/slots."""
        self._let_see(request)
        view = self._engine.index_view
        found = view.slots()
        return json_response(
            SlotsAnswer(
                cursor=view.cursor,
                files=sum(slot.files for slot in found),
                versions=sum(slot.versions for slot in found),
                size_bytes=sum(slot.size_bytes for slot in found),
                slots=[SlotAnswer(**slot._asdict()) for slot in found[:MAX_SLOTS]],
                more=max(0, len(found) - MAX_SLOTS),
            )
        )

    async def backlogs(self, request: Request) -> Response:
        """GET /v1/backlogs."""
        caller = request.caller
        limit = read_query(request.query, BacklogsQuery).limit
        found: list[tuple[int, str, str, Subscription]] = []
        total = 0
        for topic, name, subscription in list(self._subscriptions(caller)):
            total += 1
            found.append((subscription.backlog, topic, name, subscription))
            if total % SUBSCRIPTIONS_AT_ONCE == 0:
                found = heapq.nlargest(limit, found, key=lambda of: of[0])
                await asyncio.sleep(0)
        found = heapq.nlargest(limit, found, key=lambda of: of[0])
        return json_response(
            BacklogsAnswer(
                subscriptions=[
                    BacklogAnswer(topic=topic, name=name, figures=subscription.stats())
                    for _, topic, name, subscription in found
                ],
                total=total,
            )
        )

    def _subscriptions(self, caller: Caller) -> Iterator[tuple[str, str, Subscription]]:
        for topic, found in self._engine.topics.by_name.items():
            if caller.namespaces is None or caller.covers(parse_topic(topic).namespace_name):
                for name, subscription in found.subscriptions.items():
                    yield topic, name, subscription

    def _let_see(self, request: Request) -> None:
        if not self._engine.ready:
            raise Unavailable("the server is starting; try again in a moment")
