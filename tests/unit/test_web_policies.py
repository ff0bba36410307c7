"""The dashboard's form of a policy, and the client's, know every field that there is."""

import re

import msgspec

from tarry import client
from tarry.core.policy import Policy
from tests.processes import ROOT


def test_the_form_has_every_field() -> None:
    text = (ROOT / "src/tarry/web/static/policies.js").read_text()
    table = text[text.index("const FIELDS = [") : text.index("];", text.index("const FIELDS = ["))]
    assert set(re.findall(r'^  \["(\w+)"', table, re.MULTILINE)) == set(Policy.__struct_fields__)


def test_the_client_passes_over_fields_of_a_newer_server() -> None:
    policy = msgspec.json.decode(b'{"tick_ms": 5, "of_a_newer_server": 1}', type=client.Policy)
    assert policy == client.Policy(tick_ms=5)
    assert client.Policy.__struct_fields__ == Policy.__struct_fields__
