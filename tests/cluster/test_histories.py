"""One takeover under concurrent commands, whose history is linearizable; `make linearizable ARGS=--takeovers` has many."""

import random
from pathlib import Path
from typing import Final

import pytest

from tests.cluster.brokers import Brokers
from tests.linearizability.history import unexplained
from tests.linearizability.takeovers import recorder_of_two
from tests.linearizability.test_histories import seen

# `make cluster` has it: two servers, and a broker for them, take longer than `make test` has.
pytestmark = pytest.mark.soak

MESSAGES: Final = 40


async def test_the_answered_commands_on_a_message_are_linearizable_across_a_takeover(
    one_broker: Brokers, tmp_path: Path
) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    async with recorder_of_two(tmp_path, seed, one_broker) as recording:
        histories = await recording.record(MESSAGES, kills=1)
    offenders = unexplained(histories)
    assert not offenders, "\n".join([f"seed {seed}, {len(offenders)} of {len(histories)}", *offenders[:3]])
    counted = seen(histories)
    for what in ("outcome sent", "cancel ok", "restart ok", "verdict accepted", "crash ok"):
        assert counted[what], f"no {what} in {counted}"
