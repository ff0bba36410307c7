"""The quick part of the fuzz campaign; `make fuzz` runs more of it, before a real homeserver."""

from pathlib import Path

import pytest

from tests.fuzz.campaign import Campaign
from tests.fuzz.homeservers import tiny

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("seed", [1, 1003])
async def test_every_door_takes_whatever_it_accepts(tmp_path: Path, seed: int) -> None:
    async with tiny(tmp_path) as homeserver:
        await Campaign(tmp_path, seed, homeserver).run(steps=60)
