"""Extras of the package: which one a command needs, and what is said where it is not installed.

The package alone is the client, and the commands for a server elsewhere; their modules are imported when a command runs, so that
the others neither need them nor wait for them.
"""

from typing import Final

_OF_THE_PIPELINE: Final = frozenset({"pipeline", "index", "report", "audit", "export"})
"""Commands that read the tables, or run Spark. All others that lack a module lack the server's."""


def missing_extra(command: str, error: ModuleNotFoundError) -> str | None:
    """The extra whose absence the error shows, and how to install it; None for a module of our own: that is a bug."""
    if error.name is None or error.name.partition(".")[0] == "tarry":
        return None
    extra = "pipeline" if command in _OF_THE_PIPELINE else "server"
    return f"tarry {command} needs tarry[{extra}]: pip install 'tarry[{extra}]'"
