"""Batches that are staged as files and adopted: whole, with a manifest that says something else, again, and cancelled."""

import asyncio
from typing import Any, Final

import httpx
import msgspec
import pyarrow as pa

from tarry.core.errors import TarryError
from tarry.index.incoming import Mapping
from tarry.index.manifest import BatchManifest, StagingPlace, new_token
from tarry.index.staging import BadRows, Stager, manifest_of
from tests.fuzz.values import Values

NAMES: Final = 20


class Staging:
    """A job that has the rights and the folder, and does not count well."""

    def __init__(self, client: httpx.AsyncClient, values: Values) -> None:
        self.client = client
        self.values = values
        self.accepted: list[str] = []
        """The names of batches, which have no ids."""

    async def step(self) -> None:
        """Stage a batch and have it adopted, or look at one, or cancel it."""
        values = self.values
        name = f"b{values.random.randrange(NAMES)}"
        path = f"/v1/batches/{name}"
        if values.chance(0.3):
            await self._ask(values.one("GET", "GET", "DELETE"), path)
            return
        answer = await self._ask("GET", f"{path}/place")
        if answer.status_code != 200:
            return
        place = msgspec.json.decode(answer.content, type=StagingPlace)
        try:
            manifest = await asyncio.to_thread(self._staged, place, name)
        except (TarryError, BadRows, pa.ArrowInvalid):
            return
        good = msgspec.to_builtins(manifest)
        body = self._spoilt(good) if values.chance(0.5) else good
        answer = await self._ask("PUT", path, msgspec.json.encode(body))
        if answer.status_code < 300:
            self.accepted.append(name)

    def _staged(self, place: StagingPlace, name: str) -> BatchManifest:
        values = self.values
        rows = values.one(1, 10, 3_000)
        due = [
            place.now_ms + values.one(values.soon_ms(), values.soon_ms(), -values.soon_ms(), 3_600_000)
            for _ in range(rows)
        ]
        columns: dict[str, Any] = {
            "due": pa.array(due, pa.int64()),
            "payload": [values.text(30) for _ in range(rows)],
            "destination": [f"persistent://public/default/{values.name()}" for _ in range(rows)],
            **values.some(
                owner=lambda: [values.text(40) for _ in range(rows)], key=lambda: [values.text(100) for _ in range(rows)],
                ttl_ms=lambda: pa.array([abs(values.integer()) % (1 << 62) for _ in range(rows)], pa.int64()),
            ),
        }  # fmt: skip
        stager = Stager(place, Mapping(), name, new_token(name))
        stager.add(pa.record_batch(columns))
        return manifest_of(place, [stager.finish()])

    def _spoilt(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """The manifest with one thing in it another."""
        values = self.values
        file = dict(manifest["files"][0])
        match values.random.randrange(6):
            case 0:
                file[values.one("size_bytes", "rows", "low_ms", "high_ms")] = values.integer()
            case 1:
                file["path"] = values.one(
                    "../x", "/etc/passwd", values.text(300), file["path"] + "x", "staged/../ledger"
                )
            case 2:
                file["slot"] = values.one("0_0", "1_1", f"{abs(values.integer())}_1", values.text(20))
            case 3:
                return manifest | {"owners": {values.text(40): abs(values.integer())}}
            case 4:
                return manifest | {
                    "namespaces": {
                        values.one("public/other", "nowhere/at-all", values.text(30)): values.integer()
                    }
                }
            case _:
                return manifest | {"files": manifest["files"] * 2}
        return manifest | {"files": [file, *manifest["files"][1:]]}

    async def _ask(self, method: str, path: str, body: bytes = b"") -> httpx.Response:
        answer = await self.client.request(
            method, path, content=body, headers={"content-type": "application/json"}
        )
        assert answer.status_code != 500, (method, path, body[:500], answer.text)
        return answer
