"""How many messages wait: the sum is kept, and is always what the owners' counts add up to."""

from hypothesis import given
from hypothesis import strategies as st

from tarry.core.tenants.holder import Holder
from tarry.engine.state.pending import Pending
from tarry.registry.registry import Meta, Registry
from tests.unit.engine_kit import Bench

HOLDERS = st.builds(
    Holder, st.sampled_from(["", "acme/shop", "acme/other"]), st.sampled_from(["", "ann", "bob"])
)
CHANGES = st.lists(st.tuples(HOLDERS, st.integers(-5, 5)), max_size=40)


@given(CHANGES, CHANGES)
def test_the_sum_is_that_of_the_owners_also_from_the_registry(
    before: list[tuple[Holder, int]], after: list[tuple[Holder, int]]
) -> None:
    registry = Registry(":memory:")
    pending = Pending()
    for changes in (before, after):
        for holder, by in changes:
            pending.change(holder, by)
        assert pending.total == sum(pending.by_holder.values())
        assert all(count > 0 for count in pending.by_holder.values())
        pending.save(registry)
        assert not pending.changed
        flush = registry.begin(Meta(b"", 0, (0, 0), {}))  # type: ignore[arg-type]
        registry.write(flush)
        registry.done(flush)
        loaded = Pending()
        loaded.load(registry)
        assert (loaded.by_holder, loaded.total) == (pending.by_holder, pending.total)
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
    bench.pending.by_holder[Holder("public/default", "dan")] = 1000
    assert bench.engine.stats().pending == 1
