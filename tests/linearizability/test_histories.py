"""Concurrent histories on a real server, a bounded part of them; `make linearizable MINUTES=30` records for longer."""

import random
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from tests.linearizability.history import History, unexplained
from tests.linearizability.recording import recorder

ROUNDS: Final = 8
MESSAGES: Final = 40


def seen(histories: list[History]) -> Counter[str]:
    """How often each thing happened."""
    return Counter(
        f"{one.what.kind} {one.what.result}" for history in histories for one in history.operations
    )


@pytest.mark.crash
async def test_the_answered_commands_on_a_message_are_linearizable(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    histories: list[History] = []
    async with recorder(tmp_path, seed) as recording:
        for number in range(ROUNDS):
            # In turn everybody stays, the receivers go, and the server is killed.
            absences, kills = ((0, 0), (2, 0), (0, 0), (0, 1))[number % 4]
            histories += await recording.record(MESSAGES, absences=absences, kills=kills)
    offenders = unexplained(histories)
    assert not offenders, "\n".join([f"seed {seed}, {len(offenders)} of {len(histories)}", *offenders[:3]])
    # Without these it would have proved nothing.
    counted = seen(histories)
    for what in ("outcome sent", "outcome conflict", "due ok", "cancel ok", "cancel conflict", "restart ok",
                 "restart conflict", "verdict accepted", "verdict refused", "verdict later", "verdict lost", "publish ok", "delivery ok", "crash ok",
                 "pause ok", "pause conflict", "resume ok", "resume conflict", "retry ok", "look paused"):  # fmt: skip
        assert counted[what], f"no {what} in {counted}"
