"""An owner within its namespace: groups, idempotency keys, limits and counts are by holder.

Anybody may give any name as owner, so the same name in two namespaces is two owners who know nothing of each other.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final, NamedTuple

Held = dict[str, dict[str, int]]
"""Counts by namespace and then by owner, as records, rows and manifests have them."""


class Holder(NamedTuple):
    """An owner in a namespace."""

    namespace: str
    owner: str


UNSCOPED: Final = ""
"""In place of a namespace: registries before format 2 kept an owner's groups, keys and counts without one."""


def by_holder(held: Mapping[str, Mapping[str, int]]) -> Counter[Holder]:
    """Counts by holder."""
    return Counter(
        {Holder(namespace, owner): count for namespace, of in held.items() for owner, count in of.items()}
    )


def by_namespace(counts: Mapping[Holder, int]) -> Held:
    """Counts by holder, in the form in which they are stored."""
    held: Held = {}
    for (namespace, owner), count in counts.items():
        held.setdefault(namespace, {})[owner] = count
    return held
