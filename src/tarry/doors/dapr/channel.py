"""The way from the door to an application: what it subscribes to, and giving it messages. HTTP here, gRPC beside it."""

import asyncio
import logging
import re
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, Final, Protocol

import aiohttp
import msgspec
from msgspec import Struct

from tarry.config.dapr import DaprApp
from tarry.core.errors import Invalid
from tarry.core.time.backoff import doubling
from tarry.core.unreadable import UNREADABLE
from tarry.doors.dapr import cloudevents
from tarry.doors.dapr.subscriptions import AppSubscription, Declared, programmatic

_log = logging.getLogger(__name__)

CONNECT_AGAIN_S: Final = 0.1
LONGEST_WAIT_S: Final = 5.0
LONGEST_CONNECT_WAIT_S: Final = 0.5
"""An application that has come is found that soon; a refused connection on this machine costs next to nothing."""
DELIVERY_TIMEOUT_S: Final = 60.0
MAX_ANSWER_BYTES: Final = 1024 * 1024

_NAME: Final = re.compile(r"[0-9a-z!#$%&'*+.^_`|~-]+")
_NOT_METADATA: Final = frozenset(
    ("connection", "content-encoding", "content-length", "content-type", "dapr-api-token", "expect", "host",
     "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade")
)  # fmt: skip
"""Names that say something of the request itself, or let it in: whoever publishes a message does not decide these."""


class Status(Enum):
    """An application's answer to a message."""

    SUCCESS = "SUCCESS"
    RETRY = "RETRY"
    DROP = "DROP"


class AppMessage(Struct, frozen=True):
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
    """The message's bytes as the broker delivered them."""
    content_type: str | None
    raw: bool

    @property
    def beside(self) -> dict[str, str]:
        """The message's metadata, its component and its trace context, as fields of a header beside the event."""
        given = {name.lower(): value for name, value in self.metadata.items()}
        fields = {name: value for name, value in given.items() if _is_field(name, value)}
        return fields | {"pubsubname": self.pubsub} | trace_fields(self.event)


class Channel(Protocol):
    """An application."""

    async def subscriptions(self) -> list[AppSubscription]:
        """Ask the application for its subscriptions, until it answers."""

    async def actors(self) -> list[str]:
        """Ask once which types of actors it hosts."""

    async def is_healthy(self) -> bool:
        """Whether it says that it is healthy."""

    async def deliver(self, arrival: AppMessage) -> Status:
        """Give it one message."""

    async def deliver_bulk(self, arrivals: Sequence[AppMessage]) -> dict[str, Status]:
        """Give it several for one path; the answer is by entry id."""

    async def close(self) -> None:
        """Close the connections."""


class _Config(Struct):
    entities: list[str] = []


class _Answer(Struct):
    status: str = ""


class _BulkAnswer(Struct):
    entryId: str = ""  # noqa: N815 - Dapr's name of the field
    status: str = ""


class _BulkAnswers(Struct):
    statuses: list[_BulkAnswer] = []


