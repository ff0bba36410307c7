"""A real Pulsar standalone, broker and bookie in one process, which knows its clients by tokens.

It is the distribution with which `bench` compares, fetched by Maven; minutes go by, so what needs it is marked `soak`.
"""

import base64
import hashlib
import hmac
import json
import os
import urllib.request
from pathlib import Path
from typing import Final

import pytest

from bench.peers.peer import Skipped
from bench.peers.pulsar import distribution
from tests.conformance.dapr.brokers.servers import Server
from tests.processes import free_port

KEY: Final = b"open sesame, open sesame, open sesame!"
"""The key that signs tokens."""


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def token(role: str) -> str:
    """A JSON web token as `pulsar tokens create` writes it."""
    signed = f"{_part(json.dumps({'alg': 'HS256'}).encode())}.{_part(json.dumps({'sub': role}).encode())}"
    return f"{signed}.{_part(hmac.digest(KEY, signed.encode(), hashlib.sha256))}"


class PulsarServer(Server):
    """Pulsar standalone, with a journal that is synced before the receipt."""

    TOKEN = token("dapr")

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._web_port, self._bookie_port = free_port(), free_port()

    def command(self) -> list[str]:
        try:
            home, _ = distribution()
        except Skipped as missing:
            pytest.skip(str(missing))
        given = (home / "conf" / "standalone.conf").read_text()
        self._conf.write_text(f"{given}\n{self._config()}")
        return [
            str(home / "bin" / "pulsar"), "standalone", "--no-functions-worker", "--no-stream-storage",
            "--metadata-dir", str(self.folder / "metadata"), "--bookkeeper-dir", str(self.folder / "bookkeeper"),
            "--bookkeeper-port", str(self._bookie_port),
        ]  # fmt: skip

    @property
    def _conf(self) -> Path:
        return self.folder / "standalone.conf"

    def _config(self) -> str:
        return "\n".join(
            [
                "bindAddress=127.0.0.1",
                "advertisedAddress=127.0.0.1",
                f"brokerServicePort={self.port}",
                f"webServicePort={self._web_port}",
                "journalSyncData=true",
                "delayedDeliveryTickTimeMillis=100",
                "authenticationEnabled=true",
                "authorizationEnabled=true",
                "superUserRoles=dapr,broker",
                "authenticationProviders=org.apache.pulsar.broker.authentication.AuthenticationProviderToken",
                f"tokenSecretKey=data:;base64,{base64.b64encode(KEY).decode()}",
                "brokerClientAuthenticationPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken",
                f"brokerClientAuthenticationParameters=token:{token('broker')}",
            ]
        )

    def environment(self) -> dict[str, str]:
        return dict(os.environ) | {
            "PULSAR_STANDALONE_CONF": str(self._conf),
            "PULSAR_MEM": "-Xms256m -Xmx512m -XX:MaxDirectMemorySize=256m",
            "PULSAR_GC": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
            "PULSAR_LOG_DIR": str(self.folder / "logs"),
            "PULSAR_LOG_LEVEL": "warn",
            "PULSAR_ROUTING_APPENDER_DEFAULT": "Console",
        }

    def answers(self) -> bool:
        """Whether it serves topics of its default namespace, which it makes last, and its broker listens."""
        try:
            self.ask("GET", "/lookup/v2/topic/persistent/public/default/any")
        except OSError:
            return False
        return super().answers()

    def ask(self, method: str, path: str, body: object = None) -> None:
        """A call of its REST interface; raises `OSError` unless it succeeds."""
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self._web_port}{path}",
            None if body is None else json.dumps(body).encode(),
            {"Authorization": f"Bearer {self.TOKEN}", "Content-Type": "application/json"},
            method=method,
        )
        urllib.request.urlopen(asked, timeout=30).close()
