"""The ledger's topic as the pipeline finds it: by options that show no secret, or by the configuration."""

import json
import os
import pickle
import sys
from pathlib import Path

import pytest

from tarry.cli.audit import place_options
from tarry.cli.pipeline import give_secrets, settings_of
from tarry.config import ConfigError, load
from tarry.core.errors import Invalid, Unavailable
from tarry.ledger.log.fold import LogPosition
from tarry.ledger.log.follow import KnownLog
from tarry.pipeline.kafka import SETTINGS_VARIABLE, KafkaLedger
from tarry.pipeline.views.place import find

SECRET = "open-sesame"
CONFIG = """
[ledger]
log = "kafka"
topic = "shop"
[ledger.kafka]
bootstrap.servers = "k1:9093"
sasl.username = "tarry"
[ledger.kafka_files]
sasl.password = "password"
[cluster]
id_key_file = "id.key"
shared = "s3://company/shared"
"""


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    # So that what a test leaves there is taken back.
    monkeypatch.setenv(SETTINGS_VARIABLE, "")


@pytest.fixture
def password(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text(SECRET + "\n")
    return path


def settings(ledger: KafkaLedger) -> dict[str, str]:
    return ledger._settings


def test_settings_come_from_options_and_secrets_from_files(password: Path) -> None:
    options = {"kafka": "k1:9093", "kafka.sasl.username": "tarry", "kafka_file.sasl.password": str(password)}
    ledger = KafkaLedger.of(options)
    assert settings(ledger) == {
        "bootstrap.servers": "k1:9093",
        "sasl.username": "tarry",
        "sasl.password": SECRET,
    }
    assert SECRET not in f"{ledger!r} {ledger}"
    assert settings(pickle.loads(pickle.dumps(ledger))) == settings(ledger)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (
            {"kafka.sasl.password": "x"},
            "may be a secret, and options are shown: give kafka_file.sasl.password",
        ),
        ({"kafka.ssl.key.pem": "x"}, "give kafka_file.ssl.key.pem"),
        ({"kafka.sasl.oauthbearer.client.secret": "x"}, "may be a secret"),
        ({"kafka.group.id": "x"}, "group.id cannot be set here"),
        ({"kafka_file.bootstrap.servers": "x"}, "bootstrap.servers cannot be set here"),
        ({"kafka_file.sasl.password": "/nowhere"}, "/nowhere cannot be read"),
    ],
)
def test_what_may_not_be_an_option_is_refused(options: dict[str, str], told: str) -> None:
    with pytest.raises(Invalid, match=told):
        KafkaLedger.of({"kafka": "k1:9093", **options})


def test_settings_of_the_environment_are_for_the_brokers_that_they_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(
        SETTINGS_VARIABLE, json.dumps({"bootstrap.servers": "k1:9093", "sasl.password": SECRET})
    )
    assert settings(KafkaLedger.of({"kafka": "k1:9093"}))["sasl.password"] == SECRET
    assert settings(KafkaLedger.of({"kafka": "elsewhere:9093"})) == {"bootstrap.servers": "elsewhere:9093"}


def test_a_task_begins_where_it_was_told_to() -> None:
    ledger = KafkaLedger.of({"kafka": "k1:9093", "begin": "70,3,500"})
    begun = ledger._scan.known()
    assert (begun.places, begun.next_seq) == ([LogPosition(70, 3, 500)], 500)
    follower = ledger.follower(0, LogPosition(90, 4, 600), 700)
    assert follower._scan.known() == KnownLog([LogPosition(90, 4, 600)], None, 701)


def configured(tmp_path: Path, further: str = "") -> tuple[dict[str, str], str]:
    """The options by which a configuration has the ledger read, and everything that Spark is told."""
    file = tmp_path / "tarry.toml"
    file.write_text(CONFIG + further)
    config = load(str(file)).config
    given = settings_of(config)
    give_secrets(config)
    return given["ledger"], repr(given) + repr(place_options(given))


def test_a_ledger_in_a_log_is_read_from_there_by_default_and_no_option_has_a_secret(
    tmp_path: Path, password: Path
) -> None:
    options, told = configured(tmp_path)
    assert options == {"kafka": "k1:9093", "topic": "shop", "shared": "s3://company/shared"}
    assert SECRET not in told
    assert settings(KafkaLedger.of(options))["sasl.password"] == SECRET
    place = find({"path": "s3://company/tables", **options})
    assert place.source == options
    assert repr(place.ledger) == "LedgerAddress(shop at k1:9093)"
    assert SECRET not in repr(place)


def test_a_server_or_the_folder_can_be_chosen(tmp_path: Path, password: Path) -> None:
    by_server, _ = configured(tmp_path, '[pipeline]\nserver = "http://tarry:8080"\n')
    assert by_server == {"server": "http://tarry:8080"}
    by_folder, _ = configured(tmp_path, '[pipeline]\nserver = "http://tarry:8080"\nsource = "folder"\n')
    assert by_folder.keys() == {"folder"}
    assert os.environ[SETTINGS_VARIABLE] == ""
    by_log, _ = configured(tmp_path, '[pipeline]\nserver = "http://tarry:8080"\nsource = "log"\n')
    assert by_log["kafka"] == "k1:9093"
    file = tmp_path / "disk.toml"
    for text, told in (
        ('[pipeline]\nsource = "log"\n', "needs a ledger in a log"),
        ('[pipeline]\nsource = "server"\n', "set pipeline.server"),
    ):
        file.write_text(text)
        with pytest.raises(ConfigError, match=told):
            load(str(file))
    file.write_text("")
    assert settings_of(load(str(file)).config)["ledger"].keys() == {"folder"}


def test_without_the_library_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tarry.cluster.kafka_partition", None)
    with pytest.raises(Unavailable, match=r"pip install 'tarry\[kafka\]'"):
        KafkaLedger.of({"kafka": "k1:9093"}).follower(0).durable_seq()
