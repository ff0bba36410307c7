import msgspec
import pytest

from tarry.core.errors import Invalid, TarryError
from tarry.core.messages.message import Message
from tarry.doors.http.bodies import decode, message_of, read_query, text_or_bytes
from tarry.doors.http.problems import problem_of
from tarry.doors.http.shapes import BatchDefaults, BatchLine, ListQuery, PolicyQuery, ScheduleRequest

DECODER = msgspec.json.Decoder(ScheduleRequest)
TOPIC = "persistent://public/default/t"


def message(body: str | bytes) -> Message:
    raw = body if isinstance(body, bytes) else body.encode()
    return message_of(decode(DECODER, raw.replace(b"{", b'{"destination":"%b",' % TOPIC.encode(), 1)))


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ('{"delay_ms":-1}', "delay_ms"), ('{"delay_ms":1.0}', "delay_ms"), ('{"delay_ms":1e3}', "delay_ms"),
        ('{"delay_ms":true}', "delay_ms"), ('{"delay_ms":"5"}', "delay_ms"), ('{"due_at_ms":-5}', "due_at_ms"),
        ('{"due_at_ms":99999999999999999999}', "due_at_ms"), ('{"due_at_ms":[]}', "due_at_ms"),
        ('{"delay_ms":NaN}', "delay_ms"), ('{"due_at_ms":Infinity}', "due_at_ms"), ('{"due_at_ms":-Infinity}', "due_at_ms"),
        ('{"due_at":"tomorrow"}', "due_at"), ('{"due_at":5}', "due_at"), ('{"delay":"5"}', "delay"),
        ('{"due_at_ms":1,"delay":"1ms"}', "delay_ms"), ('{"due_at_ms":1,"due_at":"2031-05-04T09:30:00Z"}', "due_at"),
        ('{"delay":"1s","delay_ms":1}', "delay"), ('{"due_at":"2031-05-04T09:30:00Z","delay":"1s"}', "delay_ms"),
        ('{"ttl_ms":0,"delay_ms":1}', "ttl_ms"), ('{"dealy_ms":1}', "dealy_ms"), ('{"headers":{"a":1}}', "headers[...]"),
        ('{"headers":[]}', "headers"), ('{"payload":5}', "payload"), ('{"payload_base64":"%%%"}', "payload_base64"),
        ('{"payload":"a","payload_base64":"YQ=="}', "payload"), ('{"payload":"a","payload_json":1}', "payload"),
        ('{"payload_json":1,"payload_base64":"YQ=="}', "payload_json"), ('{"namespace":"nope","delay_ms":1}', "namespace"),
        (b'{"payload_json":"\xff"}', "payload_json"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(body: str | bytes, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        message(body)
    assert refused.value.field == field


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"nope", b'{"destination":"t"', b'{"destination":"t"} {}', b'{"destination":"\xff"}',
        b'{"\xff":1}', b'\xef\xbb\xbf{"destination":"t"}', b'{"destination":"\\ud800"}', b'{"destination":"a\x00b"}',
        b'{"destination":"t","payload_json":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"destination":"t","payload_json":NaN }x', b'{"destination":"t","payload_json":{"a":01}}',
    ],
)  # fmt: skip
def test_what_is_no_json_is_a_bad_request(body: bytes) -> None:
    with pytest.raises(TarryError) as refused:
        decode(DECODER, body)
    assert problem_of(refused.value).status == 400


def test_a_missing_destination_is_named() -> None:
    with pytest.raises(Invalid) as refused:
        decode(DECODER, b'{"delay_ms":1}')
    assert refused.value.field == "destination"
    with pytest.raises(Invalid):
        decode(DECODER, b"[]")


def test_a_message_is_what_was_asked() -> None:
    asked = message(
        '{"payload":"héllo","headers":{"a":"b"},"key":"k","owner":"o","namespace":"x/y","due_at_ms":5,"group":"g","ttl_ms":9}'
    )
    assert asked == Message(
        destination=TOPIC, payload="héllo".encode(), headers={"a": "b"}, key="k", owner="o", namespace="x/y",
        due_at_ms=5, group="g", ttl_ms=9,
    )  # fmt: skip
    assert message('{"delay":"1m30s"}').delay_ms == 90_000
    assert message('{"due_at":"1970-01-01T00:00:01Z"}').due_at_ms == 1000
    assert message('{"payload_base64":"AP8="}').payload == b"\x00\xff"


def test_a_json_payload_goes_out_as_it_was_written() -> None:
    asked = message('{"payload_json":{"a": [1.50, null]}}')
    assert asked.payload == b'{"a": [1.50, null]}'
    assert asked.headers == {"content-type": "application/json"}
    assert message('{"payload_json":null}').payload == b"null"
    kept = message('{"payload_json":1,"headers":{"Content-Type":"application/cbor"}}')
    assert kept.headers == {"Content-Type": "application/cbor"}


def test_of_two_fields_with_one_name_the_last_counts() -> None:
    assert message('{"delay_ms":1,"delay_ms":2}').delay_ms == 2


def test_what_a_line_does_not_say_is_a_default() -> None:
    defaults = BatchDefaults(destination=TOPIC, namespace="x/y", owner="o", delay_ms=7, ttl_ms=8)
    assert message_of(BatchLine(), defaults) == Message(
        destination=TOPIC, namespace="x/y", owner="o", delay_ms=7, ttl_ms=8
    )
    # A line with a time of its own, or a member of a group without one, takes none from the request.
    assert message_of(BatchLine(due_at_ms=5), defaults).delay_ms is None
    assert message_of(BatchLine(group="g"), defaults).delay_ms is None


def test_queries_are_read() -> None:
    read = read_query(b"owner=a%20b&limit=5&due_from_ms=7&state=finalised&key=null", ListQuery)
    assert (read.owner, read.limit, read.due_from_ms, read.state, read.key) == (
        "a b",
        5,
        7,
        "finalised",
        "null",
    )
    assert read_query(b"", ListQuery) == ListQuery()
    assert read_query(b"effective=true", PolicyQuery).effective


@pytest.mark.parametrize(
    ("text", "field"),
    [
        (b"limit=0", "limit"), (b"limit=1001", "limit"), (b"limit=x", "limit"), (b"limit=1.5", "limit"),
        (b"limt=5", "limt"), (b"state=gone", "state"), (b"due_to_ms=-1", "due_to_ms"), (b"due_to_ms=NaN", "due_to_ms"), (b"due_to_ms=null", "due_to_ms"), (b"due_to_ms=NULL", "due_to_ms"),
        (b"due_to_ms=", "due_to_ms"), (b"due_to_ms=%2B5", "due_to_ms"), (b"due_to_ms=1_0", "due_to_ms"), (b"due_to_ms=%205", "due_to_ms"),
        (b"limit=1&limit=2", "query"), (b"owner", "query"), (b"owner=%ff", "query"), (b"owner=\xff", "query"),
        (b"&".join(b"a%d=1" % n for n in range(100)), "query"),
    ],
)  # fmt: skip
def test_bad_queries_are_refused_by_name(text: bytes, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        read_query(text, ListQuery)
    assert refused.value.field == field


def test_payloads_are_shown_as_text_where_they_are_text() -> None:
    assert text_or_bytes("ü".encode()) == {"payload": "ü"}
    assert text_or_bytes(b"\xff") == {"payload_base64": b"\xff"}
