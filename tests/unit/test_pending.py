"""How many messages wait: the sum is kept, and is always what the owners' counts add up to."""

from hypothesis import given
from hypothesis import strategies as st

from tarry.engine.pending import Pending
from tarry.registry.registry import Meta, Registry
from tests.unit.engine_kit import Bench

CHANGES = st.lists(st.tuples(st.sampled_from(["", "ann", "bob", "cid"]), st.integers(-5, 5)), max_size=40)


@given(CHANGES, CHANGES)
def test_the_sum_is_that_of_the_owners_also_from_the_registry(
    before: list[tuple[str, int]], after: list[tuple[str, int]]
) -> None:
    registry = Registry(":memory:")
    pending = Pending()
    for changes in (before, after):
        for owner, by in changes:
            pending.change(owner, by)
        assert pending.total == sum(pending.by_owner.values())
        assert all(count > 0 for count in pending.by_owner.values())
        pending.save(registry)
        assert not pending.changed
        flush = registry.begin(Meta(b"", 0, (0, 0), {}))  # type: ignore[arg-type]
        registry.write(flush)
        registry.done(flush)
        loaded = Pending()
        loaded.load(registry)
        assert (loaded.by_owner, loaded.total) == (pending.by_owner, pending.total)
    registry.close()


def test_the_engine_tells_the_sum_without_counting() -> None:
    bench = Bench()
    ids = [bench.schedule(delay_ms=60_000, owner=owner).id for owner in ("ann", "bob", "ann")]
    bench.ask(bench.engine.cancel(ids[1]))
    bench.ask(bench.engine.restart(ids[0]))
    bench.ask(bench.engine.send(ids[2]))
    bench.wait(10)
    assert (bench.engine.stats().pending, bench.engine.stats().owners) == (1, 1)
    bench.reopen()
    assert (bench.engine.stats().pending, bench.engine.stats().owners) == (1, 1)
    # What is told is the sum that is kept.
    bench.engine.journal.pending.by_owner["dan"] = 1000
    assert bench.engine.stats().pending == 1
