"""apache/pulsar-client-go: the tests of its package `pulsar`, each alone, from the Go module proxy.

Its own set-up is one Pulsar that speaks plain and TLS, with a namespace `private/auth`. Here that is two servers: one plain,
and one with the certificate that the module brings.
"""

import json
import re
import shutil
import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final
from urllib.request import Request, urlopen

from tests.peers.gotest import read_cases, read_list
from tests.peers.suite import Case
from tests.peers.workplace import Door, Workplace
from tests.processes import ServerProcess

MODULE: Final = "github.com/apache/pulsar-client-go"
ONE_WITHIN_S: Final = 150
AT_ONCE: Final = 3
"""Tests that run at the same time: they wait more than they work, and each has topics of its own."""

SEGMENT_BYTES: Final = str(32 << 20)
"""Segments for the largest messages of the suite."""


class PulsarGo:
    """See `Suite`."""

    name = "pulsar-go"
    title = "apache/pulsar-client-go `./pulsar`"
    version = "v0.19.0"
    programs = ("go",)
    minutes = 25

    def lacking(self) -> str | None:
        """Nothing beyond Go."""
        return None

    def run(self, workplace: Workplace, only: str) -> list[Case]:
        """Download, point at the servers, build, and run each test by itself."""
        tree = self._tree(workplace)
        door = Door("pulsar")
        self._point(
            tree,
            door.port,
            workplace.serve(door.config, TARRY_LEDGER__SEGMENT_BYTES=SEGMENT_BYTES),
            secure=False,
        )
        certificate = {
            "tls_cert": str(tree / "integration-tests/certs/broker-cert.pem"),
            "tls_key": str(tree / "integration-tests/certs/broker-key.pem"),
        }
        door = Door("pulsar", **certificate)
        http = "[http]\n" + "".join(f'{key} = "{path}"\n' for key, path in certificate.items())
        self._point(
            tree,
            door.port,
            workplace.serve(http + door.config, TARRY_LEDGER__SEGMENT_BYTES=SEGMENT_BYTES),
            secure=True,
        )
        program = workplace.folder / "pulsar.test"
        workplace.must("go", "test", "-c", "-o", program, "./pulsar", cwd=tree, within_s=1800)
        names = [
            name for name in read_list(workplace.must(program, "-test.list", "Test")) if re.search(only, name)
        ]

        def one(name: str) -> list[Case]:
            return self._one(workplace, program, tree / "pulsar", name)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            found = dict(zip(names, pool.map(one, names), strict=True))
        for name, cases in found.items():
            # What counts is each test alone: others beside it may have taken its time or changed what it set.
            if any(case.outcome == "failed" for case in cases):
                found[name] = one(name)
            print(f"  {found[name][-1].outcome} {name}", flush=True)
        return [case for cases in found.values() for case in cases]

    def _tree(self, workplace: Workplace) -> Path:
        """The module's files."""
        told = workplace.must("go", "mod", "download", "-json", f"{MODULE}@{self.version}")
        tree = workplace.cache / "tree"
        shutil.rmtree(tree, ignore_errors=True)
        # Files of the module cache are read-only.
        shutil.copytree(json.loads(told)["Dir"], tree, copy_function=shutil.copyfile)
        return tree

    @staticmethod
    def _point(tree: Path, binary: int, server: ServerProcess, *, secure: bool) -> None:
        """Put a server's ports in place of the suite's own, and make the namespace that it expects."""
        ports = {"6651": binary, "8443": server.port} if secure else {"6650": binary, "8080": server.port}
        # The administration's client has the address in its code.
        for file in tree.rglob("*.go"):
            text = file.read_text("utf-8")
            for host in ("localhost", "127.0.0.1"):
                for old, new in ports.items():
                    text = text.replace(f"{host}:{old}", f"{host}:{new}")
            file.write_text(text, "utf-8")
        trusted = ssl.create_default_context(cafile=tree / "integration-tests/certs/cacert.pem")
        base = f"{'https' if secure else 'http'}://localhost:{server.port}/admin/v2"
        for path in ("tenants/private", "namespaces/private/auth"):
            urlopen(Request(f"{base}/{path}", method="PUT"), timeout=20, context=trusted).close()

    @staticmethod
    def _one(workplace: Workplace, program: Path, cwd: Path, name: str) -> list[Case]:
        limit = f"-test.timeout={ONE_WITHIN_S}s"
        done = workplace.command(
            program, "-test.v", "-test.run", f"^{name}$", limit, cwd=cwd, within_s=ONE_WITHIN_S + 10
        )
        return read_cases(done.stdout) or [Case(name, "failed", done.stdout[-2000:])]


SUITE: Final = PulsarGo()
