"""A real standalone cluster on loopback: a master and two workers from the PySpark package, each a process of its own."""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pyspark

from tests.pipeline import archive
from tests.processes import free_port

SPARK_CLASS = Path(pyspark.__file__).parent / "bin" / "spark-class"
WORKERS = 2

GUARD = """
import os, sys

# The package comes from the zip that the driver ships, and from nowhere else.
sys.path[:] = [path for path in sys.path if not os.path.isdir(os.path.join(path, "tarry"))]


def refuse(event, arguments):
    if event in ("open", "os.listdir", "os.scandir") and str(arguments[0]).startswith({forbidden!r}):
        raise PermissionError(f"a worker touched {{arguments[0]}}")


sys.addaudithook(refuse)
open(os.path.join({folder!r}, f"guarded-{{os.getpid()}}"), "w").close()
"""
"""Code that every Python of a worker runs first: it cannot see the server's folder, nor this package where it is installed."""


class Cluster:
    """A running cluster."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.master = f"spark://127.0.0.1:{port}"

    def guarded(self) -> int:
        """How many Pythons the workers have started."""
        return len(list((self.folder / "guard").glob("guarded-*")))

    def shipped(self) -> set[str]:
        """The executors that were sent the package, by the folders of their workers."""
        return {path.parts[len(self.folder.parts)] for path in self.folder.glob("worker*/app-*/*/tarry.zip")}

    def logs(self) -> str:
        """Everything that the cluster has written as text."""
        found = [*self.folder.glob("*.log"), *self.folder.glob("worker*/app-*/*/std*")]
        return "".join(path.read_text(errors="replace") for path in found)


@contextlib.contextmanager
def running_cluster(folder: Path, forbidden: Path) -> Iterator[Cluster]:
    """Start a cluster whose workers cannot see a folder; whatever still runs at the end is stopped."""
    guard = folder / "guard"
    guard.mkdir(parents=True)
    (guard / "sitecustomize.py").write_text(GUARD.format(forbidden=str(forbidden), folder=str(guard)))
    port = free_port()
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TARRY_", "PYTHON"))}
    environment = kept | {
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_DAEMON_JAVA_OPTS": archive.options(),
        "PYTHONPATH": str(guard),
    }
    cluster = Cluster(folder, port)
    with contextlib.ExitStack() as stack:

        def start(name: str, *command: str) -> None:
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            process = subprocess.Popen(
                [SPARK_CLASS, *command], env=environment, cwd=folder, stdout=log, stderr=log
            )
            stack.callback(_end, process)

        start(
            "master", "org.apache.spark.deploy.master.Master",
            "--host", "127.0.0.1", "--port", str(port), "--webui-port", "0",
        )  # fmt: skip
        for n in range(WORKERS):
            start(
                f"worker{n}", "org.apache.spark.deploy.worker.Worker", "--host", "127.0.0.1", "--webui-port", "0",
                "--cores", "1", "--memory", "600m", "--work-dir", str(folder / f"worker{n}"), cluster.master,
            )  # fmt: skip
        _wait_for(port)
        yield cluster


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            assert time.monotonic() < deadline, "the master does not answer"
            time.sleep(0.1)
        else:
            return


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
