import itertools

import numpy as np
import pytest

from tarry.core.messages.ids import ID_CHARS, Ids

KEY = bytes(range(32))
LAST = (1 << 48) - 1


@pytest.fixture
def ids() -> Ids:
    return Ids(KEY)


@pytest.mark.parametrize("seq", [1, 2, 1000, LAST])
@pytest.mark.parametrize("fire_at_ms", [0, 1, 1_700_000_000_000, (1 << 47) - 1, LAST])
def test_an_id_reads_back_as_what_it_was_made_of(ids: Ids, seq: int, fire_at_ms: int) -> None:
    made = ids.make(seq, fire_at_ms)
    assert len(made) == ID_CHARS
    assert made.isascii()
    assert ids.read(made) == (seq, fire_at_ms)


def test_many_at_once_are_the_same_as_one_by_one(ids: Ids) -> None:
    seqs = np.array([1, 7, 65_536, LAST, 12], np.int64)
    fires = np.array([0, LAST, 1_700_000_000_000, 5, 1 << 40], np.int64)
    one_by_one = [ids.make(seq, fire) for seq, fire in zip(seqs.tolist(), fires.tolist(), strict=True)]
    assert ids.make_many(seqs, fires).astype(str).tolist() == one_by_one


def test_neighbours_do_not_look_alike(ids: Ids) -> None:
    made = [ids.make(seq, 1_700_000_000_000) for seq in range(1, 2000)]
    assert len(set(made)) == len(made)
    # Random characters agree at one place in 16; a pattern would agree at far more.
    agree = sum(a == b for one, two in itertools.pairwise(made) for a, b in zip(one, two, strict=True))
    assert agree < len(made) * ID_CHARS / 8


@pytest.mark.parametrize(
    "bad",
    [
        "",
        "x",
        "a" * 31,
        "a" * 33,
        "a" * 32,
        "A" * 32,
        "é" * 32,
        "٣" * 32,
        " " * 32,
        "aaaa aaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "a" * 31 + "\n",
    ],
)
def test_what_was_never_given_out_is_not_an_id(ids: Ids, bad: str) -> None:
    assert ids.read(bad) is None


def test_every_flipped_bit_and_every_other_spelling_is_refused(ids: Ids) -> None:
    alphabet = "0123456789abcdefABCDEF-_ "
    made = ids.make(42, 1_700_000_000_000)
    for at in range(ID_CHARS):
        for letter in alphabet:
            changed = made[:at] + letter + made[at + 1 :]
            if changed != made:
                assert ids.read(changed) is None
    assert ids.read(made.upper()) is None


def test_another_installation_does_not_read_it(ids: Ids) -> None:
    other = Ids(KEY[::-1])
    assert other.read(ids.make(42, 7)) is None
    assert other.make(42, 7) != ids.make(42, 7)


@pytest.mark.parametrize("size", [0, 16, 31, 33])
def test_a_key_is_32_bytes(size: int) -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Ids(bytes(size))
