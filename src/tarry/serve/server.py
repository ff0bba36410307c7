"""`tarry serve`: the composition root. Wires the parts together, runs them, and takes them down again.

Order of starting: configuration, address, data folder, ledger, registry, engine, listener. Order of
stopping: the listener (accept no more, let requests end), the engine (let attempts end), the seal of the
ledger, the lock. Whatever prevents a start is one line on standard error and exit code 1.

Nothing else in the project knows all the parts, and this module decides nothing that they could.
"""

import asyncio
import logging
import resource
import signal
import sys

import uvloop

from tarry.config import Config, ConfigError, Loaded
from tarry.core.errors import TarryError
from tarry.serve.datafolder import DataFolder, DataFolderError, explain
from tarry.serve.listener import Listener, ListenError
from tarry.serve.logs import set_up

log = logging.getLogger("tarry.serve")


def serve(loaded: Loaded) -> int:
    """Serve until SIGTERM or SIGINT; gives the exit code."""
    config = loaded.config
    set_up(config.log)
    _raise_open_files()
    try:
        return uvloop.run(_serve(config))
    except (ConfigError, DataFolderError, ListenError, TarryError) as error:
        print(f"tarry: {error}", file=sys.stderr)
    except OSError as error:
        print(f"tarry: {error}", file=sys.stderr)
    return 1


def _raise_open_files() -> None:
    """Take all the open files that the system allows without asking."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
