"""The counts that `tarry audit` must give, by the books of the clients.

Of most messages it is certain what became of them. What was never answered may or may not have been accepted, so that a
count has a lowest and a highest value; what went out is always certain, because somebody has got it.
"""

from collections import Counter
from collections.abc import Mapping

from tests.crash.audit import View
from tests.crash.books import Books, Message

SENT, CANCELLED, SCHEDULED, UNKNOWN = "sent", "cancelled", "scheduled", "never accepted"


def disagreements(books: Books, counts: Mapping[str, int], upto_ms: int) -> list[str]:
    """A line for each count of the audit that the books contradict; it was made when nothing ran after `upto_ms`."""
    view = View(books)
    sent = {entry.label for entry in view.entries if entry.published_at_ms <= upto_ms}
    sent |= {one.label for one in books.arrivals if one.accepted and one.at_ms <= upto_ms}
    over = {message.group for message in view.messages.values() if message.label in sent}
    certain: Counter[str] = Counter()
    possible: Counter[str] = Counter()
    for message in view.messages.values():
        fates = {SENT} if message.label in sent and not message.cancelled else _fates(message, over)
        possible.update(fates)
        if len(fates) == 1:
            certain.update(fates)
    found = [
        f"the audit counts {counts[fate]} messages as {fate}; by the books it is {certain[fate]} to {possible[fate]}"
        for fate in (SENT, CANCELLED, SCHEDULED)
        if not certain[fate] <= counts[fate] <= possible[fate]
    ]
    if counts["failed"]:
        found.append(f"the audit counts {counts['failed']} messages as failed; nothing could fail")
    if counts["accepted"] != counts["scheduled"] + counts["finalised"]:
        found.append(f"the audit's counts do not add up: {dict(counts)}")
    return found


def _fates(message: Message, over: set[str | None]) -> set[str]:
    """Possible outcomes of a message that did not go out, or whose cancel was answered."""
    if message.cancelled or (message.batch is not None and message.batch.cancelled_at_ms):
        return {CANCELLED}
    if message.group is None:
        return {SCHEDULED} if message.answered else {SCHEDULED, UNKNOWN}
    fates = {CANCELLED} if message.group in over else {CANCELLED, SCHEDULED}
    return fates if message.answered else fates | {UNKNOWN}
