"""`tarry bulk` against a real server: from files of every format, once for each name, or not at all."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tarry.index import rowfiles
from tarry.ledger.record import Put, decode_put
from tests.processes import ServerProcess, running
from tests.unit.cli_kit import Shell

DUE_MS = 4_000_000_000_000
DUE = "2096-10-02T07:06:40Z"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("bulk") / "data"


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[ServerProcess]:
    with running(data) as started:
        yield started


@pytest.fixture
def tarry(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Shell:
    monkeypatch.chdir(tmp_path)
    shell = Shell(monkeypatch, capsys)
    shell.set("TARRY_URL", server.url)
    return shell


def staged(data: Path, name: str) -> list[Put]:
    """The messages that were staged for a batch, by payload."""
    puts: list[Put] = []
    for path in (data / "tables" / "index" / "staged").rglob("*.parquet"):
        table = pq.ParquetFile(path).read(["batch", "body"])
        if table["batch"][0].as_py() == name:
            puts += map(decode_put, table["body"].to_pylist())
    return sorted(puts, key=lambda put: put.payload)


def test_the_life_of_a_batch(tarry: Shell, tmp_path: Path, data: Path) -> None:
    table = pa.table({"at": [DUE_MS + n for n in range(500)], "body": [f"{n:03}" for n in range(500)]})
    pq.write_table(table, tmp_path / "letters.parquet")
    arguments = (
        "letters.parquet",
        "--due-column",
        "at",
        "--payload-column",
        "body",
        "--destination",
        "letters",
    )
    ended = tarry("bulk", "schedule", *arguments)
    assert (ended.code, ended.out) == (0, "letters.parquet: 500 messages scheduled\n")
    puts = staged(data, "letters.parquet")
    assert [(put.payload, put.due_at_ms) for put in puts[:2]] == [(b"000", DUE_MS), (b"001", DUE_MS + 1)]
    again = tarry("bulk", "schedule", *arguments)
    assert (again.code, again.out) == (0, "letters.parquet: was scheduled before, with 500 messages\n")
    assert len(staged(data, "letters.parquet")) == 500
    pq.write_table(table.slice(1), tmp_path / "letters.parquet")
    assert tarry("bulk", "schedule", *arguments).code == 4
    (other,) = tarry("bulk", "schedule", *arguments, "--name", "other", "--json").json()
    assert (other["count"], other["repeated"]) == (499, False)
    listed = tarry("bulk", "list").out
    assert listed.index("other") < listed.index("letters.parquet")
    assert [batch["name"] for batch in tarry("bulk", "list", "--limit", "1", "--json").json()] == ["other"]
    assert "500" in tarry("bulk", "show", "letters.parquet").out
    (cancelled,) = tarry("bulk", "cancel", "other", "--json").json()
    assert (cancelled["remaining"], cancelled["cancelled"]) == (0, 499)
    assert "cancelled" in tarry("bulk", "show", "other").out
    assert tarry("bulk", "show", "nothing").code == 3
    assert tarry("bulk", "cancel", "nothing").code == 3


def test_csv_is_text_and_nothing_is_guessed(tarry: Shell, tmp_path: Path, data: Path) -> None:
    (tmp_path / "a.csv").write_text(
        f'due,payload,key,ttl_ms,more\n{DUE},007,1e3,5,x\n{DUE_MS},"two\nlines",,,y\n2096-10-02 09:06:40,,k,,z\n'
    )
    arguments = ("bulk", "schedule", "a.csv", "--destination", "t", "--timezone", "Europe/Berlin")
    refused = tarry(*arguments)
    assert refused.code == 5
    assert "more: is not a column" in refused.err
    assert tarry(*arguments, "--ignore-unknown").code == 0
    puts = staged(data, "a.csv")
    assert [put.payload for put in puts] == [b"", b"007", b"two\nlines"]
    assert {put.due_at_ms for put in puts} == {DUE_MS}
    assert [(put.key, put.ttl_ms) for put in puts] == [("k", None), ("1e3", 5), (None, None)]


def test_ndjson_keeps_payloads_as_they_are(tarry: Shell, tmp_path: Path, data: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"delay_ms": 3_600_000, "payload": "text", "destination": "a"},
        {"delay_ms": "3600000", "payload": {"z": None, "n": 1.0}, "headers": {"h": "v"}, "owner": "ann"},
        {"delay_ms": 3_600_000},
    ]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    assert tarry("bulk", "schedule", "a.jsonl", "--destination", "b", "--owner", "bob").code == 0
    empty, text, json_ = staged(data, "a.jsonl")
    assert (empty.payload, empty.owner, empty.destination) == (b"", "bob", "persistent://public/default/b")
    assert (json_.payload, json_.headers, json_.owner) == (b'{"z": null, "n": 1.0}', {"h": "v"}, "ann")
    assert (text.payload, text.destination) == (b"text", "persistent://public/default/a")
    assert all(put.delay_ms == 3_600_000 for put in (empty, json_, text))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.ndjson", '{"due": 1, "payload": "x"}\n{"due": 1, "payload"', "row 2"),
        ("b.ndjson", '{"due": 1}\n{"due": 1, "colour": 2}', "row 2: colour"),
        ("c.ndjson", '{"due": 1}\n{"due": 1, "key": 2}', "row 2: key: is not a string"),
        ("n.ndjson", '{"due": 1}\n{"delay_ms": 1}', "row 2: delay_ms: is not a field"),
        ("o.ndjson", '{"payload": 1}', "row 1: due: is missing"),
        ("d.ndjson", '{"due": 1}\n{"due": "soon"}', "row 2: due: is not an instant"),
        ("e.csv", "due,payload\n1,x\nsoon,y\n", "row 2: due: is not an instant"),
        ("f.csv", "payload\nx\n", "due: there must be one column"),
        ("g.csv", "due,payload\n1,x,extra\n", "cannot be read as CSV"),
        ("h.parquet", "nonsense", "cannot be read as Parquet"),
        ("i.txt", "x", "does not say what it is"),
        ("j.csv", "due,payload\n", "has no rows"),
    ],
)
def test_what_cannot_be_scheduled_is_refused_as_a_whole(
    tarry: Shell, tmp_path: Path, data: Path, name: str, content: str, said: str
) -> None:
    (tmp_path / name).write_text(content)
    ended = tarry("bulk", "schedule", name, "--destination", "t")
    assert ended.code == 5
    assert said in ended.err
    assert staged(data, name) == []
    assert tarry("bulk", "show", name).code == 3


def test_a_file_that_is_not_there_is_not_understood(tarry: Shell) -> None:
    assert tarry("bulk", "schedule", "none.csv").code == 2


def test_rows_are_counted_over_blocks(
    tarry: Shell, tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rowfiles, "BLOCK_BYTES", 64)
    (tmp_path / "a.ndjson").write_text('{"due": 1}\n' * 50 + '{"due": -1}\n')
    assert "row 51: due: is not an instant" in tarry("bulk", "schedule", "a.ndjson", "--destination", "t").err
    (tmp_path / "b.csv").write_text("due,payload\n" + f"{DUE_MS},x\n" * 50)
    assert tarry("bulk", "schedule", "b.csv", "--destination", "t").code == 0
    assert len(staged(data, "b.csv")) == 50
