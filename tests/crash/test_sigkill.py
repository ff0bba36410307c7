"""SIGKILL on the real server under load, again and again, and an independent audit of what came of it."""

import random
import time
from pathlib import Path
from typing import Final

import pytest

from tests.crash.campaign import Campaign, run

AT_LEAST: Final = 4
AT_MOST: Final = 6
WITHIN_S: Final = 15.0
"""On a busy machine a start takes long: then there are fewer crashes, not a longer test."""


@pytest.mark.crash
def test_nothing_is_lost_early_or_doubled(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    said: list[str] = []
    began = time.monotonic()

    def go_on(crashes: int) -> bool:
        return crashes < AT_LEAST or (crashes < AT_MOST and time.monotonic() - began < WITHIN_S)

    offenders = run(Campaign(tmp_path, seed), go_on, said.append)
    assert not offenders, "\n".join([f"seed {seed}", said[-1], *offenders])
