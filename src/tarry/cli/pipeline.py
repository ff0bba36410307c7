"""`pipeline`: run the Spark program that keeps the index and the history."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tarry.cli.options import ConfigFile
from tarry.cli.server import Data
from tarry.config import Config, load
from tarry.core.errors import Unavailable

Once = Annotated[bool, typer.Option("--once", help="Index what is durable now, and stop.")]


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(pipeline)


def pipeline(once: Once = False, data: Data = None, config: ConfigFile = None) -> None:
    """Keep the index and the history, with Spark, beside a running server."""
    loaded = load(config, os.environ, {"data": data})
    # Late: nobody else waits for Spark to be loaded, or needs it to be there.
    try:
        from tarry.pipeline.program import Pipeline, PipelineSettings
    except ImportError as error:
        raise Unavailable(f"the pipeline needs the package {error.name}: pip install pyspark") from None
    from tarry.serve.logs import set_up

    set_up(loaded.config.log)
    os.nice(loaded.config.pipeline.nice)
    sys.exit(Pipeline(PipelineSettings(**settings_of(loaded.config))).run(once=once))


def settings_of(config: Config) -> dict[str, Any]:
    """What the configuration says to the program."""
    data = Path(config.data).absolute()
    given = config.pipeline
    return {
        "ledger": str(data / "ledger"),
        "tables": config.tables(),
        "work": str(data / "pipeline"),
        "master": given.master,
        "spark": given.spark,
        "flush_rows": given.flush_rows,
        "flush_every_ms": given.flush_every_ms,
        "cascade_every_ms": given.cascade_every_ms,
        "slot_ms": config.policies.broker.slot_ms or 300_000,
        "keep_bodies": given.keep_bodies,
    }
