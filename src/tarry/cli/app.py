"""The commands together, and what an error becomes: one line on standard error and an exit code.

0  done
1  something went wrong
2  the command was not understood
3  there is no such message, topic or subscription
4  the state of things does not allow it (already sent, already cancelled)
5  refused: a field is wrong or too large, or the token does not allow it
6  not now: the server does not answer, is starting, or a limit is reached; try again
7  something that this needs is not installed: Java, or an extra of the package
"""

import os
import sys

import typer

from tarry.cli import (
    audit,
    backup,
    bulk,
    commands,
    dapr,
    doctor,
    export,
    index,
    matrix,
    messages,
    move,
    pauses,
    pipeline,
    policy,
    pulsar,
    repeat,
    report,
    server,
    settings,
    topics,
    worker,
)
from tarry.cli.exits import NOT_INSTALLED, exit_code
from tarry.cli.extras import missing_extra
from tarry.config import ConfigError
from tarry.core.errors import TarryError

app = typer.Typer(
    name="tarry",
    help="Tarry holds messages until they are due and delivers each one: never early, never lost, on time.",
    epilog="Exit codes: 0 done, 1 error, 2 usage, 3 not found, 4 conflict, 5 refused, 6 not now, 7 not installed.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
server.add_to(app)
pipeline.add_to(app)
index.add_to(app)
messages.add_to(app)
commands.add_to(app)
pauses.add_to(app)
topics.add_to(app)
repeat.add_to(app)
worker.add_to(app)
policy.add_to(app)
matrix.add_to(app)
pulsar.add_to(app)
dapr.add_to(app)
bulk.add_to(app)
report.add_to(app)
audit.add_to(app)
export.add_to(app)
backup.add_to(app)
move.add_to(app)
doctor.add_to(app)
settings.add_to(app)


def _version(wanted: bool) -> None:
    if wanted:
        from tarry import __version__

        print(f"tarry {__version__}")
        raise typer.Exit


_command = ""
"""The command that runs."""


@app.callback()
def _root(
    context: typer.Context,
    _wanted: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Options that hold for every command."""
    global _command  # noqa: PLW0603 - one command line in a process
    _command = context.invoked_subcommand or ""


def main() -> None:
    """Run the command line; ends the process."""
    try:
        app(prog_name="tarry")
    except (TarryError, ConfigError) as error:
        print(f"tarry: {error}", file=sys.stderr)
        sys.exit(exit_code(error))
    except ModuleNotFoundError as error:
        if (lack := missing_extra(_command, error)) is None:
            raise
        print(lack, file=sys.stderr)
        sys.exit(NOT_INSTALLED)
    except KeyboardInterrupt:
        # As a shell expects of a program that was interrupted.
        sys.exit(130)
    except BrokenPipeError:
        # The reader (`| head`) has seen enough. Python must not complain when it flushes at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
