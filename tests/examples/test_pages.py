"""The pages of examples/: the program is started as printed, the commands are typed, and both print what the page shows."""

import os
import re
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.documents import Reader, blocks, output_below, runnable, shows
from tests.processes import ROOT, SMALL, free_port, running
from tests.waiting import wait_until

WITHIN_S: Final = 60


class Page(NamedTuple):
    """Changes that a test makes to a page."""

    listens: str = ""
    """The port at which the program listens, if it does."""
    swaps: Mapping[str, str] = {}


PAGES: Final = {
    "examples/fastapi_reminder/README.md": Page("8001"),
    "examples/django_reminder/README.md": Page("8002"),
    "examples/worker/README.md": Page(swaps={"tarry worker": "FIRST_WAIT=50ms tarry worker"}),
    "examples/pulsar_retry/README.md": Page(swaps={"1000,2000,4000": "300,600,1200"}),
    "examples/dapr_order_saga/README.md": Page("8003", {"--data shop-data": "--data data"}),
}


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.parametrize("page", PAGES)
def test_the_program_and_the_commands_print_what_the_page_shows(tmp_path: Path, page: str) -> None:
    changed = PAGES[page]
    pulsar, port = free_port(), free_port()
    config = f"{SMALL}[doors.pulsar]\nenabled = true\nport = {pulsar}\n"
    with running(tmp_path / "data", config) as server:
        swaps = {changed.listens: str(port)} if changed.listens else {}
        swaps |= {
            name: value.replace("--data data", f"--data {tmp_path}/own")
            for name, value in changed.swaps.items()
        }
        given = {"TARRY_URL": server.url, "PULSAR_URL": f"pulsar://127.0.0.1:{pulsar}", "APP_PORT": str(port)}
        if "dapr" in page:
            # Its server is another one, beside the application.
            del given["TARRY_URL"]
        reader = Reader(tmp_path / "reader", swaps, PYTHONUNBUFFERED="1", **given)
        (reader.folder / "examples").symlink_to(ROOT / "examples")
        program, *commands = runnable(page)
        with reader.started(program) as started:
            end = time.monotonic() + WITHIN_S
            while changed.listens and not _listens(port):
                assert time.monotonic() < end
                time.sleep(0.05)
            for block in commands:
                said = reader.run(block)
                if (shown := output_below(block)) is not None:
                    assert shows(shown, said), said
            prints = [block for block in blocks(page) if block.language == "text"]
            expected = set() if output_below(commands[-1]) else set(prints[-1].text.splitlines())
            while expected:
                expected.discard(started.line())


def test_a_receiver_does_what_its_page_shows(tmp_path: Path) -> None:
    served, hooked = free_port(), free_port()
    url = f"http://127.0.0.1:{served}"
    start, receive, ask = runnable("examples/webhook_receiver/README.md")
    export, _ = start.text.strip().splitlines()
    swaps = {"make run": f"tarry serve --port {served} --data {tmp_path}/data", "9000": str(hooked)}
    given = {
        "PORT": str(hooked),
        "TARRY_URL": url,
        "TARRY_LEDGER__SEGMENT_BYTES": "1048576",
        "PYTHONUNBUFFERED": "1",
    }
    secret = Reader(tmp_path / "first", {}).run(start._replace(text=f"{export}\necho $SECRET")).strip()
    reader = Reader(tmp_path / "reader", swaps, SECRET=secret, **given)
    (reader.folder / "examples").symlink_to(ROOT / "examples")
    # The same secret in each terminal.
    with reader.started(start._replace(text=start.text.replace(export, ""))) as server:
        assert f"ready on {url}" in server.line()
        with reader.started(receive) as receiver:
            wait_until(lambda: _listens(hooked))
            said, shown = reader.run(ask), output_below(ask)
            assert shown is not None
            assert shows(shown, said), said
            prints = [block for block in blocks(ask.page) if block.language == "text"]
            assert receiver.line() == prints[-1].text.strip()


def test_a_campaign_is_one_batch(tmp_path: Path) -> None:
    (block,) = runnable("examples/campaign/README.md")
    program, *_ = block.text.splitlines(keepends=True)
    with running(tmp_path / "data") as server:
        swaps = {"http://127.0.0.1:8080": f"{server.url} 20000"}
        small = {"PYSPARK_SUBMIT_ARGS": "--driver-memory 512m pyspark-shell"}
        reader = Reader(tmp_path / "reader", swaps, TARRY_URL=server.url, **small)
        (reader.folder / "examples").symlink_to(ROOT / "examples")
        said, shown = reader.run(block), output_below(block)
        assert shown is not None
        assert shows(shown.replace("1,000,000", "20,000").replace("1000000", "20000"), said), said
        # Typed again, it schedules nothing twice.
        assert reader.run(block._replace(text=program)) == "scheduled 20,000 letters\n"


def test_every_example_has_a_page_that_a_test_reads() -> None:
    folders = {
        path.name
        for path in (ROOT / "examples").iterdir()
        if path.is_dir() and not path.name.startswith("__")
    }
    named = re.findall(r"^\| \[(\w+)\]\(", (ROOT / "examples" / "README.md").read_text(), re.MULTILINE)
    assert set(named) == folders
    assert all(os.path.exists(ROOT / "examples" / name / "README.md") for name in folders)
