"""What holds for all tests."""

from typing import Final

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

# A slow machine is no fault of the code: what is too slow to be generated in time elsewhere is generated all the same.
settings.register_profile("tarry", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("tarry")

SHARED: Final = {
    "tests/conformance/matrix/": (),
    "tests/pipeline/": ("test_cluster.py", "test_failures.py", "test_program.py"),
}
"""Folders whose tests share something that takes long to start, a Synapse or a Spark; but for files that have their own."""


class SharedScheduling(LoadFileScheduling):  # type: ignore[misc] # the library has no types
    """Gives a worker whole files, and whole folders where that saves a second Synapse or Spark."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        for folder, apart in SHARED.items():
            if file.startswith(folder) and not file.endswith(apart):
                return folder
        return file


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> SharedScheduling:
    """How the tests are given to several workers."""
    return SharedScheduling(config, log)
