"""The Pulsar door's administration on an engine that is stepped by hand."""

import asyncio
from typing import Any

import httpx

from tarry.config.pulsar import Pulsar
from tarry.core.rules.policy import Policy
from tarry.core.tenants.access import Access, Token
from tarry.doors.pulsar.admin.app import AdminApp
from tarry.doors.pulsar.broker import Broker
from tarry.doors.pulsar.stored_schemas import StoredSchemas
from tarry.engine.engine import Engine
from tests.unit.engine_kit import Bench
from tests.unit.listener_kit import AppTransport

NAMESPACES = "/admin/v2/namespaces"
PERSISTENT = "/admin/v2/persistent"
DEFAULT = f"{NAMESPACES}/public/default"
ORDERS = f"{PERSISTENT}/public/default/orders"
TOPIC = "persistent://public/default/orders"


class Admin:
    """A client of the administration that knows what it expects."""

    def __init__(self, *tokens: Token, **settings: Any) -> None:
        self._settings = Pulsar(**settings)
        self._access = Access(tokens)
        self.bench = Bench(broker_policy=self._settings.policy(Policy()))
        self.app = AdminApp(lambda host: f"pulsar://{host.partition(':')[0]}:6650")
        self.token: str | None = None
        self._open()

    def _open(self) -> None:
        engine = self.bench.engine
        self.broker = self.app.broker = Broker(engine, self._access, self._settings, StoredSchemas(engine))

    def reopen(self) -> None:
        """Stop the process where it is and begin again."""
        self.bench.reopen()
        self._open()

    @property
    def engine(self) -> Engine:
        return self.bench.engine

    async def request(
        self, method: str, path: str, body: Any = None, *, headers: Any = None, **query: Any
    ) -> httpx.Response:
        sent = dict(headers or {})
        if self.token is not None:
            sent["authorization"] = f"Bearer {self.token}"
        transport = AppTransport(self.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8080") as client:
            answer = asyncio.create_task(client.request(method, path, json=body, params=query, headers=sent))
            while not answer.done():
                await asyncio.sleep(0)
                self.bench.rest()
            return answer.result()

    async def get(self, path: str, **query: Any) -> Any:
        """GET a path's JSON; None for an answer without content."""
        response = await self.request("GET", path, **query)
        assert response.status_code in (200, 204), response.text
        return response.json() if response.content else None

    async def do(self, method: str, path: str, body: Any = None, **query: Any) -> None:
        """Have it done: Pulsar answers 204."""
        response = await self.request(method, path, body, **query)
        assert (response.status_code, response.content) == (204, b""), response.text

    async def refused(self, method: str, path: str, body: Any = None, **query: Any) -> tuple[int, str]:
        """The status and the reason of a refusal."""
        response = await self.request(method, path, body, **query)
        assert response.status_code >= 400, response.text
        assert response.headers["content-type"] == "application/json"
        assert set(response.json()) == {"reason"}
        return response.status_code, response.json()["reason"]
