"""`tarry doctor` on a real broker: it lets us in, or says what to do."""

from pathlib import Path

from tarry.cli.neighbours import check_brokers
from tarry.config.dapr import DaprApp
from tests.conformance.dapr.brokers.kinds import Broker
from tests.conformance.dapr.brokers.servers import RedisServer
from tests.unit.dapr_kit import component, resources


async def test_a_broker_that_lets_us_in_and_one_that_does_not(redis: Broker, tmp_path: Path) -> None:
    host = f"127.0.0.1:{redis.server.port}"
    good = component("good", "pubsub.redis", redisHost=host, redisPassword=RedisServer.PASSWORD)
    bad = component("bad", "pubsub.redis", redisHost=host, redisPassword="another-word")
    others = component("others", "pubsub.redis", scopes=["billing"], redisHost=host)
    app = DaprApp(app_id="shop", resources_path=(str(resources(tmp_path, good, bad, others)),))
    found = {finding.about: finding for finding in await check_brokers(app)}
    assert {about: finding.level for about, finding in found.items()} == {
        "broker good": "ok",
        "broker bad": "bad",
    }
    assert "mend the credentials" in found["broker bad"].text
    assert "another-word" not in found["broker bad"].text
