"""Concurrent histories on two servers that share a ledger, across takeovers; `make linearizable ARGS=--takeovers` records for longer."""

import random
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.brokers import brokers
from tests.linearizability.history import History, unexplained
from tests.linearizability.takeovers import recorder_of_two
from tests.linearizability.test_histories import seen

ROUNDS: Final = 4
MESSAGES: Final = 30


@pytest.mark.soak
async def test_the_answered_commands_on_a_message_are_linearizable_across_takeovers(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    histories: list[History] = []
    with brokers(tmp_path / "kafka", count=1) as cluster:
        async with recorder_of_two(tmp_path, seed, cluster) as recording:
            for _ in range(ROUNDS):
                histories += await recording.record(MESSAGES, kills=1)
    offenders = unexplained(histories)
    assert not offenders, "\n".join([f"seed {seed}, {len(offenders)} of {len(histories)}", *offenders[:3]])
    counted: Counter[str] = seen(histories)
    for what in ("outcome sent", "due ok", "cancel ok", "restart ok", "verdict accepted", "publish ok", "delivery ok", "crash ok"):  # fmt: skip
        assert counted[what], f"no {what} in {counted}"
