import asyncio
import signal
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tarry.cli.homeserver import beside, private
from tarry.config import ConfigError, load
from tarry.homeserver import environment as synapse_environment
from tarry.homeserver import registration
from tarry.serve.datafolder import DataFolder
from tests.processes import environment, tarry
from tests.unit.cli_kit import Shell
from tests.unit.matrix_kit import matrix_serving


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(monkeypatch, capsys)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_register_writes_what_a_homeserver_takes_and_only_its_owner_can_read(
    shell: Shell, tmp_path: Path
) -> None:
    ended = shell("matrix", "register", "example.org")
    assert ended.code == 0, ended.err
    path = tmp_path / "tarry-data" / "registration.yaml"
    assert (mode(path.parent), mode(path)) == (0o700, 0o600)
    written = yaml.safe_load(path.read_text())
    assert written["url"] == "http://127.0.0.1:8008"
    assert written["rate_limited"] is False
    assert written["namespaces"]["users"] == [{"exclusive": False, "regex": r"@.*:example\.org"}]
    assert len({written["as_token"], written["hs_token"]}) == 2
    assert min(len(written["as_token"]), len(written["hs_token"])) >= 43
    assert written["as_token"] not in ended.out + ended.err


def test_register_overwrites_nothing(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    assert shell("matrix", "register", "example.org", "-o", "mine.yaml", "--url", "http://tarry:1").code == 0
    before = path.read_bytes()
    assert b"http://tarry:1" in before
    ended = shell("matrix", "register", "example.org", "-o", "mine.yaml")
    assert (ended.code, path.read_bytes()) == (4, before)
    assert "mine.yaml is there already" in ended.err


@pytest.mark.parametrize("name", ["@alice:example.org", "", "a b", "https://example.org/"])
def test_register_wants_a_server_name(shell: Shell, tmp_path: Path, name: str) -> None:
    assert shell("matrix", "register", name).code == 5
    assert not list(tmp_path.iterdir())


def test_a_user_needs_a_private_homeserver(shell: Shell, tmp_path: Path) -> None:
    ended = shell("matrix", "user", "alice", "--password-stdin", stdin=b"secret\n")
    assert (ended.code, "`tarry up` starts one" in ended.err) == (6, True)
    (tmp_path / "r.yaml").write_text("")
    shell.set("TARRY_DOORS__MATRIX__HOMESERVER", "http://127.0.0.1:1")
    shell.set("TARRY_DOORS__MATRIX__REGISTRATION", "r.yaml")
    ended = shell("matrix", "user", "alice", "--password-stdin", stdin=b"secret\n")
    assert (ended.code, "your own" in ended.err) == (4, True)


def test_a_homeserver_that_does_not_answer_is_one_line(shell: Shell, tmp_path: Path) -> None:
    private(load(environment={}, overrides={"data": str(tmp_path)}).config).prepare(1, None)
    ended = shell("matrix", "user", "alice", "--password-stdin", "--data", str(tmp_path), stdin=b"secret\n")
    assert (ended.code, "is `tarry up` running?" in ended.err) == (6, True)
    assert len(ended.err.splitlines()) == 1


def test_up_has_a_private_homeserver_only_where_the_door_is_open_and_has_none(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    closed = {"data": data, "doors.matrix.enabled": False}
    assert beside(load(environment={}, overrides=closed).config, []) is None
    own = {"doors.matrix.homeserver": "http://127.0.0.1:1", "doors.matrix.registration": "r.yaml"}
    opened = {"data": data, "doors.matrix.enabled": True}
    assert beside(load(environment={}, overrides={**opened, **own}).config, []) is None
    assert not (tmp_path / "data").exists()
    made = beside(load(environment={}, overrides=opened).config, ["--data", data])
    assert made is not None
    assert made.child.essential is False
    assert made.settings["TARRY_DOORS__MATRIX__HOMESERVER"].startswith("http://127.0.0.1:")
    with DataFolder.open(tmp_path / "data"):
        # Somebody else's homeserver runs on these files.
        assert beside(load(environment={}, overrides=opened).config, []) is None


def test_the_files_of_the_private_homeserver_are_made_once_and_follow_the_door(tmp_path: Path) -> None:
    data = tmp_path / "data"

    def made(port: int) -> dict[str, str]:
        settings = {"data": str(data), "doors.matrix.enabled": True, "doors.matrix.port": port}
        given = beside(load(environment={}, overrides=settings).config, [])
        assert given is not None
        return given.settings

    first = made(8008)
    folder = data / "homeserver"
    assert mode(data) == mode(folder) == 0o700
    kept = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert all(mode(folder / name) == 0o600 for name in kept)
    assert made(8008) == first
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == kept
    tokens = registration.read(folder / "registration.yaml")
    made(9009)
    assert registration.read(folder / "registration.yaml") == {**tokens, "url": "http://127.0.0.1:9009"}
    changed = {path.name for path in folder.iterdir() if kept[path.name] != path.read_bytes()}
    assert changed == {"registration.yaml", "listener.yaml"}
    made(0)
    assert registration.read(folder / "registration.yaml")["url"] is None


def test_where_synapse_cannot_be_installed_it_is_said_and_the_exit_code_says_do_not_try_again(
    tmp_path: Path,
) -> None:
    ended = tarry(
        "matrix", "homeserver", "--data", str(tmp_path / "data"), PIP_NO_INDEX="1", PIP_FIND_LINKS=""
    )
    assert ended.returncode == 7
    assert "the private homeserver cannot be installed: pip says: " in ended.stderr
    assert "[doors.matrix] homeserver" in ended.stderr
    assert not synapse_environment.ready(tmp_path / "data" / "homeserver" / "environment")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"homeserver": "example.org"}, "is an address such as"),
        ({"homeserver": "http://127.0.0.1:8009"}, "needs doors.matrix.registration"),
    ],
)
def test_a_homeserver_of_ones_own_is_an_address_with_a_registration(
    given: dict[str, str], reason: str
) -> None:
    overrides = {f"doors.matrix.{name}": value for name, value in given.items()}
    with pytest.raises(ConfigError, match=reason):
        load(environment={}, overrides={"doors.matrix.enabled": True, **overrides})


def test_an_installation_ends_with_who_asked_for_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as index:
        index.settimeout(120)
        command = [sys.executable, "-m", "tarry", "matrix", "homeserver", "--data", str(tmp_path / "data")]
        # pip asks an index that says nothing.
        url = f"http://127.0.0.1:{index.getsockname()[1]}/simple"
        process = subprocess.Popen(command, env=environment(PIP_INDEX_URL=url, PIP_CONFIG_FILE="/dev/null"))
        try:
            asked, _ = index.accept()
            with asked:
                asked.settimeout(60)
                process.terminate()
                assert process.wait(60) == 128 + signal.SIGTERM
                while asked.recv(4096):
                    pass
        finally:
            process.kill()
            process.wait()


async def test_cancel_waits_where_a_user_may_not_be_managed_faster(tmp_path: Path) -> None:
    async with matrix_serving(tmp_path / "data", schedule_per_second=0.0, manage_per_second=20.0) as serving:
        for number in range(50):
            await serving.schedule(f"t{number}")
        url = str(serving.native.base_url).rstrip("/")
        ended = await asyncio.to_thread(tarry, "matrix", "cancel", "--user", "@ann:example.org", "--url", url)
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "50 cancelled\n", "")
        assert (await serving.listed())["scheduled"] == []
