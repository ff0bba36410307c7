"""The native HTTP door as one ASGI application: gate, routes, refusals.

The two paths that must be fast are told apart before anything else looks at a request. Whatever goes wrong is
answered with a problem document; what should not have happened is logged by its place in the code only,
because an error's text may hold an id.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from tarry import __version__
from tarry.core.access import ANYBODY, Access
from tarry.core.errors import TarryError
from tarry.core.faults import told
from tarry.core.figure import Figure
from tarry.core.rights import HTTP, right_of
from tarry.doors.http.asgi import (
    Answering,
    Asgi,
    Disconnected,
    Receive,
    Reply,
    Scope,
    Send,
    refusal,
    refuse,
)
from tarry.doors.http.deadlines import Deadlines
from tarry.doors.http.gate import CALLER, Gate
from tarry.doors.http.messages.batches import Batches
from tarry.doors.http.messages.bulk import BulkEndpoints
from tarry.doors.http.messages.messages import Messages
from tarry.doors.http.messages.repeats import RepeatEndpoints
from tarry.doors.http.operator.backups import BackupEndpoints
from tarry.doors.http.operator.ledger import LedgerEndpoints
from tarry.doors.http.operator.overview import OverviewEndpoints
from tarry.doors.http.operator.policies import PolicyEndpoints
from tarry.doors.http.operator.sent import Sent
from tarry.doors.http.operator.status import StatusEndpoints
from tarry.doors.http.problems import HttpRefusal, internal
from tarry.doors.http.settings import HttpSettings
from tarry.doors.http.topics.delayed import DelayedEndpoints
from tarry.doors.http.topics.events import EventEndpoint
from tarry.doors.http.topics.sessions import Sessions
from tarry.doors.http.topics.subscriptions import SubscriptionEndpoints
from tarry.doors.http.topics.topics import TopicEndpoints
from tarry.engine.engine import Engine
from tarry.index.progress import Progress

Endpoint = Callable[[Request], Awaitable[Response]]

OPEN_PATHS: Final = frozenset({"/healthz", "/readyz", "/openapi.json"})
"""Served to everybody, also before there is anything to protect."""

_log = logging.getLogger(__name__)


class Methods:
    """The methods of a path, each behind its row of the rights table. Anything else is a 405 that names them."""

    def __init__(
        self, path: str, endpoints: Mapping[str, Endpoint], elsewhere: tuple[str, ...] = (), head: bool = True
    ) -> None:
        self._endpoints = {
            method: (right_of(HTTP, f"{method} {path}"), endpoint) for method, endpoint in endpoints.items()
        }
        if head and "GET" in self._endpoints:
            self._endpoints["HEAD"] = self._endpoints["GET"]
        self.allowed = (*self._endpoints, *elsewhere)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the endpoint for the request's method."""
        found = self._endpoints.get(scope["method"])
        if found is None:
            raise HttpRefusal(
                405,
                "method-not-allowed",
                f"use {', '.join(self.allowed)}",
                [(b"allow", ", ".join(self.allowed).encode())],
            )
        right, endpoint = found
        right.check(scope[CALLER])
        response = await endpoint(Request(scope, receive))
        await response(scope, receive, send)


def _at(
    path: str, endpoints: Mapping[str, Endpoint], elsewhere: tuple[str, ...] = (), head: bool = True
) -> Route:
    return Route(path, Methods(path, endpoints, elsewhere, head))