async def until_listening(app: DaprApp) -> None:
    """Wait until the application's port takes connections."""
    waits = doubling(CONNECT_AGAIN_S, LONGEST_CONNECT_WAIT_S)
    while True:
        try:
            _, writer = await asyncio.open_connection(app.app_host, app.app_port)
        except OSError:
            await asyncio.sleep(next(waits))
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

    async def subscriptions(self) -> list[AppSubscription]:
        """Ask `GET /dapr/subscribe`, again and again while the application does not answer."""
        waits = doubling(CONNECT_AGAIN_S, LONGEST_WAIT_S)
        while True:
            try:
                async with self._session.get(self._base + "/dapr/subscribe", headers=self._headers) as answer:
                    if answer.status == 404:
                        return []
                    if answer.status < 300:
                        return readable(self._app, programmatic(await _body_of(answer)))
                    reason = f"status {answer.status}"
            except Invalid as error:
                _log.error("application %s: %s", self._app.app_id, error)
                return []
            except (aiohttp.ClientError, TimeoutError) as error:
                reason = str(error) or type(error).__name__
            _log.warning("application %s does not say its subscriptions: %s", self._app.app_id, reason)
            await asyncio.sleep(next(waits))

    async def actors(self) -> list[str]:
        """Ask `GET /dapr/config`; an application that does not answer it hosts none."""
        try:
            async with self._session.get(self._base + "/dapr/config", headers=self._headers) as answer:
                config = await _body_of(answer) if answer.status < 300 else b"{}"
            return msgspec.json.decode(config, type=_Config).entities
        except (aiohttp.ClientError, TimeoutError, *UNREADABLE):
            return []

    async def is_healthy(self) -> bool:
        """Ask its health path; 2xx is yes."""
        url = f"{self._base}/{self._app.app_health_check_path.removeprefix('/')}"
        try:
            async with self._session.get(url, headers=self._headers, allow_redirects=False) as answer:
                return 200 <= answer.status < 300
        except (aiohttp.ClientError, TimeoutError, ValueError):
            return False

    async def deliver(self, arrival: AppMessage) -> Status:
        """POST it to its path."""
        status, body = await self._post(arrival.path, arrival.body, cloudevents.CONTENT_TYPE, arrival.beside)
        if not 200 <= status < 300:
            return Status.DROP if status == 404 else Status.RETRY
        try:
            said = msgspec.json.decode(body, type=_Answer).status
        except UNREADABLE:
            # An application need not say anything: that it has answered is enough.
            return Status.SUCCESS
        return _status(said or "SUCCESS")

    async def deliver_bulk(self, arrivals: Sequence[AppMessage]) -> dict[str, Status]:
        """POST them together to their path."""
        body = msgspec.json.encode(bulk_envelope(arrivals))
        status, answer = await self._post(
            arrivals[0].path, body, "application/json", {"pubsubname": arrivals[0].pubsub}
        )
        if status == 404:
            return {one.entry_id: Status.DROP for one in arrivals}
        if not 200 <= status < 300:
            return {one.entry_id: Status.RETRY for one in arrivals}
        try:
            statuses = msgspec.json.decode(answer, type=_BulkAnswers).statuses
        except UNREADABLE:
            return {one.entry_id: Status.RETRY for one in arrivals}
        # Of what is not mentioned, or without a status, nobody knows: it comes again, as in Dapr.
        return {one.entryId: _status(one.status) for one in statuses}

    async def _post(self, path: str, body: bytes, type_: str, beside: Mapping[str, str]) -> tuple[int, bytes]:
        headers = {**beside, "content-type": type_, **self._headers}
        url = f"{self._base}/{path.removeprefix('/')}"
        try:
            async with self._session.post(url, data=body, headers=headers, allow_redirects=False) as answer:
                return answer.status, await _body_of(answer)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            _log.debug("application %s: %s", self._app.app_id, error)
            return 0, b""

    async def close(self) -> None:
        """Close the connections."""
        await self._session.close()


async def _body_of(answer: aiohttp.ClientResponse) -> bytes:
    """The body of an answer, in however many pieces it comes; of one that is too long the beginning."""
    try:
        return await answer.content.readexactly(MAX_ANSWER_BYTES)
    except asyncio.IncompleteReadError as short:
        return short.partial


def readable(app: DaprApp, asked: Declared) -> list[AppSubscription]:
    """The subscriptions that an application asks for and that can be; of the others the log tells why not."""
    for error in asked.wrong:
        _log.error("a subscription of application %s cannot be: %s", app.app_id, error)
    return asked.subscriptions


def trace_fields(event: Mapping[str, Any]) -> dict[str, str]:
    """The trace context of an event as an application is told it beside the event, if it can be written there."""
    parent, state = event.get("traceparent", event.get("traceid")), event.get("tracestate")
    given = {"traceparent": cloudevents.NO_PARENT if parent == "" else parent, "tracestate": state}
    return {
        name: value for name, value in given.items() if isinstance(value, str) and value and _is_value(value)
    }


def _is_field(name: str, value: str) -> bool:
    return bool(_NAME.fullmatch(name)) and name not in _NOT_METADATA and _is_value(value)


def _is_value(value: str) -> bool:
    return value.isascii() and value.isprintable()


def bulk_envelope(arrivals: Sequence[AppMessage]) -> dict[str, Any]:
    """Several messages as Dapr gives them to an application over HTTP."""
    first = arrivals[0]
    return {
        "id": first.entry_id,
        "entries": [
            {
                "entryId": one.entry_id,
                # As it came: encoded again, a number or a depth could be another.
                "event": one.event["data_base64"] if one.raw else msgspec.Raw(one.body),
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
    """The status that an application's word stands for; an unknown word, or none, stands for another attempt."""
    try:
        return Status(said)
    except ValueError:
        return Status.RETRY
