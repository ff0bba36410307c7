"""A message as a CloudEvent 1.0 over HTTP: the request's headers and body.

Sections are of the CloudEvents «HTTP Protocol Binding» and «JSON Event Format», version 1.0.2.

Who decides about a header of the message:
- Tarry alone: `ce-id`, `ce-specversion`, `ce-time`, `ce-datacontenttype`, `ce-tarry…`, `webhook-…`, and
  those that belong to the connection and not to the message. The message's own are not sent.
- The message, before the settings: `content-type`, `user-agent`, and every other `ce-…`, which sets
  the attribute of that name. An empty value counts as absent.
- All other headers are passed on as they are.
What HTTP or CloudEvents cannot carry is refused and not dropped: a silent loss would be worse.

Pure: no I/O, and time is passed in.
"""

import re
from base64 import b64encode
from typing import Final

import msgspec
from msgspec import Raw, Struct

from tarry.core.limits import NEVER_MS
from tarry.core.messages.delivery import Delivery
from tarry.core.time.times import format_instant
from tarry.core.unreadable import UNREADABLE
from tarry.outlets.webhook.settings import WebhookSettings

_DEFAULT_CONTENT_TYPE: Final = "application/octet-stream"
_STRUCTURED_CONTENT_TYPE: Final = "application/cloudevents+json; charset=utf-8"

_OWN_ATTRIBUTES: Final = frozenset({"id", "specversion", "time", "datacontenttype", "data"})
_OWN_ATTRIBUTE_PREFIX: Final = "tarry"

_NOT_PASSED_ON: Final = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-length",
        "expect",
        "host",
        "http2-settings",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)

_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]+")
_ATTRIBUTE_NAME: Final = re.compile(r"[a-z0-9]+")
_HEADER_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\U0010ffff]*")
_TO_PERCENT_ENCODE: Final = re.compile(r"[^\x21\x23\x24\x26-\x7e]")  # §3.1.3.2: not printable, space, " and %


class Unsendable(Exception):
    """This message cannot be put into an HTTP request. The text names the header, not its value."""


class EventRequest(Struct, frozen=True):
    """The request as it goes over the wire, without the signature and the HTTP client's own headers."""

    headers: dict[str, str]
    body: bytes


def encode(delivery: Delivery, settings: WebhookSettings, now_ms: int) -> EventRequest:
    """The request for one attempt. Raises `Unsendable`."""
    passed_on, overrides = _sort_headers(delivery.headers)
    content_type = passed_on.pop("content-type", "") or _DEFAULT_CONTENT_TYPE
    attributes = {
        "specversion": "1.0",
        "id": delivery.id,
        "source": settings.event_source,
        "type": settings.event_type,
        # A group member without a due instant goes out by command: its instant is now.
        "time": format_instant(delivery.due_at_ms if delivery.due_at_ms < NEVER_MS else now_ms),
        "tarryscheduledat": format_instant(delivery.scheduled_at_ms),
        "tarryattempt": str(delivery.attempt),
    }
    if delivery.key:
        attributes["partitionkey"] = delivery.key
    attributes.update(overrides)
    headers = {"user-agent": settings.user_agent, **passed_on, "accept-encoding": "identity"}
    if settings.mode == "structured":
        headers["content-type"] = _STRUCTURED_CONTENT_TYPE
        return EventRequest(headers, _structured_body(attributes, delivery, content_type))
    headers["content-type"] = content_type
    for name, value in attributes.items():
        headers[f"ce-{name}"] = percent_encode(value)
    return EventRequest(headers, delivery.payload)


def percent_encode(value: str) -> str:
    """An attribute as a header value (§3.1.3.2)."""
    try:
        return _TO_PERCENT_ENCODE.sub(
            lambda found: "".join(f"%{byte:02X}" for byte in found[0].encode()), value
        )
    except UnicodeEncodeError:
        raise Unsendable("an attribute is not valid Unicode") from None


def _sort_headers(headers: dict[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """The message's headers to pass on, and the attributes that it sets; both without Tarry's own."""
    passed_on: dict[str, str] = {}
    attributes: dict[str, str] = {}
    for given_name, value in headers.items():
        name = given_name.lower()
        if _TOKEN.fullmatch(name) is None:
            raise Unsendable(f"header {given_name[:80]!a} has a name that HTTP cannot carry")
        if name.startswith("ce-"):
            attribute = name[3:]
            if _ATTRIBUTE_NAME.fullmatch(attribute) is None:
                raise Unsendable(
                    f"header {given_name[:80]!a} is no CloudEvents attribute: only letters and digits"
                )
            if value and attribute not in _OWN_ATTRIBUTES and not attribute.startswith(_OWN_ATTRIBUTE_PREFIX):
                attributes[attribute] = value
        elif name not in _NOT_PASSED_ON and not name.startswith("webhook-"):
            passed_on[name] = _header_value(given_name, value)
    return passed_on, attributes


def _header_value(name: str, value: str) -> str:
    if _HEADER_VALUE.fullmatch(value) is None or not _is_unicode(value):
        raise Unsendable(f"header {name[:80]!a} has a value that HTTP cannot carry")
    return value.strip(" \t")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _structured_body(attributes: dict[str, str], delivery: Delivery, content_type: str) -> bytes:
    document: dict[str, object] = dict(attributes)
    document["tarryattempt"] = delivery.attempt
    document["datacontenttype"] = content_type
    if _names_json(content_type) and _is_json(delivery.payload):
        document["data"] = Raw(delivery.payload)
    else:  # JSON format §3.1: bytes that are not JSON
        document["data_base64"] = b64encode(delivery.payload).decode()
    try:
        return msgspec.json.encode(document)
    except UnicodeEncodeError:
        raise Unsendable("an attribute is not valid Unicode") from None


def _names_json(content_type: str) -> bool:
    """Whether a media type is JSON's, or one that is written in it (RFC 6839); in one pass, however long it is."""
    _, slash, subtype = content_type.partition(";")[0].rstrip().lower().rpartition("/")
    return bool(slash) and (subtype == "json" or subtype.endswith("+json"))


def _is_json(payload: bytes) -> bool:
    """Whether the payload can stand in a JSON document as it is; says no when in doubt."""
    try:
        payload.decode()  # the decoder below skips strings without looking at their bytes
        msgspec.json.decode(payload, type=Raw)
    except UNREADABLE:
        return False
    return True
