"""The page of what stands behind an answer, and that answers of the native door and of the administration wait for it."""

import asyncio
import re
from collections.abc import Callable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import msgspec
import pytest

from tarry.core.limits import HOUR_MS
from tarry.core.messages.bulk_command import MessageFilter
from tarry.core.messages.delivery import Refused
from tarry.core.messages.message import Message, NamedMessage
from tarry.core.messages.pause import place_of
from tarry.core.messages.repeat import Repeat
from tarry.core.rules.policy import Policy, Scope
from tarry.core.tenants.access import Access
from tarry.doors.http.app import build_app
from tarry.doors.http.settings import HttpSettings
from tarry.index.manifest import BatchManifest, ManifestFile
from tarry.ledger.lanes import lane_of
from tarry.ledger.record import Kind, Put, encode
from tarry.serve.composition.rights import RIGHTS
from tarry.testing.index import StagedRow
from tests.unit.engine_kit import FOREIGN, Bench
from tests.unit.listener_kit import AppTransport, connect, listening
from tests.unit.pulsar_admin_kit import DEFAULT, ORDERS, Admin
from tests.unit.staging_kit import place, staged_manifest

PAGE = Path(__file__).parents[2] / "docs" / "receipts.md"
SUB = f"{ORDERS}/subscription/sub"
READS = ("GET ", "HEAD ")


class Row(NamedTuple):
    """One line of the page."""

    pattern: str
    records: str


def rows_of(door: str) -> list[Row]:
    _, found, section = PAGE.read_text().partition(f"\n## {door}\n")
    assert found, f"the page has no section for {door}"
    lines = re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", section.partition("\n## ")[0], re.MULTILINE)
    return [Row(pattern, records.strip()) for pattern, records in lines]


def row_for(door: str, operation: str) -> Row | None:
    # Braces are part of a name here, and brackets a set of letters.
    return next((row for row in rows_of(door) if fnmatchcase(operation, row.pattern)), None)


@pytest.mark.parametrize("door", RIGHTS)
def test_every_operation_that_changes_something_has_a_row(door: str) -> None:
    changing = [operation for operation in RIGHTS[door] if not operation.startswith(READS)]
    assert changing
    assert [operation for operation in changing if row_for(door, operation) is None] == []
    used = {row_for(door, operation) for operation in changing}
    assert [row.pattern for row in rows_of(door) if row not in used] == []


@pytest.mark.parametrize("door", RIGHTS)
def test_a_row_names_records_that_there_are(door: str) -> None:
    kinds = {kind.name for kind in Kind} | {"none"}
    for row in rows_of(door):
        assert {*re.split(r" or |, ", row.records)} <= kinds, row


