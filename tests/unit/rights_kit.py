"""A server with every door that knows tokens, tokens of every kind, and examples of every operation."""

import contextlib
import json
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any, Final

import httpx
from msgspec import Struct

from tarry.core.tenants.access import ROLES
from tarry.core.tenants.rights import Right
from tarry.doors.pulsar.admin.operations import PULSAR_ADMIN
from tests.processes import free_port
from tests.unit.dapr_kit import dapr

HERE: Final = "public/default"
"""The namespace that the examples are about."""
TOKENS: Final = [
    *({"name": f"{role}-here", "token": f"{role}-here-token", "roles": [role], "namespaces": [HERE]} for role in ROLES),
    *({"name": f"{role}-all", "token": f"{role}-all-token", "roles": [role]} for role in ROLES),
    {"name": "stranger", "token": "stranger-token", "roles": list(ROLES), "namespaces": ["acme/other"]},
]  # fmt: skip
STRANGER: Final = "stranger-token"
"""All roles, in another namespace."""


def right_tokens(right: Right) -> list[str]:
    """Every token that suffices, each with one role only."""
    where = "all" if right.reach == "all" else "here"
    roles = dict.fromkeys((*right.roles, "admin")) if right.roles else ROLES
    return [f"{role}-{where}-token" for role in roles]


def wrong_roles(right: Right) -> list[str]:
    """Tokens for all namespaces whose role does not suffice."""
    return [f"{role}-all-token" for role in ROLES if right.roles and role not in (*right.roles, "admin")]


class Example(Struct, frozen=True, kw_only=True):
    """A request for one operation, beside what its path says."""

    body: Any = None
    content_type: str = "application/json"
    query: dict[str, str] = {}
    partitions: int = 0
    """How many partitions the topic in the path has."""
    done: tuple[int, ...] = (200, 201, 204)
    """The answers to somebody who has the right."""


class World:
    """The server, and a client for those who hold a token or none."""

    def __init__(self, native: httpx.AsyncClient, door: httpx.AsyncClient, grpc: str, pulsar: int) -> None:
        self.native = native
        self.dapr = door
        self.grpc = grpc
        self.pulsar = pulsar
        self._numbers = count()

    async def send(
        self,
        method: str,
        path: str,
        example: Example,
        token: str | None,
        client: httpx.AsyncClient | None = None,
    ) -> tuple[int, str]:
        """The status of an answer, and its text if it ends."""
        headers = {} if token is None else {"authorization": f"Bearer {token}", "dapr-api-token": token}
        content = example.body if isinstance(example.body, str | None) else json.dumps(example.body)
        if content is not None:
            headers["content-type"] = example.content_type
        request = {"params": example.query, "headers": headers, "content": content}
        async with (client or self.native).stream(method, path, **request) as answer:  # type: ignore[arg-type]
            if answer.headers.get("content-type", "").startswith("text/event-stream"):
                return answer.status_code, ""
            await answer.aread()
            status = answer.status_code
            if status == 200 and example.content_type == "application/x-ndjson":
                # Of several messages each has its own answer.
                status = answer.json().get("error", {}).get("status", status)
            return status, answer.text

    async def filled(self, path: str, example: Example) -> str:
        """A path whose places name things that are there, made for this one request."""
        number = next(self._numbers)
        values = {
            "tenant": "public", "namespace": "default", "topic": f"t{number}", "name": "sub", "subscription": "sub",
            "cluster": "standalone", "number": "1", "seconds": "1", "timestamp": "0", "position": "1", "version": "0",
            "entry_id": "1", "batch": f"b{number}", "key": "k", "pubsub": "pubsub",
            "value": "v", "bundle": "0x00000000_0xffffffff", "role": "ann", "endpoint": "persistence",
            "ledger": "1", "entry": "0",
        }  # fmt: skip
        if "/tenants/{tenant}" in path:
            values["tenant"] = f"tenant{number}"
            await self._make("PUT", f"/admin/v2/tenants/{values['tenant']}", {})
        elif "/{topic}" in path:
            await self._topic(values["topic"], example.partitions)
        if "{id}" in path:
            values["id"] = (await self._make("POST", "/v1/messages", LATER))["id"]
        if "{message}" in path:
            values["message"] = f"m{number}"
            await self._make("POST", "/v1/messages", LATER | {"name": values["message"]})
        if "{command}" in path:
            values["command"] = (await self._make("POST", "/v1/commands", COUNT))["id"]
        if "{backup}" in path:
            values["backup"] = (await self._make("POST", "/v1/backups", {}))["name"]
        if "/repeats/" in path and "{name}" in path:
            await self._make("PUT", path.partition("{name}")[0].format(**values) + values["name"], AGAIN)
        return path.format(**values)

    async def _topic(self, name: str, partitions: int) -> None:
        """A topic with a subscription, an entry and a delayed one, and a schema."""
        place = f"/admin/v2/persistent/{HERE}/{name}"
        if partitions:
            await self._make("PUT", place + "/partitions", partitions)
            return
        topic = f"/v1/topics/{HERE}/{name}"
        await self._make("PUT", topic + "/subscriptions/sub", {"start": "earliest"})
        await self._make("POST", topic + "/messages", {"payload": "x"})
        await self._make("POST", topic + "/messages", {"payload": "later", "delay": "1h"})
        await self._make("POST", f"/admin/v2/schemas/{HERE}/{name}/schema", SCHEMA)

    async def _make(self, method: str, path: str, body: Any) -> Any:
        status, text = await self.send(method, path, Example(body=body), "admin-all-token")
        assert status < 300, (method, path, text)
        return json.loads(text) if text else None


