"""Names of topics and namespaces, as Pulsar's users know them.

A full topic name is `persistent://tenant/namespace/topic`. A short name stands for one in
`public/default`. A namespace is `tenant/namespace`.
"""

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from tarry.core.errors import Invalid
from tarry.core.limits import MAX_NAME_BYTES

TOPIC_SCHEME: Final = "persistent://"
DEFAULT_NAMESPACE: Final = "public/default"

_PART: Final = re.compile(r"[A-Za-z0-9_.=:\-]+")
# Half a surrogate pair is a character that cannot be written down.
_TOPIC_PART: Final = re.compile(r"[^\x00-\x1f\x7f/\ud800-\udfff]+")
_NO_SHORT_NAME: Final = re.compile(r"[^/]*[\s:][^/]*|[^/]*:/.*", re.DOTALL)
_MISTYPED: Final = re.compile(r"(https?|broker|persistent):/?[^/].*")
_ADDRESS: Final = re.compile(r"(?:(https?)?[:/]+)?((?:localhost|[\w-]+(?:\.[\w-]+)+)(?::[0-9]+)?/\S*)")
_PARTITION: Final = re.compile(r"(.*)-partition-([0-9]+)")


@dataclass(frozen=True)
class TopicName:
    """The parts of a topic name."""

    tenant: str
    namespace: str
    topic: str

    @cached_property
    def full(self) -> str:
        """`persistent://tenant/namespace/topic`."""
        return f"{TOPIC_SCHEME}{self.tenant}/{self.namespace}/{self.topic}"

    @cached_property
    def namespace_name(self) -> str:
        """`tenant/namespace`."""
        return f"{self.tenant}/{self.namespace}"


@lru_cache(maxsize=16_384)
def parse_topic(name: str, field: str = "topic") -> TopicName:
    """Read a full, `tenant/namespace/topic` or short topic name; raises `Invalid` naming the field."""
    scheme, separator, rest = name.rpartition("://")
    if separator and scheme != "persistent":
        raise Invalid(field, f"{scheme}:// is not a kind of topic that is kept here; use {TOPIC_SCHEME}")
    parts = rest.split("/")
    if len(parts) == 1 and not separator:
        parts = [*DEFAULT_NAMESPACE.split("/"), *parts]
    if len(parts) != 3:
        raise Invalid(field, "a topic name is tenant/namespace/topic, or a short name without slashes")
    tenant, namespace, topic = parts
    check_part(tenant, field)
    check_part(namespace, field)
    check_name(topic, field)
    return TopicName(tenant, namespace, topic)


def parse_destination(destination: str) -> TopicName:
    """Read the topic that a destination names; raises `Invalid` for one that looks like a mistyped address.

    A short name with a colon or a space is more often `https:/host` or a sentence than a topic; the full name says that
    the topic is meant.
    """
    if "://" not in destination and _NO_SHORT_NAME.fullmatch(destination):
        if (mistyped := _MISTYPED.fullmatch(destination)) is not None:
            raise Invalid("destination", f"two slashes are missing; did you mean {mistyped[1]}://…?")
        raise Invalid(
            "destination",
            f"{destination[:64]!r} is neither an address like https://host/path nor a short topic name, which has no colons"
            f" and no spaces{_meant_address(destination) or _meant_topic(destination)}",
        )
    try:
        return parse_topic(destination, "destination")
    except Invalid as error:
        raise Invalid("destination", f"{error.reason}{_meant_address(destination)}") from None


def _meant_address(name: str) -> str:
    """The address that may have been meant: a host and a path without the `https://` before them."""
    found = _ADDRESS.fullmatch(name)
    return f"; did you mean {found[1] or 'https'}://{found[2]}?" if found else ""


def _meant_topic(name: str) -> str:
    """The full name of a topic that may have been meant."""
    full = f"{TOPIC_SCHEME}{DEFAULT_NAMESPACE}/{name}"
    try:
        parse_topic(full)
    except Invalid:
        return ""
    return f"; did you mean the topic {full}?" if name.isprintable() else ""


def unpartitioned(topic: str) -> str:
    """The topic that a partition is part of; any other is given back as it is."""
    found = _PARTITION.fullmatch(topic)
    return found[1] if found else topic


def partition_number(topic: str) -> int:
    """The number of a partition in its topic; -1 for a topic that is no partition."""
    found = _PARTITION.fullmatch(topic)
    return int(found[2]) if found else -1


@lru_cache(maxsize=4_096)
def namespace_of(topic: str) -> str:
    """The namespace in the full name of a topic."""
    return topic.removeprefix(TOPIC_SCHEME).rpartition("/")[0]


def parse_namespace(name: str, field: str = "namespace") -> str:
    """Check a `tenant/namespace` name and give it back."""
    parts = name.split("/")
    if len(parts) != 2:
        raise Invalid(field, "a namespace is written tenant/namespace, such as public/default")
    for part in parts:
        check_part(part, field)
    return name


def check_part(part: str, field: str) -> None:
    """Raise `Invalid` unless this can be a tenant or the second part of a namespace."""
    if len(part) > MAX_NAME_BYTES or not _PART.fullmatch(part):
        raise Invalid(field, "a tenant or namespace holds 1 to 255 letters, digits or any of _ . = : -")


def check_message_name(name: str) -> None:
    """Raise `Invalid` unless this can name a message: it stands in paths, where dots alone mean something else."""
    check_name(name, "name")
    if name in (".", ".."):
        raise Invalid("name", "is . or .., which mean a folder in a path; give another name")


def check_name(name: str, field: str) -> None:
    """Raise `Invalid` unless this can name a topic, subscription, consumer or producer."""
    if not _TOPIC_PART.fullmatch(name) or len(name.encode()) > MAX_NAME_BYTES:
        raise Invalid(field, "a name is 1 to 255 bytes without slashes or control characters")
