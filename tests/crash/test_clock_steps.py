"""A real server whose wall clock is stepped under it by libfaketime, while elapsed time goes on as it does."""

import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tarry.cli.checks import check_warnings
from tarry.client.blocking import Client
from tests.clocks import SteppedClock
from tests.processes import ServerProcess

HOUR_S = 3_600
TOPIC = "persistent://public/default/clock"


class Stepped:
    """A server and its clock."""

    def __init__(self, folder: Path) -> None:
        self._clock = SteppedClock(folder)
        self.step = self._clock.step
        self.server = ServerProcess(folder / "data")
        self.client = Client()

    def start(self) -> None:
        self.server.start(**self._clock.variables)
        self.client.close()
        self.client = Client(self.server.url)
        self.client.subscribe("clock", "s", start="earliest")

    def schedule(self, text: str, delay: str = "0s") -> None:
        self.client.schedule(TOPIC, text, delay=delay)

    def receives(self, text: str, within_s: float = 30) -> bool:
        """Whether this comes, before anybody's patience ends: an hour is far longer."""
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            entries = self.client.receive("clock", "s", wait_ms=500)
            if entries:
                self.client.ack("clock", "s", [entry.entry_id for entry in entries])
            if any(entry.payload == text.encode() for entry in entries):
                return True
        return False

    def figure(self, name: str) -> float:
        with urllib.request.urlopen(f"{self.server.url}/metrics", timeout=30) as answer:
            lines = answer.read().decode().splitlines()
        return float(next(line for line in lines if line.startswith(f"{name} ")).split()[1])

    def until(self, name: str, holds: str) -> None:
        """Wait for a metric; the server must go on working meanwhile, or nothing moves the watermark."""
        until_s = time.monotonic() + 60
        while not {"positive": lambda n: n > 0, "zero": lambda n: n == 0}[holds](self.figure(name)):
            assert time.monotonic() < until_s, f"{name} did not become {holds}"
            self.schedule("working")
            time.sleep(0.2)


@pytest.fixture
def stepped(tmp_path: Path) -> Iterator[Stepped]:
    found = Stepped(tmp_path)
    with found.server:
        yield found
        found.client.close()


def test_an_hour_ahead_for_some_seconds_is_said_and_makes_nothing_late(stepped: Stepped) -> None:
    stepped.start()
    stepped.schedule("before")
    assert stepped.receives("before")
    stepped.step(HOUR_S)
    stepped.until("tarry_clock_ahead_seconds", "positive")
    assert stepped.client.ready()
    (warning,) = stepped.client.warnings()
    assert re.match(r"the clock was set forward by (3599|360[01]) s", warning)
    assert [found.text for found in check_warnings(stepped.server.url, None)] == [warning]
    assert "s ahead of the time that has passed" in stepped.server.said()
    stepped.schedule("while ahead")
    assert stepped.receives("while ahead")
    stepped.step(0)
    stepped.until("tarry_clock_ahead_seconds", "zero")
    assert stepped.client.warnings() == []
    stepped.schedule("after", "300ms")
    assert stepped.receives("after")


def test_an_hour_ahead_at_a_start_is_recovered_from_by_lowering_the_watermark(stepped: Stepped) -> None:
    stepped.step(HOUR_S)
    stepped.start()
    stepped.schedule("while ahead")
    assert stepped.receives("while ahead")
    # The watermark follows a clock that nothing contradicts.
    until_s = time.monotonic() + 60
    while stepped.figure("tarry_watermark_seconds") < time.time() + HOUR_S - 60:
        assert time.monotonic() < until_s
        stepped.schedule("working")
        time.sleep(0.2)
    stepped.step(0)
    stepped.until("tarry_watermark_lowered_total", "positive")
    stepped.schedule("after", "300ms")
    assert stepped.receives("after")
    stepped.server.kill()
    stepped.start()
    stepped.schedule("after a restart", "300ms")
    assert stepped.receives("after a restart")
    # What went out while the clock was ahead does not go out again.
    assert not stepped.receives("while ahead", within_s=2)
