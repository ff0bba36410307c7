"""`move`: a data folder's ledger into the configured log, or out of it."""

import os
from typing import Annotated, Literal

import typer

from tarry.cli import show
from tarry.cli.options import ConfigFile, JsonOption
from tarry.cli.progress import StepProgress, Tasks
from tarry.cli.server import Data
from tarry.config import load

MEBIBYTE = 1 << 20

_Target = Annotated[
    Literal["kafka", "disk"],
    typer.Argument(metavar="kafka|disk", help="kafka: out of the data folder, into the log. disk: back."),
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only look, and say what would be done.")]


def add_to(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(move)


def move(
    to: _Target,
    dry_run: _DryRun = False,
    json: JsonOption = False,
    data: Data = None,
    config: ConfigFile = None,
) -> None:
    """Move a ledger from its data folder into the log that is configured, or from there back. All its servers are stopped.

    Every message, id and topic goes along, and each message is delivered once. After a crash the same command goes on;
    until it has ended no server can own the ledger in the log.
    """
    loaded = load(config, os.environ, {"data": data}).config
    # Late: nobody else waits for these to be loaded.
    from tarry.serve.moving import moving

    with moving(loaded) as found:
        plan = found.plan_in() if to == "kafka" else found.plan_out()
        if dry_run:
            if json:
                show.as_json({"to": to, "log": plan.log, "log_records": plan.log_records, "first_seq": plan.first_seq,
                              "last_seq": plan.last_seq, "size_bytes": plan.size_bytes, "goes_on": plan.goes_on})  # fmt: skip
                return
            what = f"seq {plan.first_seq} to {plan.last_seq}, {plan.size_bytes:,} bytes of segments"
            way = (
                f"{what}: into {plan.log}"
                if to == "kafka"
                else f"{plan.log}, {plan.log_records:,} records: into {loaded.data}"
            )
            print(way + (", which goes on with an earlier attempt" if plan.goes_on else ""))
            return
        with StepProgress("looking") as progress:
            done = 0

            def told(step: str, done_bytes: int) -> None:
                nonlocal done
                done = done_bytes
                progress.step(step)

            def mebibytes() -> Tasks:
                return Tasks(done // MEBIBYTE, plan.size_bytes // MEBIBYTE, "MiB")

            with progress.following(mebibytes):
                moved = found.into_log(told) if to == "kafka" else found.out_of_log(told)
    if json:
        show.as_json(
            {"to": to, "first_seq": moved.first_seq, "last_seq": moved.last_seq, "segments": moved.segments}
        )
    elif to == "kafka":
        print(f"{plan.log} has everything up to seq {moved.last_seq}; start the servers")
    else:
        print(
            f'{loaded.data} has everything up to seq {moved.last_seq}; set ledger.log = "disk" and start the server on it'
        )