class HttpApp:
    """The application. `stop` ends what would otherwise go on: sessions and streams."""

    def __init__(
        self,
        engine: Engine,
        access: Access,
        settings: HttpSettings,
        progress: Callable[[], Progress | None],
        mounts: Mapping[str, Asgi],
        pages: Mapping[str, Asgi],
        figures: Sequence[Figure],
    ) -> None:
        self._mounts = tuple(mounts.items())
        self._pages = pages
        self._gate = Gate(access, settings.allowed_hosts)
        deadlines = Deadlines(settings.body_timeout_ms)
        self._sessions = Sessions(engine.topics, settings, access)
        messages = Messages(engine, self._gate, settings, deadlines)
        batches = Batches(engine, self._gate, settings, deadlines, access)
        self._schedule = messages.schedule
        self._schedule_quick = messages.quick
        self._schedule_batch = batches.schedule
        self._open_paths = OPEN_PATHS | ({"/metrics"} if settings.metrics_open else set())
        sent = Sent(engine.clock)
        engine.tell_of_sent(sent.observe)
        overview = OverviewEndpoints(engine, __version__, access, sent, self._sessions, batches, progress)
        status = StatusEndpoints(
            engine,
            self._sessions,
            batches,
            sent,
            access,
            progress,
            figures,
        )
        self.routes = [
            *_message_routes(messages),
            *_bulk_routes(BulkEndpoints(engine, settings, deadlines)),
            *_repeat_routes(RepeatEndpoints(engine, settings, deadlines)),
            *_topic_routes(TopicEndpoints(engine, settings, deadlines)),
            *_delayed_routes(DelayedEndpoints(engine, settings, deadlines)),
            *_subscription_routes(
                SubscriptionEndpoints(engine, self._sessions, settings, deadlines),
                EventEndpoint(self._sessions, settings, deadlines),
            ),
            *_policy_routes(PolicyEndpoints(engine, settings, deadlines)),
            *_ledger_routes(LedgerEndpoints(engine, settings, deadlines)),
            *_backup_routes(BackupEndpoints(engine, settings, deadlines)),
            *_overview_routes(overview),
            *_status_routes(status),
        ]
        self._router = Router(self.routes, redirect_slashes=False, default=_no_such_path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await _decline(scope, receive, send)
            return
        try:
            if scope["method"] == "POST":
                path = scope["path"]
                if path == "/v1/messages":
                    await self._schedule(scope, receive, send)
                    return
                if path == "/v1/messages/batch":
                    await self._schedule_batch(scope, receive, send)
                    return
            for beginning, app in self._mounts:
                if scope["path"].startswith(beginning):
                    await app(scope, receive, send)
                    return
            page = self._pages.get(scope["path"])
            if page is not None:
                await page(scope, receive, send)
                return
            is_open = scope["path"] in self._open_paths
            scope[CALLER] = ANYBODY if is_open else self._gate.let_in(scope)[0]
            await self._router(scope, receive, send)
        except TarryError as error:
            await refuse(send, error)
        except Disconnected:
            return
        except Exception as error:  # noqa: BLE001 - the last resort; nothing may pass it
            _log.error("a request failed with %s", told(error))
            await refuse(send, internal())

    def quick(self, scope: Scope) -> Answering | None:
        """The function that answers requests with this head that have come whole, without a task; None if they go the longer way.

        Schedules, one a request, are most of what a busy server gets, and a task costs more than the schedule.
        """
        if scope["raw_path"] != b"/v1/messages" or scope["method"] != "POST":
            return None
        schedule = self._schedule_quick(scope)
        return None if schedule is None else partial(_answer, schedule)

    def revoke(self) -> None:
        """End the consumer sessions and event streams of tokens that are not in force any more."""
        self._sessions.revoke()

    def stop(self) -> None:
        """End every consumer session and event stream, so that the listener can end."""
        self._sessions.stop()


def _answer(answering: Answering, body: bytes, client: Any, reply: Reply) -> bool:
    try:
        return answering(body, client, reply)
    except Exception as error:  # noqa: BLE001 - the last resort; nothing may pass it
        _log.error("a request failed with %s", told(error))
        reply(*refusal(internal()))
        return True


def build_app(
    engine: Engine,
    access: Access,
    settings: HttpSettings,
    progress: Callable[[], Progress | None] = lambda: None,
    mounts: Mapping[str, Asgi] | None = None,
    pages: Mapping[str, Asgi] | None = None,
    figures: Sequence[Figure] = (),
) -> HttpApp:
    """The ASGI application of the door.

    `progress` is what the pipeline says of itself; `mounts` are applications that others serve here, by the beginning of
    their paths; they ask for tokens themselves. `pages`, by their whole paths, are for everybody. `figures` are what others
    tell the metrics.
    """
    return HttpApp(engine, access, settings, progress, mounts or {}, pages or {}, figures)


def _message_routes(messages: Messages) -> list[Route]:
    one, named = "/v1/messages/{id}", "/v1/names/{tenant}/{namespace}/{message}"
    return [
        _at("/v1/messages", {"GET": messages.list}, elsewhere=("POST",)),
        _at("/v1/messages/batch", {}, elsewhere=("POST",)),
        _at(one, {"GET": messages.get, "DELETE": messages.cancel}),
        _at(one + "/cancel", {"POST": messages.cancel}),
        _at(one + "/send", {"POST": messages.send}),
        _at(one + "/restart", {"POST": messages.restart}),
        _at(named, {"GET": messages.get, "DELETE": messages.cancel}),
        _at(named + "/cancel", {"POST": messages.cancel}),
        _at(named + "/send", {"POST": messages.send}),
        _at(named + "/restart", {"POST": messages.restart}),
    ]


def _bulk_routes(bulk: BulkEndpoints) -> list[Route]:
    one = "/v1/batches/{batch}"
    return [
        _at("/v1/batches", {"GET": bulk.list}),
        _at(one, {"GET": bulk.get, "PUT": bulk.adopt, "DELETE": bulk.cancel}),
        _at(one + "/place", {"GET": bulk.place}),
    ]


def _repeat_routes(repeats: RepeatEndpoints) -> list[Route]:
    one = "/v1/repeats/{tenant}/{namespace}/{name}"
    return [
        _at("/v1/repeats", {"GET": repeats.list}),
        _at(one, {"GET": repeats.get, "PUT": repeats.set, "DELETE": repeats.remove}),
        _at(one + "/pause", {"POST": repeats.pause}),
        _at(one + "/resume", {"POST": repeats.resume}),
    ]


def _topic_routes(topics: TopicEndpoints) -> list[Route]:
    one = "/v1/topics/{tenant}/{namespace}/{topic}"
    return [
        _at("/v1/topics", {"GET": topics.list}),
        _at(one, {"GET": topics.stats, "PUT": topics.create, "DELETE": topics.delete}),
        _at(one + "/messages", {"POST": topics.publish}),
    ]


def _delayed_routes(delayed: DelayedEndpoints) -> list[Route]:
    all_ = "/v1/topics/{tenant}/{namespace}/{topic}/delayed"
    one = all_ + "/{entry_id}"
    return [
        _at(all_, {"GET": delayed.list}),
        _at(one, {"GET": delayed.get, "DELETE": delayed.cancel}),
        _at(one + "/restart", {"POST": delayed.restart}),
    ]


def _subscription_routes(subscriptions: SubscriptionEndpoints, events: EventEndpoint) -> list[Route]:
    one = "/v1/topics/{tenant}/{namespace}/{topic}/subscriptions/{name}"
    return [
        _at(one + "/receive", {"POST": subscriptions.receive}),
        _at(one + "/ack", {"POST": subscriptions.ack}),
        _at(one + "/nack", {"POST": subscriptions.nack}),
        _at(one + "/seek", {"POST": subscriptions.seek}),
        # A stream without its body would be one that nobody reads.
        _at(one + "/events", {"GET": events.events}, head=False),
        _at(
            one,
            {
                "GET": subscriptions.stats,
                "PUT": subscriptions.subscribe,
                "DELETE": subscriptions.unsubscribe,
            },
        ),
    ]


def _policy_routes(policies: PolicyEndpoints) -> list[Route]:
    methods = {"GET": policies.get, "PUT": policies.put, "PATCH": policies.patch, "DELETE": policies.delete}
    return [
        _at("/v1/policies/broker", methods),
        _at("/v1/policies/namespaces/{tenant}/{namespace}", methods),
        _at("/v1/policies/topics/{tenant}/{namespace}/{topic}", methods),
    ]


def _ledger_routes(ledger: LedgerEndpoints) -> list[Route]:
    return [
        _at("/v1/ledger", {"GET": ledger.show}),
        _at("/v1/ledger/frames", {"GET": ledger.frames}, head=False),
    ]


def _backup_routes(backups: BackupEndpoints) -> list[Route]:
    return [
        _at("/v1/backups", {"POST": backups.begin}),
        _at("/v1/backups/{backup}", {"PUT": backups.renew, "DELETE": backups.end}),
    ]


def _overview_routes(overview: OverviewEndpoints) -> list[Route]:
    return [
        _at("/v1/me", {"GET": overview.me}),
        _at("/v1/overview", {"GET": overview.overview}),
        _at("/v1/upcoming", {"GET": overview.upcoming}),
        _at("/v1/slots", {"GET": overview.slots}),
        _at("/v1/backlogs", {"GET": overview.backlogs}),
    ]


def _status_routes(status: StatusEndpoints) -> list[Route]:
    return [
        _at("/healthz", {"GET": status.health}),
        _at("/readyz", {"GET": status.ready}),
        _at("/v1/status", {"GET": status.status}),
        _at("/metrics", {"GET": status.metrics}),
        _at("/openapi.json", {"GET": status.openapi}),
    ]


async def _no_such_path(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise HttpRefusal(404, "no-such-path", "there is nothing at this path; /openapi.json lists all paths")


async def _decline(scope: Scope, receive: Receive, send: Send) -> None:
    """Say no to what is not HTTP; agree to a lifespan, which has nothing to do here."""
    if scope["type"] == "lifespan":
        while True:
            event = await receive()
            await send({"type": f"{event['type']}.complete"})
            if event["type"] == "lifespan.shutdown":
                return
    await send({"type": "websocket.close", "code": 1008})
