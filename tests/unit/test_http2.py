"""HTTP/2 as a protocol object: fields, frames, windows, bounds, and bytes that are none."""

import asyncio
import gzip
import sys
from types import FrameType
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tarry.grpc import frames, huffman
from tarry.grpc.connection import CALLS_AT_ONCE, MAX_BLOCK_BYTES, WINDOW_BYTES
from tarry.grpc.frames import END_HEADERS, END_STREAM, PADDED, ErrorCode, frame, number
from tarry.grpc.hpack import TABLE_BYTES, BadBlock, BlockReader, HeaderFields, TooManyFields, written
from tarry.grpc.request import request_of, status_fields
from tests.unit.http2_kit import CALL, Client, Echo, message

# Fields (RFC 7541)


def test_the_examples_of_the_standard_are_read() -> None:
    get = ((b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/"), (b":authority", b"www.example.com"))
    last = (
        (b":method", b"GET"),
        (b":scheme", b"https"),
        (b":path", b"/index.html"),
        (b":authority", b"www.example.com"),
        (b"custom-key", b"custom-value"),
    )
    plain = (
        "828684410f7777772e6578616d706c652e636f6d",
        "828684be58086e6f2d6361636865",
        "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
    )
    coded = (
        "828684418cf1e3c2e5f23a6ba0ab90f4ff",
        "828684be5886a8eb10649cbf",
        "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
    )
    for blocks in (plain, coded):
        reader = BlockReader(MAX_BLOCK_BYTES)
        first, second, third = (reader.read(bytes.fromhex(block)) for block in blocks)
        assert first == get
        assert second == (*get, (b"cache-control", b"no-cache"))
        assert third == last


@pytest.mark.parametrize(
    ("symbol", "code", "bits"),
    [(0x21, 0x3F8, 10), (0x00, 0x1FF8, 13), (0x5C, 0x7FFF0, 19), (0xFF, 0x3FFFFEE, 26), (0xF9, 0xFFFFFFE, 28),
     (0x0A, 0x3FFFFFFC, 30), (0x16, 0x3FFFFFFE, 30), (0x7A, 0x7B, 7), (0xEF, 0x7FFFF4, 23), (0xC7, 0x1FFFFEC, 25)],
)  # fmt: skip
def test_symbols_have_the_codes_of_the_standard(symbol: int, code: int, bits: int) -> None:
    filled = -bits % 8
    coded = (code << filled | (1 << filled) - 1).to_bytes((bits + filled) // 8, "big")
    assert huffman.decode(coded) == bytes((symbol,))


@pytest.mark.parametrize("coded", [b"\xff\xff\xff\xff", b"\x00\x00\x00\xfe", b"\xff", b"\xff" * 4000])
def test_bits_that_are_no_string_are_refused(coded: bytes) -> None:
    with pytest.raises(ValueError, match="code"):
        huffman.decode(coded)


def test_the_table_forgets_what_has_no_room() -> None:
    reader = BlockReader(1 << 20)

    def kept(name: bytes, value: bytes) -> bytes:
        return b"\x40" + written((name, value))[1:]

    reader.read(kept(b"a", b"1") + kept(b"b", b"2"))
    assert reader.read(b"\xbe\xbf") == ((b"b", b"2"), (b"a", b"1"))
    reader.read(kept(b"c", b"x" * (TABLE_BYTES - 33 - 34)))
    assert reader.read(b"\xbf") == ((b"b", b"2"),)
    with pytest.raises(BadBlock):
        reader.read(b"\xc0")
    reader = BlockReader(1 << 20)
    reader.read(kept(b"a", b"1"))
    assert reader.read(b"\x20" + kept(b"b", b"2")) == ((b"b", b"2"),)
    with pytest.raises(BadBlock):
        reader.read(b"\xbe")


def test_a_block_that_was_read_before_is_read_anew_once_the_table_has_changed() -> None:
    reader = BlockReader(MAX_BLOCK_BYTES)
    reader.read(b"\x40\x01a\x011")
    assert reader.read(b"\xbe") == reader.read(b"\xbe") == ((b"a", b"1"),)
    reader.read(b"\x40\x01b\x012")
    assert reader.read(b"\xbe") == ((b"b", b"2"),)


def test_small_blocks_of_many_fields_are_refused() -> None:
    reader = BlockReader(MAX_BLOCK_BYTES)
    reader.read(b"\x40" + written((b"a", b"x" * 3000))[1:])
    with pytest.raises(TooManyFields):
        reader.read(b"\xbe" * 6)


@pytest.mark.parametrize(
    "block", ["80", "be", "ff", "ffffffffff7f", "4003", "400161", "3fe11f01", "8220", "40017885ffffffffff"]
)
def test_blocks_that_are_none_are_refused(block: str) -> None:
    with pytest.raises(BadBlock):
        BlockReader(MAX_BLOCK_BYTES).read(bytes.fromhex(block))


@given(st.lists(st.tuples(st.binary(min_size=1, max_size=200), st.binary(max_size=400)), max_size=8))
def test_what_is_written_is_read(fields: list[tuple[bytes, bytes]]) -> None:
    assert BlockReader(1 << 20).read(written(*fields)) == tuple(fields)


@given(st.binary(max_size=200))
def test_any_block_is_read_or_refused(block: bytes) -> None:
    try:
        BlockReader(MAX_BLOCK_BYTES).read(block)
    except (BadBlock, TooManyFields):
        pass


# Calls


def asked(stream: int, *pieces: bytes, fields: HeaderFields = CALL) -> bytes:
    """A call whose data come in pieces."""
    flags = [0] * (len(pieces) - 1) + [END_STREAM]
    return frame(frames.HEADERS, END_HEADERS, stream, written(*fields)) + b"".join(
        frame(frames.DATA, flag, stream, piece) for flag, piece in zip(flags, pieces, strict=True)
    )


def test_a_call_is_answered() -> None:
    client = Client().begin()
    client.call(1, b"hello")
    assert client.data(1) == message(b"hello")
    assert client.fields(1) == {
        ":status": "200",
        "content-type": "application/grpc",
        "told": "yes",
        "grpc-status": "0",
    }
    assert client.ended(1)
    assert not client.of(frames.RST_STREAM)
    assert not client.connection.streams
    assert not client.connection.held_bytes


def test_it_may_come_byte_by_byte_and_in_any_pieces() -> None:
    client = Client()
    whole = message(b"hello")
    for byte in frames.PREFACE + frames.settings() + asked(1, whole[:3], whole[3:8], b"", whole[8:]):
        client.tell(bytes((byte,)))
    assert client.data(1) == whole


def test_padding_priority_and_further_frames_are_read() -> None:
    client = Client().begin()
    block = written(*CALL)
    client.tell(
        frame(frames.HEADERS, PADDED | frames.PRIORITISED, 1, b"\x03" + bytes(5) + block[:20] + bytes(3))
        + frame(frames.CONTINUATION, 0, 1, block[20:30])
        + frame(frames.CONTINUATION, END_HEADERS, 1, block[30:])
        + frame(frames.DATA, PADDED, 1, b"\x02" + message(b"x") + bytes(2))
        + frame(frames.PRIORITY, 0, 1, bytes(5))
        + frame(0x77, 0, 1, b"of a later version")
        + frame(frames.HEADERS, END_HEADERS | END_STREAM, 1, written((b"trailing", b"1")))
    )
    assert client.data(1) == message(b"x")


def test_compressed_messages_are_read_within_the_bound() -> None:
    client = Client(max_bytes=10_000).begin()
    fields = (*CALL, (b"grpc-encoding", b"gzip"))
    client.tell(asked(1, message(gzip.compress(b"x" * 9_000), compressed=True), fields=fields))
    assert client.data(1) == message(b"x" * 9_000)
    client.tell(asked(3, message(gzip.compress(b"x" * 1_000_000), compressed=True), fields=fields))
    assert client.fields(3)["grpc-status"] == "8"
    for stream, wrong in ((5, b"no gzip"), (9, gzip.compress(b"x" * 100)[:-9])):
        client.tell(asked(stream, message(wrong, compressed=True), fields=fields))
        assert client.fields(stream)["grpc-status"] == "13"
    client.tell(asked(11, message(b"x"), fields=(*CALL, (b"grpc-encoding", b"snappy"))))
    assert client.fields(11)["grpc-status"] == "12"


@pytest.mark.parametrize(
    ("pieces", "status"),
    [((b"",), "13"), ((message(b"a") + message(b"b"),), "13"), ((message(b"abc")[:-1],), "13"), ((b"\0\x7f\xff\xff\xff",), "8")],
)  # fmt: skip
def test_a_call_without_its_one_message_fails_alone(pieces: tuple[bytes, ...], status: str) -> None:
    client = Client().begin()
    client.tell(asked(1, *pieces))
    assert client.fields(1)["grpc-status"] == status
    client.call(3, b"next")
    assert client.data(3) == message(b"next")
    assert not client.connection.held_bytes


def test_a_method_that_is_not_there_and_who_does_not_speak_grpc() -> None:
    client = Client().begin()
    client.call(1, b"", tuple((name, b"/test/No" if name == b":path" else value) for name, value in CALL))
    assert client.fields(1)["grpc-status"] == "12"
    client.call(3, b"", CALL[:3])
    assert client.fields(3)[":status"] == "415"
    client.call(5, b"", ((b":method", b"GET"), (b":scheme", b"http"), (b":path", b"/")))
    assert client.fields(5)[":status"] == "405"
    assert b"speaks gRPC" in client.data(5)
    assert client.goodbye() is None


def test_what_a_service_raises_is_the_outcome_of_that_call(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Echo):
        def unary(self, path: str) -> Any:
            def fail(*_: object) -> None:
                raise RuntimeError("secret")

            return fail

    client = Client(Failing()).begin()
    client.call(1, b"")
    assert client.fields(1)["grpc-status"] == "2"
    assert "secret" not in str(client.fields(1))
    # Its kind and its place help whoever reads the log; its text may be a client's.
    assert "failed with RuntimeError at" in caplog.text
    assert caplog.text.rstrip().endswith("in fail")
    assert "secret" not in caplog.text


def test_metadata_are_read_and_statuses_written() -> None:
    fields = (*CALL, (b"x-a", b"1"), (b"x-bin", b"AAE,AAEC"), (b"bad-bin", b"!"), (b"grpc-timeout", b"250m"))
    request = request_of(fields)
    assert request.metadata == (("x-a", "1"), ("x-bin", b"\0\1"), ("x-bin", b"\0\1\2"), ("bad-bin", b"!"))
    assert request.timeout_s == 0.25
    for wrong in (b"", b"1", b"m", b"123456789S", b"-1S", b"1x", b"\xb2S"):
        assert request_of((*CALL, (b"grpc-timeout", wrong))).timeout_s is None
    assert status_fields(3, "50 % grün\n").endswith(b"50 %25 gr%C3%BCn%0A")


# Windows


def test_an_answer_waits_for_the_clients_windows() -> None:
    client = Client().begin()
    client.tell(frames.settings((frames.INITIAL_WINDOW_SIZE, 10)))
    client.call(1, b"x" * 20_000)
    assert len(client.data(1)) == 10
    client.tell(number(frames.WINDOW_UPDATE, 1, 90))
    assert len(client.data(1)) == 100
    client.tell(frames.settings((frames.INITIAL_WINDOW_SIZE, 0)))
    client.tell(number(frames.WINDOW_UPDATE, 1, 10))
    assert len(client.data(1)) == 100
    assert not client.ended(1)
    client.tell(frames.settings((frames.INITIAL_WINDOW_SIZE, 1 << 20)))
    assert client.data(1) == message(b"x" * 20_000)
    assert client.ended(1)
    assert max(map(len, client.of(frames.DATA))) <= frames.MAX_FRAME_BYTES


def test_thousands_of_settings_cost_no_more_where_many_streams_are_open() -> None:
    client = Client(max_streams=100).begin()
    for stream in range(1, 200, 2):
        client.tell(frames.headers(0, stream, written(*CALL)))
    assert len(client.connection.streams) == 100
    calls = 0

    def count(_frame: FrameType | None, event: str, _what: object) -> None:
        nonlocal calls
        calls += event == "call"

    many = frames.settings(*((frames.INITIAL_WINDOW_SIZE, size) for size in range(2_000)))
    sys.setprofile(count)
    try:
        client.tell(many)
    finally:
        sys.setprofile(None)
    # A few for each setting; one for each setting of each stream would be 200,000.
    assert calls < 20_000
    assert not client.closed


def test_all_streams_share_the_window_of_the_connection() -> None:
    client = Client().begin()
    client.tell(frames.settings((frames.INITIAL_WINDOW_SIZE, 1 << 20)))
    for stream in (1, 3):
        client.call(stream, b"x" * 40_000)
    assert len(client.data(1)) + len(client.data(3)) == frames.FIRST_WINDOW_BYTES
    client.tell(number(frames.WINDOW_UPDATE, 0, 1 << 20))
    assert client.data(3) == message(b"x" * 40_000)
    assert not client.connection.streams


def test_a_client_that_does_not_read_gets_no_more_data() -> None:
    client = Client().begin()
    client.connection.hold()
    client.call(1, b"x")
    assert not client.data(1)
    client.connection.release()
    client.rest()
    assert client.data(1) == message(b"x")


def test_a_large_request_is_let_in_piece_by_piece() -> None:
    client = Client(max_bytes=4 * WINDOW_BYTES).begin()
    whole = message(b"x" * (3 * WINDOW_BYTES))
    pieces = [whole[at : at + 16_384] for at in range(0, len(whole), 16_384)]
    client.tell(asked(1, *pieces))
    for stream in (0, 1):
        more = sum(int.from_bytes(one, "big") for one in client.of(frames.WINDOW_UPDATE, stream))
        assert more > 2 * WINDOW_BYTES
    assert client.service.calls[0][1] == whole[5:]


async def test_who_sends_more_than_allowed_is_sent_away() -> None:
    class Deaf(Echo):
        def streaming(self, path: str) -> Any:
            return lambda _: asyncio.get_running_loop().create_future()

    client = Client(Deaf(), max_bytes=4 * WINDOW_BYTES).begin()
    client.tell(frame(frames.HEADERS, END_HEADERS, 1, written(*CALL[:2], (b":path", b"/deaf"), *CALL[3:])))
    for _ in range(WINDOW_BYTES // 16_384):
        client.tell(frame(frames.DATA, 0, 1, message(bytes(16_384 - 5))))
    assert client.goodbye() is None
    client.tell(frame(frames.DATA, 0, 1, b"x"))
    assert client.goodbye() == (
        ErrorCode.FLOW_CONTROL_ERROR,
        "DATA beyond the stream's window (RFC 9113 §6.9.1)",
    )


# Bounds


def test_streams_beyond_the_bound_are_refused_and_may_come_again() -> None:
    service = Echo()
    service.hold = True
    client = Client(service, max_streams=2).begin()
    for stream in (1, 3, 5):
        client.call(stream, b"x")
    assert client.of(frames.RST_STREAM, 5) == [ErrorCode.REFUSED_STREAM.to_bytes(4, "big")]
    for call, _ in service.calls:
        call.answer(b"")
    client.rest()
    client.call(7, b"x")
    assert len(service.calls) == 3


def test_what_is_under_way_in_parts_is_bounded() -> None:
    client = Client(max_bytes=10_000, max_streams=100).begin()
    begun = message(bytes(9_000))[:-1]
    for stream in range(1, 101, 2):
        client.tell(asked(stream, begun, b"")[: -len(frame(0, 0, 0))])
    assert client.connection.held_bytes <= 20_000
    assert client.fields(99)["grpc-status"] == "8"
    client.tell(frame(frames.DATA, END_STREAM, 1, b"\0"))
    assert client.fields(1)["grpc-status"] == "0"


def test_a_call_that_is_given_up_is_forgotten() -> None:
    service = Echo()
    service.hold = True
    client = Client(service).begin()
    client.call(1, b"x")
    client.tell(number(frames.RST_STREAM, 1, ErrorCode.CANCEL))
    before = len(client.got)
    service.calls[0][0].answer(b"late")
    client.rest()
    assert len(client.got) == before
    assert not client.connection.streams


def test_a_stop_lets_what_is_under_way_end_and_begins_nothing_more() -> None:
    service = Echo()
    service.hold = True
    client = Client(service).begin()
    client.call(1, b"x")
    client.connection.on_idle = client.connection.close
    client.connection.stop()
    client.rest()
    client.call(3, b"y")
    assert client.of(frames.RST_STREAM, 3)
    assert not client.closed
    service.calls[0][0].answer(b"done")
    client.rest()
    assert client.data(1) == message(b"done")
    assert client.closed


def test_pings_come_back() -> None:
    client = Client().begin()
    client.tell(frame(frames.PING, 0, 0, b"12345678") + frame(frames.PING, frames.ACK, 0, b"87654321"))
    assert client.of(frames.PING) == [b"12345678"]


# Bytes that are none

HEADERS = frame(frames.HEADERS, END_HEADERS, 1, written(*CALL))


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x00\x40\x01\x00\x00\x00\x00\x00\x00", ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.DATA, 0, 1, b"x"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, END_HEADERS, 2, written(*CALL)), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, END_HEADERS, 0, written(*CALL)), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, END_HEADERS, 1, b"\xff"), ErrorCode.COMPRESSION_ERROR),
        (frame(frames.HEADERS, END_HEADERS | PADDED, 1, b"\xff"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, END_HEADERS | PADDED, 1, b""), ErrorCode.FRAME_SIZE_ERROR),
        (HEADERS + HEADERS, ErrorCode.PROTOCOL_ERROR),
        (frame(frames.CONTINUATION, 0, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, 0, 1, b"") + frame(frames.PING, 0, 0, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, 0, 1, b"") + frame(frames.CONTINUATION, 0, 1, bytes(16_384)) * 2, ErrorCode.ENHANCE_YOUR_CALM),
        (frame(frames.PUSH_PROMISE, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.RST_STREAM, 0, 1, bytes(4)), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.RST_STREAM, 0, 1, b""), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.SETTINGS, 0, 0, b"x"), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.SETTINGS, 0, 1, b""), ErrorCode.PROTOCOL_ERROR),
        (frames.settings((frames.INITIAL_WINDOW_SIZE, 1 << 31)), ErrorCode.FLOW_CONTROL_ERROR),
        (frames.settings((frames.MAX_FRAME_SIZE, 1)), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.PING, 0, 0, b""), ErrorCode.FRAME_SIZE_ERROR),
        (number(frames.WINDOW_UPDATE, 0, 0), ErrorCode.PROTOCOL_ERROR),
        (number(frames.WINDOW_UPDATE, 0, (1 << 31) - 1), ErrorCode.FLOW_CONTROL_ERROR),
        (number(frames.WINDOW_UPDATE, 7, 1), ErrorCode.PROTOCOL_ERROR),
    ],
)  # fmt: skip
def test_frames_that_cannot_be_end_the_connection_with_a_reason(data: bytes, code: ErrorCode) -> None:
    client = Client().begin()
    client.tell(data)
    goodbye = client.goodbye()
    assert goodbye is not None
    assert goodbye[0] == code
    assert goodbye[1]
    assert client.closed
    assert not client.connection.streams


