"""Rules of RFC 9113 that h2spec looks at and more: streams that ended, malformed requests, and floods of frames."""

import pytest

from tarry.grpc import calm, frames
from tarry.grpc.ended import REMEMBERED_CUT, EndedStreams
from tarry.grpc.frames import END_HEADERS, END_STREAM, PADDED, ErrorCode, frame, number
from tarry.grpc.hpack import HeaderFields, written
from tests.unit.http2_kit import CALL, Client, Echo, message

HEADERS = frame(frames.HEADERS, END_HEADERS, 1, written(*CALL))
WHOLE = HEADERS + frame(frames.DATA, END_STREAM, 1, message(b"x"))
TRAILERS = frame(frames.HEADERS, END_HEADERS | END_STREAM, 1, written((b"trailing", b"1")))
METHOD, SCHEME, PATH, TYPE = CALL[:4]


def held() -> Client:
    """A client of a service that does not answer by itself."""
    service = Echo()
    service.hold = True
    return Client(service, max_streams=1_000).begin()


def reset_code(client: Client, stream: int) -> int | None:
    """The code with which a stream was ended."""
    found = client.of(frames.RST_STREAM, stream)
    return int.from_bytes(found[0], "big") if found else None


@pytest.mark.parametrize(
    "fields",
    [
        (SCHEME, PATH, TYPE),
        (METHOD, PATH, TYPE),
        (METHOD, SCHEME, TYPE),
        (METHOD, SCHEME, (b":path", b""), TYPE),
        (METHOD, METHOD, SCHEME, PATH, TYPE),
        (METHOD, SCHEME, SCHEME, PATH, TYPE),
        (METHOD, SCHEME, PATH, PATH, TYPE),
        (METHOD, SCHEME, TYPE, PATH),
        (*CALL[:3], (b":status", b"200"), TYPE),
        (*CALL[:3], (b":unheard", b"of"), TYPE),
        (*CALL, (b"X-Capital", b"1")),
        (*CALL, (b"", b"1")),
        (*CALL, (b"connection", b"keep-alive")),
        (*CALL, (b"transfer-encoding", b"chunked")),
        (*CALL, (b"te", b"trailers, deflate")),
        (*CALL, (b"content-length", b"seven")),
        (*CALL, (b"content-length", "²".encode())),
        (*CALL, (b"content-length", b"6"), (b"content-length", b"7")),
    ],
)
def test_a_malformed_request_ends_its_stream_and_no_other(fields: HeaderFields) -> None:
    client = held()
    client.call(1, b"under way")
    client.call(3, b"x", fields)
    assert reset_code(client, 3) == ErrorCode.PROTOCOL_ERROR
    assert client.goodbye() is None
    client.service.calls[0][0].answer(b"answered")
    client.rest()
    assert client.data(1) == message(b"answered")
    assert len(client.service.calls) == 1


@pytest.mark.parametrize("length", [0, 5, 7])
@pytest.mark.parametrize("cut", [False, True])
def test_data_of_another_length_than_announced_end_the_call(length: int, cut: bool) -> None:
    client = held()
    fields = (*CALL, (b"content-length", str(length).encode()))
    whole = message(b"x")
    pieces = (whole[:2], whole[2:]) if cut else (whole,)
    client.tell(frame(frames.HEADERS, END_HEADERS, 1, written(*fields)))
    for at, piece in enumerate(pieces):
        client.tell(frame(frames.DATA, END_STREAM if at == len(pieces) - 1 else 0, 1, piece))
    assert reset_code(client, 1) == ErrorCode.PROTOCOL_ERROR
    assert not client.service.calls
    assert not client.connection.held_bytes
    fields = (*CALL, (b"content-length", b"6"))
    client.call(3, b"x", fields)
    assert len(client.service.calls) == 1


