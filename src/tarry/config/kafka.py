"""Settings of Kafka's library for the ledger's log: what the configuration says, and what is in files."""

from collections.abc import Mapping

from tarry.cluster.reserved import RESERVED
from tarry.config.check import ConfigError
from tarry.config.settings import Config


def check_log(config: Config, sources: Mapping[str, str]) -> None:
    """Raise `ConfigError` unless the settings of a log on Kafka go together."""
    ledger = config.ledger
    if ledger.log != "kafka":
        return
    for table in ("kafka", "kafka_files"):
        place = sources.get(f"ledger.{table}", "default")
        if taken := sorted(RESERVED & getattr(ledger, table).keys()):
            own = "; set cluster.session_timeout_ms instead" if "session.timeout.ms" in taken else ""
            raise ConfigError(
                f"{place}: ledger.{table}: {', '.join(taken)} cannot be set: Tarry sets it itself{own}"
            )
    if twice := sorted(ledger.kafka.keys() & ledger.kafka_files.keys()):
        raise ConfigError(
            f"{sources.get('ledger.kafka_files')}: {', '.join(twice)} is in both ledger.kafka and ledger.kafka_files"
        )
    place = sources.get("ledger.log", "default")
    if not ledger.kafka.keys() | ledger.kafka_files.keys() >= {"bootstrap.servers"}:
        raise ConfigError(
            f'{place}: ledger.log = "kafka" needs the brokers\' addresses: set "bootstrap.servers" in [ledger.kafka]'
        )
    if config.cluster.id_key_file is None:
        raise ConfigError(
            f'{place}: ledger.log = "kafka" needs cluster.id_key_file, the same key on every server: take id.key from '
            "the data folder that there is, or make one with `openssl rand 32`"
        )


def kafka_settings(config: Config) -> dict[str, str]:
    """All settings for the library, with the content of files; raises `ConfigError`."""
    given = dict(config.ledger.kafka)
    for name, path in config.ledger.kafka_files.items():
        try:
            with open(path, encoding="utf-8") as file:
                given[name] = file.read().strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"ledger.kafka_files: {name}: {path} cannot be read: {error}") from None
        if not given[name]:
            raise ConfigError(f"ledger.kafka_files: {name}: {path} is empty")
    return given
