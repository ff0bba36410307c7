"""One client's connection as a pure protocol object: bytes in, commands to the engine, bytes out. It does no I/O.

Frames are taken in the order in which they come. SENDs and ACKs that come together are gathered, and go to the engine as one
call for each producer or consumer before anything else is done for them; SENDs also while those before them are being synced. Bytes that are no frame, or a command before
CONNECT, end the connection with a reason, and harm no other.
"""

import logging
from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from tarry import __version__
from tarry.core.errors import Unavailable
from tarry.core.tenants.access import Caller
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.broker import Broker
from tarry.doors.pulsar.consumers import Consumers
from tarry.doors.pulsar.errors import Code
from tarry.doors.pulsar.frames import NO_ID, Frames, Malformed, text
from tarry.doors.pulsar.lookup import Lookup
from tarry.doors.pulsar.peer import FrameOutput, PulsarPeer, TakeCommand
from tarry.doors.pulsar.producers import Producers

log = logging.getLogger("tarry.pulsar")

PROTOCOL_VERSION: Final = 20
"""The newest version of the protocol that is spoken; with an older client its own."""
FRAME_EXTRA_BYTES: Final = 128 * 1024
"""Maximum bytes of a frame beside its payload: the command and the metadata."""
FIRST_FRAME_BYTES: Final = 64 * 1024
"""A frame of somebody who has not shown a token that is known: CONNECT with the token."""

FEATURES: Final = wire.FeatureFlags(supports_get_partitioned_metadata_without_auto_creation=True)
"""Features beyond the protocol's version that clients may rely on."""

_Type = wire.BaseCommand
# Looking one of these up costs as much as a call.
_SEND: Final[int] = _Type.SEND
_ACK: Final[int] = _Type.ACK
_APART: Final = frozenset((_Type.ACK, _Type.FLOW, _Type.PING, _Type.PONG))
"""Commands that may overtake queued SENDs, and so do not flush them."""
_UNCOUNTED: Final = frozenset((_Type.PING, _Type.PONG, _Type.FLOW, _Type.AUTH_RESPONSE))
"""Commands that keep a connection going, and are no operations of the token."""
_read_command: Final = _Type.FromString


