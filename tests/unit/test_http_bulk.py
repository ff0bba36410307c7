"""Batches over HTTP: staged files are looked at before they are adopted, and reached by who may."""

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tarry.doors.http.messages import bulk
from tarry.index.inspection import inspect
from tarry.index.manifest import BatchManifest, StagingPlace
from tests.serving import Serving, serving
from tests.unit.staging_kit import staged_manifest


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[Serving]:
    async with serving(tmp_path / "data") as server:
        yield server


async def place(server: Serving, name: str = "letters") -> StagingPlace:
    answer = await server.client.get(f"/v1/batches/{name}/place")
    assert answer.status_code == 200
    return msgspec.json.decode(answer.content, type=StagingPlace)


async def put(server: Serving, name: str, manifest: BatchManifest, **headers: str) -> Any:
    return await server.client.put(
        f"/v1/batches/{name}",
        content=msgspec.json.encode(manifest),
        headers={"content-type": "application/json", **headers},
    )


async def test_a_batch_is_adopted_shown_listed_and_cancelled(served: Serving, tmp_path: Path) -> None:
    at = await place(served)
    assert at.index == str(tmp_path / "data" / "tables" / "index")
    assert at.outlets == ["http", "https"]
    manifest = staged_manifest(at)
    adopted = await put(served, "letters", manifest)
    assert adopted.status_code == 201
    assert adopted.json()["count"] == adopted.json()["remaining"] == 10
    assert adopted.json()["namespaces"] == ["public/default"]
    again = await put(served, "letters", manifest)
    assert (again.status_code, again.json()) == (200, adopted.json())
    assert (await served.client.get("/v1/batches/letters")).json() == adopted.json()
    listed = (await served.client.get("/v1/batches")).json()
    assert listed == {"batches": [adopted.json()], "next_page": None}
    cancelled = (await served.client.delete("/v1/batches/letters")).json()
    assert (cancelled["remaining"], cancelled["cancelled"]) == (0, 10)
    assert (await served.client.delete("/v1/batches/letters")).json() == cancelled


async def test_a_name_is_used_once(served: Serving) -> None:
    at = await place(served)
    assert (await put(served, "letters", staged_manifest(at))).status_code == 201
    # Staged again from the same rows, as a job does that was not sure: the same answer.
    assert (await put(served, "letters", staged_manifest(at))).status_code == 200
    other = await put(served, "letters", staged_manifest(at, rows=11))
    assert other.status_code == 409
    assert other.json()["state"] == "reused"
    # The files of one batch are not adopted under another name too.
    stolen = await put(served, "more", staged_manifest(at))
    assert stolen.status_code == 400
    assert "another name" in stolen.json()["detail"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"path": "../../ledger/00000001.seg"}, "path is not"),
        ({"path": "staged/../staged/x.parquet"}, "path is not"),
        ({"path": "/etc/passwd"}, "path is not"),
        ({"path": None}, "no such file"),
        ({"size_bytes": 5}, "bytes and not 5"),
        ({"rows": 9}, "rows and not 9"),
        ({"low_ms": 5}, "instants are not those"),
        ({"high_ms": 5}, "instants are not those"),
        ({"slot": "300000_0"}, "not in its slot"),
    ],
)
async def test_files_that_are_not_what_the_manifest_says_are_refused(
    served: Serving, change: dict[str, Any], said: str
) -> None:
    at = await place(served)
    manifest = staged_manifest(at)
    file = manifest.files[0]
    if change == {"path": None}:
        change = {"path": file.path.replace(".parquet", "0.parquet")}
    if "rows" in change:
        manifest = msgspec.structs.replace(manifest, owners={"": 9})
    changed = msgspec.structs.replace(manifest, files=[msgspec.structs.replace(file, **change)])
    refused = await put(served, "letters", changed)
    assert refused.status_code == 400
    assert said in refused.json()["detail"]
    assert (await served.client.get("/v1/batches/letters")).status_code == 404


