"""Every way in which Tarry says no. Doors map these to the words of their protocol.

    TarryError
    ├── Rejected                the request can never succeed as it stands; nothing was changed
    │   ├── Invalid             a field is wrong; names the field
    │   ├── TooLarge            a field or the whole is over a limit of size
    │   ├── DelayTooLong        beyond the policy's or the engine's longest delay
    │   └── Forbidden           the caller's role or namespace does not allow it
    ├── NotFound                no such message, topic, subscription or policy
    ├── Conflict                the state of things does not allow it
    ├── TooManyPending          the owner's limit on pending messages is reached
    ├── QuotaExceeded           the topic's backlog is over its quota
    ├── RateLimited             try again after `retry_after_ms`
    ├── Unavailable             cannot be taken now: stopping, starting, disk full, sync failed
    │   └── OverShare           the caller has its share of a bounded thing, and others may want some
    └── Damage                  stored bytes are not what was written; names the place

`code` is stable and machine-readable; the text is for people and says what to do. A limit that a policy sets is told with the
level that sets it, such as `namespace public/default`.
"""

from tarry.core.limits import SECOND_MS
from tarry.core.quantities import duration_in_words, size_in_words


class TarryError(Exception):
    """The root of the tree above."""

    code = "error"


class Rejected(TarryError):
    """The request can never succeed as it stands; nothing was changed."""

    code = "rejected"


class Invalid(Rejected):
    """A field is missing, malformed or contradicts another."""

    code = "invalid"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(f"{field}: {reason}")
        self.field = field
        self.reason = reason


class TooLarge(Rejected):
    """Something is larger than its limit, which counts bytes, or `things` such as lines."""

    code = "too-large"

    def __init__(self, field: str, limit: int, things: str = "") -> None:
        most = f"{limit:,} {things}" if things else size_in_words(limit)
        super().__init__(f"{field}: larger than the limit of {most}")
        self.field = field
        self.limit = limit


class DelayTooLong(Rejected):
    """The due instant is further away than the longest delay allowed here."""

    code = "delay-too-long"

    def __init__(self, max_delay_ms: int, level: str = "") -> None:
        longest = f"the delay exceeds the maximum: at most {duration_in_words(max_delay_ms)}"
        cure = "choose an earlier instant, or raise max_delay_ms there"
        super().__init__(
            f"{longest}, set on {level}; {cure}" if level else f"{longest}; choose an earlier instant"
        )
        self.max_delay_ms = max_delay_ms


class Forbidden(Rejected):
    """The caller may not do this."""

    code = "forbidden"


class NotFound(TarryError):
    """The thing that was asked for does not exist, or the caller may not know of it."""

    code = "not-found"


class Conflict(TarryError):
    """The state of things does not allow it. `state` is the word for that state."""

    code = "conflict"

    def __init__(self, reason: str, state: str = "") -> None:
        super().__init__(reason)
        self.state = state


class TooManyPending(TarryError):
    """The owner has as many pending messages as it may have."""

    code = "too-many-pending"

    def __init__(self, limit: int, level: str = "") -> None:
        most = f"the owner has its limit of pending messages, {limit:,}"
        cure = "cancel some, wait until some are sent, or raise max_pending_per_owner there"
        super().__init__(f"{most}, set on {level}; {cure}" if level else most)
        self.limit = limit


class QuotaExceeded(TarryError):
    """A topic takes no more until its subscriptions have caught up. `action` is the policy's word for that."""

    code = "quota-exceeded"

    def __init__(self, topic: str, action: str, quota: str = "", field: str = "", level: str = "") -> None:
        over = f"the backlog of {topic} is over its quota"
        cure = f"acknowledge its entries, or raise {field} there"
        super().__init__(f"{over}: at most {quota}, set on {level}; {cure}" if level else over)
        self.action = action


class RateLimited(TarryError):
    """Too fast. Nothing was changed; try again after `retry_after_ms`."""

    code = "rate-limited"

    def __init__(self, retry_after_ms: int, reason: str = "too many requests") -> None:
        # A second more harms nobody, and milliseconds beside minutes are not for people; the number is exact.
        seconds = -(-retry_after_ms // SECOND_MS)
        told_ms = seconds * SECOND_MS if retry_after_ms > SECOND_MS else retry_after_ms
        super().__init__(f"{reason}; try again after {duration_in_words(told_ms)}")
        self.retry_after_ms = retry_after_ms


class Unavailable(TarryError):
    """Cannot be taken now. What was answered before is kept."""

    code = "unavailable"


class OverShare(Unavailable):
    """Cannot be taken now, because whoever asks has its share of what there is."""


class Damage(TarryError):
    """Stored bytes differ from those that were written. Names the file and the place in it."""

    code = "damage"

    def __init__(self, file: str, offset: int, reason: str) -> None:
        super().__init__(f"{file}: damaged at byte {offset}: {reason}")
        self.file = file
        self.offset = offset
        self.reason = reason
