"""Extras of the package: which one a command needs, and what is said where it is not installed.

The package alone is the client, and the commands for a server elsewhere; their modules are imported when a command runs, so that
the others neither need them nor wait for them.
"""

import traceback
from typing import Final

_OF_THE_PIPELINE: Final = frozenset({"pipeline", "index", "report", "audit"})
"""Commands that run Spark, or its program. All others that lack a module lack the server's."""
_TRACING: Final = "opentelemetry"


def missing_extra(command: str, error: ModuleNotFoundError) -> str | None:
    """The extra whose absence the error shows, and how to install it.

    None for a module of our own, which is a bug, and for one that somebody else imports: a worker's module has needs of its own.
    """
    package = (error.name or "tarry").partition(".")[0]
    if package == "tarry" or _importer(error) != "tarry":
        return None
    if package == _TRACING:
        extra = "otel"
    else:
        extra = "pipeline" if command in _OF_THE_PIPELINE else "server"
    return f"tarry {command} needs tarry[{extra}]: pip install 'tarry[{extra}]'"


def _importer(error: ModuleNotFoundError) -> str:
    """The package with the import that failed."""
    modules = [
        str(frame.f_globals.get("__name__", "")) for frame, _ in traceback.walk_tb(error.__traceback__)
    ]
    others = (module for module in reversed(modules) if not module.startswith("importlib"))
    return next(others, "").partition(".")[0]