async def test_a_file_that_is_a_link_to_elsewhere_or_no_parquet_is_refused(
    served: Serving, tmp_path: Path
) -> None:
    at = await place(served)
    manifest = staged_manifest(at)
    path = Path(at.index) / manifest.files[0].path
    elsewhere = tmp_path / "elsewhere.parquet"
    os.rename(path, elsewhere)
    path.symlink_to(elsewhere)
    assert "lies elsewhere" in (await put(served, "letters", manifest)).json()["detail"]
    path.unlink()
    path.write_bytes(b"x" * manifest.files[0].size_bytes)
    assert "cannot be read" in (await put(served, "letters", manifest)).json()["detail"]


TOKENS = [
    {"name": "all", "token": "all-secret", "roles": ["produce"]},
    {"name": "eu", "token": "eu-secret", "roles": ["produce"], "namespaces": ["shop/eu"]},
    {"name": "reader", "token": "read-secret", "roles": ["consume"]},
]


async def test_a_batch_is_reached_by_who_may_produce_in_all_of_its_namespaces(tmp_path: Path) -> None:
    async with serving(tmp_path / "data", tokens=TOKENS) as server:
        everywhere, eu, reader = ({"authorization": f"Bearer {token['token']}"} for token in TOKENS)
        get = server.client.get
        at = msgspec.json.decode(
            (await get("/v1/batches/b/place", headers=everywhere)).content, type=StagingPlace
        )
        manifest = staged_manifest(at, name="b")
        assert (await put(server, "b", manifest)).status_code == 401
        assert (await put(server, "b", manifest, **reader)).status_code == 403
        assert (await put(server, "b", manifest, **eu)).status_code == 403
        assert (await put(server, "b", manifest, **everywhere)).status_code == 201
        assert (await get("/v1/batches/b", headers=eu)).status_code == 404
        assert (await get("/v1/batches", headers=eu)).json()["batches"] == []
        assert (await server.client.delete("/v1/batches/b", headers=eu)).status_code == 404
        assert (await server.client.delete("/v1/batches/b", headers=reader)).status_code == 403
        assert (await get("/v1/batches/b", headers=everywhere)).json()["remaining"] == 10
        # Whoever asks for the same name elsewhere learns that it is taken, and nothing else.
        mine = msgspec.structs.replace(manifest, namespaces={"shop/eu": 1}, fingerprint="")
        taken = await put(server, "b", mine, **eu)
        assert (taken.status_code, taken.json()["state"]) == (409, "reused")
        assert not {"remaining", "count", "adopted_at", "namespaces"} & taken.json().keys()


async def test_the_folder_to_stage_in_is_for_nobody_else(tmp_path: Path) -> None:
    tables = tmp_path / "tables"
    async with serving(tmp_path / "data", pipeline__tables=str(tables)) as server:
        assert (await server.client.get("/v1/batches/b/place")).status_code == 200
    assert [path.stat().st_mode & 0o777 for path in (tables / "index", tables / "index" / "staged")] == [
        0o700
    ] * 2


async def test_the_many_manifests_of_one_token_keep_nobody_elses_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two are looked at together: those of one token stand in line behind its first."""
    tokens = [
        {"name": name, "token": f"{name}-token", "roles": ["admin"], "namespaces": ["public/default"]}
        for name in ("greedy", "modest")
    ]
    began, going_on = threading.Event(), threading.Event()

    def slow(folder: str, name: str, *rest: Any) -> None:
        if name.startswith("slow"):
            began.set()
            assert going_on.wait(30)
        inspect(folder, name, *rest)

    monkeypatch.setattr(bulk, "inspect", slow)
    async with serving(tmp_path / "data", tokens=tokens) as served, asyncio.timeout(60):
        headers = {name: {"authorization": f"Bearer {name}-token"} for name in ("greedy", "modest")}
        found = await served.client.get("/v1/batches/modest/place", headers=headers["modest"])
        manifest = staged_manifest(msgspec.json.decode(found.content, type=StagingPlace), name="modest")
        waiting = [
            asyncio.create_task(put(served, f"slow{number}", manifest, **headers["greedy"]))
            for number in range(4)
        ]
        try:
            assert await asyncio.to_thread(began.wait, 30)
            for _ in range(8):
                # Meanwhile the others have come too.
                await served.client.get("/v1/batches", headers=headers["greedy"])
            done = await put(served, "modest", manifest, **headers["modest"])
            assert done.status_code == 201
        finally:
            going_on.set()
            await asyncio.gather(*waiting)
