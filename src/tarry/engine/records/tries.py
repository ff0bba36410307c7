"""Tries: attempts to send a message that did not arrive, as its versions and its end remember them.

The last one has all that a person wants to know; of up to nineteen before it there is the number, the instant and the reason, which is
written down only where it is another one than that of the attempt after it.
"""

from typing import Final

from tarry.core.messages.shapes import AttemptFacts
from tarry.ledger.record import Earlier, Tried

MOST_EARLIER: Final = 19
"""With the default of `engine.attempts` all of them."""
MAX_REASON_CHARACTERS: Final = 200


def tried_again(last: Tried | None, at_ms: int, reason: str, number: int) -> Tried:
    """One more attempt that did not arrive, after those before."""
    if last is None:
        return Tried(at_ms, reason, number)
    told = None if last.reason == reason else last.reason[:MAX_REASON_CHARACTERS]
    earlier = Earlier(last.number, last.at_ms, told)
    return Tried(at_ms, reason, number, [*last.earlier, earlier][-MOST_EARLIER:])


def attempts_of(tried: Tried | None) -> tuple[AttemptFacts, ...]:
    """The attempts as they are shown, the oldest first."""
    if tried is None:
        return ()
    shown = [AttemptFacts(tried.number, tried.at_ms, tried.reason)]
    for one in reversed(tried.earlier):
        shown.append(
            AttemptFacts(one.number, one.at_ms, shown[-1].error if one.reason is None else one.reason)
        )
    return tuple(reversed(shown))


def size_of(tried: Tried | None) -> int:
    """About how many bytes they take in a record."""
    return 0 if tried is None else 64 + sum(16 + len(one.reason or "") * 4 for one in tried.earlier)