def test_data_behind_the_end_of_a_stream_end_the_connection() -> None:
    service = Echo()
    service.hold = True
    client = Client(service).begin()
    client.call(1, b"x")
    client.tell(frame(frames.DATA, 0, 1, b"x"))
    assert client.goodbye() == (
        ErrorCode.STREAM_CLOSED,
        "DATA on a stream that the client has ended (RFC 9113 §5.1)",
    )


def test_who_speaks_something_else_is_sent_away_at_once() -> None:
    client = Client()
    client.tell(b"GET / HTTP/1.1\r\n\r\n")
    assert client.goodbye() == (
        ErrorCode.PROTOCOL_ERROR,
        "a connection begins with the preface of HTTP/2 (RFC 9113 §3.4)",
    )
    assert client.closed


@settings(max_examples=200)
@given(
    st.lists(
        st.one_of(
            st.builds(
                frame,
                st.integers(0, 10),
                st.integers(0, 255),
                st.sampled_from([0, 1, 2, 3, 5, 7]),
                st.one_of(st.binary(max_size=40), st.just(written(*CALL)), st.just(message(b"abc"))),
            ),
            st.binary(max_size=20),
        ),
        max_size=12,
    )
)
def test_any_bytes_are_answered_or_end_that_connection(pieces: list[bytes]) -> None:
    client = Client().begin()
    for piece in pieces:
        if not client.closed:
            client.tell(piece)
    assert client.closed == (client.goodbye() is not None)
    assert client.connection.held_bytes >= 0
    if client.closed:
        assert not client.connection.held_bytes


