"""Idempotency keys of the rows of a request that goes as columns, as lists for the state and as columns for the bodies."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from tarry.core.messages.message import Message
from tarry.engine.admission.idempotency import fingerprint
from tarry.ledger.columns import bytes_column


class RequestKeys(NamedTuple):
    """The keys of rows of which each has one, with the fingerprints of their requests."""

    keys: list[str]
    prints: list[bytes]
    column: Any
    """The keys as a column of bytes."""
    print_column: Any

    @classmethod
    def of(cls, requests: Sequence[Message]) -> Self | None:
        """The keys of these messages; None if there are none."""
        if not requests:
            return None
        keys = [message.idempotency_key or "" for message in requests]
        prints = [fingerprint(message) for message in requests]
        return cls(keys, prints, bytes_column([key.encode() for key in keys]), bytes_column(prints))
