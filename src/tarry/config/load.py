"""Reads the configuration: one TOML file, then `TARRY_*` variables, then the command line.

Later ones win, and every value remembers where it came from. An unknown key, an unknown variable and a
value that cannot be are errors that name the place and say what to do; nothing is guessed or ignored.
"""

import difflib
import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args, get_origin

import msgspec
from msgspec import Struct

from tarry.config.check import ConfigError, check
from tarry.config.fields import SettingField, fields_of, row_of, tables_of
from tarry.config.kafka import check_log
from tarry.config.lines import key_lines
from tarry.config.ports import shifted
from tarry.config.settings import Config

DEFAULT_FILE: Final = "tarry.toml"
FILE_VARIABLE: Final = "TARRY_CONFIG"
PREFIX: Final = "TARRY_"
_OF_KUBERNETES: Final = re.compile(
    r"_SERVICE_HOST=|_SERVICE_PORT(_\w+)?=|_PORT_\d+_(TCP|UDP)(_\w+)?=|_PORT=(tcp|udp)://"
)
"""Variables that Kubernetes gives every container beside a Service called `tarry`."""


class Value(NamedTuple):
    """A value as it was given, and where."""

    given: Any
    source: str


class Loaded(NamedTuple):
    """The configuration in force, and where each value came from."""

    config: Config
    sources: dict[str, str]
    """By dotted name; a name that is not here has its default."""
    file: Path | None


