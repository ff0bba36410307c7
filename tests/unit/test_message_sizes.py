"""A message is accepted only if all that is written of it later fits into a segment: the one rule about sizes.

`segment_bytes` is a mebibyte here, the least that an operator would set.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.serving import Serving, serving
from tests.waiting import until

SEGMENT_BYTES = 1 << 20


async def schedule(served: Serving, **fields: Any) -> str | None:
    """Schedule a message; its id, or None if it is too large."""
    while True:
        answer = await served.client.post("/v1/messages", json={"destination": "t", **fields})
        if answer.status_code != 503:
            break
        # The disk is behind: segments are small here, and the messages are not.
        await asyncio.sleep(0.05)
    assert answer.status_code in (201, 413), answer.text
    return answer.json()["id"] if answer.status_code == 201 else None


async def ended(served: Serving, ids: list[str]) -> list[str]:
    async def states() -> list[str]:
        views = [(await served.client.get(f"/v1/messages/{id_}")).json() for id_ in ids]
        return [view["state"] for view in views]

    async def all_ended() -> bool:
        return not {"scheduled", "sending"} & set(await states())

    await until(all_ended)
    return await states()


async def test_what_is_accepted_near_the_size_of_a_segment_is_sent(tmp_path: Path) -> None:
    """Its entry is larger than its version: accepted and then unsendable, it ended the server at every start."""
    async with serving(tmp_path / "data", ledger__segment_bytes=SEGMENT_BYTES) as served:

        async def accepted(payload_bytes: int) -> str | None:
            return await schedule(served, payload="x" * payload_bytes, delay="0s")

        ids: list[str | None] = []
        fits, too_large = SEGMENT_BYTES // 2, SEGMENT_BYTES
        while too_large - fits > 1:
            middle = (fits + too_large) // 2
            ids.append(await accepted(middle))
            if ids[-1] is None:
                too_large = middle
            else:
                fits = middle
        assert fits > SEGMENT_BYTES * 0.9
        assert set(await ended(served, [id_ for id_ in ids if id_ is not None])) == {"sent"}


@pytest.mark.parametrize("payload_bytes", [500_000, 700_000, 1_000_000])
async def test_a_full_group_ends_in_one_unit(tmp_path: Path, payload_bytes: int) -> None:
    long = {"destination": "t" + "x" * 240, "key": "k" * 1_000, "owner": "o" * 250, "group": "g" * 250}
    async with serving(tmp_path / "data", ledger__segment_bytes=SEGMENT_BYTES) as served:
        large = await schedule(served, **long, payload="x" * payload_bytes, delay="1h")
        siblings = [
            await schedule(served, **long, payload="s", delay="1h") for _ in range(99 + (large is None))
        ]
        assert (large is not None) == (payload_bytes == 500_000)
        last = large or siblings[0]
        assert last is not None
        await served.client.post(f"/v1/messages/{last}/send")
        assert await ended(served, [last]) == ["sent"]
        others = [id_ for id_ in siblings if id_ is not None and id_ != last]
        assert len(others) == 99
        assert set(await ended(served, others)) == {"cancelled"}
