"""The page of what stands behind an answer, and that answers of the administration wait for it."""

import asyncio
import re
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from tarry.ledger.record import Kind
from tarry.serve.composition.rights import RIGHTS
from tests.unit.listener_kit import AppTransport
from tests.unit.pulsar_admin_kit import DEFAULT, ORDERS, Admin

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
