"""The Redis that a component connects to, and its credentials there: one server, a cluster, or the master that sentinels name."""

import tempfile
from pathlib import Path
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.cluster import ClusterNode, RedisCluster
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from tarry.outlets.dapr.errors import Misconfigured
from tarry.outlets.dapr.properties import Properties


class Where:
    """The Redis to connect to, and the credentials there."""

    def __init__(self, properties: Properties) -> None:
        self.hosts = [_address(one) for one in properties.needed("redisHost").split(",")]
        self.cluster = properties.one_of("redisType", ("node", "cluster"), "node") == "cluster"
        self.master = properties.text("sentinelMasterName")
        if properties.flag("failover") and not self.master:
            raise Misconfigured("sentinelMasterName", "is needed where failover is true")
        if not properties.flag("failover"):
            self.master = ""
        self.sentinel_user = properties.text("sentinelUsername") or None
        self.sentinel_password = properties.text("sentinelPassword") or None
        self.options: dict[str, Any] = {
            "username": properties.text("redisUsername") or None,
            "password": properties.text("redisPassword") or None,
            "socket_connect_timeout": properties.duration_ms("dialTimeout", 5_000, bare_ms=1_000) / 1000,
            "protocol": 2,
            # A command that was sent may have been done: whether it is sent again is not the library's to decide.
            "retry": Retry(NoBackoff(), 0),
        }
        self._database = properties.number("redisDB", 0, most=2**31)
        self._files: list[Path] = []
        self._sentinels: list[Redis] = []
        if properties.flag("enableTLS"):
            self.options["ssl"] = True
            if authority := properties.text("caCert"):
                self.options["ssl_ca_data"] = authority
            for field, option in (("clientCert", "ssl_certfile"), ("clientKey", "ssl_keyfile")):
                if text := properties.text(field):
                    self.options[option] = str(self._pem(field, text))

    def _pem(self, field: str, text: str) -> Path:
        """The library wants certificates as files."""
        if "-----BEGIN" not in text:
            raise Misconfigured(field, "is not PEM")
        with tempfile.NamedTemporaryFile("w", suffix=".pem", delete=False) as file:
            file.write(text)
        self._files.append(Path(file.name))
        return self._files[-1]

    def client(self, answer_within_s: float) -> Any:
        """A client, which connects when it is used. Any: the three kinds have no type in common."""
        if self.cluster:
            nodes = [ClusterNode(host, port) for host, port in self.hosts]
            options = self.options | {"socket_timeout": answer_within_s}
            return RedisCluster(startup_nodes=nodes, **options)
        options = self.options | {"socket_timeout": answer_within_s, "db": self._database}
        if self.master:
            secrets = {"username": self.sentinel_user, "password": self.sentinel_password}
            made: Any = Sentinel  # it has no types
            sentinel = made(self.hosts, sentinel_kwargs=secrets, **options)
            self._sentinels.extend(sentinel.sentinels)
            return sentinel.master_for(self.master)
        host, port = self.hosts[0]
        return Redis(host=host, port=port, **options)

    async def close(self) -> None:
        """Disconnect from the sentinels, and remove the files of certificates."""
        for sentinel in self._sentinels:
            await sentinel.aclose()
        for file in self._files:
            file.unlink(missing_ok=True)


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.strip().rpartition(":")
    if not colon:
        host, port = port, "6379"
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise Misconfigured("redisHost", f"{text.strip()!r} is not host:port")
    return host.strip("[]"), int(port)
