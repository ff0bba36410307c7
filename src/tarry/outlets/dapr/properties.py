"""A component's metadata, read field by field as Dapr reads it: names in any case, values as text.

A field that nobody asks for is left alone, as in Dapr: the same file may be read by several versions.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tarry.core.time.times import go_duration_ms
from tarry.outlets.dapr.errors import Misconfigured

_TRUE: Final = frozenset(("y", "yes", "true", "t", "on", "1"))
_FALSE: Final = frozenset(("n", "no", "false", "f", "off", "0", ""))
_MAX_TTL_S: Final = 100 * 366 * 86_400


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


def ttl_ms_of(metadata: Mapping[str, str]) -> int | None:
    """The time to live that a publish asks for (`ttlInSeconds`), if it does; a wrong one counts for nothing here."""
    text = metadata.get("ttlInSeconds", "")
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= _MAX_TTL_S:
        return None
    return int(text) * 1000