OPERATIONS = [
    ("POST", f"{SUB}/expireMessages/1", None),
    ("POST", f"{ORDERS}/all_subscription/expireMessages/1", None),
    ("POST", f"{SUB}/skip/1", None),
    ("POST", f"{SUB}/skip_all", None),
    ("POST", f"{DEFAULT}/clearBacklog", None),
    ("POST", f"{DEFAULT}/unsubscribe/sub", None),
    ("POST", f"{SUB}/resetcursor", {"ledgerId": -1, "entryId": -1}),
    ("POST", f"{SUB}/resetcursor/0", None),
    ("PUT", f"{ORDERS}/subscription/another", None),
    ("DELETE", SUB, None),
    ("POST", f"{ORDERS}/retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}),
    ("POST", f"{ORDERS}/deduplicationEnabled", True),
    ("PUT", f"{DEFAULT}/properties", {"a": "b"}),
    ("DELETE", f"{ORDERS}/truncate", None),
    ("PUT", f"{ORDERS}2", None),
    ("PUT", f"{ORDERS}3/partitions", 2),
    ("DELETE", ORDERS + "?force=true", None),
]


@pytest.mark.parametrize(("method", "path", "body"), OPERATIONS, ids=lambda value: str(value)[-40:])
async def test_the_administration_says_yes_once_it_is_on_disk(method: str, path: str, body: object) -> None:
    admin = Admin()
    bench = admin.bench
    bench.subscribe("orders")
    bench.publish("orders", b"a", b"b")
    bench.wait(5000)
    ledger = bench.ledger
    transport = AppTransport(admin.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
        asked = asyncio.create_task(client.request(method, path, json=body))
        # Nothing is synced meanwhile.
        for _ in range(200):
            await asyncio.sleep(0)
        assert ledger.next_seq - 1 > ledger.durable_seq, "it has written no record"
        assert not asked.done(), "it was answered before its record was on disk"
        while not asked.done():
            await asyncio.sleep(0)
            bench.rest()
        assert asked.result().status_code in (200, 204), asked.result().text


# The native door

HOME = "public/default"
BATCH = "letters"
A_DAY = {"delay": "1d"}
NDJSON = "application/x-ndjson"


class Held:
    """Messages that are there before an operation: one of each that it may be about."""

    def __init__(self, folder: Path) -> None:
        self.bench = bench = Bench()
        self.app = build_app(bench.engine, Access(()), HttpSettings(index=str(folder / "index")))
        self.manifest = staged_manifest(
            place(folder, ledger=bench.ledger.ledger_id.hex(), now_ms=bench.now_ms), name=BATCH
        )
        bench.subscribe("orders")
        bench.publish("orders", b"late", deliver_at_ms=bench.now_ms + HOUR_MS)
        bench.publish("orders", b"now")
        self.waiting = bench.schedule(delay_ms=HOUR_MS, owner="ann").id
        self.paused = bench.schedule(delay_ms=HOUR_MS, owner="bob").id
        self._named("waiting", "orders", HOUR_MS)
        self._named("paused", "orders", HOUR_MS)
        for id_ in (self.paused, bench.engine.id_of_name(HOME, "paused")):
            bench.ask(bench.engine.pausing.pause(id_))
        self.failed = bench.schedule(FOREIGN, delay_ms=0).id
        bench.verdict(Refused("no"))
        self._named("failed", FOREIGN, 0)
        bench.verdict(Refused("no"))
        bench.ask(bench.engine.pausing.pause_place(place_of(HOME, owner="bob")))
        for name in ("tick", "still"):
            repeat = Repeat(destination="orders", payload=b"p", every_ms=HOUR_MS)
            bench.ask(bench.engine.repeats.set(HOME, name, repeat))
        bench.ask(bench.engine.repeats.pause(HOME, "still"))
        asked = bench.engine.bulk_commands.ask("cancel", MessageFilter(owner="ann"), "operator")
        self.command = bench.ask(asked).number
        scopes: tuple[tuple[Scope, str], ...] = (("broker", ""), ("namespace", HOME), ("topic", "orders"))
        for scope, name in scopes:
            bench.ask(bench.engine.set_policy(scope, name, Policy(tick_ms=10)))
        self._adopt()
        bench.wait(5000)

    def _named(self, name: str, destination: str, delay_ms: int) -> None:
        message = Message(destination=destination, delay_ms=delay_ms, owner="cy")
        self.bench.ask(self.bench.engine.schedule(NamedMessage.of(message, name, "fail")))

    def _adopt(self) -> None:
        bench, due_ms = self.bench, self.bench.now_ms + HOUR_MS
        put = Put(
            due_ms, due_ms, bench.now_ms, HOME, FOREIGN, None, "ann", "bulk", None, None, None, 0, False, b"p", {},
            bench.now_ms, HOUR_MS,
        )  # fmt: skip
        row = StagedRow(due_ms, lane_of(HOME, "ann", "bulk"), encode(put).body)
        file = bench.index.stage("adopted", [row])
        said = ManifestFile(
            path=file.path, size_bytes=file.size_bytes, rows=1, slot=file.slot, low_ms=due_ms, high_ms=due_ms
        )
        manifest = BatchManifest(
            ledger=bench.ledger.ledger_id.hex(), files=[said], owners={"ann": 1}, held={HOME: {"ann": 1}},
            namespaces={HOME: due_ms},
        )  # fmt: skip
        bench.ask(bench.engine.batches.adopt("adopted", manifest))


class Case(NamedTuple):
    """A request of an operation, made for what there is."""

    operation: str
    path: Callable[[Held], str]
    body: Any = None
    media_type: str = "application/json"


def at(operation: str, body: Any = None, media_type: str = "application/json", **names: str) -> Case:
    """An operation whose path has these names."""
    known = {"tenant": "public", "namespace": "default", "topic": "orders", **names}
    path = operation.partition(" ")[2]

    def filled(held: Held) -> str:
        return re.sub(r"\{(\w+)\}", lambda found: str(_name(held, known[found[1]])), path)

    return Case(operation, filled, body, media_type)


def _name(held: Held, name: str) -> Any:
    """A name, or the id that a test has only once it runs."""
    return getattr(held, name[1:]) if name.startswith("$") else name


MESSAGE = "/v1/messages/{id}"
NAMED = "/v1/names/{tenant}/{namespace}/{message}"
REPEAT = "/v1/repeats/{tenant}/{namespace}/{name}"
TOPIC = "/v1/topics/{tenant}/{namespace}/{topic}"
POLICIES = (
    "/v1/policies/broker", "/v1/policies/namespaces/{tenant}/{namespace}", "/v1/policies/topics/{tenant}/{namespace}/{topic}",
)  # fmt: skip
NATIVE = [
    at("POST /v1/messages", {"destination": "orders", **A_DAY}),
    at("POST /v1/messages/batch", b'{"destination":"orders","delay_ms":9000}\n', NDJSON),
    at("POST /v1/messages/batch/cancel", lambda held: f'{{"id":"{held.waiting}"}}\n'.encode(), NDJSON),
    at(f"DELETE {MESSAGE}", id="$waiting"),
    at(f"POST {MESSAGE}/cancel", id="$waiting"),
    at(f"POST {MESSAGE}/send", id="$waiting"),
    at(f"POST {MESSAGE}/restart", A_DAY, id="$waiting"),
    at(f"POST {MESSAGE}/retry", A_DAY, id="$failed"),
    at(f"POST {MESSAGE}/pause", id="$waiting"),
    at(f"POST {MESSAGE}/resume", id="$paused"),
    at(f"DELETE {NAMED}", message="waiting"),
    at(f"POST {NAMED}/cancel", message="waiting"),
    at(f"POST {NAMED}/send", message="waiting"),
    at(f"POST {NAMED}/restart", A_DAY, message="waiting"),
    at(f"POST {NAMED}/retry", A_DAY, message="failed"),
    at(f"POST {NAMED}/pause", message="waiting"),
    at(f"POST {NAMED}/resume", message="paused"),
    at("POST /v1/pauses", {"topic": "orders"}),
    at("POST /v1/pauses/resume", {"owner": "bob"}),
    at("POST /v1/commands", {"action": "cancel", "filter": {"owner": "ann"}}),
    at("POST /v1/commands/{command}/confirm", {"counted": 1}, command="$command"),
    at("POST /v1/commands/{command}/stop", command="$command"),
    at("PUT /v1/batches/{batch}", lambda held: held.manifest, batch=BATCH),
    at("DELETE /v1/batches/{batch}", batch="adopted"),
    at(f"PUT {REPEAT}", {"destination": "orders", "every": "1h"}, name="other"),
    at(f"DELETE {REPEAT}", name="tick"),
    at(f"POST {REPEAT}/pause", name="tick"),
    at(f"POST {REPEAT}/resume", name="still"),
    at(f"PUT {TOPIC}", topic="new"),
    at(f"DELETE {TOPIC}"),
    at(f"POST {TOPIC}/messages", {"payload": "x"}),
    at(f"DELETE {TOPIC}/delayed/{{entry_id}}", entry_id="0"),
    at(f"POST {TOPIC}/delayed/{{entry_id}}/restart", A_DAY, entry_id="0"),
    at(f"PUT {TOPIC}/subscriptions/{{name}}", name="another"),
    at(f"DELETE {TOPIC}/subscriptions/{{name}}", name="sub"),
    at(f"POST {TOPIC}/subscriptions/{{name}}/ack", {"consumer": "c", "entry_ids": [1]}, name="sub"),
    at(f"POST {TOPIC}/subscriptions/{{name}}/seek", {"entry_id": 0}, name="sub"),
    *(at(f"PUT {path}", {"tick_ms": 20}) for path in POLICIES),
    *(at(f"PATCH {path}", {"tick_ms": 30}, "application/merge-patch+json") for path in POLICIES),
    *(at(f"DELETE {path}") for path in POLICIES),
]


def test_every_operation_of_the_native_door_with_a_record_is_tried() -> None:
    tried = {case.operation for case in NATIVE}
    rows = {one: row_for("native HTTP", one) for one in RIGHTS["native HTTP"] if not one.startswith(READS)}
    assert tried == {one for one, row in rows.items() if row is not None and row.records != "none"}


@pytest.mark.parametrize("case", NATIVE, ids=lambda case: case.operation)
async def test_the_native_door_says_yes_once_it_is_on_disk(case: Case, tmp_path: Path) -> None:
    held = Held(tmp_path)
    bench, ledger = held.bench, held.bench.ledger
    body = case.body(held) if callable(case.body) else case.body
    async with listening(held.app) as port:
        reader, writer = await connect(port)
        writer.write(_request(case, case.path(held), body))
        got = bytearray()

        async def receive() -> None:
            while piece := await reader.read(1 << 16):
                got.extend(piece)

        receiving = asyncio.create_task(receive())
        async with asyncio.timeout(20):
            while ledger.next_seq - 1 == ledger.durable_seq and not receiving.done():
                await asyncio.wait({receiving}, timeout=0.001)
        # Nothing is synced meanwhile.
        for _ in range(200):
            await asyncio.sleep(0)
        assert ledger.next_seq - 1 > ledger.durable_seq, f"it has written no record: {bytes(got)!r}"
        head, _, answered = got.partition(b"\r\n\r\n")
        # A stream of lines may have begun; it has no line yet.
        assert not answered, "it was answered before its record was on disk"
        assert not head or case.media_type == NDJSON, "it was answered before its record was on disk"
        async with asyncio.timeout(20):
            while not receiving.done():
                await asyncio.wait({receiving}, timeout=0.001)
                bench.rest()
        writer.close()
    assert got.startswith((b"HTTP/1.1 200", b"HTTP/1.1 201", b"HTTP/1.1 202", b"HTTP/1.1 204")), got
    assert b"problems" not in got, got


def _request(case: Case, path: str, body: Any) -> bytes:
    sent = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
    head = f"{case.operation.partition(' ')[0]} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
    if body is not None:
        head += f"content-type: {case.media_type}\r\n"
    return f"{head}content-length: {len(sent)}\r\n\r\n".encode() + sent
