"""Every command that speaks to a server, against a real one."""

import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tarry import Client
from tests.processes import ServerProcess, free_port, running
from tests.unit.cli_kit import Shell
from tests.waiting import wait_until

ID = re.compile(r"[0-9a-f]{32}")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(tmp_path_factory.mktemp("cli") / "data") as started:
        yield started


@pytest.fixture
def tarry(
    server: ServerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Shell:
    monkeypatch.chdir(tmp_path)
    shell = Shell(monkeypatch, capsys)
    shell.set("TARRY_URL", server.url)
    return shell


def test_the_life_of_a_message(tarry: Shell) -> None:
    ended = tarry(
        "schedule", "life", "hello", "--in", "1h", "--key", "k", "--owner", "o", "-H", "a=b=c", "--ttl", "5m"
    )
    assert ended.code == 0
    assert ID.fullmatch(ended.out.strip())
    # Within the same millisecond it is still a whole hour.
    assert re.search(r"in (59 min|1 h 0 min)", ended.err)
    id_ = ended.out.strip()

    shown = tarry("show", id_)
    for fact in (
        "scheduled",
        "persistent://public/default/life",
        "a: b=c",
        "hello",
        "1 h 0 min",
        "5 min 0 s",
    ):
        assert fact in shown.out
    (view,) = tarry("show", id_, "--json").json()
    assert (view["payload"], view["key"], view["owner"], view["headers"]) == ("hello", "k", "o", {"a": "b=c"})
    assert (view["delay_ms"], view["ttl_ms"]) == (3_600_000, 300_000)

    (restarted,) = tarry("restart", id_, "--in", "2h", "--json").json()
    assert restarted["due_at_ms"] > view["due_at_ms"] + 3_000_000
    assert tarry("cancel", id_).out.split() == [id_, "cancelled"]
    again = tarry("cancel", id_)
    assert again.code == 4
    assert again.err.startswith("tarry: ")
    assert "Traceback" not in again.err


def test_the_list(tarry: Shell) -> None:
    ids = [
        tarry("schedule", "listed", f"m{n}", "--in", f"{n + 1}h", "--owner", "list").out.strip()
        for n in range(3)
    ]
    table = tarry("list", "--owner", "list").out
    assert [line.split()[0] for line in table.splitlines()] == ["id", *ids]
    assert "listed" in table
    assert "persistent://" not in table
    assert [view["id"] for view in tarry("list", "--owner", "list", "--json").json()] == ids
    cut = tarry("list", "--owner", "list", "--limit", "2")
    assert len(cut.out.splitlines()) == 3
    assert "the first 2" in cut.err
    assert "no messages" in tarry("list", "--owner", "nobody").err
    tarry("cancel", *ids)
    finalised = tarry("list", "--owner", "list", "--state", "finalised", "--json").json()
    assert {view["state"] for view in finalised} == {"cancelled"}
    assert len(finalised) == 3


def test_policies_are_shown_changed_and_removed(tarry: Shell) -> None:
    place = ("--namespace", "shop/orders")
    set_ = tarry(
        "policy", "set", *place, "--max-delay", "30d", "--retention", "for-ever", "--deduplication", "on"
    )
    assert set_.code == 0
    assert tarry("policy", "set", *place, "--send-per-second", "2.5", "--deduplication", "inherit").code == 0
    (shown,) = tarry("policy", "show", *place, "--json").json()
    assert shown["set"] == {"max_delay_ms": 30 * 86_400_000, "retention_ms": -1, "send_per_second": 2.5}
    assert shown["in_force"]["deduplication"] is False
    table = tarry("policy", "show", *place).out
    assert re.search(r"^retention_ms +for ever +for ever *$", table, re.MULTILINE)
    assert re.search(r"^tick_ms +1 ms *$", table, re.MULTILINE)
    refused = tarry("policy", "set", *place, "--tick", "2d")
    assert (refused.code, "tick_ms" in refused.err) == (5, True)
    assert tarry("policy", "set", *place, "--tick", "soon").code == 2
    assert tarry("policy", "set", *place).code == 2
    assert tarry("policy", "remove", *place).code == 0
    (shown,) = tarry("policy", "show", *place, "--json").json()
    assert shown["set"] == {}


def test_attempts_that_did_not_arrive_are_shown_with_their_instants(tarry: Shell, tmp_path: Path) -> None:
    """The receiver is nobody: each attempt is a line with its instant and the reason."""
    with running(tmp_path / "data", TARRY_WEBHOOK__ALLOW="127.0.0.1") as sender:
        tarry.set("TARRY_URL", sender.url)
        id_ = tarry("schedule", f"http://127.0.0.1:{free_port()}/hook", "x", "--in", "0s").out.strip()
        wait_until(lambda: "attempt 1 " in tarry("show", id_).out)
        (line,) = [line for line in tarry("show", id_).out.splitlines() if line.startswith("attempt 1 ")]
        assert re.fullmatch(r"attempt 1 +\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z  connection refused .*", line)


def test_send_now(tarry: Shell, server: ServerProcess) -> None:
    id_ = tarry("schedule", "sent-now", "x", "--at", "2099-01-01T00:00:00Z").out.strip()
    assert tarry("send", id_).out == f"{id_}  goes out now\n"
    (entry,) = tarry("consume", "sent-now", "s", "--count", "1", "--json").json()
    assert entry["payload"] == "x"
    (view,) = tarry("show", id_, "--json").json()
    assert view["state"] == "sent"


def test_several_ids_are_each_tried(tarry: Shell) -> None:
    good = tarry("schedule", "several", "x", "--in", "1h").out.strip()
    ended = tarry("cancel", "a" * 32, good)
    assert ended.code == 3
    assert ended.out.split() == [good, "cancelled"]
    assert "a" * 32 in ended.err


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["show", "a" * 32], 3, "no such message"),
        (["restart", "b" * 32, "--in", "5s"], 3, "no such message"),
        (["schedule", "t", "x", "--in", "200y"], 2, "is not a duration"),
        (["schedule", "t", "x", "--in", "6000w"], 5, "delay"),
        (
            ["schedule", "t", "x", "--in", "1s", "--at", "2099-01-01T00:00:00Z"],
            2,
            "give --in or --at, not both",
        ),
        (["schedule", "t", "x", "--at", "tomorrow"], 2, "RFC 3339"),
        (["schedule", "t", "x", "--at", "2099-01-01T00:00:00"], 2, "RFC 3339"),
        (["schedule", "t", "x", "--in", "1s", "-H", "novalue"], 2, "is not NAME=VALUE"),
        (["schedule", "a/b", "x", "--in", "1s"], 5, "topic name"),
        (["schedule", "gopher://x", "x", "--in", "1s"], 5, "destination"),
        (["schedule", "http://127.0.0.1:1/x", "x", "--in", "1s"], 5, "destination"),
        (["schedule"], 2, "DEST is missing"),
        (["schedule", "hello", "x"], 2, "--in 5s, or --at"),
        (["schedule", "https:/example.org/x", "x", "--in", "1s"], 5, "did you mean https://…?"),
        (
            ["schedule", "mailto:a@b", "x", "--in", "1s"],
            5,
            "did you mean the topic persistent://public/default/mailto:a@b?",
        ),
        (["schedule", "Hello World", "x", "--in", "1s"], 5, "no spaces"),
        (["schedule", "t", "x", "--file", "f"], 2, "with --file only"),
        (["schedule", "--file", "/none/such"], 2, "there is no file"),
        (["list", "--limit", "0"], 2, "--limit"),
        (["list", "--state", "odd"], 2, "--state"),
        (["nonsense"], 2, "nonsense"),
        (["consume", "t", "s", "--from", "middle"], 2, "--from"),
    ],
)
def test_mistakes_are_told_and_have_their_exit_code(
    tarry: Shell, arguments: list[str], code: int, said: str
) -> None:
    ended = tarry(*arguments)
    assert ended.code == code, ended.err
    assert said in " ".join(ended.err.replace("│", " ").split())
    assert "Traceback" not in ended.err


