"""The client at the other end of a connection, as the parts of the connection see it: who it is, what it may do, and what is sent to it."""

from collections.abc import Callable
from typing import Any, Final, Protocol

from tarry.core.errors import NotFound, TarryError, Unavailable
from tarry.core.names import TopicName, parse_topic
from tarry.core.tenants.access import Caller
from tarry.core.tenants.rights import PULSAR
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.broker import Broker
from tarry.doors.pulsar.errors import code_of, text_of
from tarry.doors.pulsar.frames import frame, text

_Type = wire.BaseCommand
_RIGHTS: Final = {_Type.Type.Value(name): right for name, right in PULSAR.items()}
TakeCommand = Callable[[Any, bytes], None]
"""A function that takes a command, and the bytes that followed it."""


class FrameOutput(Protocol):
    """Where a connection's bytes go."""

    def write(self, data: bytes) -> None:
        """Send."""

    def close(self) -> None:
        """Close once all is sent."""

    def pause(self) -> None:
        """Read no more from the client for now."""

    def resume(self) -> None:
        """Read on."""

    def after(self, wait_ms: int, work: Callable[[], None]) -> None:
        """Do something later."""


class PulsarPeer:
    """One client. `out` is where its bytes go; `host` and `url` are the two ends as addresses."""

    def __init__(self, broker: Broker, out: FrameOutput, host: str, url: str) -> None:
        self.broker = broker
        self.host = host
        self.url = url
        self.caller: Caller | None = None
        self.client_version = ""
        self.closed = False
        self._out = out
        self._unsent: list[bytes] | None = None
        """Bytes to send, while they are gathered."""
        self._unsent_bytes = 0
        self._owed_bytes = 0
        self._paused = False

    # Bytes out

    def write(self, data: bytes) -> None:
        """Send bytes, together with those gathered in this turn."""
        if self._unsent is not None:
            self._unsent.append(data)
            self._unsent_bytes += len(data)
            if self._unsent_bytes > self.broker.settings.max_connection_bytes:
                # It is time to see whether the client reads.
                self._send_unsent()
        elif not self.closed:
            self._out.write(data)

    def send(self, **command: Any) -> None:
        """Send a command."""
        self.write(frame(wire.BaseCommand(**command)))

    def success(self, request_id: int) -> None:
        """Say yes to a request."""
        self.send(type=_Type.SUCCESS, success=wire.CommandSuccess(request_id=request_id))

    def error(self, request_id: int, code: int, text: str) -> None:
        """Say no to a request."""
        answer: Any = wire.CommandError(request_id=request_id, error=code, message=text)  # type: ignore[arg-type]
        self.send(type=_Type.ERROR, error=answer)

    def refuse(self, request_id: int, error: BaseException) -> None:
        """Say no to a request, in Pulsar's words."""
        self.error(request_id, code_of(error), text_of(error))

    def _send_unsent(self) -> None:
        unsent, self._unsent, self._unsent_bytes = self._unsent, [], 0
        if unsent:
            self._out.write(b"".join(unsent))

    # Reading

    def owe(self, size_bytes: int) -> None:
        """So much more is unanswered; beyond the bound nothing more is read."""
        self._owed_bytes += size_bytes
        self.mind_reading()

    @property
    def held_up(self) -> bool:
        """Whether the client waits for its token's rate: nothing is read meanwhile."""
        return False

    def mind_reading(self) -> None:
        """Read no more from a client that is held up, by unread answers or by its token's rate."""
        over = self.held_up or self._owed_bytes > self.broker.settings.max_connection_bytes
        if over != self._paused and not self.closed:
            self._paused = over
            (self._out.pause if over else self._out.resume)()

    # Who it is

    def require(self, topic: str, command: int) -> TopicName:
        """A topic by its name, if the client may use this command on it; else raises the refusal."""
        if self.broker.stopping:
            raise Unavailable("the server is stopping; try again in a moment")
        name = parse_topic(text(topic))
        self.require_namespace(name.namespace_name, command)
        if not self.broker.engine.catalogue.has_namespace(name.namespace_name):
            # As in Pulsar: a slip in a name is told of, and makes no namespace.
            raise NotFound(
                f"Namespace {name.namespace_name} does not exist; an administrator can create it"
                f" (PUT /admin/v2/namespaces/{name.namespace_name})"
            )
        return name

    def require_namespace(self, namespace: str, command: int) -> None:
        """Raise `Forbidden` unless the client may use this command there."""
        assert self.caller is not None, "a command before CONNECT is not taken"
        _RIGHTS[command].check(self.caller)
        self.caller.require_namespace(namespace)

    @property
    def is_cpp(self) -> bool:
        """Whether the client is the C++ client or built on it, as those of Python and Node.js are."""
        return self.client_version.startswith("Pulsar-CPP")

    def attempt(self, request_id: int, work: Callable[[], None]) -> None:
        """Carry out a request; an error becomes its answer."""
        try:
            work()
        except TarryError as error:
            self.refuse(request_id, error)