# Time


def test_a_call_that_does_not_come_whole_ends_whatever_else_comes() -> None:
    client = Client(max_streams=100).begin()
    client.tell(asked(1, message(b"abc")[:4], b"")[: -len(frame(0, 0, 0))])
    for second in range(30):
        client.call(3 + 2 * second, b"others")
        client.tell(frame(frames.PING, 0, 0, bytes(8)))
        client.connection.sweep(float(second))
    assert client.of(frames.RST_STREAM, 1) == [ErrorCode.CANCEL.to_bytes(4, "big")]
    assert not client.connection.streams
    assert client.goodbye() is None


def test_a_call_that_keeps_the_pace_may_take_its_time() -> None:
    client = Client().begin()
    whole = message(bytes(60_000))
    client.tell(frame(frames.HEADERS, END_HEADERS, 1, written(*CALL)))
    for second in range(50):
        at = second * 1200
        client.tell(frame(frames.DATA, 0, 1, whole[at : at + 1200]))
        client.connection.sweep(float(second))
    client.tell(frame(frames.DATA, END_STREAM, 1, whole[50 * 1200 :]))
    assert client.fields(1)["grpc-status"] == "0"


def test_many_calls_that_end_in_one_sweep_end_alone() -> None:
    client = Client(max_streams=1_000).begin()
    for stream in range(1, 2_000, 2):
        client.tell(frame(frames.HEADERS, END_HEADERS, stream, written(*CALL)))
    for second in range(30):
        client.connection.sweep(float(second))
    assert len(client.of(frames.RST_STREAM)) == 1_000
    assert client.goodbye() is None


