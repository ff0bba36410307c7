"""A backup of a server whose ledger was reclaimed because the index has it: the copy stands by itself, and its books balance."""

import json
from pathlib import Path

import httpx
import pytest
from pyspark.sql import SparkSession

from tarry.pipeline.audit.audit import audit
from tarry.pipeline.stream import Tables
from tarry.serve.backup.archive import read_manifest
from tests.pipeline.kit import index_folder
from tests.processes import running
from tests.unit.cli_kit import Shell
from tests.waiting import wait_until

CONFIG = """
[ledger]
segment_bytes = 1048576
[engine]
snapshot_every_ms = 300
reclaim_every_ms = 200
lead_ms = 1000
"""
SUBSCRIPTION = "/v1/topics/public/default/orders/subscriptions/s"


def scheduled(client: httpx.Client, count: int, delay: str, name: str) -> list[str]:
    """Schedule messages of 20 kB; gives their ids."""
    lines = [
        json.dumps(
            {"destination": "orders", "delay_ms": int(delay), "key": f"{name}-{n}", "payload": "x" * 20_000}
        )
        for n in range(count)
    ]
    answer = client.post(
        "/v1/messages/batch",
        content="\n".join(lines) + "\n",
        headers={"content-type": "application/x-ndjson"},
    )
    return [json.loads(line)["id"] for line in answer.text.splitlines()]


def test_a_backup_of_index_and_ledger_is_restored_and_audited(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shell = Shell(monkeypatch, capsys)
    data, copy, new = tmp_path / "data", tmp_path / "copy", tmp_path / "new"
    with (
        running(data, CONFIG) as server,
        httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client,
    ):
        client.put(SUBSCRIPTION, json={"start": "earliest"})
        far = scheduled(client, 100, "7200000", "far")
        due = scheduled(client, 20, "12000", "due")
        assert client.delete(f"/v1/messages/{far[0]}").status_code == 200
        index_folder(str(data / "ledger"))

        # Segments go once the index has what is in them, and the registry's snapshots are past them.
        def reclaimed() -> bool:
            scheduled(client, 1, "7200000", "more")
            return int(client.get("/v1/ledger").json()["first_seq"]) > 1

        wait_until(reclaimed, lambda: "nothing was reclaimed")
        tail = scheduled(client, 1, "7200000", "tail")
        ended = shell("backup", str(copy), "--data", str(data), "--url", server.url)
        assert ended.code == 0, ended.err
    manifest = read_manifest(copy)
    assert manifest.index_cursor is not None
    assert 0 < manifest.index_cursor < manifest.seq
    assert any(name.startswith("tables/index/slot=") for name in manifest.files)
    assert any(name.startswith("tables/history/_delta_log/") for name in manifest.files)

    assert shell("restore", str(copy), "--data", str(new)).code == 0
    verdict = audit(spark, {"path": str(new)})
    assert verdict.balanced, verdict
    with (
        running(new, CONFIG) as server,
        httpx.Client(base_url=server.url, timeout=60, trust_env=False) as client,
    ):
        states = {client.get(f"/v1/messages/{id_}").json()["state"] for id_ in (*far[1:], *tail)}
        assert states == {"scheduled"}
        assert client.get(f"/v1/messages/{far[0]}").json()["state"] == "cancelled"
        keys: list[str] = []
        while len(keys) < len(due):
            came = client.post(f"{SUBSCRIPTION}/receive", json={"wait_ms": 50_000, "max": 100}).json()[
                "messages"
            ]
            assert came, keys
            keys += [one["key"] for one in came]
            client.post(f"{SUBSCRIPTION}/ack", json={"entry_ids": [one["entry_id"] for one in came]})
        assert sorted(keys) == sorted(f"due-{n}" for n in range(20))
        # And it goes on from there: what is indexed next follows what the backup had.
        index_folder(str(new / "ledger"))
        tables = Tables.open(str(new / "tables"), bytes.fromhex(manifest.ledger_id))
        assert tables.index.cursor() > manifest.seq
