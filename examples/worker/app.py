"""A worker that sends reminders: it tries again with growing waits, and gives up after four failures."""

import os
from dataclasses import dataclass

from tarry import Backoff, Delivery, Worker

worker = Worker()


@dataclass
class Reminder:
    """The payload of an entry of `reminders`."""

    user: str
    text: str


@worker.on(
    "reminders",
    concurrency=10,
    retries=3,
    backoff=Backoff(first=os.environ.get("FIRST_WAIT", "1s"), longest="5m"),
    timeout="30s",
)
async def remind(reminder: Reminder, delivery: Delivery) -> None:
    """Send one reminder; an error gives the entry back."""
    if reminder.user == "nobody":
        raise LookupError("there is no such user")
    print(f"dear {reminder.user}: {reminder.text} (attempt {delivery.attempt})", flush=True)


@worker.on("reminders-worker-DLQ")
async def give_up(payload: bytes, delivery: Delivery) -> None:
    """Tell somebody of a reminder that failed for good."""
    print(f"gave up: {delivery.entry.headers['tarry-error']}: {payload.decode()}", flush=True)
