"""One request of the administration: who sends it, what it names, what it brings."""

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import parse_qsl

import msgspec

from tarry.core.names import TopicName, parse_namespace, parse_topic
from tarry.core.tenants.access import Caller
from tarry.core.tenants.rights import Right
from tarry.core.unreadable import UNREADABLE
from tarry.doors.pulsar.admin.refusals import RestError, no_namespace, no_topic
from tarry.doors.pulsar.broker import Broker
from tarry.engine.api import Topic
from tarry.engine.engine import Engine
from tarry.http.request import Request
from tarry.http.response import Response

T = TypeVar("T")

MAX_BODY_BYTES: Final = 1 << 20
BODY_WITHIN_MS: Final = 20_000
MAX_FIELDS: Final = 256
MAX_NUMBER: Final = 1 << 62
_DIGITS: Final = re.compile("[0-9]{1,19}")


class AdminCall:
    """A request whose sender is known."""

    def __init__(self, request: Request, broker: Broker, caller: Caller, service_url: str) -> None:
        self.request = request
        self.broker = broker
        self.caller = caller
        self._query = read_query(request.query)
        self.service_url = service_url
        """Where the sender finds the binary protocol."""

    @property
    def engine(self) -> Engine:
        """The engine behind the door."""
        return self.broker.engine

    def part(self, name: str) -> str:
        """A part of the path."""
        return str(self.request.params[name])

    def number(self, name: str) -> int:
        """A part of the path that is a number."""
        return _number(self.part(name), name)

    def query(self, name: str) -> str | None:
        """A parameter, if it is given."""
        return self._query.get(name)

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

    # Body

    def read(self, kind: type[T], empty: bytes = b"") -> T:
        """The body as JSON of a shape; `empty` is what stands for a body without content, or null.

        Read as Pulsar's broker does: numbers may be written as text, and a field that is null was left out.
        """
        body = self.request.body.strip() or empty
        try:
            given = msgspec.json.decode(body)
            if given is None and empty:
                given = msgspec.json.decode(empty)
            if isinstance(given, dict):
                given = {name: value for name, value in given.items() if value is not None}
            return msgspec.convert(given, kind, strict=False)
        except UNREADABLE as error:
            raise RestError(400, f"the body does not fit this operation: {error}") from None


def read_query(query: bytes) -> dict[str, str]:
    """The parameters of a query; of one that is given twice the last."""
    try:
        return dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError:
        raise RestError(400, f"the query has more than {MAX_FIELDS} parameters") from None


def _number(text: str, name: str) -> int:
    if not _DIGITS.fullmatch(text) or int(text) > MAX_NUMBER:
        raise RestError(412, f"{name} is not a number")
    return int(text)


AdminEndpoint = Callable[[AdminCall], Awaitable[Response]]


class AdminOperation(NamedTuple):
    """One method of one path of the administration."""

    method: str
    path: str
    right: Right
    """The role and the namespaces that it requires."""
    endpoint: AdminEndpoint
    """The function that serves it."""

    @property
    def name(self) -> str:
        """The operation in the table of rights."""
        return f"{self.method} {self.path}"


Operations = Sequence[AdminOperation]
"""The operations of one module."""


_JSON_HEADERS: Final = ((b"content-type", b"application/json"), (b"cache-control", b"no-store"))


def answer(value: Any) -> Response:
    """A value as JSON; None is an answer without content."""
    return Response(204) if value is None else Response(200, _JSON_HEADERS, msgspec.json.encode(value))


def plain(text: str) -> Response:
    """An answer in plain text."""
    return Response(200, [(b"content-type", b"text/plain; charset=utf-8")], text.encode())
