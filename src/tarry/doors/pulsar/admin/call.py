"""One request of the administration: who sends it, what it names, what it brings."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from tarry.core.access import Caller
from tarry.core.names import TopicName, parse_namespace, parse_topic
from tarry.core.unreadable import UNREADABLE
from tarry.doors.pulsar.admin.refusals import RestError, no_namespace, no_topic
from tarry.doors.pulsar.broker import Broker
from tarry.engine.api import Topic
from tarry.engine.engine import Engine

T = TypeVar("T")

MAX_BODY_BYTES: Final = 1 << 20
BODY_WITHIN_S: Final = 20.0
MAX_NUMBER: Final = 1 << 62
_DIGITS: Final = re.compile("[0-9]{1,19}")


class AdminCall:
    """A request whose sender is known."""

    def __init__(self, request: Request, broker: Broker, caller: Caller, service_url: str) -> None:
        self.request = request
        self.broker = broker
        self.caller = caller
        self.service_url = service_url
        """Where the sender finds the binary protocol."""

    @property
    def engine(self) -> Engine:
        """The engine behind the door."""
        return self.broker.engine

    def part(self, name: str) -> str:
        """A part of the path."""
        return str(self.request.path_params[name])

    def number(self, name: str) -> int:
        """A part of the path that is a number."""
        return _number(self.part(name), name)

    def query(self, name: str) -> str | None:
        """A parameter, if it is given."""
        return self.request.query_params.get(name)

    def query_number(self, name: str, default: int) -> int:
        """A parameter that is a number."""
        given = self.query(name)
        return default if given is None else _number(given, name)

    def flag(self, name: str) -> bool:
        """Whether a parameter says true."""
        return (self.query(name) or "").lower() == "true"

    # Places, once it is clear that the caller's token reaches them; its role was checked before

    def namespace(self) -> str:
        """The namespace in the path, which is there."""
        name = self.named_namespace()
        if not self.engine.catalogue.has_namespace(name):
            raise no_namespace()
        return name

    def named_namespace(self) -> str:
        """The namespace in the path, whether it is there or not."""
        name = parse_namespace(f"{self.part('tenant')}/{self.part('namespace')}")
        self.caller.require_namespace(name)
        return name

    def named_topic(self) -> TopicName:
        """The topic in the path, whether it is there or not, in a namespace that is there."""
        namespace = self.namespace()
        return parse_topic(f"{namespace}/{self.part('topic')}")

    def topic(self) -> Topic:
        """The topic in the path, which is there."""
        name = self.named_topic().full
        found = self.engine.topics.by_name.get(name)
        if found is None:
            raise no_topic(name)
        return found

    def parts_of(self, topic: Topic) -> list[Topic]:
        """The topics in which a topic's entries are: its partitions, or itself."""
        if not topic.partitions:
            return [topic]
        by_name = self.engine.topics.by_name
        names = (f"{topic.name}-partition-{number}" for number in range(topic.partitions))
        return [by_name[name] for name in names if name in by_name]

    # Bodies

    async def body(self) -> bytes:
        """The whole body, within bounds."""
        pieces: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(BODY_WITHIN_S):
                async for piece in self.request.stream():
                    size += len(piece)
                    if size > MAX_BODY_BYTES:
                        raise RestError(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
                    pieces.append(piece)
        except TimeoutError:
            raise RestError(408, "the body did not arrive in time") from None
        except ClientDisconnect:
            raise RestError(400, "the body was cut short") from None
        return b"".join(pieces)

    async def read(self, kind: type[T], empty: bytes = b"") -> T:
        """The body as JSON of a shape; `empty` is what stands for a body without content, or null.

        Read as Pulsar's broker does: numbers may be written as text, and a field that is null was left out.
        """
        body = (await self.body()).strip() or empty
        try:
            given = msgspec.json.decode(body)
            if given is None and empty:
                given = msgspec.json.decode(empty)
            if isinstance(given, dict):
                given = {name: value for name, value in given.items() if value is not None}
            return msgspec.convert(given, kind, strict=False)
        except UNREADABLE as error:
            raise RestError(400, f"the body is not what belongs here: {error}") from None


def _number(text: str, name: str) -> int:
    if not _DIGITS.fullmatch(text) or int(text) > MAX_NUMBER:
        raise RestError(412, f"{name} is not a number")
    return int(text)


AdminEndpoint = Callable[[AdminCall], Awaitable[Response]]
Routes = Mapping[str, Mapping[str, AdminEndpoint]]
"""By path, what answers to each method."""


def answer(value: Any) -> Response:
    """A value as JSON; None is an answer without content."""
    if value is None:
        return Response(status_code=204)
    return Response(
        msgspec.json.encode(value), 200, {"content-type": "application/json", "cache-control": "no-store"}
    )