def load(
    file: str | None = None,
    environment: Mapping[str, str] | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> Loaded:
    """Read everything; raises `ConfigError`. `overrides` come from the command line, by dotted name."""
    environment = environment or {}
    path = _find(file, environment)
    values: dict[str, Value] = {}
    if path is not None:
        values.update(_from_file(path))
    values.update(_from_environment(environment))
    for name, given in (overrides or {}).items():
        if given is not None:
            values[name] = Value(given, "command line")
    config = _build(Config, "", values)
    sources = {name: value.source for name, value in values.items()}
    config = shifted(config, sources)
    check(config, sources)
    check_log(config, sources)
    return Loaded(config, sources, path)


def _find(file: str | None, environment: Mapping[str, str]) -> Path | None:
    named = file or environment.get(FILE_VARIABLE)
    if named:
        path = Path(named)
        if not path.is_file():
            raise ConfigError(f"there is no configuration file {named}")
        return path
    path = Path(DEFAULT_FILE)
    return path if path.is_file() else None


def _from_file(path: Path) -> dict[str, Value]:
    try:
        text = path.read_text(encoding="utf-8")
        tree = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not TOML: {error}") from None
    lines = key_lines(text)
    fields, tables = fields_of(), tables_of()
    values: dict[str, Value] = {}
    for name, given in _leaves(tree, set(tables)):
        place = f"{path}:{lines[name]}" if name in lines else str(path)
        if name in tables:
            raise ConfigError(f"{place}: {name} is a table; write [{name}]")
        if name not in fields:
            raise ConfigError(f"{place}: unknown key {name}{_suggest(name, fields)}")
        values[name] = Value(_located(_named(given, fields[name]), fields[name], path.parent), place)
    return values


def _leaves(tree: Mapping[str, Any], tables: set[str], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every key with its value; descends into known tables only."""
    for key, given in tree.items():
        name = prefix + key
        if isinstance(given, dict) and name in tables:
            yield from _leaves(given, tables, name + ".")
        else:
            yield name, given


def _named(given: Any, field: SettingField) -> Any:
    """A table whose keys have dots of their own, with those keys in full: TOML makes tables of tables of them."""
    first = field.dotted
    if first is None or not isinstance(given, dict):
        return given
    return {
        f"{first}.{name}" if first and name.partition(".")[0] != first else name: value
        for name, value in _flat(given)
    }


def _flat(given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every value under its name with dots, as text."""
    for key, value in given.items():
        if isinstance(value, dict):
            yield from ((f"{key}.{inner}", one) for inner, one in _flat(value))
        else:
            yield key, value if isinstance(value, str) else json.dumps(value)


def _located(given: Any, field: SettingField, folder: Path) -> Any:
    """Paths in the file are relative to the file's folder, wherever the server is started."""
    if field.is_path:
        if isinstance(given, dict):
            return {name: _beside(one, folder) for name, one in given.items()}
        return [_beside(one, folder) for one in given] if isinstance(given, list) else _beside(given, folder)
    row = row_of(field.type)
    if row is None or not isinstance(given, list):
        return given
    inner = fields_of(row)
    return [
        {key: _located(value, inner[key], folder) if key in inner else value for key, value in one.items()}
        if isinstance(one, dict)
        else one
        for one in given
    ]


def _beside(given: Any, folder: Path) -> Any:
    return str(folder / given) if isinstance(given, str) and "://" not in given else given


def _from_environment(environment: Mapping[str, str]) -> dict[str, Value]:
    by_variable = {field.variable: field for field in fields_of().values()}
    values: dict[str, Value] = {}
    for variable in sorted(environment):
        # An empty variable is one that a start script had nothing for.
        given = environment[variable]
        if not variable.startswith(PREFIX) or variable == FILE_VARIABLE or not given:
            continue
        if variable not in by_variable and _OF_KUBERNETES.search(f"{variable}={given}"):
            continue
        field = by_variable.get(variable)
        if field is None:
            near = difflib.get_close_matches(variable, [*by_variable, FILE_VARIABLE], n=1)
            hint = f"; did you mean {near[0]}?" if near else "; unset it"
            raise ConfigError(f"unknown environment variable {variable}{hint}")
        values[field.name] = Value(_parse(environment[variable], field, variable), f"environment {variable}")
    return values


def _parse(text: str, field: SettingField, variable: str) -> Any:
    """A variable is text: numbers and switches are read from it, lists are commas or JSON."""
    origin = get_origin(_bare(field.type))
    if origin is dict or origin in (tuple, list):
        if origin is not dict and not text.lstrip().startswith("["):
            return [part.strip() for part in text.split(",") if part.strip()]
        try:
            return _named(json.loads(text), field)
        except json.JSONDecodeError as error:
            raise ConfigError(f"environment {variable}: is not JSON: {error}") from None
    if _bare(field.type) is int:
        text = text.removeprefix("+")
    try:
        return msgspec.convert(text, field.type, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"environment {variable}: {_reason(error)}") from None


def _bare(hint: Any) -> Any:
    """The type without its marks."""
    return get_args(hint)[0] if hasattr(hint, "__metadata__") else hint


def _build(table: type[Struct], prefix: str, values: Mapping[str, Value]) -> Any:
    given: dict[str, Any] = {}
    for field in msgspec.structs.fields(table):
        name = prefix + field.name
        if isinstance(field.type, type) and issubclass(field.type, Struct):
            given[field.name] = _build(field.type, name + ".", values)
        elif name in values:
            given[field.name] = _convert(name, field.type, values[name])
    try:
        return table(**given)
    except ValueError as error:
        # A table that checks itself; it names its field and shows no secret.
        raise ConfigError(f"{_place(prefix, values)}: {prefix.rstrip('.')}: {error}") from None


def _place(prefix: str, values: Mapping[str, Value]) -> str:
    """The sources of a table's values, for an error that does not say which value it means."""
    places = {value.source for name, value in values.items() if name.startswith(prefix)}
    return ", ".join(sorted(places)) or "default"


def _convert(name: str, hint: Any, value: Value) -> Any:
    try:
        return msgspec.convert(value.given, hint)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{value.source}: {name}: {_reason(error)}") from None


def _reason(error: msgspec.ValidationError) -> str:
    """The reason that msgspec gives, in our words: it never repeats the value, which may be a secret."""
    text, _, place = str(error).partition(" - at `$")
    return text[0].lower() + text[1:].replace("`", "") + (f" (at {place.rstrip('`')})" if place else "")


def _suggest(name: str, fields: Mapping[str, SettingField]) -> str:
    leaf = name.rpartition(".")[2]
    elsewhere = [known for known in fields if known.rpartition(".")[2] == leaf]
    near = elsewhere or difflib.get_close_matches(name, list(fields), n=1)
    if not near:
        near = [known for known in fields if difflib.get_close_matches(leaf, [known.rpartition(".")[2]])]
    return f"; did you mean {near[0]}?" if near else "; `tarry config --all` lists the known ones"
