"""Whoever shows or takes a policy knows every field that there is: all are made of one description."""

from typing import Any, get_args

import msgspec
import pytest
import typer
from typer.testing import CliRunner

from tarry import client
from tarry.cli import policy as commands
from tarry.cli.app import app
from tarry.config.fields import texts_of
from tarry.core.errors import Invalid
from tarry.core.rules.policy import POLICY_FIELDS, Effective, Policy, PolicyChanges
from tarry.doors.http.openapi import build_document

NAMES = list(Policy.__struct_fields__)


def policy_of(name: str, value: Any) -> Policy:
    return Policy(**{name: value})


def test_every_struct_of_a_policy_has_the_same_fields() -> None:
    assert list(POLICY_FIELDS) == NAMES
    assert list(PolicyChanges.__struct_fields__) == NAMES
    assert list(Effective.__struct_fields__) == NAMES
    assert list(client.Policy.__struct_fields__) == NAMES
    decided = {field.name: field.type for field in msgspec.structs.fields(Effective)}
    for name, hint in Policy.__annotations__.items():
        assert get_args(hint)[0] == decided[name] | None, name


def test_what_is_built_in_is_within_the_bounds() -> None:
    for name, value in msgspec.structs.asdict(Effective()).items():
        POLICY_FIELDS[name].check(name, value)


def test_the_api_describes_every_field_with_its_bounds() -> None:
    schemas = msgspec.json.decode(build_document("1", is_open=True))["components"]["schemas"]
    for kind in ("Policy", "PolicyChanges"):
        properties = schemas[kind]["properties"]
        assert list(properties) == NAMES
        for name, field in POLICY_FIELDS.items():
            shown = properties[name]
            assert (shown["title"], shown["description"]) == (field.title, field.about)
            assert shown["x-kind"] == field.kind
            if field.kind not in ("switch", "choice"):
                assert (shown["minimum"], shown["maximum"]) == (field.least, field.most)
    # Where null says something it is among the types, and no field must be there.
    assert {"type": "null"} in schemas["PolicyChanges"]["properties"]["tick_ms"]["anyOf"]
    assert not schemas["PolicyChanges"].get("required")


def test_the_settings_describe_every_field() -> None:
    assert texts_of(Policy) == {name: field.about for name, field in POLICY_FIELDS.items()}


def test_the_command_line_has_a_flag_for_every_field() -> None:
    shown = CliRunner().invoke(app, ["policy", "set", "--help"], env={"COLUMNS": "300"})
    assert shown.exit_code == 0
    for name in NAMES:
        assert f"{commands.flag_of(name)} " in shown.output, name
    assert len({commands.flag_of(name) for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_what_a_flag_shows_it_takes_back(name: str) -> None:
    field = POLICY_FIELDS[name]
    examples: dict[str, list[Any]] = {
        "switch": [True, False], "choice": ["producer_exception"], "duration": [60_000], "bytes": [4096], "count": [7],
        "rate": [2.5],
    }  # fmt: skip
    for value in [*examples[field.kind], *field.words]:
        text = {60_000: "1m"}.get(value, commands.told(field, value)).replace(" ", "-")
        assert commands.read(name, text) == value
    with pytest.raises(typer.BadParameter):
        commands.read(name, "nonsense")


def test_changes_set_what_they_have_and_leave_what_is_null() -> None:
    before = Policy(tick_ms=5, retention_ms=-1, deduplication=True)
    changes = msgspec.json.decode(b'{"tick_ms": null, "max_topics": 3}', type=PolicyChanges)
    assert before.changed(changes) == Policy(retention_ms=-1, deduplication=True, max_topics=3)
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(b'{"tick": 1}', type=PolicyChanges)


@pytest.mark.parametrize(
    "name", [name for name, field in POLICY_FIELDS.items() if field.kind not in ("switch", "choice")]
)
def test_the_bounds_hold_at_their_edges(name: str) -> None:
    field = POLICY_FIELDS[name]
    policy_of(name, field.least).check()
    policy_of(name, field.most).check()
    for outside in (field.least - 1, field.most * 2):
        with pytest.raises(Invalid) as caught:
            policy_of(name, outside).check()
        assert caught.value.field == name


def test_the_client_passes_over_fields_of_a_newer_server() -> None:
    policy = msgspec.json.decode(b'{"tick_ms": 5, "of_a_newer_server": 1}', type=client.Policy)
    assert policy == client.Policy(tick_ms=5)