def test_an_error_is_told_once_for_each_id(tarry: Shell) -> None:
    unknown = ["0" * 32, "f" * 32]
    ended = tarry("cancel", *unknown)
    assert ended.code == 3
    assert [line.partition(":")[0] for line in ended.err.splitlines()] == unknown
    assert len(tarry("cancel", unknown[0]).err.splitlines()) == 1


def test_consume_shows_when_an_entry_was_due(tarry: Shell) -> None:
    due = tarry("schedule", "due-shown", "x", "--at", "2001-02-03T04:05:06Z").err
    assert "2001-02-03T04:05:06.000Z" in due
    assert "2001-02-03T04:05:06.000Z" in tarry("consume", "due-shown", "s", "--count", "1").out


def test_a_repeated_key_and_a_past_instant_are_told(tarry: Shell) -> None:
    first = tarry("schedule", "rep", "x", "--in", "1h", "--idempotency-key", "k1")
    again = tarry("schedule", "rep", "x", "--in", "1h", "--idempotency-key", "k1")
    assert again.out == first.out
    assert "scheduled before with this key" in again.err
    assert tarry("schedule", "rep", "other", "--in", "1h", "--idempotency-key", "k1").code == 4
    assert "past due" in tarry("schedule", "rep", "x", "--at", "2001-01-01T00:00:00Z").err


