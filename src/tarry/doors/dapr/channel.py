"""The way from the door to an application: what it subscribes to, and giving it messages. HTTP here, gRPC beside it."""

import asyncio
import logging
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, Protocol

import aiohttp
import msgspec
from msgspec import Struct

from tarry.config.dapr import DaprApp
from tarry.core.errors import Invalid
from tarry.doors.dapr import cloudevents
from tarry.doors.dapr.subscriptions import Asked, Subscription, programmatic

_log = logging.getLogger(__name__)

CONNECT_AGAIN_S: Final = 0.1
LONGEST_WAIT_S: Final = 5.0
DELIVERY_TIMEOUT_S: Final = 60.0
MAX_ANSWER_BYTES: Final = 1024 * 1024
TRACE_FIELDS: Final = ("traceparent", "tracestate")


class Status(Enum):
    """What an application says of a message."""

    SUCCESS = "SUCCESS"
    RETRY = "RETRY"
    DROP = "DROP"


class Arrival(Struct, frozen=True):
    """A message for an application."""

    event: Mapping[str, Any]
    body: bytes
    """The event as JSON."""
    pubsub: str
    topic: str
    path: str
    entry_id: str
    """Unique among those under way."""
    metadata: dict[str, str]
    payload: bytes
    """What came from the broker."""
    content_type: str | None
    raw: bool


class Channel(Protocol):
    """An application."""

    async def subscriptions(self) -> list[Subscription]:
        """What it subscribes to, once it is there: waits for it."""

    async def deliver(self, arrival: Arrival) -> Status:
        """Give it one message."""

    async def deliver_bulk(self, arrivals: Sequence[Arrival]) -> dict[str, Status]:
        """Give it several for one path; the answer is by entry id."""

    async def close(self) -> None:
        """Close the connections."""


class _Answer(Struct):
    status: str = ""


class _BulkAnswer(Struct):
    entryId: str = ""  # noqa: N815 - Dapr's name of the field
    status: str = ""


class _BulkAnswers(Struct):
    statuses: list[_BulkAnswer] = []


async def until_listening(app: DaprApp) -> None:
    """Wait until the application's port takes connections."""
    wait_s = CONNECT_AGAIN_S
    while True:
        try:
            _, writer = await asyncio.open_connection(app.app_host, app.app_port)
        except OSError:
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 1.5, LONGEST_WAIT_S)
        else:
            writer.close()
            return


class HttpChannel:
    """An application that is served over HTTP."""

    def __init__(self, app: DaprApp) -> None:
        self._app = app
        self._base = f"http://{app.app_host}:{app.app_port}"
        self._headers = {} if app.app_token is None else {"dapr-api-token": app.app_token}
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0),
            timeout=aiohttp.ClientTimeout(total=DELIVERY_TIMEOUT_S),
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )

    async def subscriptions(self) -> list[Subscription]:
        """Ask `GET /dapr/subscribe`, again and again while the application does not answer."""
        await until_listening(self._app)
        wait_s = CONNECT_AGAIN_S
        while True:
            try:
                async with self._session.get(self._base + "/dapr/subscribe", headers=self._headers) as answer:
                    if answer.status == 404:
                        return []
                    if answer.status < 300:
                        return readable(self._app, programmatic(await answer.read()))
                    reason = f"status {answer.status}"
            except Invalid as error:
                _log.error("application %s: %s", self._app.app_id, error)
                return []
            except (aiohttp.ClientError, TimeoutError) as error:
                reason = str(error) or type(error).__name__
            _log.warning("application %s does not say its subscriptions: %s", self._app.app_id, reason)
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, LONGEST_WAIT_S)

    async def deliver(self, arrival: Arrival) -> Status:
        """POST it to its path."""
        status, body = await self._post(arrival.path, arrival.body, cloudevents.CONTENT_TYPE, arrival.event)
        if not 200 <= status < 300:
            return Status.DROP if status == 404 else Status.RETRY
        try:
            said = msgspec.json.decode(body, type=_Answer).status
        except msgspec.MsgspecError:
            # An application need not say anything: that it has answered is enough.
            return Status.SUCCESS
        return _status(said or "SUCCESS")

    async def deliver_bulk(self, arrivals: Sequence[Arrival]) -> dict[str, Status]:
        """POST them together to their path."""
        body = msgspec.json.encode(bulk_envelope(arrivals))
        status, answer = await self._post(arrivals[0].path, body, "application/json", {})
        if status == 404:
            return {one.entry_id: Status.DROP for one in arrivals}
        if not 200 <= status < 300:
            return {one.entry_id: Status.RETRY for one in arrivals}
        try:
            statuses = msgspec.json.decode(answer, type=_BulkAnswers).statuses
        except msgspec.MsgspecError:
            return {one.entry_id: Status.RETRY for one in arrivals}
        # Of what is not mentioned, or without a status, nobody knows: it comes again, as in Dapr.
        return {one.entryId: _status(one.status) for one in statuses}

    async def _post(self, path: str, body: bytes, type_: str, event: Mapping[str, Any]) -> tuple[int, bytes]:
        headers = {"content-type": type_, **self._headers, **trace_fields(event)}
        url = f"{self._base}/{path.removeprefix('/')}"
        try:
            async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                return answer.status, await answer.content.read(MAX_ANSWER_BYTES)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            _log.debug("application %s: %s", self._app.app_id, error)
            return 0, b""

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()


def readable(app: DaprApp, asked: Asked) -> list[Subscription]:
    """The subscriptions that an application asks for and that can be; of the others the log tells why not."""
    for error in asked.wrong:
        _log.error("a subscription of application %s cannot be: %s", app.app_id, error)
    return asked.subscriptions


def trace_fields(event: Mapping[str, Any]) -> dict[str, str]:
    """The trace context of an event as an application is told it beside the event, if it can be written there."""
    given = ((name, event.get(name)) for name in TRACE_FIELDS)
    return {
        name: value
        for name, value in given
        if isinstance(value, str) and value and value.isascii() and value.isprintable()
    }


def bulk_envelope(arrivals: Sequence[Arrival]) -> dict[str, Any]:
    """Several messages as Dapr gives them to an application over HTTP."""
    first = arrivals[0]
    return {
        "id": first.entry_id,
        "entries": [
            {
                "entryId": one.entry_id,
                "event": one.event["data_base64"] if one.raw else one.event,
                "contentType": one.content_type
                or ("application/octet-stream" if one.raw else cloudevents.CONTENT_TYPE),
                "metadata": one.metadata,
            }
            for one in arrivals
        ],
        "metadata": {"pubsubName": first.pubsub},
        "pubsubname": first.pubsub,
        "topic": first.topic,
        "type": "com.dapr.event.sent.bulk",
    }


def _status(said: str) -> Status:
    """What an application's word means: one that is not known, or none, means again."""
    try:
        return Status(said)
    except ValueError:
        return Status.RETRY
