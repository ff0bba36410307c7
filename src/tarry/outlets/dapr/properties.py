"""A component's metadata, read field by field as Dapr reads it: names in any case, values as text.

A field that nobody asks for is left alone, as in Dapr: the same file may be read by several versions.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Final

from tarry.outlets.dapr.errors import Misconfigured

_TRUE: Final = frozenset(("y", "yes", "true", "t", "on", "1"))
_FALSE: Final = frozenset(("n", "no", "false", "f", "off", "0", ""))
_UNIT_MS: Final = {
    "ns": Fraction(1, 1_000_000),
    "us": Fraction(1, 1000),
    "µs": Fraction(1, 1000),
    "μs": Fraction(1, 1000),
    "ms": Fraction(1),
    "s": Fraction(1000),
    "m": Fraction(60_000),
    "h": Fraction(3_600_000),
}
_MAX_TTL_S: Final = 100 * 366 * 86_400
_DURATION_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)")


class Properties(Mapping[str, str]):
    """Metadata by name, the case of which does not matter."""

    def __init__(self, given: Mapping[str, str]) -> None:
        self._values = {name.lower(): value for name, value in given.items()}
        self._names = list(given)

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._values)

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and name.lower() in self._values

    def text(self, name: str, default: str = "") -> str:
        """A field's text; an empty one counts as absent."""
        return self._values.get(name.lower(), "") or default

    def needed(self, name: str, why: str = "is missing") -> str:
        """A field that must be there."""
        value = self.text(name)
        if not value:
            raise Misconfigured(name, why)
        return value

    def one_of(self, name: str, choices: Iterable[str], default: str) -> str:
        """A field that is one of several words, in any case."""
        value = self.text(name, default)
        for choice in choices:
            if value.lower() == choice.lower():
                return choice
        raise Misconfigured(name, f"{value!r} is not one of {', '.join(choices)}")

    def flag(self, name: str, default: bool = False) -> bool:
        """Yes or no, in the spellings that Dapr takes."""
        value = self._values.get(name.lower())
        if value is None or value == "":
            return default
        if value.lower() in _TRUE:
            return True
        if value.lower() in _FALSE:
            return False
        raise Misconfigured(name, f"{value!r} is neither true nor false")

    def number(self, name: str, default: int, *, least: int = 0, most: int = 2**63 - 1) -> int:
        """A whole number within bounds."""
        value = self.text(name)
        if not value:
            return default
        if not re.fullmatch(r"[+-]?[0-9]{1,19}", value.strip()) or not least <= int(value) <= most:
            top = "" if most == 2**63 - 1 else f" and at most {most}"
            raise Misconfigured(name, f"{value!r} is not a whole number of at least {least}{top}")
        return int(value)

    def duration_ms(self, name: str, default_ms: int, *, bare_ms: int | None = None) -> int:
        """A Go duration (`1m30s`); where Dapr takes a number alone, its unit is `bare_ms` milliseconds."""
        value = self.text(name)
        if not value:
            return default_ms
        if bare_ms is not None and value.isascii() and value.isdigit():
            return int(value) * bare_ms
        parsed = go_duration_ms(value)
        if parsed is None or parsed < 0:
            raise Misconfigured(name, f"{value!r} is not a duration such as 30s or 1m30s")
        return parsed


def go_duration_ms(text: str) -> int | None:
    """The milliseconds of a duration as Go writes it, rounded up; None if it is none."""
    sign, rest = (-1, text[1:]) if text[:1] == "-" else (1, text.removeprefix("+"))
    if rest == "0":
        return 0
    parts = list(_DURATION_PART.finditer(rest))
    if not parts or "".join(part.group() for part in parts) != rest or len(rest) > 64:
        return None
    total = sum((Fraction(part[1].rstrip(".")) * _UNIT_MS[part[2]] for part in parts), Fraction())
    return sign * -(-total.numerator // total.denominator)


def ttl_ms_of(metadata: Mapping[str, str]) -> int | None:
    """The time to live that a publish asks for (`ttlInSeconds`), if it does; a wrong one counts for nothing here."""
    text = metadata.get("ttlInSeconds", "")
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= _MAX_TTL_S:
        return None
    return int(text) * 1000
