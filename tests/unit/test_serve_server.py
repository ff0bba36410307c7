"""The real server as a process: how it starts, refuses to start, stops, and comes back after a kill."""

import json
import shutil
import signal
import socket
import sqlite3
import ssl
import time
from pathlib import Path

import pytest

from tarry import Client
from tarry.client import Unauthorized
from tarry.config import load
from tarry.config.check import in_clear_text
from tarry.core.errors import Forbidden
from tests.certificates import certificate
from tests.processes import free_port, running, tarry

TOPIC = "persistent://public/default/t"


def refused(data: Path, **settings: str) -> str:
    """Why a server does not start: one line, exit code 1, no traceback."""
    ended = tarry(
        "serve", "--data", str(data), "--port", "0", TARRY_LEDGER__SEGMENT_BYTES="1048576", **settings
    )
    assert ended.returncode == 1
    assert ended.stdout == ""
    lines = [line for line in ended.stderr.splitlines() if line.startswith("tarry: ")]
    assert len(lines) == 1, ended.stderr
    assert "Traceback" not in ended.stderr
    return lines[0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_cleanly_and_keeps_what_it_took(tmp_path: Path, number: signal.Signals) -> None:
    data = tmp_path / "d"
    with running(data) as server, Client(server.url) as client:
        id_ = client.schedule(TOPIC, "later", delay="1h").id
        server.signal(number)
        assert server.reap() == 0
    with running(data) as server, Client(server.url) as client:
        assert client.get(id_).payload == b"later"


def test_a_consumer_that_waits_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    with running(tmp_path / "d") as server, socket.create_connection(("127.0.0.1", server.port)) as waiting:
        with Client(server.url) as client:
            client.subscribe(TOPIC, "s")
        body = b'{"wait_ms": 60000}'
        waiting.sendall(
            b"POST /v1/topics/public/default/t/subscriptions/s/receive HTTP/1.1\r\nhost: localhost\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )
        time.sleep(0.2)
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 20


def test_after_a_kill_a_message_arrives_once_and_not_early(tmp_path: Path) -> None:
    data = tmp_path / "d"
    with running(data) as server, Client(server.url) as client:
        client.subscribe(TOPIC, "s", start="earliest")
        scheduled = client.schedule(TOPIC, "once", delay_ms=3000)
        cancelled = client.schedule(TOPIC, "never", delay_ms=2900)
        client.cancel(cancelled.id)
        server.kill()
    with running(data) as server, Client(server.url) as client:
        entries = client.receive(TOPIC, "s", wait_ms=20_000)
        arrived_at_ms = time.time_ns() // 1_000_000
        assert [entry.payload for entry in entries] == [b"once"]
        assert scheduled.due_at_ms is not None
        assert scheduled.due_at_ms <= entries[0].published_at_ms <= arrived_at_ms
        client.ack(TOPIC, "s", [entries[0].entry_id])
        assert client.receive(TOPIC, "s", wait_ms=300) == []
        assert client.get(scheduled.id).state == "sent"
        assert client.get(cancelled.id).state == "cancelled"


def test_a_folder_has_one_server(tmp_path: Path) -> None:
    data = tmp_path / "d"
    with running(data) as server:
        assert refused(data).endswith(
            f"is in use by the server with pid {server.pid}; stop that one, or set `data` to another folder"
        )


def test_a_taken_port_is_told(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ended = tarry(
            "serve", "--data", str(tmp_path / "d"), "--port", port, TARRY_LEDGER__SEGMENT_BYTES="1048576"
        )
    assert ended.returncode == 1
    assert f"tarry: cannot listen on 127.0.0.1:{port}: Address already in use" in ended.stderr


def test_others_are_not_served_without_tokens(tmp_path: Path) -> None:
    assert "there are no tokens; add a [[tokens]] table" in refused(
        tmp_path / "d", TARRY_HTTP__HOST="0.0.0.0"
    )


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert "is not a folder" in refused(tmp_path / "file")
    # Not writable even for root.
    assert refused(Path("/proc/tarry")).startswith("tarry: /proc/tarry")


def test_a_lost_key_and_mixed_backups_are_refused(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    for data in (one, two):
        with running(data) as server, Client(server.url) as client:
            client.schedule(TOPIC, "x", delay="1h")
            assert server.stop() == 0
    (one / "id.key").rename(tmp_path / "kept")
    assert "id.key is missing but the folder holds a ledger" in refused(one)
    (tmp_path / "kept").rename(one / "id.key")
    shutil.rmtree(one / "registry")
    shutil.copytree(two / "registry", one / "registry")
    assert "were two backups mixed?" in refused(one)


def test_a_folder_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    data = tmp_path / "d"
    with running(data) as server:
        assert server.stop() == 0
    with sqlite3.connect(data / "registry" / "registry.sqlite") as registry:
        registry.execute("PRAGMA user_version = 99")
    registry.close()
    assert "written by another version of Tarry" in refused(data)


def test_idle_sockets_up_to_the_limit_starve_nobody(tmp_path: Path) -> None:
    """Four times as many as the server may have open files connect and say nothing; work goes on."""
    limit = 128
    idle: list[socket.socket] = []
    few = ("prlimit", f"--nofile={limit}")
    with running(tmp_path / "d", wrapper=few) as server, Client(server.url) as client:
        try:
            for number in range(4 * limit):
                idle.append(socket.create_connection(("127.0.0.1", server.port), timeout=10))
                if number % 16 == 0:
                    # Enough to make the ledger begin new segments: that needs open files, too.
                    client.schedule(TOPIC, b"x" * 200_000, delay="1h")
            client.subscribe(TOPIC, "s", start="earliest")
            client.schedule(TOPIC, "now", delay_ms=0)
            assert client.receive(TOPIC, "s", wait_ms=10_000)[0].payload == b"now"
            assert server.stop() == 0
        finally:
            for connection in idle:
                connection.close()


def test_silent_tls_handshakes_up_to_the_limit_starve_nobody_and_the_ledger_goes_on(tmp_path: Path) -> None:
    """Connections before their handshake were in no bound: they used up the open files, and the ledger stopped for good."""
    limit = 128
    silent: list[socket.socket] = []
    cert, key = certificate(tmp_path)
    how = {"TARRY_HTTP__TLS_CERT": str(cert), "TARRY_HTTP__TLS_KEY": str(key)}
    context = ssl.create_default_context(cafile=str(cert))
    few = ("prlimit", f"--nofile={limit}")
    with running(tmp_path / "d", wrapper=few, **how) as server, Client(server.url, tls=context) as client:
        try:
            for number in range(4 * limit):
                silent.append(socket.create_connection(("127.0.0.1", server.port), timeout=10))
                if number % 16 == 0:
                    client.schedule(TOPIC, b"x" * 200_000, delay="1h")
            with Client(server.url, tls=context) as another:
                assert another.schedule(TOPIC, "x", delay="1h").id
            assert client.ready()
            assert server.stop() == 0
        finally:
            for connection in silent:
                connection.close()
    assert "stopped for good" not in server.said()


def test_tokens_and_roles(tmp_path: Path) -> None:
    tokens = [
        {"name": "root", "token": "root-secret", "roles": ["admin"]},
        {"name": "app", "token": "app-secret", "roles": ["produce"], "namespaces": ["public/default"]},
    ]
    with running(tmp_path / "d", TARRY_TOKENS=json.dumps(tokens)) as server:
        with Client(server.url) as anonymous, pytest.raises(Unauthorized, match="set TARRY_TOKEN"):
            anonymous.status()
        with Client(server.url, "wrong-secret") as nobody, pytest.raises(Unauthorized):
            nobody.status()
        with Client(server.url, "app-secret") as app:
            app.schedule(TOPIC, "x", delay="1h")
            with pytest.raises(Forbidden):
                app.schedule("persistent://other/ns/t", "x", delay="1h")
            with pytest.raises(Forbidden):
                list(app.list())
        with Client(server.url, "root-secret") as root:
            assert len(list(root.list())) == 1


def test_a_short_token_is_refused_and_one_in_clear_text_is_warned_of(tmp_path: Path) -> None:
    short = [{"name": "root", "token": "x", "roles": ["admin"]}]
    assert "token root is shorter than 8 characters" in refused(
        tmp_path / "d", TARRY_TOKENS=json.dumps(short)
    )
    token = [{"name": "root", "token": "root-secret", "roles": ["admin"]}]
    warned = "tokens pass over the network in clear text: set http.tls_cert"
    with running(tmp_path / "d", TARRY_TOKENS=json.dumps(token)) as server:
        assert server.stop() == 0
    assert warned not in server.said()


def test_listeners_whose_tokens_pass_in_clear_text_are_known() -> None:
    everywhere = {"http.host": "0.0.0.0", "doors.pulsar.enabled": True, "doors.pulsar.host": "10.0.0.1"}
    token = {"tokens": [{"name": "a", "token": "long-enough", "roles": ["admin"]}]}
    config = load(environment={"TARRY_TOKENS": json.dumps(token["tokens"])}, overrides=everywhere).config
    assert in_clear_text(config) == ["http", "doors.pulsar"]
    assert in_clear_text(load(environment={}).config) == []


def test_tls(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    with running(tmp_path / "d", TARRY_HTTP__TLS_CERT=str(cert), TARRY_HTTP__TLS_KEY=str(key)) as server:
        assert server.url.startswith("https://")
        with Client(server.url, tls=ssl.create_default_context(cafile=str(cert))) as client:
            assert client.ready()


def test_a_client_without_a_certificate_is_refused_where_one_is_asked_for(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "server", tmp_path / "client"
    for folder in (ours, theirs):
        folder.mkdir()
    (cert, key), (client_cert, client_key) = certificate(ours), certificate(theirs)
    how = {"TLS_CERT": cert, "TLS_KEY": key, "TLS_CLIENT_CA": client_cert}
    with running(
        tmp_path / "d", **{f"TARRY_HTTP__{name}": str(file) for name, file in how.items()}
    ) as server:

        def answer(context: ssl.SSLContext) -> bytes:
            # In TLS 1.3 a client learns after its handshake that its certificate is missing.
            try:
                with (
                    socket.create_connection(("127.0.0.1", server.port), 30) as plain,
                    context.wrap_socket(plain, server_hostname="127.0.0.1") as tls,
                ):
                    tls.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
                    return tls.recv(12)
            except (ssl.SSLError, ConnectionError):
                return b""

        known, nameless, stranger = (ssl.create_default_context(cafile=str(cert)) for _ in range(3))
        known.load_cert_chain(client_cert, client_key)
        stranger.load_cert_chain(cert, key)
        assert answer(known) == b"HTTP/1.1 200"
        assert answer(nameless) == answer(stranger) == b""
        there = {"SSL_CERT_FILE": str(cert), "TARRY_URL": server.url}
        shown = {"TARRY_TLS_CLIENT_CERT": str(client_cert), "TARRY_TLS_CLIENT_KEY": str(client_key)}
        assert tarry("list", **there, **shown).returncode == 0
        assert tarry("list", **there).returncode != 0


def test_a_new_certificate_is_shown_at_a_signal_and_a_bad_one_is_not(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    port = free_port()
    how = {
        "TARRY_HTTP__TLS_CERT": str(cert), "TARRY_HTTP__TLS_KEY": str(key), "TARRY_DOORS__PULSAR__ENABLED": "true",
        "TARRY_DOORS__PULSAR__TLS_CERT": str(cert), "TARRY_DOORS__PULSAR__TLS_KEY": str(key),
        "TARRY_DOORS__PULSAR__PORT": str(port),
    }  # fmt: skip

    def shown(at: int) -> str:
        return ssl.get_server_certificate(("127.0.0.1", at), timeout=30)

    def signalled() -> None:
        said = server.said().count("read again")
        server.signal(signal.SIGHUP)
        deadline = time.monotonic() + 30
        while server.said().count("read again") == said:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    with running(tmp_path / "d", **how) as server:
        before = cert.read_text()
        assert shown(server.port) == shown(port) == before
        key.write_text("no key")
        signalled()
        assert shown(server.port) == shown(port) == before
        assert "the certificate stays as it was: cannot use the certificate" in server.said()
        certificate(tmp_path)
        assert cert.read_text() != before
        signalled()
        assert shown(server.port) == shown(port) == cert.read_text()


def test_the_log_names_no_message(tmp_path: Path) -> None:
    how = {"TARRY_LOG__FORMAT": "json", "TARRY_LOG__LEVEL": "debug"}
    with running(tmp_path / "d", **how) as server, Client(server.url, "the-token") as client:
        id_ = client.schedule(TOPIC, "the-payload", delay="1h", owner="the-owner").id
        client.cancel(id_)
        assert server.stop() == 0
    text = server.said()
    events = [json.loads(line)["event"] for line in text.splitlines()]
    assert "recovered" in events
    assert events[-1] == "stopped"
    for secret in (id_, "the-payload", "the-token", "the-owner"):
        assert secret not in text


def test_without_a_homeserver_the_matrix_door_stays_closed_and_the_rest_serves(tmp_path: Path) -> None:
    settings = {"TARRY_DOORS__MATRIX__ENABLED": "true", "TARRY_DOORS__MATRIX__PORT": "0"}
    with running(tmp_path / "d", **settings) as server, Client(server.url) as client:
        assert client.ready()
    assert "the Matrix door stays closed" in server.said()
