"""Every command in the documentation is run by a test, and here are the tests of most pages. See `tests.documents`."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer.main
import yaml

from tarry.cli.app import app
from tarry.config import load
from tarry.outlets.webhook.signing import decode_secret, sign
from tests.documents import (
    NOT_RUN,
    RUN_BY,
    SHELL,
    Reader,
    blocks,
    excuse,
    output_below,
    pages,
    runnable,
    typed_and_shown,
)
from tests.processes import ROOT, SMALL, ServerProcess, free_port

KNOWN = (*SHELL, "python", "toml", "yaml", "json", "http", "proto", "text")


@pytest.mark.parametrize("page", pages())
def test_no_command_is_left_out(page: str) -> None:
    for block in blocks(page):
        place = f"{page}:{block.line}"
        assert block.language in KNOWN, f"{place}: {block.language} is a language that no test knows"
        if block.language in (*SHELL, "python"):
            told = excuse(block) is not None or page in RUN_BY
            assert told, (
                f"{place}: no test runs this; add the page to RUN_BY, or the block to NOT_RUN with the reason"
            )


def test_who_is_said_to_run_a_page_does_and_no_excuse_is_left_over() -> None:
    for page, tests in RUN_BY.items():
        assert runnable(page), page
        for test in tests:
            assert f'"{page}"' in (ROOT / test).read_text("utf-8"), (page, test)
    for page, begins in NOT_RUN:
        assert any(block.text.startswith(begins) for block in blocks(page)), (page, begins)


# The pages


@contextmanager
def reading(folder: Path) -> Iterator[Reader]:
    """A reader, and a server with the doors open that the pages need."""
    doors = {"pulsar": free_port(), "dapr": free_port()}
    config = SMALL + "".join(
        f"[doors.{name}]\nenabled = true\nport = {port}\n" for name, port in doors.items()
    )
    with ServerProcess(folder / "tarry-data", config + f"grpc_port = {(grpc := free_port())}\n") as server:
        server.start()
        swaps = {
            "127.0.0.1:8080": f"127.0.0.1:{server.port}",
            "localhost:3500": f"127.0.0.1:{doors['dapr']}",
            "localhost:6650": f"127.0.0.1:{doors['pulsar']}",
            "--app-port 8000": f"--app-port {free_port()}",
            # It runs a server of its own, beside this one.
            "tarry dapr run": "tarry dapr run --data of-the-application --port 0",
        }
        ports = {"DAPR_HTTP_PORT": str(doors["dapr"]), "DAPR_GRPC_PORT": str(grpc)}
        yield Reader(folder, swaps, TARRY_URL=server.url, TARRY_LEDGER__SEGMENT_BYTES="1048576", **ports)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """One server for most pages."""
    with reading(tmp_path_factory.mktemp("docs")) as made:
        yield made


@pytest.fixture(scope="module")
def beginner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """One server for the quick starts, on which nobody has been before."""
    with reading(tmp_path_factory.mktemp("quickstart")) as made:
        yield made


def test_http(reader: Reader) -> None:
    one, repeat, command, pause = (reader.run(block) for block in runnable("docs/doors/http.md"))
    assert '"id":' in one
    assert '"state":"active"' in repeat
    assert '"phase":"counting"' in command
    assert pause.count('"kind":"destination"') == 2


def test_dapr(reader: Reader) -> None:
    (reader.folder / "components").mkdir()
    (reader.folder / "app.py").write_text("import os; print('runs beside', os.environ['APP_ID'])")
    (beside,) = (reader.run(block) for block in runnable("docs/doors/dapr.md"))
    assert beside.endswith("runs beside shop\n")


def test_pulsar(reader: Reader) -> None:
    waiting = [{"payload": "later", "key": key, "delay": "1h"} for key in ("customer-7", "another")]
    url = f"http://{reader.swaps['127.0.0.1:8080']}/v1/topics/public/default/orders/messages"
    for one in waiting:
        assert httpx.post(url, json=one).status_code == 201
    policies, delayed = runnable("docs/doors/pulsar.md")
    assert '"msgRateIn"' in reader.run(policies)
    reader.swaps["7:42"] = _last_id(reader)
    told = reader.run(delayed)
    assert "customer-7" in told


def _last_id(reader: Reader) -> str:
    """The id in `list-delayed` of the entry that the page calls `7:42`."""
    listing = runnable("docs/doors/pulsar.md")[-1]._replace(text="tarry pulsar topics list-delayed orders\n")
    return str(re.findall(r"^(\d+:\d+):", reader.run(listing), re.MULTILINE)[-1])


@pytest.mark.parametrize(
    "page", ["docs/quickstart/http.md", "docs/quickstart/pulsar.md", "docs/quickstart/dapr.md"]
)
def test_a_quick_start_prints_what_it_shows(beginner: Reader, page: str) -> None:
    assert all(output_below(block) is not None for block in runnable(page))
    typed_and_shown(beginner, page)


def test_bulk(reader: Reader) -> None:
    later = datetime.now(UTC) + timedelta(days=1)
    letters = pa.table({"send_at": [later, later], "body": ["a", "b"]})
    pq.write_table(letters, reader.folder / "letters.parquet")
    (told,) = (reader.run(block) for block in runnable("docs/bulk.md", "sh"))
    assert told.count("letters.parquet") >= 2


def test_backup(reader: Reader) -> None:
    places = {"/backups/2031-05-04": "backup", "/var/lib/tarry": "restored"}
    reader.swaps |= {told: str(reader.folder / here) for told, here in places.items()}
    for block in runnable("docs/operations/backup.md"):
        reader.run(block)
    assert (reader.folder / "restored" / "ledger").is_dir()


def test_matrix(reader: Reader) -> None:
    (told,) = (reader.run(block) for block in runnable("docs/operations/matrix.md"))
    assert told == "0 cancelled\n"


def test_a_world_of_ones_own_and_the_simulation(reader: Reader) -> None:
    reader.swaps |= {"--seeds 500": "--seeds 1", "--steps 600": "--steps 20"}
    world, simulation = (reader.run(block) for block in runnable("docs/testing.md"))
    assert (world, "seed" in simulation) == ("", True)


def test_the_receiver_of_a_webhook() -> None:
    (code,) = runnable("docs/outlets/webhook.md")
    names: dict[str, Any] = {}
    exec(code.text, names)
    body, now_s = b"hello", names["time"].time_ns() // 1_000_000_000
    assert names["receive"]({}, body, set()) == 401
    signature = sign(map(decode_secret, names["SECRETS"]), "m1", now_s, body)
    headers = {"webhook-id": "m1", "webhook-timestamp": str(now_s), "webhook-signature": signature}
    seen: set[str] = set()
    assert names["receive"](headers, body, seen) == 204
    assert seen == {"m1"}


# What is not run, and is yet to be true


def inline() -> list[tuple[str, str]]:
    """Commands in the middle of a sentence."""
    found: list[tuple[str, str]] = []
    for page in (*pages(), "CONTRIBUTING.md"):
        text = re.sub(
            r"^ *```.*?^ *```$", "", (ROOT / page).read_text("utf-8"), flags=re.DOTALL | re.MULTILINE
        )
        found += [(page, code) for code in re.findall(r"`((?:tarry|make) [a-z][^`]*)`", text)]
    return found


@cache
def commands() -> Any:
    return typer.main.get_command(app)


@pytest.mark.parametrize(("page", "code"), sorted(set(inline())))
def test_a_command_in_a_sentence_exists_with_its_options(page: str, code: str) -> None:
    program, *words = shlex.split(code.replace("…", "").replace("|", " ").replace("'", ""))
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert words[0] in targets, (page, code)
        return
    command, parents = commands(), []
    while words and getattr(command, "commands", None):
        assert words[0] in command.commands, (page, code)
        parents.append(command)
        command = command.commands[words.pop(0)]
    options = {
        option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
    }
    for word in words:
        if word.startswith("-") and word != "--":
            assert word.partition("=")[0] in options | {"--help"}, (page, code, sorted(options))


def configurations() -> list[Any]:
    return [block for page in pages() for block in blocks(page) if block.language == "toml"]


@pytest.mark.parametrize("block", configurations(), ids=lambda block: f"{block.page}:{block.line}")
def test_settings_are_settings(block: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    text = re.sub(r"^   ", "", block.text, flags=re.MULTILINE)
    if not text.startswith(("[", "data")):
        # The section of the page that it stands in says whose it is.
        text = f"[webhook]\n{text}"
    for name in re.findall(r'_file = "(.*)"', text):
        (tmp_path / Path(name).name).write_text("token-of-a-file")
        text = text.replace(name, str(tmp_path / Path(name).name))
    (tmp_path / "tarry.toml").write_text(text)
    assert tomllib.loads(text)
    load(str(tmp_path / "tarry.toml"), {})


@pytest.mark.parametrize("page", pages())
def test_other_blocks_can_be_read(page: str) -> None:
    for block in blocks(page):
        if block.language == "yaml":
            assert list(yaml.safe_load_all(block.text))
        elif block.language == "json":
            assert yaml.safe_load(block.text) is not None
