"""The ledger's log on Kafka in the configuration: what it needs, and what is refused in words."""

from pathlib import Path

import pytest

from tarry.cli.settings import in_force
from tarry.cluster.reserved import RESERVED
from tarry.config import Config, ConfigError, load
from tarry.config.kafka import kafka_settings

GOOD = """
[ledger]
log = "kafka"
[ledger.kafka]
bootstrap.servers = "k1:9092,k2:9092"
"security.protocol" = "SASL_SSL"
socket.keepalive.enable = true
[ledger.kafka_files]
sasl.password = "secrets/kafka"
[cluster]
id_key_file = "secrets/id.key"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "kafka").write_text("open-sesame\n")
    return tmp_path


def read(folder: Path, text: str) -> Config:
    file = folder / "tarry.toml"
    file.write_text(text)
    return load(str(file)).config


def refusal(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read(folder, text)
    return str(caught.value)


def test_the_disk_is_the_default_and_needs_nothing_of_it() -> None:
    config = load(environment={}).config
    assert config.ledger.log == "disk"
    assert config.cluster.id_key_file is None


def test_the_librarys_settings_keep_their_names_and_secrets_come_from_files(folder: Path) -> None:
    config = read(folder, GOOD)
    assert kafka_settings(config) == {
        "bootstrap.servers": "k1:9092,k2:9092",
        "security.protocol": "SASL_SSL",
        "socket.keepalive.enable": "true",
        "sasl.password": "open-sesame",
    }
    assert config.ledger.topic == "tarry"
    # A path in the file is relative to the file's folder.
    assert config.cluster.id_key_file == str(folder / "secrets" / "id.key")


def test_they_can_come_from_a_variable(folder: Path) -> None:
    given = {
        "TARRY_LEDGER__LOG": "kafka",
        "TARRY_LEDGER__KAFKA": '{"bootstrap.servers": "k1:9092"}',
        "TARRY_CLUSTER__ID_KEY_FILE": "key",
    }
    assert kafka_settings(load(environment=given).config) == {"bootstrap.servers": "k1:9092"}


def test_what_may_hold_a_secret_is_not_shown(folder: Path) -> None:
    (folder / "tarry.toml").write_text(
        GOOD.replace('"SASL_SSL"', '"SASL_SSL"\nsasl.password = "hunter2"', 1).replace(
            'sasl.password = "secrets/kafka"', ""
        )
    )
    shown = "\n".join(str(row) for row in in_force(load(str(folder / "tarry.toml"))))
    assert "ledger.kafka" in shown
    assert "hunter2" not in shown


@pytest.mark.parametrize("name", sorted(RESERVED))
def test_a_setting_on_which_safety_depends_cannot_be_made(folder: Path, name: str) -> None:
    told = refusal(folder, GOOD.replace("[ledger.kafka]", f'[ledger.kafka]\n"{name}" = "1"'))
    assert f"ledger.kafka: {name} cannot be set" in told


def test_the_session_time_out_is_a_setting_of_ours(folder: Path) -> None:
    told = refusal(folder, GOOD.replace("[ledger.kafka]", '[ledger.kafka]\n"session.timeout.ms" = "9000"'))
    assert "cluster.session_timeout_ms" in told


def test_addresses_and_a_key_are_needed(folder: Path) -> None:
    assert '"bootstrap.servers" in [ledger.kafka]' in refusal(
        folder, GOOD.replace('bootstrap.servers = "k1:9092,k2:9092"', "")
    )
    assert "needs cluster.id_key_file" in refusal(folder, GOOD.partition("[cluster]")[0])


def test_a_setting_is_in_one_place(folder: Path) -> None:
    told = refusal(folder, GOOD.replace("[ledger.kafka]", '[ledger.kafka]\nsasl.password = "x"'))
    assert "sasl.password is in both ledger.kafka and ledger.kafka_files" in told


def test_a_file_that_is_missing_or_empty_is_told(folder: Path) -> None:
    config = read(folder, GOOD)
    (folder / "secrets" / "kafka").write_text("\n")
    with pytest.raises(ConfigError, match=r"sasl.password: .*kafka is empty"):
        kafka_settings(config)
    (folder / "secrets" / "kafka").unlink()
    with pytest.raises(ConfigError, match=r"sasl.password: .*kafka cannot be read"):
        kafka_settings(config)


def test_a_topic_has_a_name_that_brokers_take(folder: Path) -> None:
    assert "ledger.topic" in refusal(folder, GOOD.replace('log = "kafka"', 'log = "kafka"\ntopic = "a b"'))
