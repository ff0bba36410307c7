"""The budget of connections: however many listeners there are, the sum fits into the limit on open files."""

import logging

import pytest

from tarry.config import load
from tarry.core.tenants.access import Access
from tarry.core.time.clock import SystemClock
from tarry.serve.composition.configuration import doors_of
from tarry.serve.transport.connection_budget import (
    ARRIVING,
    MAX_CONNECTIONS,
    MIN_CONNECTIONS,
    ConnectionBudget,
)


@pytest.mark.parametrize(("limit", "expected"), [(96, 16), (1024, 624), (20_000, 16_384), (4096, 3312)])
def test_connections_leave_room_for_the_ledger(limit: int, expected: int) -> None:
    room = ConnectionBudget(limit)
    room.reserve(256)
    assert room.share_of("http").limit == expected


@pytest.mark.parametrize("limit", [1024, 4096, 20_000, 65_536])
def test_the_sum_fits(limit: int) -> None:
    room = ConnectionBudget(limit)
    room.reserve(256)
    parts = [
        room.share_of("http"),
        room.share_of("pulsar", 100),
        room.share_of("matrix", files_each=2),
        room.share_of("dapr"),
    ]
    assert parts[1].limit == 100
    used = sum(part.limit * part.files_each for part in parts)
    arriving = 4 * ARRIVING
    assert used <= limit - 256 - limit // 8 - arriving
    # Nothing to speak of is left unused, unless a listener has as many as it may.
    assert used > limit * 7 // 8 - 256 - arriving - 8 or parts[0].limit == MAX_CONNECTIONS
    assert parts[0].limit == parts[3].limit >= parts[2].limit * 2 or parts[0].limit == MAX_CONNECTIONS


def test_a_limit_that_is_far_too_low_leaves_a_few_to_each() -> None:
    room = ConnectionBudget(64)
    assert [room.share_of(str(n)).limit for n in range(4)] == [MIN_CONNECTIONS] * 4


def test_no_limit_on_files_is_a_limit_on_connections() -> None:
    assert ConnectionBudget(-1).share_of("http").limit == MAX_CONNECTIONS


def test_a_configuration_that_asks_for_more_than_there_is_is_told(caplog: pytest.LogCaptureFixture) -> None:
    room = ConnectionBudget(1024)
    room.share_of("pulsar", 700)
    with caplog.at_level(logging.WARNING):
        room.check()
        assert caplog.records == []
        room.share_of("dapr", 700)
        room.check()
    (record,) = caplog.records
    assert record.missing == 1400 - (1024 - 128 - 2 * ARRIVING)  # type: ignore[attr-defined]


def test_every_door_has_a_part() -> None:
    given = {f"doors.{door}.enabled": True for door in ("pulsar", "dapr")}
    room = ConnectionBudget(4096)
    doors_of(load(environment={}, overrides=given).config, Access.open(), room, SystemClock())
    assert [part.name for part in room.shares] == ["doors.pulsar", "doors.dapr", "doors.dapr:grpc"]
