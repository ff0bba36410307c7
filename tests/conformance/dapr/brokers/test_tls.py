"""Brokers that speak TLS and want to see a certificate: Redis and NATS."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tarry.outlets.dapr.errors import BrokerUnreachable
from tests.certificates import certificate
from tests.conformance.dapr.brokers.servers import Server
from tests.processes import need
from tests.unit.broker_kit import Inbox, made


class SecureRedis(Server):
    def command(self) -> list[str]:
        cert, key = certificate(self.folder)
        return [
            need("redis-server", "redis-server"), "--port", "0", "--tls-port", str(self.port), "--bind", "127.0.0.1",
            "--save", "", "--tls-cert-file", str(cert), "--tls-key-file", str(key), "--tls-ca-cert-file", str(cert),
            "--dir", str(self.folder),
        ]  # fmt: skip


class SecureNats(Server):
    def command(self) -> list[str]:
        cert, key = certificate(self.folder)
        config = self.folder / "nats.conf"
        config.write_text(
            f'host: "127.0.0.1"\nport: {self.port}\njetstream {{ store_dir: "{self.folder}" }}\n'
            f'tls {{ cert_file: "{cert}", key_file: "{key}", ca_file: "{cert}", verify: true }}\n'
        )
        return [need("nats-server", "nats-server"), "-c", str(config)]


@pytest.fixture
def secure_redis(tmp_path: Path) -> Iterator[Server]:
    server = SecureRedis(tmp_path / "redis")
    server.start()
    yield server
    server.stop()


@pytest.fixture
def secure_nats(tmp_path: Path) -> Iterator[Server]:
    server = SecureNats(tmp_path / "nats")
    server.start()
    yield server
    server.stop()


def pem(server: Server) -> tuple[str, str]:
    return (server.folder / "cert.pem").read_text(), (server.folder / "key.pem").read_text()


async def test_redis(secure_redis: Server) -> None:
    cert, key = pem(secure_redis)
    address = {"redisHost": f"127.0.0.1:{secure_redis.port}", "enableTLS": "true"}
    component = made("pubsub.redis", address | {"caCert": cert, "clientCert": cert, "clientKey": key})
    inbox = Inbox()
    await component.subscribe("orders", "shop", inbox, {})
    await component.publish("orders", b"one", {})
    assert await inbox.expect(1) == [b"one"]
    await component.close()
    unverified = made("pubsub.redis", address | {"clientCert": cert, "clientKey": key})
    with pytest.raises(BrokerUnreachable, match="certificate"):
        await unverified.start()
    await unverified.close()


async def test_nats(secure_nats: Server) -> None:
    cert, key = pem(secure_nats)
    address = {"natsURL": f"tls://127.0.0.1:{secure_nats.port}"}
    mine = {"tls_client_cert": cert, "tls_client_key": key}
    component = made("pubsub.jetstream", address | mine | {"tls_ca_cert": cert})
    await component.start()
    await component.close()
    unverified = made("pubsub.jetstream", address | mine)
    with pytest.raises(BrokerUnreachable, match="certificate"):
        await unverified.start()
    await unverified.close()
