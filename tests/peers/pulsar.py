"""Servers for suites of Pulsar's clients: one plain and one with TLS, in place of the one Pulsar that these suites expect."""

import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from urllib.request import Request, urlopen

from tests.peers.suite import Case
from tests.peers.workplace import Door, Workplace
from tests.processes import ServerProcess

SEGMENT_BYTES: Final = str(32 << 20)
"""Segments for the largest messages of the suites."""
AT_ONCE: Final = 3
"""Cases that run at the same time: they wait more than they work, and each has topics of its own."""


def serve_pair(
    workplace: Workplace, certs: Path, namespaces: Iterable[str], **settings: int
) -> dict[str, int]:
    """Start both servers with the suite's own certificate; gives the port that takes the place of each of Pulsar's.

    `settings` are those of the Pulsar door that the suite's own set-up of Pulsar has.
    """
    certificate = {"tls_cert": str(certs / "broker-cert.pem"), "tls_key": str(certs / "broker-key.pem")}
    plain, secure = Door("pulsar", **settings), Door("pulsar", **settings, **certificate)
    http = "[http]\n" + "".join(f'{key} = "{path}"\n' for key, path in certificate.items())
    servers = [
        workplace.serve(config, TARRY_LEDGER__SEGMENT_BYTES=SEGMENT_BYTES)
        for config in (plain.config, http + secure.config)
    ]
    for server in servers:
        for namespace in namespaces:
            _make_namespace(server, namespace)
    return {"6650": plain.port, "8080": servers[0].port, "6651": secure.port, "8443": servers[1].port}


def _make_namespace(server: ServerProcess, namespace: str) -> None:
    tenant = namespace.partition("/")[0]
    # Nobody else can be at a loopback port that was just taken; certificates of suites may name no host.
    trusting = ssl._create_unverified_context()
    known = ("public",)
    for path in (f"tenants/{tenant}", f"namespaces/{namespace}")[tenant in known :]:
        request = Request(f"{server.url}/admin/v2/{path}", method="PUT")
        urlopen(request, timeout=20, context=trusting).close()


def point(files: Iterable[Path], ports: Mapping[str, int]) -> None:
    """Put the ports of the servers in place of Pulsar's own in a suite's files."""
    for file in files:
        text = file.read_text("utf-8")
        for host in ("localhost", "127.0.0.1"):
            for old, new in ports.items():
                text = text.replace(f"{host}:{old}", f"{host}:{new}")
        file.write_text(text, "utf-8")


def run_each(names: Sequence[str], one: Callable[[str], list[Case]]) -> list[Case]:
    """Run cases, several at a time, and those that fail once more alone: what counts is each of them by itself."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = dict(zip(names, pool.map(one, names), strict=True))
    for name, cases in found.items():
        # Others beside it may have taken its time or changed what it set.
        if any(case.outcome == "failed" for case in cases):
            found[name] = one(name)
        print(f"  {found[name][-1].outcome} {name}", flush=True)
    return [case for cases in found.values() for case in cases]