def test_a_window_that_overflows_ends_its_stream_and_no_other() -> None:
    client = held()
    client.call(1, b"x")
    client.call(3, b"y")
    client.tell(number(frames.WINDOW_UPDATE, 1, (1 << 31) - 1))
    assert reset_code(client, 1) == ErrorCode.FLOW_CONTROL_ERROR
    assert list(client.connection.streams) == [3]
    assert client.goodbye() is None


DATA = frame(frames.DATA, END_STREAM, 1, b"x")


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (WHOLE + DATA, ErrorCode.STREAM_CLOSED),
        (WHOLE + TRAILERS, ErrorCode.STREAM_CLOSED),
        (HEADERS + TRAILERS + TRAILERS, ErrorCode.STREAM_CLOSED),
        (HEADERS + number(frames.RST_STREAM, 1, ErrorCode.CANCEL) + DATA, ErrorCode.STREAM_CLOSED),
        (HEADERS + number(frames.RST_STREAM, 1, ErrorCode.CANCEL) + TRAILERS, ErrorCode.STREAM_CLOSED),
        (frame(frames.HEADERS, END_HEADERS, 5, written(*CALL)) + HEADERS, ErrorCode.PROTOCOL_ERROR),
        (HEADERS + frame(frames.DATA, PADDED, 1, b"\x06abcde"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.HEADERS, END_HEADERS | frames.PRIORITISED, 1, b"\0\0\0\1\7" + written(*CALL)), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.PRIORITY, 0, 1, b"\0\0\0\1\7"), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.PRIORITY, 0, 0, bytes(5)), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.PRIORITY, 0, 1, bytes(4)), ErrorCode.FRAME_SIZE_ERROR),
        (frame(frames.GOAWAY, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.PING, 0, 1, bytes(8)), ErrorCode.PROTOCOL_ERROR),
        (frames.settings((frames.ENABLE_PUSH, 2)), ErrorCode.PROTOCOL_ERROR),
        (frame(frames.SETTINGS, frames.ACK, 0, bytes(6)), ErrorCode.FRAME_SIZE_ERROR),
    ],
)  # fmt: skip
def test_frames_where_they_may_not_be_end_the_connection(data: bytes, code: ErrorCode) -> None:
    client = Client().begin()
    client.tell(data)
    goodbye = client.goodbye()
    assert goodbye is not None
    assert goodbye[0] == code


def test_pseudo_fields_behind_a_request_end_its_stream() -> None:
    client = held()
    wrong = frame(frames.HEADERS, END_HEADERS | END_STREAM, 1, written(METHOD))
    client.tell(HEADERS + frame(frames.DATA, 0, 1, message(b"x")) + wrong)
    assert reset_code(client, 1) == ErrorCode.PROTOCOL_ERROR
    assert not client.service.calls


def test_what_is_still_on_its_way_on_a_stream_that_was_ended_from_here_is_let_pass() -> None:
    """A client that is answered before it has sent all does not know it yet."""
    client = Client().begin()
    client.tell(frame(frames.HEADERS, END_HEADERS, 1, written(*CALL, (b"grpc-encoding", b"snappy"))))
    assert client.fields(1)["grpc-status"] == "12"
    client.tell(frame(frames.DATA, 0, 1, b"x") + number(frames.WINDOW_UPDATE, 1, 5) + DATA)
    assert client.goodbye() is None
    client.tell(DATA)
    assert client.goodbye() == (
        ErrorCode.STREAM_CLOSED,
        "DATA on a stream that the client has ended (RFC 9113 §5.1)",
    )


def test_few_streams_that_ended_are_remembered() -> None:
    ended = EndedStreams()
    for id_ in range(1, 4 * REMEMBERED_CUT, 2):
        ended.add(id_, whole=False)
    assert not ended.cut(1)
    assert ended.cut(4 * REMEMBERED_CUT - 1)
    assert len(ended._cut) == REMEMBERED_CUT


# Floods


