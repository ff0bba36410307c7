"""Fixtures and rules for all tests."""

import gc
import os
from typing import Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from xdist.scheduler import LoadFileScheduling

UNSHRUNK: Final = "UNSHRUNK"
"""In the environment: that a failure is enough, and no smaller example is looked for, which takes minutes."""

_PHASES: Final = tuple(
    phase for phase in Phase if UNSHRUNK not in os.environ or phase not in (Phase.shrink, Phase.explain)
)

# A slow machine is no fault of the code: what is too slow to be generated in time elsewhere is generated all the same.
settings.register_profile(
    "tarry", deadline=None, suppress_health_check=[HealthCheck.too_slow], phases=_PHASES
)
settings.load_profile("tarry")

SHARED: Final = {
    "tests/conformance/matrix/": (),
    "tests/conformance/dapr/brokers/": (),
    "tests/cluster/": (),
    "tests/pipeline/": ("test_cluster.py", "test_failures.py", "test_program.py"),
}
"""Folders whose tests share something that takes long to start, a Synapse, a Kafka or a Spark; but for files that have their own."""

FIRST: Final = (
    "tests/conformance/matrix/",
    "tests/crash/test_sigkill_pipeline.py",
    "tests/crash/test_failures.py",
    "tests/pipeline/",
    "tests/conformance/dapr/brokers/",
    "tests/cluster/",
    "tests/crash/",
    "tests/unit/test_serve_server.py",
    "tests/unit/test_wheel.py",
)
"""Files that take longest are begun first, so that no worker is left alone with one in the end. The rest follows by name."""

FILLING: Final = "tests/simulation/test_simulation.py::test_every_guarantee_holds"
"""Tests that are given out one by one, and last: they never wait, and so keep every core busy until the end."""


def scope_of(nodeid: str) -> str:
    """The unit of tests that one worker gets as a whole: a file, or a folder where that saves a second Synapse or Spark."""
    if nodeid.startswith(FILLING):
        return nodeid
    file = nodeid.partition("::")[0]
    for folder, apart in SHARED.items():
        if file.startswith(folder) and not file.endswith(apart):
            return folder
    return file


def _place(item: pytest.Item) -> int:
    if item.nodeid.startswith(FILLING):
        return len(FIRST) + 1
    return next((place for place, first in enumerate(FIRST) if item.nodeid.startswith(first)), len(FIRST))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put all tests into the order in which they are begun."""
    items.sort(key=_place)


def pytest_collection() -> None:
    """Nothing that is collected is garbage: looking for some took a third of the time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Thousands of tests live until the end: the collector of garbage need not look at them again and again."""
    gc.freeze()
    gc.enable()


class SharedScheduling(LoadFileScheduling):  # type: ignore[misc] # the library has no types
    """Gives a worker what belongs together."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> SharedScheduling:
    """How the tests are given to several workers."""
    return SharedScheduling(config, log)
