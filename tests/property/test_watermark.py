"""The watermark, however it rises and is lowered: what it says of versions is what a plain list of its records says."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tarry.ledger.record import FIRST_BATCH_SEQ, NO_KEY, Key, Lower, Mark
from tarry.ledger.watermark import Watermark

instants = st.integers(0, 40)
steps = st.lists(st.tuples(st.sampled_from(("mark", "lower", "version", "batch")), instants), max_size=40)


@given(steps)
def test_versions_are_passed_as_the_records_say_and_new_ones_are_not(history: list[tuple[str, int]]) -> None:
    """A version is dead once a mark above its key comes while it is there; a version that comes later is never below the key."""
    passed = Watermark()
    versions: dict[Key, bool] = {}
    batch_seq = FIRST_BATCH_SEQ
    for seq, (kind, at_ms) in enumerate(history, 1):
        if kind == "mark":
            passed = passed.after(seq, Mark(Key(at_ms, 0), 0))
            for key in versions:
                versions[key] |= key < Key(at_ms, 0)
        elif kind == "lower":
            passed = passed.after(seq, Lower(Key(at_ms, 0), 0, batch_seq))
        else:
            fire_at_ms = max(at_ms, passed.key.fire_at_ms)
            versions[Key(fire_at_ms, seq if kind == "version" else batch_seq)] = False
            batch_seq += kind == "batch"
    keys = list(versions)
    assert [passed.has_passed(key) for key in keys] == list(versions.values())
    table = np.array(keys, np.int64).reshape(-1, 2)
    assert passed.passed(table[:, 0], table[:, 1]).tolist() == list(versions.values())


@given(steps)
def test_ceilings_are_few_and_all_above_the_key(history: list[tuple[str, int]]) -> None:
    passed = Watermark()
    for seq, (kind, at_ms) in enumerate(history, 1):
        if kind in ("mark", "lower"):
            record = Mark(Key(at_ms, 0), 0) if kind == "mark" else Lower(Key(at_ms, 0), 0, FIRST_BATCH_SEQ)
            passed = passed.after(seq, record)
        keys = [one.key for one in passed.ceilings]
        assert keys == sorted(keys, reverse=True)
        assert all(key > passed.key for key in keys)


def test_a_lowered_watermark_is_never_below_the_beginning() -> None:
    assert Watermark(Key(9, 0)).after(1, Lower(NO_KEY, 0, FIRST_BATCH_SEQ)).key == NO_KEY
