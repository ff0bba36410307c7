"""The pipeline on a cluster, with workers that cannot see the server's ledger: they read it from the server."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tarry.index.delta import DeltaIndex
from tarry.index.progress import read_progress
from tarry.ledger.follow import FolderFollower
from tarry.ledger.record import Key
from tests.pipeline import archive
from tests.pipeline.cluster import WORKERS, Cluster, running_cluster
from tests.pipeline.test_program import once
from tests.processes import ServerProcess, running

TOKEN = "secret-of-the-cluster"
CONFIG = f"""
[ledger]
segment_bytes = 1048576
[[tokens]]
name = "pipeline"
token = "{TOKEN}"
roles = ["admin"]
"""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("server") / "data"
    with running(folder, CONFIG) as process:
        yield process


@pytest.fixture(scope="session")
def cluster(server: ServerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster"), _data(server)) as cluster:
        yield cluster


def _data(server: ServerProcess) -> Path:
    return server.folder


def _schedule(server: ServerProcess) -> set[int]:
    """Messages over several segments, some of them cancelled; gives the due instants of the others."""
    lines = [
        json.dumps({"destination": "t", "delay_ms": 3_600_000 + n, "payload": f"{n}" * 3_000})
        for n in range(400)
    ]
    headers = {"authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=server.url, headers=headers, trust_env=False, timeout=30) as client:
        answer = client.post(
            "/v1/messages/batch",
            content="\n".join(lines) + "\n",
            headers={"content-type": "application/x-ndjson"},
        )
        scheduled = [json.loads(line) for line in answer.text.splitlines()]
        for one in scheduled[:10]:
            assert client.delete(f"/v1/messages/{one['id']}").status_code == 200
    return {one["due_at_ms"] for one in scheduled[10:]}


def test_executors_that_cannot_see_the_ledger_read_it_from_the_server(
    cluster: Cluster, server: ServerProcess, tmp_path: Path
) -> None:
    due = _schedule(server)
    token = tmp_path / "token"
    token.write_text(TOKEN)
    ran = once(
        tmp_path / "driver",
        TARRY_PIPELINE__MASTER=cluster.master,
        # A busy machine takes its time over six processes of Java.
        TARRY_PIPELINE__CONNECT_TIMEOUT_MS="200000",
        TARRY_PIPELINE__SERVER=server.url,
        TARRY_PIPELINE__TOKEN_FILE=str(token),
        TARRY_PIPELINE__TABLES=str(tmp_path / "tables"),
        TARRY_PIPELINE__SPARK=json.dumps(
            {
                "executor.memory": "512m",
                "executor.cores": "1",
                "executor.extraJavaOptions": archive.options(),
                "driver.extraJavaOptions": archive.options(),
                "driver.host": "127.0.0.1",
                "log.level": "INFO",
            }
        ),
        SPARK_LOCAL_IP="127.0.0.1",
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    follower = FolderFollower(str(_data(server) / "ledger"))
    assert len(follower.bounds()) > WORKERS
    view = DeltaIndex(str(tmp_path / "tables/index"), follower.ledger_id()).newest()
    assert set(view.load(Key(0, 0), Key(1 << 47, 0), 1 << 40).due.fire_at_ms.tolist()) == due
    progress = read_progress(tmp_path / "driver/pipeline")
    assert progress is not None
    assert (progress.state, progress.cursor) == ("stopped", view.cursor)
    # Both took part, with the package that they were sent, behind the guard; and nobody wrote the token down.
    assert cluster.shipped() == {f"worker{n}" for n in range(WORKERS)}
    assert cluster.guarded() >= WORKERS
    spark = (tmp_path / "driver/pipeline/spark.log").read_text()
    assert "INFO" in spark
    assert TOKEN not in ran.stderr + ran.stdout + spark + cluster.logs()
