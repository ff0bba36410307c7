"""`tarry export`: what a server holds, as rows in a file, with ids for whoever has the key."""

import csv
import json
import shutil
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tarry import Client
from tests.processes import ROOT, running, tarry

NOON = datetime(2100, 1, 1, 12, tzinfo=UTC)


class Held(NamedTuple):
    """A data folder, and the ids of what is in it by what it is."""

    folder: Path
    ids: dict[str, str]


def full(topic: str) -> str:
    return f"persistent://public/default/{topic}"


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    folder = tmp_path_factory.mktemp("export") / "data"
    with running(folder) as server, Client(server.url) as client:
        client.subscribe("now", "me", start="earliest")
        sent = client.schedule(full("now"), b"x", delay_ms=1)
        (entry,) = client.receive("now", "me", max=1, wait_ms=20_000)
        ids = {
            "plain": client.schedule(
                full("a"),
                "über",
                due_at=NOON,
                owner="ann",
                key="k",
                headers={"a": "b", "Authorization": "Bearer x"},
            ).id,
            "bytes": client.schedule(full("a"), b"\xff", due_at=NOON + timedelta(hours=1), owner="bob").id,
            "moved": client.schedule("https://example.org/?token=x", due_at=NOON).id,
            "sent": sent.id,
            "gone": client.schedule(full("a"), delay="1d", owner="ann").id,
        }
        client.restart(ids["moved"], due_at=NOON + timedelta(days=1))
        client.cancel(ids["gone"])
        client.publish("entries", "later", due_at=NOON)
        (ids["entry"],) = (one.id for one in client.list(destination=full("entries")))
        assert entry.payload == b"x"
        yield Held(folder, ids)


def exported(held: Held, *arguments: str) -> list[dict[str, Any]]:
    """The rows that a command wrote to standard output."""
    ended = tarry("export", "-", "--data", str(held.folder), *arguments)
    assert ended.returncode == 0, ended.stderr
    return list(csv.DictReader(ended.stdout.splitlines()))


def test_every_message_that_waits_is_a_row_with_the_id_that_the_api_gives(held: Held) -> None:
    rows = exported(held, "--ids", "--bodies")
    by_id = {row["id"]: row for row in rows}
    assert set(by_id) == {held.ids[name] for name in ("plain", "bytes", "moved", "entry")}
    plain = by_id[held.ids["plain"]]
    assert plain["due_at"] == "2100-01-01 12:00:00.000Z"
    assert {name: plain[name] for name in ("namespace", "destination", "owner", "key", "door", "entry")} == {
        "namespace": "public/default",
        "destination": full("a"),
        "owner": "ann",
        "key": "k",
        "door": "http",
        "entry": "false",
    }
    assert (plain["payload"], plain["payload_base64"]) == ("über", "")
    assert json.loads(plain["headers"]) == {"a": "b", "Authorization": "********"}
    data = by_id[held.ids["bytes"]]
    assert (data["payload"], data["payload_base64"]) == ("", "/w==")
    moved = by_id[held.ids["moved"]]
    assert (moved["due_at"], moved["destination"]) == (
        "2100-01-02 12:00:00.000Z",
        "https://example.org/?token=********",
    )
    assert by_id[held.ids["entry"]]["entry"] == "true"


def test_neither_spark_nor_pandas_is_needed(held: Held, tmp_path: Path) -> None:
    for name in ("pyspark", "py4j", "pandas"):
        (tmp_path / f"{name}.py").write_text(f"raise ModuleNotFoundError('not here', name={name!r})")
    path = f"{tmp_path}:{ROOT / 'src'}"
    for view, rows in (("scheduled", 4), ("history", 2)):
        ended = tarry("export", "-", "--view", view, "--data", str(held.folder), PYTHONPATH=path)
        assert (ended.returncode, len(ended.stdout.splitlines())) == (0, 1 + rows), ended.stderr


def test_ids_and_payloads_are_written_only_when_asked_for(held: Held) -> None:
    rows = exported(held)
    assert len(rows) == 4
    assert not {"id", "payload", "headers"} & set(rows[0])
    assert not set(held.ids.values()) & {cell for row in rows for cell in row.values()}


def test_the_history_as_parquet_has_types_and_only_its_owner_may_read_it(held: Held, tmp_path: Path) -> None:
    file = tmp_path / "ended.parquet"
    file.write_text("old")
    file.chmod(0o644)
    ended = tarry("export", str(file), "--view", "history", "--data", str(held.folder), "--ids")
    assert ended.stderr.endswith(f"tarry: 2 messages written to {file}\n")
    assert file.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in tmp_path.iterdir()] == [file.name]
    table = pq.read_table(file)
    assert table.schema.field("finalised_at").type == pa.timestamp("ms", "UTC")
    rows = {row["id"]: row for row in table.to_pylist()}
    assert {id_: row["outcome"] for id_, row in rows.items()} == {
        held.ids["sent"]: "sent",
        held.ids["gone"]: "cancelled",
    }
    assert rows[held.ids["sent"]]["lateness_ms"] >= 0


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--where", "owner=ann"], ["plain"]),
        (["--where", f"destination={full('a')}", "--from", "2100-01-01T12:30:00Z"], ["bytes"]),
        (["--to", "2100-01-01T12:00:00Z"], ["plain", "entry"]),
        (["--from", "2100-01-02T00:00:00Z"], ["moved"]),
        (["--where", "owner=nobody"], []),
    ],
)
def test_only_the_rows_that_were_asked_for(held: Held, arguments: list[str], names: list[str]) -> None:
    assert {row["id"] for row in exported(held, "--ids", *arguments)} == {held.ids[name] for name in names}


def refused(*arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    ended = tarry("export", *map(str, arguments))
    assert ended.stdout == ""
    return ended


def test_without_the_key_there_are_no_ids(held: Held, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(held.folder / "ledger", copy / "ledger")
    ended = refused("-", "--data", copy, "--ids")
    assert ended.returncode == 5
    assert "only the user of the server may; leave --ids away" in ended.stderr
    assert len(exported(Held(copy, {}))) == 4


def test_what_cannot_be_is_told_and_leaves_no_file(held: Held, tmp_path: Path) -> None:
    assert refused("x.txt").returncode == 2
    assert refused("-", "--where", "owner").returncode == 2
    unknown = refused(tmp_path / "a.csv", "--data", held.folder, "--where", "colour=red")
    assert (unknown.returncode, unknown.stderr.splitlines()[-1]) == (
        5,
        "tarry: is.colour: there is no such column",
    )
    nowhere = refused(tmp_path / "none" / "a.csv", "--data", held.folder)
    assert "cannot be written: No such file or directory" in nowhere.stderr
    assert refused("-", "--data", tmp_path / "missing").returncode == 3
    assert not list(tmp_path.iterdir())
