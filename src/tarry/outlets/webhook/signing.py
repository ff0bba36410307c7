"""Signatures by the Standard Webhooks convention (symmetric, version `v1`).

What is signed is `<id>.<timestamp>.<body>`, with HMAC-SHA256. A secret is written as `whsec_` and the
base64 of 24 to 64 bytes. While keys are rotated there are several secrets and a signature by each;
a receiver accepts any one of them. No error here ever shows a secret or a signature.
"""

import hmac
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping
from typing import Final

_PREFIX: Final = "whsec_"
_MIN_SECRET_BYTES: Final = 24
_MAX_SECRET_BYTES: Final = 64
_MAX_SIGNATURES: Final = 32
DEFAULT_TOLERANCE_MS: Final = 5 * 60 * 1000


class BadSignature(ValueError):
    """The request was not signed with one of these secrets, was changed, or is too old or too new."""


def decode_secret(secret: str) -> bytes:
    """The key in a `whsec_…` secret. Raises `ValueError`, without the secret in it."""
    if not secret.startswith(_PREFIX):
        raise ValueError(f"a webhook secret begins with {_PREFIX}")
    try:
        key = b64decode(secret[len(_PREFIX) :], validate=True)
    except ValueError:
        # The cause is left out: it could show a part of the secret.
        raise ValueError(f"what follows {_PREFIX} in a webhook secret must be base64") from None
    if not _MIN_SECRET_BYTES <= len(key) <= _MAX_SECRET_BYTES:
        raise ValueError(
            f"a webhook secret holds {_MIN_SECRET_BYTES} to {_MAX_SECRET_BYTES} bytes, not {len(key)}"
        )
    return key


def sign(keys: Iterable[bytes], message_id: str, timestamp_s: int, body: bytes) -> str:
    """The value of `webhook-signature`: one `v1,<base64>` for each key, with a space between."""
    return " ".join(
        "v1," + b64encode(_digest(key, message_id, str(timestamp_s), body)).decode() for key in keys
    )


def verify(
    secrets: Iterable[str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    now_ms: int,
    tolerance_ms: int = DEFAULT_TOLERANCE_MS,
) -> str:
    """Check a request as a receiver must, and return the message id, by which to drop repetitions.

    `body` is the raw body, before any parsing. Raises `BadSignature` if no signature was made with one
    of the secrets, or if the timestamp is further than the tolerance from `now_ms`, before or after.
    Comparisons take the same time wherever the first difference is.
    """
    keys = [decode_secret(secret) for secret in secrets]
    given = {name.lower(): value for name, value in headers.items()}
    message_id = _required(given, "webhook-id")
    timestamp = _required(given, "webhook-timestamp")
    signatures = _required(given, "webhook-signature")
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) <= 15):
        raise BadSignature("webhook-timestamp is not a number of seconds")
    if abs(now_ms - int(timestamp) * 1000) > tolerance_ms:
        raise BadSignature("webhook-timestamp is too far from the present")
    offered = [
        value.encode()
        for version, _, value in (each.partition(",") for each in signatures.split(" ")[:_MAX_SIGNATURES])
        if version == "v1"
    ]
    expected = [b64encode(_digest(key, message_id, timestamp, body)) for key in keys]
    # A list and not a generator: every pair is compared, so the time does not tell which one matched.
    matches = [hmac.compare_digest(one, other) for one in expected for other in offered]
    if not any(matches):
        raise BadSignature("no signature matches")
    return message_id


def _required(headers: Mapping[str, str], name: str) -> str:
    value = headers.get(name, "")
    if not value:
        raise BadSignature(f"{name} is missing")
    return value


def _digest(key: bytes, message_id: str, timestamp: str, body: bytes) -> bytes:
    digest = hmac.new(key, f"{message_id}.{timestamp}.".encode(), "sha256")
    digest.update(body)
    return digest.digest()