LATER: Final = {"destination": f"persistent://{HERE}/later", "payload": "x", "delay": "1h"}
COUNT: Final = {"action": "cancel", "filter": {"namespace": HERE, "owner": "nobody"}}
AGAIN: Final = {"destination": f"persistent://{HERE}/later", "every": "1h"}
SCHEMA: Final = {"type": "STRING", "schema": "", "properties": {}}
_FILE: Final = {
    "path": "staged/0/0.parquet",
    "size_bytes": 1,
    "rows": 1,
    "slot": "1_1",
    "low_ms": 1,
    "high_ms": 1,
}
_QUOTA: Final = {"limitSize": 1000, "policy": "producer_request_hold"}


@contextlib.asynccontextmanager
async def world(folder: Path) -> AsyncIterator[World]:
    """A server with the native, the Pulsar and the Dapr door."""
    port = free_port()
    pulsar = {"doors.pulsar.enabled__": True, "doors.pulsar.port__": port}
    async with dapr(folder, tokens__=TOKENS, **pulsar) as doors:
        yield World(doors.served.client, doors.client, f"127.0.0.1:{doors.door.grpc_ports[0]}", port)


_RULES: Final[dict[str, Any]] = {
    "autoTopicCreation": {"allowAutoTopicCreation": True},
    "autoSubscriptionCreation": {"allowAutoSubscriptionCreation": True},
    "schemaCompatibilityStrategy": '"FULL"',
    "properties": {"k": "v"},
}
"""By the last part of its path: a rule that changes nothing for others. All else are limits, of which 0 is none."""

