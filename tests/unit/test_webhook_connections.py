"""Connections, turns, TLS and closing."""

import asyncio
import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tarry.core.messages.delivery import Delivered, Retry
from tarry.outlets.webhook import WebhookOutlet, WebhookSettings
from tests.unit.webhook_kit import (
    Delay,
    FixedClock,
    ScriptedResolver,
    receiving,
    sending,
    to,
)


async def test_connections_are_used_again() -> None:
    async with receiving() as (receiver, port), sending() as outlet:
        for _ in range(3):
            assert await outlet.send(to(f"http://127.0.0.1:{port}/")) == Delivered()
    assert len(set(receiver.peers)) == 1


async def test_idle_connections_do_not_pile_up() -> None:
    """With many hosts the pool keeps half of `max_connections` open, and no more."""
    resolver = ScriptedResolver(["127.0.0.1"])
    async with receiving() as (receiver, port), sending(resolver, max_connections=8) as outlet:
        for number in range(30):
            assert await outlet.send(to(f"http://host{number}.example:{port}/")) == Delivered()
        for _ in range(10):
            await asyncio.sleep(0)  # the last connection is closed in the next turns of the loop
        assert outlet._sockets.open_count() == 5
        assert [request.headers.get("connection") for request, _ in receiver.requests[-3:]] == ["close"] * 3
    assert outlet._sockets.open_count() == 0


async def test_deliveries_to_one_host_are_bounded() -> None:
    async with receiving() as (receiver, port), sending(max_connections_per_host=3) as outlet:
        receiver.gate = Delay(0.2)
        sends = (outlet.send(to(f"http://127.0.0.1:{port}/")) for _ in range(10))
        assert await asyncio.gather(*sends) == [Delivered()] * 10
    assert receiver.most_running == 3


async def test_waiting_for_a_turn_does_not_use_up_the_time_to_answer() -> None:
    settings = {"max_connections_per_host": 1, "total_timeout_ms": 1_200}
    async with receiving() as (receiver, port), sending(None, **settings) as outlet:
        receiver.gate = Delay(0.3)
        results = await asyncio.gather(*(outlet.send(to(f"http://127.0.0.1:{port}/")) for _ in range(5)))
        assert results == [Delivered()] * 5  # in 1.5 s


async def test_waiting_for_a_turn_ends() -> None:
    settings = {"max_connections_per_host": 1, "queue_timeout_ms": 50}
    async with receiving() as (receiver, port), sending(None, **settings) as outlet:
        receiver.gate = asyncio.Event()
        first = asyncio.ensure_future(outlet.send(to(f"http://127.0.0.1:{port}/")))
        await receiver.arrived.wait()
        second = await outlet.send(to(f"http://127.0.0.1:{port}/"))
        assert second == Retry("too many deliveries to 127.0.0.1 under way")
        receiver.gate.set()
        assert await first == Delivered()
        assert await outlet.send(to(f"http://127.0.0.1:{port}/")) == Delivered()


async def test_a_cancelled_delivery_gives_its_turn_back() -> None:
    async with receiving() as (receiver, port), sending(max_connections=1) as outlet:
        receiver.gate = asyncio.Event()
        first = asyncio.ensure_future(outlet.send(to(f"http://127.0.0.1:{port}/")))
        await receiver.arrived.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        receiver.gate.set()
        assert await asyncio.wait_for(outlet.send(to(f"http://127.0.0.1:{port}/")), 5) == Delivered()


async def test_closing() -> None:
    resolver = ScriptedResolver(["127.0.0.1"])
    async with receiving() as (receiver, port), sending(resolver) as outlet:
        receiver.gate = asyncio.Event()
        under_way = asyncio.ensure_future(outlet.send(to(f"http://a.example:{port}/")))
        await receiver.arrived.wait()
        await outlet.close()
        assert isinstance(await asyncio.wait_for(under_way, 5), Retry)
        assert await outlet.send(to(f"http://a.example:{port}/")) == Retry("the outlet is closed")
        await outlet.close()
    assert resolver.closed


def test_nothing_needs_a_running_loop_before_the_first_delivery() -> None:
    outlet = WebhookOutlet(WebhookSettings(), FixedClock())
    outlet.check("https://a.example/")
    assert outlet.order_key("https://a.example/", "k") == "https://a.example:443/#k"
    asyncio.run(outlet.close())


def _certificate(folder: Path, name: str) -> Path:
    """A certificate for this name that is its own authority, with its key, in one PEM file."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    file = folder / f"{name}.pem"
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    return file


async def test_tls(tmp_path: Path) -> None:
    file = _certificate(tmp_path, "hooks.example")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(file)
    resolver = ScriptedResolver(["127.0.0.1"])
    async with receiving(tls) as (receiver, port):
        async with sending(resolver) as outlet:  # an authority that nobody knows
            verdict = await outlet.send(to(f"https://hooks.example:{port}/"))
            assert verdict == Retry("the TLS certificate is not valid (hooks.example)")
        async with sending(resolver, ca_file=str(file)) as outlet:
            verdict = await outlet.send(to(f"https://other.example:{port}/"))
            assert verdict == Retry("the TLS certificate is not valid (other.example)")
            assert receiver.requests == []
            assert await outlet.send(to(f"https://hooks.example:{port}/")) == Delivered()
    async with receiving() as (receiver, port), sending(resolver) as outlet:  # speaks no TLS
        assert await outlet.send(to(f"https://hooks.example:{port}/")) == Retry("TLS failed (hooks.example)")
        assert receiver.requests == []


def test_a_missing_file_of_authorities_is_found_at_the_start() -> None:
    with pytest.raises(FileNotFoundError):
        WebhookOutlet(WebhookSettings(ca_file="/nonexistent/ca.pem"), FixedClock())
