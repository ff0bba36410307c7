"""Bodies and queries of requests: decoded with errors that name the field, turned into messages.

Nothing here decides about messages: `core.messages.message` and the engine do. What comes out of here is well formed.
"""

import json
import math
from typing import Any, Final, Protocol, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType, ValidationError

from tarry.core.errors import Invalid, TarryError
from tarry.core.messages.message import Message, NamedMessage
from tarry.core.names import parse_namespace
from tarry.core.time.times import parse_duration_ms, parse_instant_ms
from tarry.core.unreadable import UNREADABLE
from tarry.doors.http.problems import bad_json, unsupported
from tarry.doors.http.shapes import BatchDefaults, BatchLine, Times
from tarry.doors.http.wrong_fields import explain_field
from tarry.http.request import Request

T = TypeVar("T", bound=Struct)

JSON_TYPE: Final = b"application/json"
_JSON_HEADERS: Final = {"content-type": "application/json"}
_NOTHING: Final = BatchDefaults()


NDJSON: Final = b"application/x-ndjson"
_NDJSON_TYPES: Final = frozenset(
    {NDJSON, b"application/ndjson", b"application/jsonl", b"application/x-jsonlines"}
)


def is_ndjson(request: Request) -> bool:
    """Whether the body is said to be a JSON object in each line."""
    return request.media_type in _NDJSON_TYPES


def check_json(request: Request) -> None:
    """Raise a 415 unless the body is said to be JSON.

    Asking for it is also what keeps a web page elsewhere from posting without the browser asking first.
    """
    if request.media_type != JSON_TYPE:
        raise unsupported("application/json")


