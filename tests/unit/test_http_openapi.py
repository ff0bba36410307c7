"""The OpenAPI document tells of every route, and of nothing else."""

import json
import re
from typing import Any

from tarry.core.tenants.access import Access
from tarry.doors.http.app import build_app
from tarry.doors.http.openapi import build_document
from tarry.doors.http.operations import OPERATIONS
from tarry.doors.http.settings import HttpSettings
from tests.serving import serving


async def test_routes_and_document_are_the_same(tmp_path: Any) -> None:
    async with serving(tmp_path / "data") as served:
        app = build_app(served.engine, Access.open(), HttpSettings())
    described = {
        (method.upper(), path)
        for path, methods in json.loads(build_document("1", is_open=True))["paths"].items()
        for method in methods
    }
    assert {(row.method, row.path) for row in app._routes.rows} == described
    assert len({operation.name for operation in OPERATIONS}) == len(OPERATIONS)


def test_the_document_hangs_together() -> None:
    text = build_document("1.2.3", is_open=False).decode()
    document = json.loads(text)
    assert document["openapi"].startswith("3.1")
    schemas = document["components"]["schemas"]
    assert {ref.rpartition("/")[2] for ref in re.findall(r'"\$ref":"([^"]+)"', text)} <= set(schemas)
    assert schemas["ScheduleRequest"]["additionalProperties"] is False
    assert schemas["ScheduleRequest"]["required"] == ["destination"]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            named = {one["name"] for one in operation["parameters"] if one["in"] == "path"}
            assert named == set(re.findall(r"\{(\w+)\}", path))


def test_every_operation_is_grouped_and_described() -> None:
    # What spectral's `oas` rules ask for; `make deploy-lint` runs spectral itself.
    document = json.loads(build_document("1", is_open=True))
    assert document["info"]["contact"]["name"]
    assert document["servers"]
    declared = {tag["name"]: tag["description"] for tag in document["tags"]}
    assert all(declared.values())
    operations = [one for methods in document["paths"].values() for one in methods.values()]
    for operation in operations:
        assert len(operation["tags"]) == 1, operation["operationId"]
        assert operation["description"], operation["operationId"]
    assert {operation["tags"][0] for operation in operations} == set(declared)
