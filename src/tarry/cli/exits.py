"""Exit codes of the command line: what a script can tell errors apart by."""

from typing import Final

from tarry.core import errors

NOT_INSTALLED: Final = 7
"""Something that a command needs is not installed; trying again does not bring it."""

_EXIT_CODES: Final[tuple[tuple[type[Exception], int], ...]] = (
    (errors.NotFound, 3),
    (errors.Conflict, 4),
    (errors.Rejected, 5),
    (errors.Unavailable, 6),
    (errors.RateLimited, 6),
    (errors.TooManyPending, 6),
    (errors.QuotaExceeded, 6),
)


def exit_code(error: Exception) -> int:
    """The exit code of an error; 1 for one that has none of its own."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), 1)
