"""A checker of linearizability: is there an order of the operations that respects time and the model?

The search of Wing and Gong with Lowe's memory: operations are taken one by one, each only while no other one has returned
before it was called, and a pair of what was taken and the state it led to is never searched twice. Histories are of one
message and so small; models may be nondeterministic. Pure.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import Generic, TypeVar

from msgspec import Struct

S = TypeVar("S")
W = TypeVar("W")


class Operation(Struct, Generic[W], frozen=True, kw_only=True):
    """Something that happened at one instant from `called` to `returned`."""

    what: W
    called: float = -inf
    returned: float = inf
    """Infinite: it may have happened at any time since, or not at all."""
    optional: bool = False
    """Whether it may also not have happened."""
    after: int | None = None
    """The place of an operation in the history that has to come before it."""


Step = Callable[[S, W], Iterable[S]]
"""The states to which something leads; none if it cannot happen there."""


def order_of(history: Sequence[Operation[W]], initial: S, step: Step[S, W]) -> list[int] | None:
    """An order of the operations, by their places, that explains the history; None if there is none."""
    needed = sum(1 << at for at, one in enumerate(history) if one.returned < inf)
    seen: set[tuple[int, S]] = set()
    order: list[int] = []
    # By depth: all that was taken, and what may come next, of which some was tried.
    searches = [(0, _next(history, 0, initial, step))]
    if not needed:
        return order
    while searches:
        taken, candidates = searches[-1]
        found = next(candidates, None)
        if found is None:
            searches.pop()
            del order[-1:]
            continue
        at, state = found
        taken |= 1 << at
        if taken & needed == needed:
            return [*order, at]
        if (taken, state) not in seen:
            seen.add((taken, state))
            order.append(at)
            searches.append((taken, _next(history, taken, state, step)))
    return None


def _next(history: Sequence[Operation[W]], taken: int, state: S, step: Step[S, W]) -> Iterator[tuple[int, S]]:
    """Operations that may come next, each with a state to which it leads."""
    left = [at for at in range(len(history)) if not taken >> at & 1]
    first_return = min(history[at].returned for at in left)
    for at in left:
        one = history[at]
        if one.called > first_return or (one.after is not None and not taken >> one.after & 1):
            continue
        for after in step(state, one.what):
            yield at, after
        if one.optional:
            yield at, state
