"""The process of a server: its interpreter and its limits, the signals that it obeys, and its exit code.

Whatever prevents a start is one line on standard error and exit code 1. After a fault the server ends as by a crash: nothing in
memory is worth writing down.
"""

import asyncio
import gc
import importlib
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Final

import pyarrow as pa
import uvloop

from tarry.config import Config, ConfigError, Loaded
from tarry.core.errors import TarryError, Unavailable
from tarry.serve.composition.logs import set_up
from tarry.serve.composition.memory import keep_memory
from tarry.serve.composition.server import Server
from tarry.serve.datafolder import DataFolder, DataFolderError, explain
from tarry.serve.transport.listener import ListenError

log = logging.getLogger("tarry.serve")

KEPT_BLOCK_BYTES: Final = 16 * 1024 * 1024
KEPT_BYTES: Final = 64 * 1024 * 1024
"""Limits on kept freed memory: the largest block, and the bytes in all."""


def serve(load: Callable[[], Loaded], set_aside: Sequence[int] = ()) -> int:
    """Serve until SIGTERM or SIGINT, without the records at some seqs; gives the exit code.

    `load` reads the configuration, now and at each SIGHUP.
    """
    config = load().config
    set_up(config.log)
    # Both that read the tables, delta-rs and pyarrow, look there for what their object store needs.
    os.environ.update(config.pipeline.storage_options)
    raise_open_files()
    _tune()
    try:
        uvloop.run(_serve(config, load, set_aside))
    except OSError as error:
        return _refuse(explain(Path(error.filename or config.data), error))
    except (ConfigError, DataFolderError, ListenError, TarryError) as error:
        return _refuse(str(error))
    return 0


def _refuse(reason: str) -> int:
    print(f"tarry: {reason}", file=sys.stderr, flush=True)  # noqa: T201 - the one line that says why
    return 1


def _tune() -> None:
    """Settings of the interpreter that suit one busy thread beside two that mostly wait for the disk."""
    # The ledger's thread must not wait five milliseconds for its turn after each sync.
    sys.setswitchinterval(0.0001)
    # Records and answers make no cycles; looking for them after every 700 objects cost a quarter of a burst. But a look at
    # 200,000 that live on, as of a hundred thousand new topics, took up to 150 ms of the processor in one turn.
    gc.set_threshold(20_000, 500, 1_000)
    # `np.unique` imports it when it is first called, for ten milliseconds: not at a due instant.
    importlib.import_module("numpy.ma")
    _do_without_pandas()
    keep_memory(KEPT_BLOCK_BYTES, KEPT_BYTES)


class _NoPandas(MetaPathFinder):
    """A finder of modules that says of pandas that there is none."""

    def find_spec(self, fullname: str, path: object = None, target: object = None) -> None:
        """Nothing for any other module: the next finder is asked."""
        if fullname == "pandas":
            raise ModuleNotFoundError("a server does without pandas", name=fullname)


def _do_without_pandas() -> None:
    """Let pyarrow look for pandas now, and find none.

    It looks once, when the first array is made of a list. Where there is one, the import takes a third of a second of the
    processor, at an instant that a client would choose, for columns that a server never makes into data frames.
    """
    sys.meta_path.insert(0, finder := _NoPandas())
    pa.array([""])
    sys.meta_path.remove(finder)


def raise_open_files() -> None:
    """Take all the open files that the system gives without asking: connections are open files."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def _serve(config: Config, load: Callable[[], Loaded], set_aside: Sequence[int] = ()) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    key_file = config.cluster.id_key_file
    with DataFolder.open(Path(config.data), Path(key_file) if key_file else None) as folder:
        server = Server(config, folder, set_aside)
        server.on_fault = stop.set
        # From a terminal it means that the terminal was closed, and ends the server.
        if not sys.stdin.isatty():
            loop.add_signal_handler(signal.SIGHUP, server.renew, load)
        try:
            if config.ledger.log == "disk" or await server.stand_by(stop):
                url = await server.start()
                print(f"tarry: ready on {url}", flush=True)  # noqa: T201 - who started us waits for it
            await stop.wait()
            if server.fault is None:
                log.info("stopping")
        finally:
            # After a fault nothing in memory is worth writing down: it ends as a crash does.
            if server.fault is None:
                await server.stop()
            else:
                await server.leave()
        if server.fault is not None:
            raise Unavailable(f"the server ended because of a fault: {server.fault}; start it again")