def decode(decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
    """Decode a body; raises `Invalid` naming the field, or a problem that says where the JSON ends."""
    try:
        return decoder.decode(body)
    except UNREADABLE as error:
        raise explain(error, body, decoder.type) from None


def explain(error: Exception, body: bytes, kind: type[Struct] | None = None) -> TarryError:
    """The error for a body that did not decode, in our words; of a body of very many lines none has suggestions."""
    if isinstance(error, ValidationError):
        return explain_field(str(error), kind)
    if isinstance(error, UnicodeDecodeError):
        return bad_json("there are bytes that are not UTF-8")
    if isinstance(error, RecursionError):
        return bad_json("it is nested too deeply")
    field = _find_not_a_number(body)
    if field is not None:
        return Invalid(field, "is not a number")
    return bad_json(str(error).removeprefix("JSON is malformed: ").lower())


def _find_not_a_number(body: bytes) -> str | None:
    """The field that holds NaN or an infinity, which JSON does not have but many programs write."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    return next((k for k, v in value.items() if isinstance(v, float) and not math.isfinite(v)), None)


def read_query(query_string: bytes, kind: type[T]) -> T:
    """The query parameters as a struct; raises `Invalid` naming the parameter."""
    try:
        pairs = parse_qsl(
            query_string.decode("ascii"),
            keep_blank_values=True, strict_parsing=bool(query_string), errors="strict", max_num_fields=32,
        )  # fmt: skip
    except (ValueError, UnicodeDecodeError):
        raise Invalid("query", "is not made of name=value pairs in UTF-8") from None
    given = dict(pairs)
    if len(given) < len(pairs):
        raise Invalid("query", "a parameter is given twice; give each once")
    try:
        query = msgspec.convert(given, kind, strict=False)
    except ValidationError as error:
        raise explain_field(str(error), kind) from None
    for name in given:
        # Reading numbers from text also reads «null»; a parameter has a value or is left out.
        if getattr(query, name) is None:
            raise Invalid(name, "is not a value")
    return query


class HasPayload(Protocol):
    """A shape with a payload in one of three forms, and headers."""

    payload: str | None
    payload_base64: bytes | None
    payload_json: Raw | UnsetType
    headers: dict[str, str] | None


def payload_of(content: HasPayload) -> tuple[bytes, dict[str, str]]:
    """The bytes to send and their headers; raises `Invalid` for two payloads at once."""
    text, encoded, value = content.payload, content.payload_base64, content.payload_json
    headers = content.headers or {}
    if text is not None:
        if encoded is not None or value is not UNSET:
            raise Invalid("payload", "give one of payload, payload_base64 and payload_json")
        return text.encode(), headers
    if value is not UNSET:
        if encoded is not None:
            raise Invalid("payload_json", "give one of payload, payload_base64 and payload_json")
        assert isinstance(value, Raw)
        payload = bytes(value)
        try:
            payload.decode()
        except UnicodeDecodeError:
            raise Invalid("payload_json", "holds bytes that are not UTF-8") from None
        if not any(name.lower() == "content-type" for name in headers):
            headers = headers | _JSON_HEADERS
        return payload, headers
    return encoded or b"", headers


def instant_of(field: str, text: str | None, at_ms: int | None) -> int | None:
    """An instant that may be given as text or in milliseconds; raises `Invalid` for both."""
    return at_ms if text is None else parse_instant_ms(_alone(field, text, at_ms), field)


def duration_of(field: str, text: str | None, milliseconds: int | None) -> int | None:
    """A duration that may be given as text or in milliseconds; raises `Invalid` for both."""
    return milliseconds if text is None else parse_duration_ms(_alone(field, text, milliseconds), field)


def _alone(field: str, text: str, milliseconds: int | None) -> str:
    if milliseconds is not None:
        raise Invalid(field, f"give {field} or {field}_ms, not both")
    return text


def times_of(times: Times) -> tuple[int | None, int | None]:
    """The due instant and the delay; raises `Invalid` if more than one time is given."""
    due_at_ms = instant_of("due_at", times.due_at, times.due_at_ms)
    delay_ms = duration_of("delay", times.delay, times.delay_ms)
    if due_at_ms is not None and delay_ms is not None:
        raise Invalid("delay_ms", "give a due instant or a delay, not both")
    return due_at_ms, delay_ms


def message_of(
    line: BatchLine, defaults: BatchDefaults = _NOTHING, idempotency_key: str | None = None
) -> Message:
    """The message that a line or a body asks for; raises `Invalid` for what contradicts itself."""
    payload, headers = payload_of(line)
    due_at_ms, delay_ms = line.due_at_ms, line.delay_ms
    if line.due_at is not None or line.delay is not None:
        due_at_ms, delay_ms = times_of(line)
    if due_at_ms is None and delay_ms is None and line.group is None:
        due_at_ms, delay_ms = defaults.due_at_ms, defaults.delay_ms
    message = Message(
        destination=(defaults.destination or "") if line.destination is None else line.destination,
        payload=payload,
        headers=headers,
        key=line.key,
        owner=(defaults.owner or "") if line.owner is None else line.owner,
        namespace=_namespace_of(line, defaults),
        due_at_ms=due_at_ms,
        delay_ms=delay_ms,
        group=line.group,
        ttl_ms=line.ttl_ms or defaults.ttl_ms,
        idempotency_key=idempotency_key,
    )
    check_conflict(line)
    if line.name is None:
        return message
    return NamedMessage.of(message, line.name, line.on_conflict or "fail")


def check_conflict(line: BatchLine) -> None:
    """Raise `Invalid` for a line that says what to do about a name, and has none."""
    if line.on_conflict is not None and line.name is None:
        raise Invalid("on_conflict", "is for messages with a name; give `name` too")


def _namespace_of(line: BatchLine, defaults: BatchDefaults) -> str | None:
    namespace = line.namespace if line.namespace is not None else defaults.namespace
    return None if namespace is None else parse_namespace(namespace)


def text_or_bytes(payload: bytes) -> dict[str, Any]:
    """The payload as an answer shows it: text where it is UTF-8, else base64."""
    try:
        return {"payload": payload.decode()}
    except UnicodeDecodeError:
        return {"payload_base64": payload}
