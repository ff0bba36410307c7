"""Pauses: places whose messages do not go out until they are resumed. Pure.

A place is a topic, an owner in a namespace, or a destination in a namespace: an address, or all addresses of its host.
"""

from typing import Final, Literal, NamedTuple

from msgspec import Struct

from tarry.core.errors import Invalid
from tarry.core.names import TOPIC_SCHEME, parse_namespace, parse_topic, unpartitioned
from tarry.core.rules.admission import check_destination, check_owner

PlaceKind = Literal["destination", "topic", "owner"]

MAX_PAUSES: Final = 10_000
"""Maximum number of paused places: each is held in memory."""


class PausablePlace(NamedTuple):
    """A place whose messages can be paused."""

    kind: PlaceKind
    namespace: str
    name: str
    """The address, the full name of the topic, or the owner."""

    @property
    def full(self) -> str:
        """The name in records."""
        return f"{self.kind}/{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, full: str) -> "PausablePlace":
        """Read the name in a record."""
        kind, tenant, namespace, name = full.split("/", 3)
        return cls(kind, f"{tenant}/{namespace}", name)  # type: ignore[arg-type]


class Pause(Struct, frozen=True, omit_defaults=True):
    """A pause of a place, as the records say it."""

    since_ms: int
    resumed: bool = False
    """Whether it is over, and messages that it held are still on their way back."""


def place_of(
    namespace: str | None, destination: str | None = None, topic: str | None = None, owner: str | None = None
) -> PausablePlace:
    """The one place that is named; raises `Invalid`."""
    given = [name for name in (destination, topic, owner) if name is not None]
    if len(given) != 1 or not given[0]:
        raise Invalid("destination", "name one of destination, topic and owner")
    if destination is not None and destination.startswith(TOPIC_SCHEME):
        destination, topic = None, destination
    if topic is not None:
        parsed = parse_topic(topic)
        if namespace not in (None, parsed.namespace_name):
            raise Invalid("namespace", f"the topic is in {parsed.namespace_name}")
        return PausablePlace("topic", parsed.namespace_name, parsed.full)
    within = parse_namespace(namespace or "public/default")
    if owner is not None:
        check_owner(owner)
        return PausablePlace("owner", within, owner)
    assert destination is not None
    check_destination(destination)
    if "://" not in destination:
        raise Invalid(
            "destination", f"{destination[:64]!r} is no address like https://host/path; name a topic as topic"
        )
    return PausablePlace("destination", within, destination.rstrip("/"))


def places_of(namespace: str, destination: str, owner: str) -> list[PausablePlace]:
    """The places at which a message is."""
    places = [PausablePlace("owner", namespace, owner)]
    if destination.startswith(TOPIC_SCHEME):
        places.append(PausablePlace("topic", namespace, destination))
        if (whole := unpartitioned(destination)) != destination:
            places.append(PausablePlace("topic", namespace, whole))
        return places
    address = destination.rstrip("/")
    places.append(PausablePlace("destination", namespace, address))
    parts = address.split("/", 3)
    if len(parts) > 3:
        places.append(PausablePlace("destination", namespace, "/".join(parts[:3])))
    return places
