"""A publish over HTTP, from the request to the application that subscribes."""

import time
from pathlib import Path

from tests.unit.dapr_kit import app, dapr, in_s, to


async def test_a_scheduled_publish_arrives_when_it_is_due_and_not_before(tmp_path: Path) -> None:
    async with app(to("orders")) as shop, dapr(tmp_path, app_port=shop.port) as doors:
        due_s = time.time() + 1.5
        answer = await doors.publish("orders", {"order": 66}, scheduledSendTime=in_s(1.5))
        assert answer.status_code == 204
        assert answer.content == b""
        shown = await doors.served.client.get(f"/v1/messages/{answer.headers['tarry-message-id']}")
        assert shown.json()["state"] == "scheduled"
        assert shown.json()["owner"] == "app"
        assert shown.json()["door"] == "dapr"
        await shop.count(1)
        # The instant was written a little later than it was read here.
        assert time.time() >= due_s - 0.01
        path, event = shop.got[0]
        assert path == "/in"
        assert event["data"] == {"order": 66}
        assert event["topic"] == "orders"
        assert event["pubsubname"] == "pubsub"
        assert event["source"] == "app"
        assert event["type"] == "com.dapr.event.sent"


async def test_without_a_time_a_publish_goes_out_at_once(tmp_path: Path) -> None:
    async with app(to("orders")) as shop, dapr(tmp_path, app_port=shop.port) as doors:
        answer = await doors.publish("orders", {"order": 1})
        assert answer.status_code == 204
        assert "tarry-message-id" not in answer.headers
        await shop.count(1)
        assert shop.data == [{"order": 1}]
