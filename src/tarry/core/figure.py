"""A figure of `/metrics`, as a part of the server tells it to the door that shows it."""

from collections.abc import Callable, Mapping

from msgspec import Struct


class Figure(Struct, frozen=True, kw_only=True):
    """A gauge or a counter, by the values of one label or without any."""

    name: str
    text: str
    values: Callable[[], Mapping[str, float]]
    """Values by the value of the label; a figure without a label has the empty one."""
    label: str | None = None
    counts: bool = False
    """Whether the figure only ever rises."""
