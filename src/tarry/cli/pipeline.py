"""`pipeline`: run the Spark program that keeps the index and the history."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tarry.cli.exits import NOT_INSTALLED
from tarry.cli.options import ConfigFile
from tarry.cli.server import Data
from tarry.cli.show import say
from tarry.config import Config, load
from tarry.config.kafka import kafka_settings

Once = Annotated[bool, typer.Option("--once", help="Index the records that are durable now, and stop.")]


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(pipeline)


def pipeline(once: Once = False, data: Data = None, config: ConfigFile = None) -> None:
    """Keep the index and the history, with Spark, beside a running server.

    The exit code is 7 where there is no Java or no PySpark: trying again helps nobody.
    """
    loaded = load(config, os.environ, {"data": data})
    # Late: nobody else waits for Spark to be loaded, or needs it to be there.
    from tarry.pipeline.program import Pipeline, PipelineSettings
    from tarry.pipeline.session import NoJava
    from tarry.serve.composition.logs import set_up

    set_up(loaded.config.log)
    os.nice(loaded.config.pipeline.nice)
    os.environ.update(loaded.config.pipeline.storage_options)
    settings = PipelineSettings(**settings_of(loaded.config))
    give_secrets(loaded.config)
    try:
        Pipeline(settings).run(once=once)
    except NoJava as error:
        say(str(error))
        sys.exit(NOT_INSTALLED)


def settings_of(config: Config) -> dict[str, Any]:
    """The pipeline program's settings, from the configuration."""
    data = Path(config.data).absolute()
    given = config.pipeline
    return {
        "ledger": _ledger(config, data),
        "tables": config.tables(),
        "work": str(data / "pipeline"),
        "slot_ms": config.policies.broker.slot_ms or 300_000,
        **{name: getattr(given, name) for name in _SAME},
    }


def give_secrets(config: Config) -> None:
    """Leave what opens the ledger to Spark's planner processes, which are children of children: see `tarry.pipeline.source`."""
    if config.pipeline.token is not None:
        os.environ["TARRY_PIPELINE__TOKEN"] = config.pipeline.token
    if _source(config) == "log":
        os.environ["TARRY_LEDGER__KAFKA"] = json.dumps(kafka_settings(config))


def _source(config: Config) -> str:
    """Where the ledger is read from."""
    given = config.pipeline
    if given.source is not None:
        return given.source
    return "server" if given.server is not None else "log" if config.ledger.log == "kafka" else "folder"


_SAME = (
    "master", "connect_timeout_ms", "spark", "ship", "python", "storage_options",
    "flush_rows", "flush_every_ms", "cascade_every_ms", "keep_bodies", "keep_versions_ms",
    "keep_history_ms",
)  # fmt: skip
"""Settings that the program knows by the same name."""


def _ledger(config: Config, data: Path) -> dict[str, str]:
    given, source = config.pipeline, _source(config)
    if source == "log":
        shared = {} if config.cluster.shared is None else {"shared": config.cluster.shared}
        return {"kafka": kafka_settings(config)["bootstrap.servers"], "topic": config.ledger.topic, **shared}
    if source == "folder" or given.server is None:
        return {"folder": str(data / "ledger")}
    if given.token_file is None:
        return {"server": given.server}
    return {"server": given.server, "token_file": str(Path(given.token_file).absolute())}
