"""Brokers as destinations of the native API: `broker://component/topic` on real brokers."""

import json
from pathlib import Path
from typing import Any

import pytest

from tarry.client import AsyncClient, Message
from tarry.core.errors import Invalid
from tests.conformance.dapr.brokers.kinds import Broker
from tests.serving import serving
from tests.unit.broker_kit import Inbox
from tests.unit.dapr_kit import component
from tests.waiting import until

COUNT = 40


def settings(folder: Path, broker: Broker) -> dict[str, Any]:
    folder.mkdir(parents=True)
    properties: dict[str, Any] = broker.properties()
    (folder / "orders.yaml").write_text(json.dumps(component("orders", broker.kind, **properties)))
    allow = [{"component": "orders", "namespaces": ["public/default"]}]
    return {"brokers__resources_path": [str(folder)], "brokers__allow": allow}


async def test_scheduled_messages_reach_the_broker_and_not_early(broker: Broker, tmp_path: Path) -> None:
    topic, inbox = await broker.topic(), Inbox()
    reader = broker.component()
    await reader.start()
    await reader.subscribe(topic, "shop", inbox, {}, lasting=True)
    to = f"broker://orders/{topic}"
    brokers = settings(tmp_path / "components", broker)
    async with serving(tmp_path / "data", **brokers) as served, AsyncClient(served.url) as client:
        one = await client.schedule(to, b"0", delay_ms=1_500, key="k", headers={"a": "b"})
        more = [Message(destination=to, payload=str(n), delay_ms=1_500) for n in range(1, COUNT)]
        async for outcome in client.schedule_many(more):
            assert not isinstance(outcome, Exception), outcome
        with pytest.raises(Invalid, match="did you mean broker://orders/"):
            await client.schedule(f"broker://order/{topic}", b"x", delay_ms=0)
        assert inbox.got == [], "nothing is early"
        await inbox.expect_all({b"%d" % n for n in range(COUNT)})

        async def sent() -> bool:
            return (await client.get(one.id)).state == "sent"

        await until(sent)
    await reader.close()
