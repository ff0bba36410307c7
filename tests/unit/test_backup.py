"""Backups of a running server: consistent whatever goes on meanwhile, proved when they are restored."""

import hashlib
import io
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tarry import Client
from tarry.core.errors import Conflict, Damage, NotFound, Unavailable
from tarry.engine.upkeep.backups import MAX_BACKUPS
from tarry.ledger.follow import FolderFollower
from tarry.serve.backup import backup
from tarry.serve.backup.archive import PIECE_BYTES, Archive, FileDigest, Manifest, read_manifest
from tarry.serve.backup.restore import restore
from tests.processes import ServerProcess, running
from tests.serving import serving
from tests.unit.cli_kit import Shell
from tests.unit.engine_kit import Bench
from tests.waiting import wait_until

TOPIC = "/v1/topics/public/default/orders"


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(monkeypatch, capsys)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    with running(tmp_path / "data", "[ledger]\nsegment_bytes = 1048576\n") as process:
        yield process


class Shop:
    """A client that schedules, publishes and consumes."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def schedule(self, delay: str, **fields: Any) -> str:
        answer = self.client.post("/v1/messages", json={"destination": "orders", "delay": delay, **fields})
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def state(self, id_: str) -> str:
        answer = self.client.get(f"/v1/messages/{id_}")
        return str(answer.json()["state"]) if answer.status_code == 200 else "not found"

    def receive(self, wait_ms: int = 0) -> list[str]:
        """Payloads of what comes, acknowledged."""
        body = {"wait_ms": wait_ms, "max": 1000}
        came = self.client.post(f"{TOPIC}/subscriptions/s/receive", json=body).json()["messages"]
        ids = [one["entry_id"] for one in came]
        if ids:
            assert (
                self.client.post(f"{TOPIC}/subscriptions/s/ack", json={"entry_ids": ids}).status_code == 204
            )
        return [one["payload"] for one in came]

    def receive_all(self, count: int) -> list[str]:
        """The payloads of so many, and no more."""
        payloads: list[str] = []
        while len(payloads) < count:
            more = self.receive(20_000)
            assert more, payloads
            payloads += more
        return sorted(payloads + self.receive())


@contextmanager
def shop_at(url: str) -> Iterator[Shop]:
    with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
        yield Shop(client)


def test_a_backup_under_load_is_restored_as_it_was_at_one_moment(
    server: ServerProcess, tmp_path: Path, shell: Shell
) -> None:
    with shop_at(server.url) as shop:
        _back_up_under_load(server, shop, tmp_path, shell)


def _back_up_under_load(server: ServerProcess, shop: Shop, tmp_path: Path, shell: Shell) -> None:
    shop.client.put(f"{TOPIC}/subscriptions/s", json={"start": "earliest"})
    waiting = [shop.schedule("1h", payload=f"far-{n}") for n in range(50)]
    cancelled = shop.schedule("1h")
    shop.client.delete(f"/v1/messages/{cancelled}")
    for n in range(5):
        shop.client.post(f"{TOPIC}/messages", json={"payload": f"published-{n}"})
    assert len(shop.receive_all(5)) == 5
    soon = sorted(f"soon-{n}" for n in range(20))
    for payload in soon:
        shop.schedule("3s", payload=payload)

    # Others go on meanwhile, with more than one segment of it.
    accepted: list[str] = []
    stop = threading.Event()

    def others() -> None:
        with shop_at(server.url) as other:
            while not stop.is_set():
                accepted.append(other.schedule("2h", payload="x" * 20_000))

    thread = threading.Thread(target=others)
    thread.start()
    try:
        while len(accepted) < 60:
            assert thread.is_alive()
            stop.wait(0.01)
        before = list(accepted)
        ended = shell(
            "backup", str(tmp_path / "copy"), "--data", str(tmp_path / "data"), "--url", server.url, "--json"
        )
        assert ended.code == 0, ended.err
    finally:
        stop.set()
        thread.join()
    after = shop.schedule("1h", payload="too late")
    assert shop.receive_all(len(soon)) == soon
    manifest = read_manifest(tmp_path / "copy")
    assert ended.json()[0]["seq"] == manifest.seq
    assert manifest.seq < FolderFollower(str(tmp_path / "data" / "ledger")).durable_seq()
    assert sum(name.endswith(".seg") for name in manifest.files) > 1
    # The server has let go of what it held, and of the snapshot that it made.
    assert not list((tmp_path / "data" / "registry").glob("backup-*"))
    server.kill()

    ended = shell("restore", str(tmp_path / "copy"), "--data", str(tmp_path / "new"))
    assert ended.code == 0, ended.err
    with running(tmp_path / "new") as restored, shop_at(restored.url) as shop:
        assert "recovery" not in restored.log.read_text()
        assert {shop.state(id_) for id_ in (*waiting, *before)} == {"scheduled"}
        assert shop.state(cancelled) == "cancelled"
        assert shop.state(after) == "not found"
        # What was due meanwhile arrives again, once; what was acknowledged before the backup does not.
        assert shop.receive_all(len(soon)) == soon
        assert shop.schedule("1h") not in waiting


def test_names_repeats_pauses_and_commands_are_restored(
    server: ServerProcess, tmp_path: Path, shell: Shell
) -> None:
    with Client(server.url) as client:
        named = client.schedule("orders", "x", delay="3d", name="trial-42")
        client.set_repeat("standup", "orders", "x", cron="30 8 * * mon-fri", zone="Europe/Berlin")
        client.pause_repeat("standup")
        client.pause_place(owner="ann")
        client.pause(named.id)
        command = client.ask_command("cancel", owner="ann")
        wait_until(lambda: client.get_command(command.id).phase == "counted")
        before = [
            client.get(name="trial-42"),
            client.get_repeat("standup"),
            client.pauses(),
            client.commands(),
        ]
    assert (
        shell("backup", str(tmp_path / "copy"), "--data", str(tmp_path / "data"), "--url", server.url).code
        == 0
    )
    server.kill()

    assert shell("restore", str(tmp_path / "copy"), "--data", str(tmp_path / "new")).code == 0
    with running(tmp_path / "new") as restored, Client(restored.url) as client:
        assert [
            client.get(name="trial-42"), client.get_repeat("standup"), client.pauses(), client.commands(),
        ] == before  # fmt: skip
        with pytest.raises(Conflict, match="named"):
            client.schedule("orders", "y", delay="1d", name="trial-42")
        second = client.schedule("orders", "y", delay="1d", name="trial-42", on_conflict="replace")
        assert client.get(named.id).state == "cancelled"
        assert client.get(name="trial-42").id == second.id


def test_a_damaged_backup_is_refused_and_leaves_nothing(
    server: ServerProcess, tmp_path: Path, shell: Shell
) -> None:
    with shop_at(server.url) as shop:
        shop.schedule("1h")
    good, bad, data = tmp_path / "good", tmp_path / "bad", tmp_path / "new"
    assert shell("backup", str(good), "--data", str(tmp_path / "data"), "--url", server.url).code == 0

    def refused(damage: str) -> str:
        with pytest.raises((Damage, Unavailable)) as found:
            restore(bad, data, str(data / "tables"))
        assert not data.exists(), damage
        assert not list(tmp_path.glob("*.restoring"))
        shutil.rmtree(bad)
        return str(found.value)

    for name in read_manifest(good).files:
        shutil.copytree(good, bad)
        content = bytearray((bad / name).read_bytes())
        content[len(content) // 2] ^= 1
        (bad / name).write_bytes(content)
        assert name in refused(name)
        shutil.copytree(good, bad)
        (bad / name).unlink()
        assert name in refused(name)
    shutil.copytree(good, bad)
    (bad / "manifest.json").unlink()
    assert "no backup" in refused("no manifest")
    shutil.copytree(good, bad)
    text = (bad / "manifest.json").read_text()
    (bad / "manifest.json").write_text(text.replace('"seq"', '"sequence"'))
    assert "checksum" in refused("manifest")


@pytest.fixture
def with_tables(tmp_path: Path) -> Path:
    """A backup that has little more than tables."""
    archive = Archive(tmp_path / "copy", lambda _: None)
    for name in ("id.key", "tables/index/a", "tables/index/b"):
        archive.add(name, io.BytesIO(name.encode()))
    archive.seal(Manifest(tarry="0", made_at_ms=0, ledger_id="", seq=1, index_cursor=1, files=archive.files))
    return archive.folder


def contents(folder: Path) -> dict[str, bytes]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_tables_are_restored_where_the_configuration_says(with_tables: Path, tmp_path: Path) -> None:
    restore(with_tables, tmp_path / "new", str(tmp_path / "elsewhere"))
    assert contents(tmp_path / "new") == {"id.key": b"id.key"}
    assert contents(tmp_path / "elsewhere") == {
        "index/a": b"tables/index/a",
        "index/b": b"tables/index/b",
    }


def test_tables_that_are_there_are_left_alone(with_tables: Path, tmp_path: Path) -> None:
    there = tmp_path / "elsewhere" / "index"
    there.mkdir(parents=True)
    (there / "mine").write_text("mine")
    with pytest.raises(Unavailable, match="is not empty"):
        restore(with_tables, tmp_path / "new", str(tmp_path / "elsewhere"))
    assert contents(tmp_path / "elsewhere") == {"index/mine": b"mine"}
    assert not (tmp_path / "new").exists()


def test_a_backup_that_is_cut_short_is_refused_before_any_table_is_written(
    with_tables: Path, tmp_path: Path
) -> None:
    """Tables that are there would stand in the way of the next restore."""
    with (with_tables / "tables/index/b").open("rb+") as last:
        last.truncate(3)
    with pytest.raises(Damage, match="another size"):
        restore(with_tables, tmp_path / "new", str(tmp_path / "elsewhere"))
    assert not (tmp_path / "elsewhere").exists()
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", ["../elsewhere", "/elsewhere", "ledger/../../elsewhere"])
def test_a_backup_that_names_files_outside_of_itself_is_refused(tmp_path: Path, name: str) -> None:
    archive = Archive(tmp_path / "backup", lambda _: None)
    files = {name: FileDigest(0, hashlib.sha256().hexdigest())}
    archive.seal(Manifest(tarry="0", made_at_ms=0, ledger_id="", seq=0, index_cursor=None, files=files))
    with pytest.raises(Damage, match="is no file of a backup"):
        read_manifest(tmp_path / "backup")


def test_the_commands_say_what_they_did(server: ServerProcess, tmp_path: Path, shell: Shell) -> None:
    where = ("--data", str(tmp_path / "data"), "--url", server.url)
    with shop_at(server.url) as shop:
        shop.schedule("1h")
    (told,) = shell("backup", str(tmp_path / "one"), *where, "--json").json()
    made = read_manifest(tmp_path / "one")
    assert made.seq > 0
    assert told == {
        "folder": str(tmp_path / "one"),
        "seq": made.seq,
        "files": len(made.files),
        "size_bytes": made.size_bytes,
    }
    said = shell("backup", str(tmp_path / "two"), *where).out
    assert said.startswith(f"{tmp_path / 'two'}: everything up to seq ")
    restored = shell("restore", str(tmp_path / "one"), "--data", str(tmp_path / "new")).out
    assert restored == f"{tmp_path / 'new'}: everything up to seq {made.seq}; start the server on it\n"
    # A place where nothing can be made is told in one line.
    (tmp_path / "file").write_text("")
    for words, what in (
        (("backup", str(tmp_path / "file" / "x"), *where), "the backup cannot be made"),
        (
            ("restore", str(tmp_path / "one"), "--data", str(tmp_path / "file" / "x")),
            "the backup cannot be restored",
        ),
    ):
        ended = shell(*words)
        assert (ended.code, ended.err.count("\n")) == (6, 1), ended.err
        assert ended.err.startswith(f"tarry: {what}: ")
    # Each has let go of what it held, also those that failed.
    wait_until(lambda: not list((tmp_path / "data" / "registry").glob("backup-*")), within_s=20)


@pytest.mark.parametrize(("moment", "code"), [("_add_ledger", 3), ("_prove_ledger", 0)])
def test_a_backup_that_the_server_has_given_up_is_good_only_if_all_was_copied_before(
    server: ServerProcess,
    tmp_path: Path,
    shell: Shell,
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    code: int,
) -> None:
    do = getattr(backup, moment)

    def given_up(*arguments: Any) -> None:
        (snapshot,) = (tmp_path / "data" / "registry").glob("backup-*.snapshot")
        name = snapshot.name.removeprefix("backup-").removesuffix(".snapshot")
        httpx.delete(f"{server.url}/v1/backups/{name}", trust_env=False).raise_for_status()
        do(*arguments)

    monkeypatch.setattr(backup, moment, given_up)
    copy = tmp_path / "copy"
    ended = shell("backup", str(copy), "--data", str(tmp_path / "data"), "--url", server.url)
    assert ended.code == code, ended.err
    assert ("its time is over" in ended.err) == (code != 0)
    assert (copy / "manifest.json").exists() == (code == 0)


def test_a_long_backup_says_again_and_again_that_it_goes_on(tmp_path: Path) -> None:
    said: list[int] = []
    for every_s in (0.0, 3600.0):
        after = backup._now_and_then(lambda: said.append(1), every_s)
        Archive(tmp_path / str(every_s), after).add("file", io.BytesIO(bytes(3 * PIECE_BYTES)))
    assert sum(said) == 3


def test_folders_that_hold_something_are_left_alone(
    server: ServerProcess, tmp_path: Path, shell: Shell
) -> None:
    full, copy = tmp_path / "full", tmp_path / "copy"
    full.mkdir()
    (full / "file").write_text("mine")
    ended = shell("backup", str(full), "--data", str(tmp_path / "data"), "--url", server.url)
    assert (ended.code, "is not empty" in ended.err) == (6, True)
    assert shell("backup", str(copy), "--data", str(tmp_path / "data"), "--url", server.url).code == 0
    ended = shell("restore", str(copy), "--data", str(full))
    assert (ended.code, "is not empty" in ended.err) == (6, True)
    assert [path.name for path in full.iterdir()] == ["file"]
    # The folder of another server is not this one's.
    (tmp_path / "other" / "ledger").mkdir(parents=True)
    ended = shell("backup", str(tmp_path / "third"), "--data", str(tmp_path / "other"), "--url", server.url)
    assert ended.code == 6
    assert not (tmp_path / "third" / "manifest.json").exists()


async def test_only_an_admin_of_everything_may(tmp_path: Path) -> None:
    tokens = [
        {"name": "ops", "token": "admin-secret", "roles": ["admin"]},
        {"name": "shop", "token": "shop-secret", "roles": ["admin"], "namespaces": ["acme/shop"]},
        {"name": "app", "token": "produce-secret", "roles": ["produce", "consume"]},
    ]
    async with serving(tmp_path / "data", tokens=tokens) as served:
        for name, status in (("shop", 403), ("produce", 403), ("nobody", 401)):
            answer = await served.client.post(
                "/v1/backups", headers={"authorization": f"Bearer {name}-secret"}
            )
            assert answer.status_code == status, name
        headers = {"authorization": "Bearer admin-secret"}
        answer = await served.client.post("/v1/backups", headers=headers)
        assert answer.status_code == 201
        begun = answer.json()
        one = f"/v1/backups/{begun['name']}"
        assert (tmp_path / "data" / "registry" / begun["snapshot"]).is_file()
        renewed = await served.client.put(one, headers=headers, json={"for_ms": 3_600_000})
        assert renewed.json()["until_ms"] > begun["until_ms"]
        assert (await served.client.delete(one, headers=headers)).status_code == 204
        assert (await served.client.put(one, headers=headers)).status_code == 404
        assert (await served.client.delete(one, headers=headers)).status_code == 404


# What the engine holds


def test_nothing_is_reclaimed_while_a_backup_is_under_way() -> None:
    bench = Bench()
    reclaim = bench.upkeep.reclaim
    backups = bench.engine.backups
    first = bench.ask(backups.begin(60_000))
    assert (reclaim.held, reclaim._may_reclaim()) == (1, False)
    second = bench.ask(backups.begin(60_000))
    backups.end(first.name)
    assert reclaim.held == 1
    bench.wait(30_000)
    backups.renew(second.name, 60_000)
    bench.wait(59_000)
    assert reclaim.held == 1
    # Whoever says nothing for too long is given up.
    bench.wait(2_000)
    assert reclaim.held == 0
    with pytest.raises(NotFound):
        backups.renew(second.name, 60_000)


def test_there_are_not_too_many_at_once() -> None:
    bench = Bench()
    for _ in range(MAX_BACKUPS):
        bench.ask(bench.engine.backups.begin(60_000))
    answer = bench.engine.backups.begin(60_000)
    with pytest.raises(Conflict):
        answer.value()
