"""`config`: what is in force, and where each value came from."""

import os
from typing import Any

import msgspec
import typer

from tarry.cli import show
from tarry.cli.options import ConfigFile, Json
from tarry.config import Loaded, load
from tarry.config.fields import fields_of

MASK = "********"


def add_to(app: typer.Typer) -> None:
    """Add these commands."""
    app.command("config")(config_)


def config_(json: Json = False, config: ConfigFile = None) -> None:
    """Print the configuration in force, and where each value came from. Secrets are masked."""
    loaded = load(config, os.environ)
    if json:
        show.as_json(
            {
                "file": None if loaded.file is None else str(loaded.file),
                "settings": {
                    name: {"value": value, "source": source} for name, value, source in in_force(loaded)
                },
            }
        )
        return
    show.err.print(f"file: {loaded.file or 'none (./tarry.toml, --config or TARRY_CONFIG)'}", markup=False)
    lines = [(name, shown(value), source) for name, value, source in in_force(loaded)]
    show.rows(("setting", "value", "from"), lines)


def in_force(loaded: Loaded) -> list[tuple[str, Any, str]]:
    """Every setting: its name, its value as JSON has it, and where that came from."""
    found = []
    for field in fields_of().values():
        value: Any = loaded.config
        for part in field.name.split("."):
            value = getattr(value, part)
        value = msgspec.to_builtins(value)
        if field.name == "tokens":
            value = [token | {"token": MASK} if token.get("token") else token for token in value]
        elif field.is_secret and value:
            value = MASK
        found.append((field.name, value, loaded.sources.get(field.name, "default")))
    return found


def shown(value: Any) -> str:
    """A value as it would stand in the file."""
    if value is None:
        return "-"
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()