def test_a_block_of_fields_that_does_not_go_on_ends_the_connection() -> None:
    client = Client().begin()
    client.tell(frame(frames.HEADERS, 0, 1, written(*CALL)))
    for second in range(22):
        client.connection.sweep(float(second))
    assert client.goodbye() == (ErrorCode.ENHANCE_YOUR_CALM, "a block of fields that takes too long")


def test_a_compressed_message_is_kept_as_it_came_until_the_call_is_whole() -> None:
    client = Client(max_bytes=1 << 20).begin()
    squeezed = message(gzip.compress(bytes(1 << 20)), compressed=True)
    client.tell(frame(frames.HEADERS, END_HEADERS, 1, written(*CALL, (b"grpc-encoding", b"gzip"))))
    client.tell(frame(frames.DATA, 0, 1, squeezed))
    call: Any = client.connection.streams[1].receiver
    assert sum(map(len, call._messages)) < 10_000
    client.tell(frame(frames.DATA, END_STREAM, 1))
    assert client.service.calls[0][1] == bytes(1 << 20)


def test_a_call_that_is_not_admitted_is_over_before_its_data_come() -> None:
    class Closed(Echo):
        def admit(self, call: Any) -> None:
            call.fail(16, "not known here")

    client = Client(Closed()).begin()
    client.tell(frame(frames.HEADERS, END_HEADERS, 1, written(*CALL)))
    assert client.fields(1)["grpc-status"] == "16"
    client.tell(frame(frames.DATA, END_STREAM, 1, message(b"x")))
    assert not client.service.calls
    assert client.goodbye() is None


