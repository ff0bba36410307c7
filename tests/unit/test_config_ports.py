"""One offset for every port, and the server that a client finds by the configuration."""

import os
from pathlib import Path

import pytest

from tarry import AsyncClient, Client
from tarry.cli.ports import ports_of
from tarry.client.call import Unauthorized
from tarry.client.server import ServerAddress
from tarry.config import Config, ConfigError, load
from tarry.config.ports import port_variables
from tarry.config.server import configured_server
from tarry.core.errors import Invalid
from tests.processes import running

APPS = "[[doors.dapr.apps]]\napp_id = 'b'\nport = 3600\ngrpc_port = 0\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TARRY_")]:
        monkeypatch.delenv(name)
    return tmp_path


def ports(config: Config) -> dict[str, int]:
    return {port.setting: port.port for port in ports_of(config)}


def test_one_offset_shifts_every_port_but_zero(here: Path) -> None:
    (here / "tarry.toml").write_text(APPS)
    plain, shifted = (
        ports(load(environment=given).config) for given in ({}, {"TARRY_PORT_OFFSET": "+10000"})
    )
    assert len(plain) == 7
    assert shifted == {name: port + 10_000 if port else 0 for name, port in plain.items()}
    assert ports(load(overrides={"port_offset": 10_000, "http.port": 9}).config)["http.port"] == 10_009


def test_the_source_of_a_shifted_port_names_the_offset(here: Path) -> None:
    (here / "tarry.toml").write_text("port_offset = 5\n[http]\nport = 9000\n")
    loaded = load()
    assert loaded.config.http.port == 9005
    assert loaded.sources["http.port"] == "tarry.toml:3 + port_offset"
    assert loaded.sources["doors.pulsar.port"] == "default + port_offset"


def test_an_offset_that_leaves_no_port_is_refused_by_name(here: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(environment={"TARRY_PORT_OFFSET": "20000"})
    assert str(caught.value) == (
        "environment TARRY_PORT_OFFSET: port_offset 20000 moves doors.dapr.grpc_port = 50001 beyond 65535; take less"
    )
    closed = load(environment={"TARRY_PORT_OFFSET": "20000", "TARRY_DOORS__DAPR__ENABLED": "false"}).config
    assert closed.http.port == 28_080


def test_variables_with_the_ports_make_the_same_ports_whatever_offset_is_inherited(here: Path) -> None:
    (here / "tarry.toml").write_text(APPS + "app_concurrency = 7\n")
    inherited = {"TARRY_PORT_OFFSET": "1000"}
    config = load(environment=inherited).config
    again = load(environment=inherited | port_variables(config)).config
    assert ports(again) == ports(config)
    assert again.doors.dapr.apps == config.doors.dapr.apps


def test_a_client_without_an_address_finds_the_server_that_commands_find(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = "[http]\nport = {port}\n[[tokens]]\nname = 'a'\ntoken = 'a-token-that-nobody-can-guess'\nroles = ['admin']\n"
    with running(here / "data", config.format(port=0)) as server:
        (here / "tarry.toml").write_text(
            f"port_offset = 5\ntoken = 'a-token-that-nobody-can-guess'\n[http]\nport = {server.port - 5}\n"
        )
        with Client() as client:
            assert client.ready()
            assert client.status()["ready"]
        monkeypatch.setenv("TARRY_TOKEN", "another-token-that-is-not-known")
        with Client() as stranger, pytest.raises(Unauthorized):
            stranger.status()


def test_an_address_that_is_given_is_taken_and_gets_no_token_of_the_file(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (here / "tarry.toml").write_text("token = 'secret'\nurl = 'http://127.0.0.1:1'\n")
    assert ServerAddress(None, None, 1, 0).port == 1
    given = ServerAddress("http://127.0.0.1:2", None, 1, 0)
    assert (given.port, given.token) == (2, None)
    monkeypatch.setenv("TARRY_URL", "http://127.0.0.1:3")
    assert ServerAddress(None, None, 1, 0).port == 3
    monkeypatch.setenv("TARRY_TOKEN", "of the variable")
    assert ServerAddress("http://127.0.0.1:2", None, 1, 0).token == "of the variable"
    assert ServerAddress(None, "own", 1, 0).token == "own"


def test_a_configuration_that_cannot_be_read_is_the_clients_error(here: Path) -> None:
    (here / "tarry.toml").write_text("htpp = 1\n")
    for kind in (Client, AsyncClient):
        with pytest.raises(Invalid, match="unknown key htpp"):
            kind()


def test_variables_that_are_no_settings_stop_commands_and_not_programs(here: Path) -> None:
    strange = {"TARRY_WEBHOOK_SECRET": "x", "TARRY_HTTP__PORT": "9"}
    with pytest.raises(ConfigError, match="TARRY_WEBHOOK_SECRET"):
        load(environment=strange)
    assert configured_server(strange).url == "http://127.0.0.1:9"


def test_variables_that_kubernetes_makes_of_a_service_called_tarry_are_passed_over(here: Path) -> None:
    made = {
        "TARRY_SERVICE_HOST": "10.0.0.7",
        "TARRY_SERVICE_PORT": "8080",
        "TARRY_SERVICE_PORT_HTTP": "8080",
        "TARRY_PORT": "tcp://10.0.0.7:8080",
        "TARRY_PORT_8080_TCP": "tcp://10.0.0.7:8080",
        "TARRY_PORT_8080_TCP_ADDR": "10.0.0.7",
        "TARRY_PULSAR_SERVICE_HOST": "10.0.0.8",
    }
    assert load(environment=made).sources == {}
    with pytest.raises(ConfigError, match="TARRY_HTTP__PORT"):
        load(environment=made | {"TARRY_HTTP_PORT": "1"})
