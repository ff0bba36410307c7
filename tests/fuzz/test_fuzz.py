"""The quick part of the fuzz campaign; `make fuzz` runs more of it."""

from pathlib import Path

import pytest

from tests.fuzz.campaign import Campaign

pytestmark = pytest.mark.crash


@pytest.mark.parametrize("seed", [1, 1003])
async def test_every_door_takes_whatever_it_accepts(tmp_path: Path, seed: int) -> None:
    await Campaign(tmp_path, seed).run(steps=60)
