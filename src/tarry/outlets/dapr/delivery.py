"""A scheduled publish as a message: its destination `dapr://app/component/topic`, and its metadata as headers. Pure."""

from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from tarry.core.errors import Invalid

SCHEME: Final = "dapr"
CONTENT_TYPE: Final = "content-type"
_METADATA: Final = "metadata."


class Target(NamedTuple):
    """The parts of a destination."""

    app_id: str
    pubsub: str
    topic: str


def destination(app_id: str, pubsub: str, topic: str) -> str:
    """Where a message goes that this application publishes to this topic of this component."""
    return f"{SCHEME}://{quote(app_id, safe='')}/{quote(pubsub, safe='')}/{quote(topic, safe='')}"


def target_of(text: str) -> Target:
    """Read a destination; raises `Invalid`."""
    parts = text.removeprefix(f"{SCHEME}://").split("/")
    if len(parts) != 3 or not all(parts):
        raise Invalid("destination", f"a destination is written {SCHEME}://app/component/topic")
    return Target(*map(unquote, parts))


def headers_of(metadata: dict[str, str], content_type: str) -> dict[str, str]:
    """A publish's metadata and content type as a message's headers."""
    headers = {_METADATA + name: value for name, value in metadata.items()}
    if content_type:
        headers[CONTENT_TYPE] = content_type
    return headers


def metadata_of(headers: dict[str, str]) -> dict[str, str]:
    """The metadata in a message's headers."""
    return {
        name.removeprefix(_METADATA): value for name, value in headers.items() if name.startswith(_METADATA)
    }
