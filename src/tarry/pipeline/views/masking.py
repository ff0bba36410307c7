"""Masking of all that no view shows: anything by which a message could be commanded or a receiver be entered.

The rule, in full:

- Message ids (in the Matrix door: delay ids) are in no record. They are the encryption of a seq and an instant under a key
  that the pipeline does not have, so that seqs may be shown.
- Idempotency keys and fingerprints of requests are columns of no view.
- A header is masked by its name, whatever its case and with `_` as `-`: where one of `WORDS` is in it. The headers of
  a webhook's signature and access tokens of Matrix have such names.
- A header is masked by its value where that is a bearer, basic or Matrix token, a signing secret, or has the shape of a
  message id.
- An address that is no topic shows no user, no password, and no value of its query.

A payload is bytes that Tarry does not understand: it is shown as it is, and only where bodies were asked for.
"""

import re
from collections.abc import Mapping
from typing import Final

from tarry.core.names import TOPIC_SCHEME

MASK: Final = "********"

WORDS: Final = (
    "auth", "cookie", "token", "secret", "passw", "signature", "credential", "api-key", "apikey", "session",
    "idempotency", "webhook-", "delay-id", "delayid", "message-id", "private-key", "access-key",
)  # fmt: skip
"""A header with one of these in its name is a secret."""

_SECRET_VALUE: Final = re.compile(
    r"(?i:bearer|basic|digest)\s+\S|(?:syt|mat|mct|whsec)_[A-Za-z0-9_+/=-]{8}|[0-9a-f]{32}$"
)
_USER: Final = re.compile(r"(?<=://)[^/?#]*@")
_QUERY_VALUE: Final = re.compile(r"=[^&#]*")


def masked_headers(headers: Mapping[str, str]) -> dict[str, str]:
    """Headers with their secrets hidden; names stay."""
    return {name: MASK if _is_secret(name, value) else value for name, value in headers.items()}


def _is_secret(name: str, value: str) -> bool:
    plain = name.lower().replace("_", "-")
    return any(word in plain for word in WORDS) or _SECRET_VALUE.match(value) is not None


def masked_address(destination: str | None) -> str | None:
    """A destination without what would let anybody in."""
    if destination is None or destination.startswith(TOPIC_SCHEME):
        return destination
    bare, fragment, _ = destination.partition("#")
    place, mark, query = _USER.sub(f"{MASK}@", bare).partition("?")
    if mark:
        # A query without names is one value.
        query = _QUERY_VALUE.sub(f"={MASK}", query) if "=" in query else MASK
    return f"{place}{mark}{query}{fragment and '#' + MASK}"
