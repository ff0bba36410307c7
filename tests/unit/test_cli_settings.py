from pathlib import Path

import pytest

from tarry.cli.server import banner
from tarry.config import Config
from tarry.config.server import server_url
from tarry.config.settings import Http
from tests.unit.cli_kit import Shell


@pytest.fixture
def tarry(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Shell:
    monkeypatch.chdir(tmp_path)
    return Shell(monkeypatch, capsys)


def test_config_says_what_is_in_force_and_where_it_came_from(tarry: Shell, tmp_path: Path) -> None:
    (tmp_path / "tarry.toml").write_text("[http]\nport = 9\n")
    tarry.set("TARRY_DATA", "/d")
    ended = tarry("config")
    lines = {line.split()[0]: line.split()[1:] for line in ended.out.splitlines()}
    assert lines["http.port"] == ["9", "tarry.toml:2"]
    assert lines["data"] == ["/d", "environment", "TARRY_DATA"]
    assert lines["http.host"] == ["127.0.0.1", "default"]
    (told,) = tarry("config", "--json").json()
    assert told["file"] == "tarry.toml"
    assert told["settings"]["http.port"] == {"value": 9, "source": "tarry.toml:2"}
    assert told["settings"]["policies.broker.tick_ms"] == {"value": None, "source": "default"}


def test_config_masks_secrets(tarry: Shell, tmp_path: Path) -> None:
    (tmp_path / "tarry.toml").write_text(
        "token = 'hidden-1'\n[[tokens]]\nname = 'a'\ntoken = 'hidden-2'\nroles = ['admin']\n"
        "[webhook]\nsecrets = ['whsec_aGlkZGVuLTNoaWRkZW4tM2hpZGRlbi0z']\n"
    )
    for ended in (tarry("config"), tarry("config", "--json")):
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
