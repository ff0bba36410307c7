"""SIGKILL on the real server and the real driver under load; then `tarry audit` and the consumers' record agree."""

import random
import time
from pathlib import Path
from typing import Final

import pytest

from tests.crash.campaign import run
from tests.crash.indexed import IndexedCampaign

LONGEST_MS: Final = 10_000
AT_LEAST: Final = 4
"""Crashes, with one of the driver among them. Another one of it ends every campaign."""
WITHIN_S: Final = 30.0
"""On a busy machine Spark takes long to start: then the last crash of the driver is the only one."""
GIVE_UP_S: Final = 150.0


@pytest.mark.crash
def test_the_audit_and_the_consumers_agree(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    said: list[str] = []
    began = time.monotonic()
    campaign = IndexedCampaign(tmp_path, seed, LONGEST_MS)

    def go_on(crashes: int) -> bool:
        took_s = time.monotonic() - began
        enough = crashes >= AT_LEAST and (campaign.driver_kills > 0 or took_s > WITHIN_S) and campaign.in_play
        return not enough and took_s < GIVE_UP_S

    offenders = run(campaign, go_on, said.append)
    assert not offenders, "\n".join([f"seed {seed}", said[-1], *offenders])
    # Without the index nothing would be shown.
    assert campaign.in_play, said[-1]
