"""Statuses of HTTP in which a gateway speaks for the receiver behind it, for every outlet that speaks HTTP."""

from typing import Final

PASSED_ON: Final = frozenset({502, 504, 520, 524})
"""The gateway passed the request on and got no answer, a broken one, or one too late (RFC 9110 §15.6.3 and §15.6.5; 520
and 524 are a large CDN's): the receiver may have done what was asked. Every other status is the receiver's own word, or
that of a gateway which passed nothing on (503)."""
