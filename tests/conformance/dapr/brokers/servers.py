"""Real brokers for the tests: Debian's programs, each in a folder of its own and on a free port of 127.0.0.1.

They are started, killed and started again by the process group that each has to itself.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

import pytest

from tests.processes import free_port, need

ROOT = Path(__file__).parents[4]
START_WITHIN_S = 120.0


class Server:
    """A broker's process, which can be killed and started again on the same port with the same data."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    def start(self) -> None:
        """Start it and wait until it answers."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start it and do not wait."""
        assert self._process is None
        self._process = self._run(self.command(), self.environment())

    def _run(self, command: list[str], environment: dict[str, str]) -> "subprocess.Popen[bytes]":
        with self._log() as log:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _log(self) -> IO[bytes]:
        return (self.folder / "server.log").open("ab")

    def answers(self) -> bool:
        """Whether it takes connections."""
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True

    def wait(self) -> None:
        """Wait until it answers."""
        deadline = time.monotonic() + START_WITHIN_S
        while not self.answers():
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"it did not start: {(self.folder / 'server.log').read_text()[-2000:]}")
            time.sleep(0.05)

    @property
    def ended(self) -> bool:
        """Whether it was started and has ended by itself."""
        return self._process is not None and self._process.poll() is not None

    def signal(self, number: int) -> None:
        """Send a signal to all of it."""
        assert self._process is not None
        os.killpg(self._process.pid, number)

    def kill(self) -> None:
        """SIGKILL to all of it, as a crash does."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and a while to obey; nothing if it does not run."""
        self._end(signal.SIGTERM)

    def _end(self, number: int) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for attempt in (number, signal.SIGKILL):
            try:
                os.killpg(process.pid, attempt)
            except ProcessLookupError:
                pass
            try:
                process.wait(30)
                break
            except subprocess.TimeoutExpired:
                continue


class RedisServer(Server):
    """Redis, which syncs every write, with a password."""

    PASSWORD = "open sesame"

    def command(self) -> list[str]:
        return [
            need("redis-server", "redis-server"), "--port", str(self.port), "--bind", "127.0.0.1", "--save", "",
            "--appendonly", "yes", "--appendfsync", "always", "--requirepass", self.PASSWORD,
            "--dir", str(self.folder),
        ]  # fmt: skip


class NatsServer(Server):
    """NATS with JetStream on disk, with a token."""

    TOKEN = "open-sesame"

    def command(self) -> list[str]:
        config = self.folder / "nats.conf"
        config.write_text(
            f'host: "127.0.0.1"\nport: {self.port}\nauthorization {{ token: "{self.TOKEN}" }}\n'
            f'jetstream {{ store_dir: "{self.folder}" }}\n'
        )
        return [need("nats-server", "nats-server"), "-c", str(config)]


class RabbitServer(Server):
    """RabbitMQ, with an acknowledgement deadline of seconds; Erlang's port mapper is its own too."""

    USER, PASSWORD = "tarry", "open-sesame"

    def __init__(self, folder: Path, *, consumer_timeout_ms: int = 1_800_000) -> None:
        super().__init__(folder)
        self._consumer_timeout_ms = consumer_timeout_ms
        self._mapper_port = free_port()
        self._mapper: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        program = need("rabbitmq-server", "rabbitmq-server")
        # The one on the usual path changes to the user of the Debian service.
        return [
            str(Path("/usr/lib/rabbitmq/bin/rabbitmq-server")) if program.startswith("/usr/sbin") else program
        ]

    def environment(self) -> dict[str, str]:
        folder = self.folder
        (folder / "rabbit.conf").write_text(
            f"listeners.tcp.1 = 127.0.0.1:{self.port}\n"
            f"default_user = {self.USER}\ndefault_pass = {self.PASSWORD}\n"
            f"consumer_timeout = {self._consumer_timeout_ms}\n"
            "loopback_users = none\n"
            "log.file = false\nlog.console = true\nlog.console.level = warning\n"
        )
        (folder / "advanced.config").write_text("[{rabbit, [{channel_tick_interval, 500}]}].\n")
        (folder / "plugins").write_text("[].\n")
        return dict(os.environ) | {
            "HOME": str(folder),
            "RABBITMQ_BASE": str(folder),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbit"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_PID_FILE": str(folder / "pid"),
            "RABBITMQ_NODENAME": f"tarry{self.port}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",
            "ERL_EPMD_PORT": str(self._mapper_port),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
        }

    def start(self) -> None:
        need("rabbitmq-server", "rabbitmq-server")
        if self._mapper is None:
            mapper = shutil.which("epmd")
            assert mapper is not None, "Erlang comes with it"
            self._mapper = self._run(
                [mapper, "-port", str(self._mapper_port), "-address", "127.0.0.1"], dict(os.environ)
            )
        super().start()

    def stop(self) -> None:
        super().stop()
        if self._mapper is not None:
            self._mapper.kill()
            self._mapper.wait()
            self._mapper = None

    def answers(self) -> bool:
        """The port is open before it is ready: only a server that says something is."""
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.settimeout(5)
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                return connection.recv(1) == b"\x01"
        except OSError:
            return False


