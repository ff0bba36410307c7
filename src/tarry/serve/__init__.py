"""The server: what runs under `tarry serve`."""

from collections.abc import Callable, Sequence

from tarry.config import Loaded

__all__ = ["serve"]


def serve(load: Callable[[], Loaded], set_aside: Sequence[int] = ()) -> int:
    """Serve until SIGTERM or SIGINT, without the records at some seqs; gives the exit code. `load` reads the configuration."""
    # Late: who looks at the data folder (`tarry doctor`) does not load the engine.
    from tarry.serve.composition.process import serve as run

    return run(load, set_aside)
