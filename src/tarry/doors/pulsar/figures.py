"""Facts about a producer's or consumer's client, as the figures of its topic show them."""

from collections.abc import Iterable, Mapping
from typing import Any

from tarry.core.limits import SECOND_MS
from tarry.core.time.times import LAST_S, format_instant
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.frames import text
from tarry.doors.pulsar.peer import PulsarPeer


def about(connection: PulsarPeer, metadata: Iterable[wire.KeyValue]) -> Mapping[str, Any]:
    """The facts at the moment at which it was opened, by their names in Pulsar's figures."""
    return {
        "address": connection.host,
        "clientVersion": connection.client_version,
        "connectedSince": instant(connection.broker.engine.clock.now_ms()),
        "metadata": {text(pair.key): text(pair.value) for pair in metadata},
    }


def instant(at_ms: int) -> str:
    """An instant as Pulsar writes it; one beyond the year 9999, which a client may state, is shown as its end."""
    return format_instant(min(at_ms, LAST_S * SECOND_MS))