def test_thousands_of_calls_in_one_packet_are_served_in_many_turns() -> None:
    client = Client(max_streams=1000).begin()

    def one(n: int) -> bytes:
        head = frame(frames.HEADERS, END_HEADERS, n, written(*CALL))
        return head + frame(frames.DATA, END_STREAM, n, message(b"x"))

    client.connection.receive(b"".join(one(2 * n + 1) for n in range(1000)))
    assert client.connection.behind
    assert 0 < len(client.service.calls) <= CALLS_AT_ONCE
    client.connection.receive(b"")
    assert len(client.service.calls) <= 2 * CALLS_AT_ONCE
    client.tell(frame(frames.PING, 0, 0, b"12345678"))
    assert [call.request.path for call, _ in client.service.calls] == ["/test/Echo"] * 1000
    assert all(client.ended(2 * n + 1) for n in range(1000))
    assert client.of(frames.PING) == [b"12345678"]


def test_a_call_of_one_message_fails_at_the_second_and_holds_no_more() -> None:
    client = Client().begin()
    client.tell(frame(frames.HEADERS, END_HEADERS, 1, written(*CALL)))
    client.tell(frame(frames.DATA, 0, 1, message(b"", compressed=True) * 2))
    assert client.fields(1)["grpc-status"] == "13"
    assert not client.service.calls