EXAMPLES: Final[dict[str, Example]] = {
    "POST /v1/messages": Example(body=LATER),
    "POST /v1/messages/batch/cancel": Example(
        body=json.dumps({"name": "none", "namespace": HERE}) + "\n", content_type="application/x-ndjson", done=(404,)
    ),
    "POST /v1/messages/batch": Example(body=json.dumps(LATER) + "\n", content_type="application/x-ndjson"),
    "GET /v1/messages": Example(query={"namespace": HERE}),
    "POST /v1/messages/{id}/restart": Example(body={"delay": "2h"}),
    "POST /v1/messages/{id}/retry": Example(done=(409,)),
    "POST /v1/names/{tenant}/{namespace}/{message}/retry": Example(done=(409,)),
    "POST /v1/messages/{id}/resume": Example(done=(409,)),
    "POST /v1/names/{tenant}/{namespace}/{message}/resume": Example(done=(409,)),
    "GET /v1/commands": Example(query={"namespace": HERE}),
    "POST /v1/commands": Example(body=COUNT, done=(201, 409)),
    # It is counting still, or it is counted.
    "POST /v1/commands/{command}/confirm": Example(body={"counted": 0}, done=(200, 409)),
    "GET /v1/pauses": Example(query={"namespace": HERE}),
    "POST /v1/pauses": Example(body={"owner": "nobody", "namespace": HERE}),
    "POST /v1/pauses/resume": Example(body={"owner": "somebody else"}, done=(404,)),
    # None was staged; whether it may be adopted is looked at before that.
    "PUT /v1/batches/{batch}": Example(
        body={"ledger": "0" * 32, "files": [_FILE], "owners": {"": 1}, "namespaces": {HERE: 1}}, done=(400,)
    ),
    "GET /v1/batches/{batch}": Example(done=(404,)),
    "DELETE /v1/batches/{batch}": Example(done=(404,)),
    "GET /v1/repeats": Example(query={"namespace": HERE}),
    "PUT /v1/repeats/{tenant}/{namespace}/{name}": Example(body=AGAIN),
    "POST /v1/topics/{tenant}/{namespace}/{topic}/messages": Example(body={"payload": "x"}),
    "POST /v1/topics/{tenant}/{namespace}/{topic}/delayed/{entry_id}/restart": Example(body={"delay": "2h"}),
    "PUT /v1/topics/{tenant}/{namespace}/{topic}/subscriptions/{name}": Example(body={}),
    "POST /v1/topics/{tenant}/{namespace}/{topic}/subscriptions/{name}/receive": Example(body={}),
    "POST /v1/topics/{tenant}/{namespace}/{topic}/subscriptions/{name}/ack": Example(body={"entry_ids": [0]}),
    "POST /v1/topics/{tenant}/{namespace}/{topic}/subscriptions/{name}/seek": Example(body={"entry_id": 0}),
    "GET /v1/policies/broker": Example(query={"effective": "true"}),
    "PUT /v1/policies/broker": Example(body={}),
    "PATCH /v1/policies/broker": Example(body={}),
    "GET /v1/policies/namespaces/{tenant}/{namespace}": Example(query={"effective": "true"}),
    "PUT /v1/policies/namespaces/{tenant}/{namespace}": Example(body={}),
    "PATCH /v1/policies/namespaces/{tenant}/{namespace}": Example(body={}),
    "GET /v1/policies/topics/{tenant}/{namespace}/{topic}": Example(query={"effective": "true"}),
    "PUT /v1/policies/topics/{tenant}/{namespace}/{topic}": Example(body={}),
    "PATCH /v1/policies/topics/{tenant}/{namespace}/{topic}": Example(body={}),
    "PUT /admin/v2/tenants/{tenant}": Example(body={}, done=(409,)),
    "POST /admin/v2/tenants/{tenant}": Example(body={}),
    # It is there already, and not empty.
    "PUT /admin/v2/namespaces/{tenant}/{namespace}": Example(body={}, done=(409,)),
    "DELETE /admin/v2/namespaces/{tenant}/{namespace}": Example(done=(409,)),
    **{
        f"POST /admin/v2/{place}/{setting}": Example(body=body, query=query)
        for place in ("namespaces/{tenant}/{namespace}", "persistent/{tenant}/{namespace}/{topic}")
        for setting, body, query in (
            ("delayedDelivery", {"active": True, "tickTime": 1}, {}),
            ("messageTTL", None, {"messageTTL": "100"}),
            ("retention", {"retentionTimeInMinutes": 1, "retentionSizeInMB": 1}, {}),
            ("backlogQuota", _QUOTA, {}),
            ("deduplication" if place.startswith("namespaces") else "deduplicationEnabled", True, {}),
        )
    },
    **{
        f"{method} {operation.partition(' ')[2]}": Example(body=_RULES.get(operation.rpartition("/")[2], 0))
        for operation in PULSAR_ADMIN
        if operation.rpartition("/")[2].startswith("max") or operation.rpartition("/")[2] in _RULES
        for method in ("POST", "PUT")
    },
    **{
        f"{method} /admin/v2/{place}/{{endpoint}}": Example(done=(405,))
        for place in ("namespaces/{tenant}/{namespace}", "persistent/{tenant}/{namespace}/{topic}")
        for method in ("GET", "POST", "PUT", "DELETE")
    },
    **{
        f"{method} /admin/v2/{place}/permissions/{{role}}": Example(done=(501,))
        for place in ("namespaces/{tenant}/{namespace}", "persistent/{tenant}/{namespace}/{topic}")
        for method in ("POST", "DELETE")
    },
    "PUT /admin/v2/persistent/{tenant}/{namespace}/{topic}": Example(done=(409,)),
    "DELETE /admin/v2/persistent/{tenant}/{namespace}/{topic}": Example(query={"force": "true"}),
    "PUT /admin/v2/persistent/{tenant}/{namespace}/{topic}/partitions": Example(body=2, done=(409,)),
    "POST /admin/v2/persistent/{tenant}/{namespace}/{topic}/partitions": Example(body=3, partitions=2),
    "DELETE /admin/v2/persistent/{tenant}/{namespace}/{topic}/partitions": Example(partitions=2),
    "GET /admin/v2/persistent/{tenant}/{namespace}/{topic}/partitioned-stats": Example(partitions=2),
    "PUT /admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}": Example(done=(409,)),
    "POST /admin/v2/persistent/{tenant}/{namespace}/{topic}/subscription/{subscription}/resetcursor": Example(body={}),
    "POST /admin/v2/schemas/{tenant}/{namespace}/{topic}/schema": Example(body=SCHEMA),
    "POST /admin/v2/schemas/{tenant}/{namespace}/{topic}/compatibility": Example(body=SCHEMA),
    "POST /admin/v2/schemas/{tenant}/{namespace}/{topic}/version": Example(body=SCHEMA),
    "POST /v1.0/publish/{pubsub}/{topic}": Example(body="x"),
    "PUT /v1.0/publish/{pubsub}/{topic}": Example(body="x"),
    **{
        f"{method} {base}/publish/bulk/{{pubsub}}/{{topic}}": Example(
            body=[{"entryId": "1", "event": "x", "contentType": "text/plain"}]
        )
        for method in ("POST", "PUT")
        for base in ("/v1.0", "/v1.0-alpha1")
    },
    "PUT /v1.0/metadata/{key}": Example(body="v"),
}  # fmt: skip
"""By operation, where a request without body and query would not do."""
