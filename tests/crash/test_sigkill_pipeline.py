"""SIGKILL on the real server and the real driver under load; then `tarry audit` and the consumers' record agree."""

import random
import time
from pathlib import Path
from typing import Final

import pytest

from tests.crash.campaign import run
from tests.crash.indexed import IndexedCampaign

LONGEST_MS: Final = 8_000
AT_LEAST: Final = 4
"""Crashes, of the server or the driver as it happens. One of the driver ends every campaign: what it leaves is taken up after it."""
GIVE_UP_S: Final = 150.0


@pytest.mark.crash
def test_the_audit_and_the_consumers_agree(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    said: list[str] = []
    began = time.monotonic()
    campaign = IndexedCampaign(tmp_path, seed, LONGEST_MS)

    def go_on(crashes: int) -> bool:
        enough = crashes >= AT_LEAST and campaign.in_play
        return not enough and time.monotonic() - began < GIVE_UP_S

    offenders = run(campaign, go_on, said.append)
    assert not offenders, "\n".join([f"seed {seed}", said[-1], *offenders])
    # Without the index nothing would be shown.
    assert campaign.in_play, said[-1]