def kafka_jars(tool: Path = ROOT / "tools" / "kafka.sh") -> str:
    """The folder with Kafka's jars. Where they cannot be had the test is skipped, but not in CI: nobody reads there what was skipped."""
    done = subprocess.run([tool], capture_output=True, text=True, timeout=600, check=False)
    if done.returncode != 0:
        reason = f"Kafka cannot be had here: {done.stderr.strip()}"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason}; unset CI to skip what needs it")
        pytest.skip(reason)
    return done.stdout.strip()


class KafkaServer(Server):
    """Kafka as one node that is broker and controller, with a user and a password."""

    USER, PASSWORD = "tarry", "open-sesame"

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._controller_port = free_port()

    def command(self) -> list[str]:
        java = [
            shutil.which("java") or "java", "-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC",
            "-cp", f"{kafka_jars()}/*",
        ]  # fmt: skip
        config = self.folder / "server.properties"
        if not config.exists():
            config.write_text(self._config())
            subprocess.run(
                [
                    *java,
                    "kafka.tools.StorageTool",
                    "format",
                    "-t",
                    "MkU3OEVBNTcwNTJENDM2Qg",
                    "-c",
                    str(config),
                ],
                check=True,
                capture_output=True,
                timeout=120,
            )
        return [*java, "kafka.Kafka", str(config)]

    def _config(self) -> str:
        login = (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'username="{self.USER}" password="{self.PASSWORD}" user_{self.USER}="{self.PASSWORD}";'
        )
        return "\n".join(
            [
                "process.roles=broker,controller",
                "node.id=1",
                f"controller.quorum.voters=1@127.0.0.1:{self._controller_port}",
                f"listeners=SASL_PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{self._controller_port}",
                "controller.listener.names=CONTROLLER",
                "inter.broker.listener.name=SASL_PLAINTEXT",
                "listener.security.protocol.map=SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
                "sasl.enabled.mechanisms=PLAIN",
                "sasl.mechanism.inter.broker.protocol=PLAIN",
                f"listener.name.sasl_plaintext.plain.sasl.jaas.config={login}",
                f"log.dirs={self.folder / 'data'}",
                "num.partitions=2",
                "offsets.topic.replication.factor=1",
                "offsets.topic.num.partitions=1",
                "transaction.state.log.replication.factor=1",
                "transaction.state.log.min.isr=1",
                "group.initial.rebalance.delay.ms=0",
                "group.min.session.timeout.ms=1000",
                "log.flush.interval.messages=1",
            ]
        )


class TarryServer(Server):
    """Tarry itself, whose Pulsar door is a Pulsar broker as clients see it."""

    TOKEN = "open-sesame-open-sesame"

    def command(self) -> list[str]:
        config = self.folder / "tarry.toml"
        config.write_text(
            f'[[tokens]]\nname = "dapr"\ntoken = "{self.TOKEN}"\nroles = ["produce", "consume"]\n'
            f"[doors.pulsar]\nenabled = true\nport = {self.port}\n"
            "[http]\nport = 0\n[ledger]\nsegment_bytes = 8388608\n"
        )
        return [
            sys.executable,
            "-m",
            "tarry",
            "serve",
            "--config",
            str(config),
            "--data",
            str(self.folder / "data"),
        ]

    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("TARRY_")}
        return kept | {"PYTHONPATH": str(ROOT / "src")}
