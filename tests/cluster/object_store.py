"""A real S3 store on 127.0.0.1: versitygw over a folder. The first start builds it with Go."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.conformance.dapr.brokers.servers import ROOT, Server

BUCKET: Final = "company-tarry"
_ACCESS: Final = "test-access"
_SECRET: Final = "test-secret"


def versitygw() -> str:
    """The program; skips the test where it cannot be had."""
    done = subprocess.run(
        [ROOT / "tools" / "versitygw.sh"], capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"an S3 store cannot be had here: {done.stderr.strip()}")
    return done.stdout.strip()


class ObjectStore(Server):
    """The store, with one bucket."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (folder / "objects" / BUCKET).mkdir(parents=True)
        (folder / "attributes").mkdir()

    def command(self) -> list[str]:
        """A gateway that keeps attributes beside the objects: not every file system has room for them in its files."""
        return [
            versitygw(), "--access", _ACCESS, "--secret", _SECRET, "--port", f"127.0.0.1:{self.port}",
            "posix", "--sidecar", str(self.folder / "attributes"), str(self.folder / "objects"),
        ]  # fmt: skip

    @property
    def options(self) -> dict[str, str]:
        """Its address and credentials by the names of AWS's own variables, as `storage_options` takes them."""
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}",
            "AWS_ACCESS_KEY_ID": _ACCESS,
            "AWS_SECRET_ACCESS_KEY": _SECRET,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def objects(self) -> list[str]:
        """The names of all objects in the bucket."""
        folder = self.folder / "objects" / BUCKET
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@contextlib.contextmanager
def object_store(folder: Path) -> Iterator[ObjectStore]:
    """A store that runs."""
    store = ObjectStore(folder)
    try:
        store.start()
        yield store
    finally:
        store.kill()
