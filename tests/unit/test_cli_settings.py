import subprocess
import sys
from pathlib import Path

import pytest

from tarry.cli import show
from tarry.cli.server import banner
from tarry.config import Config
from tarry.config.server import server_url
from tarry.config.settings import Http
from tests.processes import environment
from tests.unit.cli_kit import Shell


@pytest.fixture
def tarry(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(monkeypatch, capsys)


def test_config_says_what_is_in_force_and_where_it_came_from(tarry: Shell, tmp_path: Path) -> None:
    (tmp_path / "tarry.toml").write_text("[http]\nport = 9\n")
    tarry.set("TARRY_DATA", "/d")
    ended = tarry("config", "--all")
    lines = {line.split()[0]: line.split()[1:] for line in ended.out.splitlines()}
    assert len(lines) > 100
    assert lines["http.port"] == ["9", "tarry.toml:2"]
    assert lines["data"] == ["/d", "environment", "TARRY_DATA"]
    assert lines["http.host"] == ["127.0.0.1", "default"]
    (told,) = tarry("config", "--all", "--json").json()
    assert told["file"] == "tarry.toml"
    assert told["settings"]["http.port"] == {"value": 9, "source": "tarry.toml:2"}
    assert told["settings"]["policies.broker.tick_ms"] == {"value": None, "source": "default"}


def test_config_shows_the_settings_that_somebody_set_and_counts_the_others(
    tarry: Shell, tmp_path: Path
) -> None:
    assert tarry("config").out == ""
    (tmp_path / "tarry.toml").write_text("port_offset = 7\n[http]\nport = 9\nhost = '127.0.0.1'\n")
    tarry.set("TARRY_DOORS__PULSAR__PORT", "0")
    ended = tarry("config")
    lines = {line.split()[0]: line.split()[1:] for line in ended.out.splitlines()[1:]}
    assert lines["http.port"] == ["16", "tarry.toml:3", "+", "port_offset"]
    assert lines["http.host"] == ["127.0.0.1", "tarry.toml:4"]
    assert lines["doors.pulsar.port"] == ["0", "environment", "TARRY_DOORS__PULSAR__PORT"]
    assert "http.max_body_bytes" not in lines
    assert "settings have their default; --all shows them" in ended.err
    (told,) = tarry("config", "--json").json()
    assert set(told["settings"]) == set(lines)


def test_config_masks_secrets(tarry: Shell, tmp_path: Path) -> None:
    (tmp_path / "tarry.toml").write_text(
        "token = 'hidden-1'\n[[tokens]]\nname = 'a'\ntoken = 'hidden-2'\nroles = ['admin']\n"
        "[webhook]\nsecrets = ['whsec_aGlkZGVuLTNoaWRkZW4tM2hpZGRlbi0z']\n"
    )
    for ended in (tarry("config"), tarry("config", "--json"), tarry("config", "--all")):
        assert ended.code == 0
        assert "hidden" not in ended.out
        assert "aGlkZGVu" not in ended.out
        assert "********" in ended.out


def test_a_wrong_configuration_is_one_line(tarry: Shell) -> None:
    tarry.set("TARRY_HTTP_PORT", "1")
    for command in (["config"], ["list"], ["serve"], ["up"]):
        ended = tarry(*command)
        assert (ended.code, ended.out) == (1, "")
        assert (
            ended.err
            == "tarry: unknown environment variable TARRY_HTTP_PORT; did you mean TARRY_HTTP__PORT?\n"
        )


def test_the_server_is_found_where_it_is_configured() -> None:
    assert server_url(Config()) == "http://127.0.0.1:8080"
    assert server_url(Config(url="https://x")) == "https://x"
    assert server_url(Config(http=Http(host="0.0.0.0", port=1))) == "http://127.0.0.1:1"
    assert server_url(Config(http=Http(host="::1", tls_cert="c", tls_key="k"))) == "https://[::1]:8080"


def test_the_banner_shows_what_to_try() -> None:
    assert "curl -s http://127.0.0.1:8080/v1/messages -H" in banner(Config())
    assert "curl" not in banner(Config(http=Http(port=0)))


COMPLETIONS = {
    "bash": ({"COMP_WORDS": "tarry list --state f", "COMP_CWORD": "3"}, "finalised"),
    "zsh": ({"_TYPER_COMPLETE_ARGS": "tarry list --state f"}, "finalised"),
    "fish": (
        {"_TYPER_COMPLETE_ARGS": "tarry list --state f", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        "finalised",
    ),
}


@pytest.mark.parametrize("shell", COMPLETIONS)
def test_shells_complete_commands_options_and_values(shell: str) -> None:
    variables, expected = COMPLETIONS[shell]
    shown = subprocess.run(
        [sys.executable, "-m", "tarry"],
        env=environment(**variables, _TARRY_COMPLETE=f"complete_{shell}"),
        capture_output=True, text=True,
    )  # fmt: skip
    assert expected in shown.stdout
    assert "scheduled" not in shown.stdout


def test_the_completion_script_works_in_bash(tmp_path: Path) -> None:
    program = tmp_path / "tarry"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "import tarry.cli; tarry.cli.main()" "$@"\n')
    program.chmod(0o755)
    # The shell is found by the parent process, or as it is told here.
    asked = "import shellingham; shellingham.detect_shell = lambda: ('bash', 'bash'); import sys; sys.argv = ['tarry', '--show-completion']"
    made = subprocess.run(
        [sys.executable, "-c", f"{asked}; import tarry.cli; tarry.cli.main()"],
        env=environment(), capture_output=True, text=True,
    )  # fmt: skip
    script = tmp_path / "completion.sh"
    script.write_text(made.stdout)
    typed = f'. {script}; COMP_WORDS=(tarry sched); COMP_CWORD=1; _tarry_completion {program}; echo "${{COMPREPLY[@]}}"'
    shown = subprocess.run(["bash", "-c", typed], env=environment(), capture_output=True, text=True)
    assert shown.stdout == "schedule\n", (made, shown)


def test_a_printed_time_has_its_zone() -> None:
    assert show.brief_instant(951_782_400_999) == "2000-02-29 00:00:00Z"
    assert show.instant(951_782_400_999) == "2000-02-29T00:00:00.999Z"
    assert show.brief_instant(None) == "by command"


def test_version_and_help(tarry: Shell) -> None:
    assert tarry("--version").out.startswith("tarry ")
    shown = tarry("--help").out
    for command in [
        "up",
        "serve",
        "schedule",
        "list",
        "show",
        "cancel",
        "send",
        "restart",
        "tail",
        "publish",
        "consume",
        "doctor",
        "config",
    ]:
        assert command in shown
