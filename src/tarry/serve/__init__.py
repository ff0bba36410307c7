"""The server: what runs under `tarry serve`."""

from tarry.config import Loaded

__all__ = ["serve"]


def serve(loaded: Loaded) -> int:
    """Serve until SIGTERM or SIGINT; gives the exit code."""
    # Late: who looks at the data folder (`tarry doctor`) does not load the engine.
    from tarry.serve.server import serve as run

    return run(loaded)
