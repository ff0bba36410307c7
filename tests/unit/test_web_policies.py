"""The dashboard's form of a policy, and the client's, know every field that there is."""

import re

from tarry.client import shapes
from tarry.core.policy import Policy
from tests.processes import ROOT


def test_the_form_has_every_field() -> None:
    text = (ROOT / "src/tarry/web/static/policies.js").read_text()
    table = text[text.index("const FIELDS = [") : text.index("];", text.index("const FIELDS = ["))]
    assert set(re.findall(r'^  \["(\w+)"', table, re.MULTILINE)) == set(Policy.__struct_fields__)


def test_the_client_has_every_field() -> None:
    assert shapes.Policy.__struct_fields__ == Policy.__struct_fields__
