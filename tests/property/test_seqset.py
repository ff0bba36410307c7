"""The set of seqs against Python's own set."""

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tarry.core.sets import seqset
from tarry.core.sets.seqset import BLOCK_BITS, BLOCK_BYTES, BLOCK_SEQS, SMALLEST_BLOCK_BITS, SeqSet

EDGES = [0, BLOCK_SEQS, 2 * BLOCK_SEQS, 3 * BLOCK_SEQS, 9 * BLOCK_SEQS, 1 << 40]
SEQS = st.builds(lambda edge, step: max(0, edge + step), st.sampled_from(EDGES), st.integers(-10, 10))


@pytest.fixture(scope="module", autouse=True)
def _small_numbers() -> Iterator[None]:
    """Make the ways that are meant for many seqs be taken with few."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seqset, "FEW_PER_BLOCK", 1)
        patch.setattr(seqset, "BLOCKS_AT_ONCE", 2)
        yield


class SeqSetAgainstSet(RuleBasedStateMachine):
    @initialize(block_bits=st.sampled_from((SMALLEST_BLOCK_BITS, BLOCK_BITS)))
    def begin(self, block_bits: int) -> None:
        self.set = SeqSet(block_bits)
        self.block_seqs = 1 << block_bits
        self.model: set[int] = set()

    @rule(seq=SEQS)
    def add(self, seq: int) -> None:
        self.set.add(seq)
        self.model.add(seq)

    @rule(seqs=st.lists(SEQS, max_size=30))
    def add_many(self, seqs: list[int]) -> None:
        given_seqs = np.array(seqs, np.int64)
        self.set.add_many(given_seqs)
        assert given_seqs.tolist() == seqs
        self.model.update(seqs)

    @rule(first=SEQS, count=st.integers(0, 30))
    def add_range(self, first: int, count: int) -> None:
        self.set.add_range(first, count)
        self.model.update(range(first, first + count))

    @rule(first=SEQS, count=st.integers(0, 30) | st.just(3 * BLOCK_SEQS))
    def drop_range(self, first: int, count: int) -> None:
        self.set.drop_range(first, count)
        self.model.difference_update(range(first, first + count))

    @rule(data=st.data())
    def discard(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(self.model)) | SEQS if self.model else SEQS)
        self.set.discard(seq)
        self.model.discard(seq)
        assert seq not in self.set

    @rule(data=st.data())
    def discard_a_whole_block(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(EDGES)) // self.block_seqs
        for seq in [seq for seq in self.model if seq // self.block_seqs == number]:
            self.set.discard(seq)
            self.model.remove(seq)

    @rule(seq=SEQS)
    def contains(self, seq: int) -> None:
        assert (seq in self.set) == (seq in self.model)

    @rule(seqs=st.lists(SEQS, max_size=60))
    def contains_many(self, seqs: list[int]) -> None:
        found = self.set.contains_many(np.array(seqs, np.int64))
        assert found.dtype == np.bool_
        assert found.tolist() == [seq in self.model for seq in seqs]

    @rule(data=st.data())
    def between(self, data: st.DataObject) -> None:
        there = st.sampled_from(sorted(self.model) or [0])
        first, last = data.draw(there | SEQS), data.draw(there | SEQS)
        found = self.set.between(first, last)
        assert found.dtype == np.int64
        assert found.tolist() == sorted(seq for seq in self.model if first <= seq <= last)

    @rule(seqs=st.lists(SEQS, max_size=60))
    def frozen(self, seqs: list[int]) -> None:
        found = self.set.frozen().contains_many(np.array(seqs, np.int64))
        assert found.tolist() == [seq in self.model for seq in seqs]

    @rule(seqs=st.lists(SEQS, max_size=30))
    def merge(self, seqs: list[int]) -> None:
        other = self.set.copy()
        other.add_many(np.array(seqs, np.int64))
        self.set.merge(other)
        self.model.update(seqs)

    @rule(seq=SEQS)
    def drop_upto(self, seq: int) -> None:
        kept = {s for s in self.model if s // self.block_seqs * self.block_seqs + self.block_seqs - 1 > seq}
        assert self.set.drop_upto(seq) == len(self.model) - len(kept)
        self.model = kept

    @invariant()
    def sizes(self) -> None:
        assert len(self.set) == len(self.model)
        assert self.set.nbytes == self.block_seqs // 8 * len({seq // self.block_seqs for seq in self.model})


TestSeqSetAgainstSet = SeqSetAgainstSet.TestCase
TestSeqSetAgainstSet.settings = settings(max_examples=80, stateful_step_count=30, deadline=None)


@pytest.mark.parametrize("last_seq", [100_000, 20_000_000])
@pytest.mark.parametrize("asked", [1, 10, 1000, 50_000])
@pytest.mark.parametrize("few", [1, 16])
def test_many_seqs_over_few_and_many_blocks(
    last_seq: int, asked: int, few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seqset, "FEW_PER_BLOCK", few)
    monkeypatch.setattr(seqset, "BLOCKS_AT_ONCE", 64)
    random = np.random.default_rng(asked)
    members = random.integers(0, last_seq, 60_000)
    tested = SeqSet()
    for part in np.split(members, 6):
        tested.add_many(part)
    assert len(tested) == len(np.unique(members))
    assert np.array_equal(tested.between(0, last_seq), np.unique(members))
    seqs = np.concatenate([random.choice(members, asked), random.integers(0, 2 * last_seq, asked)])
    assert np.array_equal(tested.contains_many(seqs), np.isin(seqs, members))


@pytest.mark.parametrize("first", [0, 7, BLOCK_SEQS - 1, 5 * BLOCK_SEQS])
@pytest.mark.parametrize("count", [1, BLOCK_SEQS, 3 * BLOCK_SEQS + 9])
def test_ranges_over_several_blocks(first: int, count: int) -> None:
    tested = SeqSet()
    tested.add(first + count)
    tested.add_range(first, count)
    assert len(tested) == count + 1
    assert np.array_equal(tested.between(0, 1 << 40), np.arange(first, first + count + 1))
    tested.drop_range(first + 1, count)
    assert tested.between(0, 1 << 40).tolist() == [first]
    assert tested.nbytes == BLOCK_BYTES
    tested.drop_range(0, 1 << 20)
    assert len(tested) == tested.nbytes == 0
