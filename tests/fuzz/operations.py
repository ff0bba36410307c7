"""Every operation of the native API and of Pulsar's administration, from the table of rights: none is left out.

Its path names what is there, or nearly; its body is a good example, something like it, or anything.
"""

import asyncio
import contextlib
import json
import re
from typing import Final
from urllib.parse import quote

import httpx

from tarry.doors.http.operations import HTTP
from tarry.doors.pulsar.admin.operations import PULSAR_ADMIN
from tests.fuzz.values import TENANTS, Values
from tests.unit.rights_kit import EXAMPLES, Example

OPERATIONS: Final = (*HTTP, *PULSAR_ADMIN)
LISTENS_S: Final = 0.2
_PLACE: Final = re.compile(r"\{(\w+)\}")


class Operations:
    """Somebody with every right and no plan."""

    def __init__(self, client: httpx.AsyncClient, values: Values) -> None:
        self.client = client
        self.values = values
        self.accepted: list[str] = []

    async def step(self) -> None:
        """One operation. A third of them are about single topics, which are most of the table anyway."""
        values = self.values
        operation = values.one(*OPERATIONS)
        method, _, template = operation.partition(" ")
        path = _PLACE.sub(lambda place: self._part(place[1]), template)
        example = EXAMPLES.get(operation, Example())
        query = dict(example.query) | values.some(
            force=lambda: values.one("true", "x"), effective=lambda: values.one("true", values.text(5)),
            initialPosition=lambda: values.one("latest", "earliest"), messagePosition=lambda: str(values.integer()),
            authoritative=lambda: "false", applied=lambda: "true", retentionTimeInMinutes=lambda: str(values.integer()),
            messageTTL=lambda: str(values.integer()), limit=lambda: str(values.integer()),
        )  # fmt: skip
        await self._ask(method, path, self._body(example), query, example.content_type)

    def _part(self, name: str) -> str:
        values = self.values
        tenant, _, namespace = values.one(*TENANTS).partition("/")
        known = {
            "tenant": tenant, "namespace": namespace, "topic": values.one(values.name(), f"{values.name()}-partition-{values.one(0, 1, 9)}"),
            "name": values.name(), "subscription": values.name(), "cluster": "standalone", "batch": f"b{values.random.randrange(20)}",
            "backup": "b", "key": "k", "value": "v", "bundle": "0x00000000_0xffffffff", "pubsub": "pubsub", "version": "0",
        }  # fmt: skip
        if name in ("number", "seconds", "timestamp", "position", "ledger", "entry", "entry_id"):
            return str(values.integer())
        if name in known and values.chance(0.95):
            return str(known[name])
        return quote(values.text(values.one(5, 300)) or "x", safe="")

    def _body(self, example: Example) -> bytes:
        values = self.values
        good = example.body if isinstance(example.body, str) else json.dumps(example.body)
        if good == "null" and values.chance(0.8):
            return b""
        number = str(values.one(values.integer(), values.soon_ms())).encode()
        same = good.encode()
        return bytes(values.one(same, same, same, number, number, values.mutated(same), values.document()))

    async def _ask(self, method: str, path: str, body: bytes, query: dict[str, str], type_: str) -> None:
        told = (method, path[:300], query, body[:500])
        headers = {"content-type": type_}
        try:
            # One of them is a stream that does not end by itself.
            async with asyncio.timeout(LISTENS_S if path.endswith("/events") else None):
                answer = await self.client.request(method, path, content=body, params=query, headers=headers)
        except TimeoutError:
            return
        except httpx.HTTPError as error:
            raise AssertionError(f"{error!r} for {told}") from error
        assert answer.status_code != 500, (*told, answer.text)
        if method == "POST" and answer.status_code == 201:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                self.accepted.append(answer.json()["id"])