def test_many_from_a_file_and_from_standard_input(tarry: Shell, tmp_path: Path) -> None:
    lines = [
        json.dumps({"destination": "persistent://public/default/many", "payload": str(n), "delay": "1h"})
        for n in range(5)
    ]
    lines[2] = '{"broken'
    (tmp_path / "m.ndjson").write_text("\n".join(lines) + "\n")
    ended = tarry("schedule", "--file", "m.ndjson")
    assert ended.code == 1
    assert "4 scheduled, 1 refused" in ended.err
    assert "line 3: " in ended.err
    answers = tarry("schedule", "-f", "m.ndjson", "--json").json()
    assert ["id" in answer for answer in answers] == [True, True, False, True, True]
    assert answers[2]["line"] == 3
    defaults = tarry(
        "schedule",
        "many",
        "--in",
        "1h",
        "--owner",
        "bulk",
        "-f",
        "-",
        stdin=b'{"payload": "a"}\n{"payload": "b"}\n',
    )
    assert defaults.code == 0
    assert "2 scheduled, 0 refused" in defaults.err
    assert len(tarry("list", "--owner", "bulk", "--json").json()) == 2


def test_publish_and_consume(tarry: Shell) -> None:
    assert tarry("publish", "pc", "one", "--key", "k", "-H", "h=v").out == "0\n"
    assert tarry("publish", "pc", "-", "--json", stdin=b"\xff\x00").json() == [{"entry_ids": [1]}]
    kept = tarry("consume", "pc", "s", "--no-ack", "--no-wait").out
    assert kept.splitlines() == tarry_lines(kept, ["one", "0xff00"])
    entries = tarry("consume", "pc", "s", "--no-wait", "--json").json()
    assert [(entry["entry_id"], entry["redelivery_count"]) for entry in entries] == [(0, 1), (1, 1)]
    assert entries[0]["headers"] == {"h": "v"}
    assert tarry("consume", "pc", "s", "--no-wait").out == ""


def tarry_lines(text: str, payloads: list[str]) -> list[str]:
    """The lines of an output, each of which must end with its payload."""
    lines = text.splitlines()
    assert len(lines) == len(payloads)
    assert all(line.endswith(payload) for line, payload in zip(lines, payloads, strict=True))
    return lines


def test_consume_takes_no_more_than_it_was_asked_for(tarry: Shell) -> None:
    for n in range(5):
        tarry("publish", "five", str(n))
    assert [entry["payload"] for entry in tarry("consume", "five", "s", "-n", "2", "--json").json()] == [
        "0",
        "1",
    ]
    assert [entry["payload"] for entry in tarry("consume", "five", "s", "-n", "3", "--json").json()] == [
        "2",
        "3",
        "4",
    ]


def test_tail_follows_and_leaves_no_trace(tarry: Shell, server: ServerProcess) -> None:
    with Client(server.url) as client:
        client.create_topic("tailed")

        def feed() -> None:
            deadline = time.monotonic() + 20
            while not client.topic_stats("tailed").get("subscriptions") and time.monotonic() < deadline:
                time.sleep(0.05)
            client.schedule("persistent://public/default/tailed", "\x1b[31mred", delay_ms=50)

        feeder = threading.Thread(target=feed)
        feeder.start()
        ended = tarry("tail", "tailed", "--count", "1")
        feeder.join()
        assert ended.code == 0
        assert re.fullmatch(r"0  \S+Z  late \d+ ms  \\x1b\[31mred\n", ended.out)
        assert not client.topic_stats("tailed").get("subscriptions")


def test_nobody_answers(tarry: Shell) -> None:
    ended = tarry("list", "--url", "http://127.0.0.1:1")
    assert ended.code == 6
    assert (
        ended.err
        == "tarry: no answer from http://127.0.0.1:1: Connection refused; is the server running? (tarry up)\n"
    )
    assert tarry("list", "--url", "nonsense").code == 5
