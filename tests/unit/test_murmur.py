import pytest

from tarry.core.murmur import murmur3_32

# Vectors of the reference implementation (MurmurHash3_x86_32, seed 0).
VECTORS = [
    (b"", 0x00000000),
    (b"\x00", 0x514E28B7),
    (b"\x00\x00", 0x30F4C306),
    (b"\x00\x00\x00", 0x85F0B427),
    (b"\x00\x00\x00\x00", 0x2362F9DE),
    (b"\xff\xff\xff\xff", 0x76293B50),
    (b"!Ce\x87", 0xF55B516B),
    (b"!Ce", 0x7E4A8634),
    (b"!C", 0xA0F7B07A),
    (b"!", 0x72661CF4),
    (b"test", 0xBA6BD213),
    (b"Hello, world!", 0xC0363E43),
    (b"The quick brown fox jumps over the lazy dog", 0x2E4FF723),
]


@pytest.mark.parametrize(("data", "hash_"), VECTORS)
def test_it_is_the_reference_hash(data: bytes, hash_: int) -> None:
    assert murmur3_32(data) == hash_


def test_it_spreads_keys_evenly() -> None:
    slots = [murmur3_32(b"key-%d" % n) % 65536 * 4 // 65536 for n in range(8000)]
    assert all(1800 < slots.count(quarter) < 2200 for quarter in range(4))
