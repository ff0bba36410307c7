"""A feeder: somebody who says to one door whatever that accepts, one thing after another."""

from typing import Protocol


class Feeder(Protocol):
    """Feeds one door."""

    accepted: list[str]
    """The ids of messages that the door has accepted."""

    async def step(self) -> None:
        """Do one thing; raises `AssertionError` if the answer is one that must not be."""