@pytest.mark.parametrize(
    "nothing",
    [
        frames.settings(),
        frames.settings((frames.INITIAL_WINDOW_SIZE, 0)),
        frame(frames.PING, 0, 0, bytes(8)),
        frame(frames.PING, frames.ACK, 0, bytes(8)),
        frame(frames.PRIORITY, 0, 7, bytes(5)),
        frame(frames.GOAWAY, 0, 0, bytes(8)),
        frame(0x77, 0, 1),
        frame(frames.DATA, 0, 1),
        frame(frames.DATA, PADDED, 1, b"\0"),
        number(frames.WINDOW_UPDATE, 0, 1),
        number(frames.WINDOW_UPDATE, 1, 1),
    ],
    ids=[
        "settings", "windows", "pings", "pongs", "priorities", "goodbyes", "unknown", "no data", "padding",
        "connection window", "stream window",
    ],
)  # fmt: skip
def test_a_flood_of_frames_for_nothing_ends_the_connection(nothing: bytes) -> None:
    client = held()
    client.tell(HEADERS)
    client.tell(nothing * (calm.MAX_STRAIN + 1))
    goodbye = client.goodbye()
    assert goodbye is not None
    assert goodbye[0] == ErrorCode.ENHANCE_YOUR_CALM


def test_a_block_of_fields_that_goes_on_with_nothing_for_ever_ends_the_connection() -> None:
    client = held()
    client.tell(frame(frames.HEADERS, 0, 1, written(*CALL)))
    client.tell(frame(frames.CONTINUATION, 0, 1) * (calm.MAX_STRAIN + 1))
    goodbye = client.goodbye()
    assert goodbye is not None
    assert goodbye[0] == ErrorCode.ENHANCE_YOUR_CALM


@pytest.mark.parametrize("refused", [False, True])
def test_calls_that_are_begun_and_given_up_for_ever_end_the_connection(refused: bool) -> None:
    """Rapid reset: each begins work that nobody wants."""
    client = held()
    fields = (METHOD, SCHEME, PATH) if refused else CALL
    stream = 1
    while not client.closed:
        client.tell(frame(frames.HEADERS, END_HEADERS, stream, written(*fields)))
        if not refused and not client.closed:
            client.tell(number(frames.RST_STREAM, stream, ErrorCode.CANCEL))
        stream += 2
        assert stream < 2 * calm.MAX_STRAIN
    assert client.goodbye() is not None
    assert client.goodbye()[0] == ErrorCode.ENHANCE_YOUR_CALM  # type: ignore[index]


def test_calls_that_are_served_and_a_second_that_passes_are_no_strain() -> None:
    client = Client().begin()
    for stream in range(1, 2 * calm.MAX_STRAIN, 2):
        client.call(stream, b"x")
    for _ in range(3):
        client.tell(frame(frames.PING, 0, 0, bytes(8)) * (calm.MAX_STRAIN - 10))
        client.connection.calm.forgive()
    assert client.goodbye() is None


def test_settings_are_obeyed_once_for_all_that_come_together() -> None:
    """Each of them walks over the streams that wait for windows; 256 KiB of them took half a minute."""
    client = held()
    client.tell(frames.settings((frames.INITIAL_WINDOW_SIZE, 0)))
    looked = 0
    for stream in range(1, 1_001, 2):
        client.call(stream, b"x")
    for call, _ in client.service.calls:
        call.answer(b"waits")
    client.rest()
    assert len(client.connection.waiting) == 500
    for waiting in client.connection.waiting.values():
        went_on = waiting.go_on

        def counted(go_on: object = went_on) -> None:
            nonlocal looked
            looked += 1
            go_on()  # type: ignore[operator]

        waiting.go_on = counted  # type: ignore[method-assign]
    client.tell(frames.settings((frames.INITIAL_WINDOW_SIZE, 0)) * 1_000)
    assert looked == 500
    # One packet after the other, the walks are frames for nothing too.
    for _ in range(1_000):
        client.tell(frames.settings((frames.INITIAL_WINDOW_SIZE, 0)))
    assert looked < 500 * 1_000
    assert client.goodbye() is not None
    assert client.goodbye()[0] == ErrorCode.ENHANCE_YOUR_CALM  # type: ignore[index]
