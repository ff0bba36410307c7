"""`config`: what is in force, and where each value came from."""

import os
from typing import Annotated, Any

import msgspec
import typer
from msgspec import Struct

from tarry.cli import show
from tarry.cli.options import ConfigFile, JsonOption
from tarry.config import Loaded, load
from tarry.config.fields import fields_of, row_of

MASK = "********"
DEFAULT = "default"
"""The source of a value that nobody set."""


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command("config")(config_)


def config_(
    every: Annotated[
        bool, typer.Option("--all", help="Every setting, also those with their default.")
    ] = False,
    json: JsonOption = False,
    config: ConfigFile = None,
) -> None:
    """Print the settings that differ from their default, and the source of each. Secrets are masked."""
    loaded = load(config, os.environ)
    settings = in_force(loaded)
    chosen = [one for one in settings if every or one[2] != DEFAULT]
    if json:
        show.as_json(
            {
                "file": None if loaded.file is None else str(loaded.file),
                "settings": {name: {"value": value, "source": source} for name, value, source in chosen},
            }
        )
        return
    show.err.print(f"file: {loaded.file or 'none (./tarry.toml, --config or TARRY_CONFIG)'}", markup=False)
    if chosen:
        lines = [(name, shown(value), source) for name, value, source in chosen]
        show.rows(("setting", "value", "from"), lines)
    if not every:
        show.err.print(
            f"{len(settings) - len(chosen)} of {len(settings)} settings have their default; --all shows them"
        )


def in_force(loaded: Loaded) -> list[tuple[str, Any, str]]:
    """Every setting: its name, its value as JSON has it, and where that came from."""
    found = []
    for field in fields_of().values():
        value: Any = loaded.config
        for part in field.name.split("."):
            value = getattr(value, part)
        value = msgspec.to_builtins(value)
        row = row_of(field.type)
        if row is not None:
            value = [_masked(one, row) for one in value]
        elif field.is_secret and value:
            value = MASK
        found.append((field.name, value, loaded.sources.get(field.name, DEFAULT)))
    return found


def _masked(row: dict[str, Any], table: type[Struct]) -> dict[str, Any]:
    secret = {field.name for field in fields_of(table).values() if field.is_secret}
    return {key: MASK if key in secret and value else value for key, value in row.items()}


def shown(value: Any) -> str:
    """A value as it would stand in the file."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