class PulsarConnection(PulsarPeer):
    """One client: commands in, and the keeping of the connection."""

    def __init__(self, broker: Broker, out: FrameOutput, host: str, url: str) -> None:
        super().__init__(broker, out, host, url)
        self.heard = False
        """Whether anything came since this was last looked at."""
        self._pinged = False
        self._shown_ticks = 0
        """For how many keep-alive intervals the token has not been asked for."""
        self._challenged = False
        self._frames = Frames(FIRST_FRAME_BYTES)
        self._coming: Iterator[tuple[bytes, bytes]] | None = None
        """Frames that wait until the token's rate lets the client go on."""
        self._came: list[bytes] = []
        """Commands that came behind them."""
        self._holder: Caller | None = None
        """Whose place among the connections this one has."""
        self.lookup = Lookup(self)
        self.producers = Producers(self)
        self.consumers = Consumers(self)
        self._takes: dict[int, tuple[str, TakeCommand]] = {
            _Type.CONNECT: ("connect", self._connect),
            _Type.AUTH_RESPONSE: ("authResponse", self._authenticate_again),
            _Type.PING: ("ping", lambda _, __: self.send(type=_Type.PONG, pong=wire.CommandPong())),
            _Type.PONG: ("pong", lambda _, __: None),
            **self.lookup.takes,
            **self.producers.takes,
            **self.consumers.takes,
        }

    # Bytes in

    def receive(self, data: bytes) -> None:
        """Take bytes from the client."""
        self.heard = True
        self._pinged = False
        if self._coming is None:
            self._go_through(self._frames.feed(data))
        else:
            # It was on its way before the client was held up.
            self._came.append(data)

    def _go_through(self, coming: Iterator[tuple[bytes, bytes]]) -> None:
        """Take frames until the token is over its rate; those behind wait, so that everything stays in order."""
        self._unsent, self._unsent_bytes = [], 0
        try:
            for body, message in coming:
                if self.closed:
                    return
                if wait_ms := self._take(body, message):
                    self._coming = coming
                    self._out.after(wait_ms, self._go_on)
                    break
            else:
                self._coming = None
            self.mind_reading()
            self.producers.pause()
            self.consumers.flush()
        except Malformed as malformed:
            self.fail(str(malformed))
        finally:
            self._send_unsent()
            self._unsent = None
            if self.closed:
                self._out.close()

    def _go_on(self) -> None:
        """The client may go on where it was held up."""
        if self._coming is not None and not self.closed:
            self._go_through(self._coming)
        while self._came and self._coming is None and not self.closed:
            self._go_through(self._frames.feed(self._came.pop(0)))

    def _take(self, body: bytes, message: bytes) -> int:
        """Take one command; gives how many milliseconds its token has to wait before the next one."""
        try:
            command = _read_command(body)
        except DecodeError:
            raise Malformed("the command is not a BaseCommand of Pulsar's protocol") from None
        number = command.type
        if number == _SEND and self.caller is not None and command.HasField("send"):
            # Of these there is one for each message.
            self.producers.take(command.send, message)
            return self.caller.standing.charge(max(1, command.send.num_messages))
        found = self._takes.get(number)
        if self.caller is None and number != _Type.CONNECT:
            raise Malformed("the first command is not CONNECT")
        if found is None:
            self._refuse_unknown(command)
            return 0
        field, take = found
        if not command.HasField(field) and number not in (_Type.PING, _Type.PONG):
            raise Malformed(f"command {number} without what it says")
        if number not in _APART:
            self.producers.flush()
        if number != _ACK:
            self.consumers.flush()
        take(getattr(command, field), message)
        return 0 if number in _UNCOUNTED or self.caller is None else self.caller.standing.charge(1)

    def _refuse_unknown(self, command: wire.BaseCommand) -> None:
        """Answer a command that is not served, such as those of transactions: their request id is always the first field."""
        fields: Any = UnknownFieldSet(command)
        for unknown in fields:
            if unknown.wire_type == 2 and unknown.data[:1] == b"\x08":
                request_id = _read_varint(unknown.data, 1)
                self.error(request_id, Code.NotAllowedError, f"command {command.type} is not served here")
                return
        raise Malformed(f"command {command.type} is not served here")

    # Bytes out

    @property
    def held_up(self) -> bool:
        """Whether the client waits for its token's rate: nothing is read meanwhile."""
        return self._coming is not None or bool(self._came)

    def hold(self) -> None:
        """The client reads slower than it is sent to: its consumers are given no more for now."""
        self.consumers.hold()

    def release(self) -> None:
        """The client reads again."""
        self.consumers.release()

    # Life

    def tick(self) -> None:
        """Once in each keep-alive interval: ping who was silent, and close who stays so; ask for the token again."""
        self._shown_ticks += 1
        settings = self.broker.settings
        if (
            settings.token_refresh_ms
            and self._coming is None
            and self._shown_ticks * settings.keep_alive_ms >= settings.token_refresh_ms
        ):
            if self._challenged:
                self.fail("the client does not show its token again")
                return
            self._challenge()
        if self.heard:
            self.heard = False
        elif self._coming is not None:
            # It waits for us: it may have said something that is not read yet.
            return
        elif self._pinged or self.caller is None:
            self.fail("nothing was heard from the client")
        else:
            self._pinged = True
            self.send(type=_Type.PING, ping=wire.CommandPing())

    def fail(self, reason: str) -> None:
        """End the connection with a reason."""
        if not self.closed:
            self.broker.connections_failed += 1
            log.warning("a connection is closed: %s", reason, extra={"client": self.host})
            self.error(NO_ID, Code.UnknownError, reason)
            self.close()

    def close(self) -> None:
        """Let go of producers and consumers; the shell closes the transport once the written bytes are sent."""
        if self.closed:
            return
        self.closed = True
        self.producers.close()
        self.consumers.close()
        self._have_place(None)
        if self._unsent is None:
            self._out.close()

    def lost(self) -> None:
        """The client is gone."""
        self.close()

    def revoke(self) -> None:
        """End the connection if its token is not in force any more."""
        if self.caller is not None and not self.caller.standing.in_force:
            self.fail("the token is not in force any more")

    # Who it is

    def _connect(self, connect: wire.CommandConnect, _: bytes) -> None:
        if self.caller is not None:
            raise Malformed("a second CONNECT")
        self.client_version = text(connect.client_version)
        if not self._authenticate(connect.auth_data):
            return
        version = min(PROTOCOL_VERSION, connect.protocol_version)
        answer = wire.CommandConnected(
            server_version=f"Tarry-{__version__}",
            protocol_version=version,
            max_message_size=self.broker.settings.max_message_bytes,
            feature_flags=FEATURES,
        )
        self.send(type=_Type.CONNECTED, connected=answer)

    def _authenticate(self, secret: bytes) -> bool:
        caller = self.broker.access.known(secret or None)
        if caller is None:
            self.error(NO_ID, Code.AuthenticationError, "Unable to authenticate: no token that is known here")
            self.close()
            return False
        try:
            self._have_place(caller)
        except Unavailable as full:
            self.error(NO_ID, Code.NotAllowedError, f"Reached the maximum number of connections: {full}")
            self.close()
            return False
        self.caller = caller
        self._frames.max_frame_bytes = self.broker.settings.max_message_bytes + FRAME_EXTRA_BYTES
        self._shown_ticks, self._challenged = 0, False
        return True

    def _have_place(self, caller: Caller | None) -> None:
        """Hold one place among the connections, for the caller whose token was shown last; raises `Unavailable`."""
        places = self.broker.connection_places
        before = self._holder
        if before is not None and caller is not None and before.name == caller.name:
            return
        self._holder = None
        if before is not None:
            places.give_back(before)
        if caller is not None:
            places.take(caller)
            self._holder = caller

    def _authenticate_again(self, answer: wire.CommandAuthResponse, _: bytes) -> None:
        self._authenticate(answer.response.auth_data)

    def _challenge(self) -> None:
        """Ask the client for its token again; its answer counts from then on."""
        self._shown_ticks, self._challenged = 0, True
        challenge = wire.CommandAuthChallenge(
            server_version=f"Tarry-{__version__}",
            challenge=wire.AuthData(auth_method_name="token", auth_data=b"PulsarAuthRefresh"),
            protocol_version=PROTOCOL_VERSION,
        )
        self.send(type=_Type.AUTH_CHALLENGE, authChallenge=challenge)


def _read_varint(data: bytes, at: int) -> int:
    number = shift = 0
    for byte in data[at : at + 10]:
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return number & NO_ID
