"""Chunked bodies, fed whole, byte by byte and with something behind them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.http import chunks
from tarry.http.chunks import ChunkReader
from tarry.http.errors import BadChunk


def fed(data: bytes, size: int) -> tuple[bytes, bytes | None]:
    """The body, and what is left behind it; None if it has not ended."""
    reader, found, at = ChunkReader(), b"", 0
    while at < len(data) or reader.behind:
        piece, rest = reader.feed(b"" if reader.behind else data[at : at + size])
        at += 0 if reader.behind and not piece else size
        found += piece
        while reader.behind:
            piece, rest = reader.feed(b"")
            found += piece
        if rest is not None:
            return found, rest + data[at:]
    return found, None


@given(
    st.lists(st.binary(min_size=1, max_size=50)),
    st.sampled_from([b"", b";a=b", b' ; a="b"']),
    st.sampled_from([b"", b"a: b\r\n", b"a: b\r\nc: d\r\n"]),
    st.binary(max_size=10),
    st.integers(1, 200),
)
def test_a_body_is_the_same_however_it_comes(
    pieces: list[bytes], extension: bytes, trailer: bytes, behind: bytes, size: int
) -> None:
    data = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces)
    data += b"0" + extension + b"\r\n" + trailer + b"\r\n"
    assert fed(data + behind, size) == (b"".join(pieces), behind)
    for cut in range(len(data)):
        assert fed(data[:cut], size)[1] is None


@pytest.mark.parametrize(
    "data",
    [
        b"\r\n", b"x\r\n", b"-1\r\n", b"+1\r\nx\r\n", b"0x1\r\nx\r\n", b" 1\r\nx\r\n", b"1 \r\nx\r\n", b"1_0\r\n", b"1\r\nxx\r\n", b"1\r\nx0\r\n",
        b"1\r\nx\n0\r\n\r\n", b"1;a\nb\r\n", b"1" * 16 + b"\r\n", b"1;" + b"x" * 2_000, b"0\r\n" + b"a: b\r\n" * 2_000, b"0\r\na\nb\r\n\r\n",
    ],
    ids=repr,
)  # fmt: skip
@pytest.mark.parametrize("size", [1, 10_000])
def test_a_chunk_that_could_be_read_in_two_ways_is_refused(data: bytes, size: int) -> None:
    with pytest.raises(BadChunk):
        fed(data + b"0\r\n\r\n" * 10, size)


def test_few_chunks_are_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunks, "CHUNKS_AT_ONCE", 10)
    reader = ChunkReader()
    first, rest = reader.feed(b"1\r\nx\r\n" * 100 + b"0\r\n\r\nbehind")
    assert (len(first), rest, reader.behind) == (5, None, True)
    assert fed(b"1\r\nx\r\n" * 100 + b"0\r\n\r\nbehind", 1 << 20) == (b"x" * 100, b"behind")
