"""The OpenAPI document against a real server: schemathesis makes requests from it and judges the answers.

Bounded, and the same requests each time: it is a test, not a search. `schemathesis run URL/openapi.json`
searches for as long as one likes.
"""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from schemathesis import Case
from schemathesis.checks import load_all_checks
from schemathesis.core import NotSet
from schemathesis.generation.hypothesis.builder import HypothesisTestConfig, HypothesisTestMode, create_test
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance

from tarry.doors.http.openapi import build_document
from tarry.doors.http.shapes import MAX_WAIT_MS
from tests.processes import ServerProcess, running

load_all_checks()

TOKEN = "conformance-secret"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}
CONFIG = f'[[tokens]]\nname = "tests"\ntoken = "{TOKEN}"\nroles = ["admin"]\n'
PLACE = {"tenant": "public", "namespace": "default", "topic": "t", "name": "s"}

# Which fields exclude each other is said in words, so data that fits the schema may still be refused.
EXCLUDED = [positive_data_acceptance]


def _arrow() -> bytes:
    table = pa.table({"destination": ["t", None], "payload": [b"x", b"y"], "delay_ms": [3_600_000, -1]})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    written: bytes = sink.getvalue().to_pybytes()
    return written


_LINE = st.sampled_from(
    [
        b'{"destination":"t","delay":"1h"}',
        b'{"destination":"t","payload":"x"}',
        b"{}",
        b"",
        b"nonsense",
        b'"\xff"',
    ]
) | st.binary(max_size=20)
schemathesis.openapi.media_type("application/x-ndjson", st.lists(_LINE, max_size=5).map(b"\n".join))
schemathesis.openapi.media_type(
    "application/vnd.apache.arrow.stream", st.just(_arrow()) | st.binary(max_size=100)
)

document = json.loads(build_document("0", is_open=False))
schema = schemathesis.openapi.from_dict(document)
# A stream of events has no end; `test_http_events` reads some.
OPERATIONS = [
    f"{method.upper()} {path}"
    for path, operations in document["paths"].items()
    for method in operations
    if not path.endswith("/events")
]
OF_SOMETHING = [operation for operation in OPERATIONS if "{id}" in operation or "{topic}" in operation]

bounded = settings(
    max_examples=10,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("conformance") / "data"
    with running(folder, CONFIG) as process:
        yield process


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers=AUTHORIZED, trust_env=False) as client:
        yield client


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    """A session of connections that are kept: without one, schemathesis connects anew for each request."""
    with requests.Session() as session:
        session.trust_env = False
        yield session


def test_the_server_shows_this_document(client: httpx.Client) -> None:
    shown = client.get("/openapi.json").json()
    assert shown["paths"] == document["paths"]
    assert shown["components"] == document["components"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_operation_keeps_to_its_description(
    operation: str, server: ServerProcess, session: requests.Session
) -> None:
    _for_each_case(operation, lambda case: _check(case, server, session))


@pytest.mark.parametrize("operation", OF_SOMETHING)
def test_and_so_it_does_for_what_is_there(
    operation: str, server: ServerProcess, client: httpx.Client, session: requests.Session
) -> None:
    def check(case: Case[Any]) -> None:
        parameters: dict[str, Any] = dict(case.path_parameters or {})
        if "id" in parameters:
            scheduled = client.post("/v1/messages", json={"destination": "t", "delay": "1h", "payload": "x"})
            parameters["id"] = scheduled.json()["id"]
        else:
            client.put("/v1/topics/public/default/t/subscriptions/s", json={"type": "shared"})
            parameters.update({name: value for name, value in PLACE.items() if name in parameters})
        case.path_parameters = parameters
        # What was wrong about a request may just have been put right.
        _check(case, server, session, negative_data_rejection)

    _for_each_case(operation, check)


def _for_each_case(operation: str, check: Callable[[Case[Any]], None]) -> None:
    """Make the requests of an operation now: with `schema.parametrize` each worker would make all of them as it collects."""
    method, _, path = operation.partition(" ")

    def test(case: Case[Any]) -> None:
        check(case)

    config = HypothesisTestConfig(
        project=schema.config, modes=list(HypothesisTestMode), explicit_settings=bounded
    )
    create_test(operation=schema[path][method], test_func=test, config=config)()


def _do_not_wait(case: Case[Any]) -> None:
    if isinstance(case.body, NotSet):
        case.body, case.media_type = {}, "application/json"
    if isinstance(case.body, dict) and case.body.get("wait_ms", 0) in range(MAX_WAIT_MS + 1):
        case.body["wait_ms"] = 0


def _check(case: Case[Any], server: ServerProcess, session: requests.Session, *excluded: Any) -> None:
    if case.path.endswith("/receive"):
        _do_not_wait(case)
    case.call_and_validate(
        base_url=server.url,
        session=session,
        headers=AUTHORIZED,
        excluded_checks=[*EXCLUDED, *excluded],
        timeout=20,
        allow_redirects=False,
    )
