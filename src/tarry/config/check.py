"""Rules between settings, whose values may be fine alone and wrong together.

Raises `ConfigError` naming where the value came from. The one rule of safety is here: nobody is
served on an address that others can reach without tokens.
"""

import hashlib
import ipaddress
from collections.abc import Mapping
from pathlib import Path

from tarry.config.doors import DOORS
from tarry.config.listening import Listening
from tarry.config.matrix import Matrix
from tarry.config.settings import Config, PipelineSection, TokenSection
from tarry.core.errors import Invalid
from tarry.core.names import parse_namespace
from tarry.core.tenants.access import MIN_TOKEN_CHARS


class ConfigError(Exception):
    """The configuration is wrong. The text names the place and says what to do."""


def check(config: Config, sources: Mapping[str, str]) -> None:
    """Raise `ConfigError` for settings that do not go together."""
    try:
        config.policies.broker.check()
    except Invalid as error:
        name = f"policies.broker.{error.field}"
        raise ConfigError(f"{sources.get(name, 'default')}: {name} {error.reason}") from None
    _check_engine(config, sources)
    listeners = listeners_of(config)
    for name, listening in listeners.items():
        _check_listening(name, listening, sources)
    if config.doors.matrix.enabled:
        _check_matrix(config.doors.matrix, sources)
    if config.webhook.ca_file and not Path(config.webhook.ca_file).is_file():
        place = sources.get("webhook.ca_file", "default")
        raise ConfigError(f"{place}: webhook.ca_file: there is no file {config.webhook.ca_file}")
    _check_pipeline(config.pipeline, config.ledger.log, sources)
    if config.traces.endpoint is not None and not config.traces.endpoint.startswith(("http://", "https://")):
        given = sources.get("traces.endpoint")
        raise ConfigError(f"{given}: traces.endpoint is an address such as http://127.0.0.1:4318/v1/traces")
    place = sources.get("tokens", "default")
    names: set[str] = set()
    for token in config.tokens:
        if token.name in names:
            raise ConfigError(f"{place}: two tokens are called {token.name}; give each its own name")
        names.add(token.name)
        _check_token(token, place)
        if token.token is not None:
            token_digest(token)
    for name, listening in listeners.items():
        # Who knocks at the Matrix door shows a token of the homeserver, or a delay id.
        if name != "doors.matrix" and not config.tokens and not is_loopback(listening.host):
            raise ConfigError(
                f"{sources.get(f'{name}.host', 'default')}: {name}.host = {listening.host} can be reached by "
                "others, and there are no tokens; add a [[tokens]] table, or listen on 127.0.0.1"
            )


def listeners_of(config: Config) -> dict[str, Listening]:
    """The listeners that are open, by the table of their settings."""
    listeners: dict[str, Listening] = {"http": config.http}
    for name in DOORS:
        door = getattr(config.doors, name)
        if door.enabled:
            listeners[f"doors.{name}"] = door
    if config.doors.dapr.enabled:
        listeners |= {f"doors.dapr.apps[{at}]": app for at, app in enumerate(config.doors.dapr.apps)}
    return listeners


def in_clear_text(config: Config) -> list[str]:
    """Listeners that others can reach and that speak no TLS: tokens pass over the network as they are."""
    return [
        name
        for name, listening in listeners_of(config).items()
        if listening.tls_cert is None and not is_loopback(listening.host)
    ]


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address. A name other than localhost may be anything."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def token_digest(token: TokenSection) -> str:
    """The SHA-256 of a token, in hexadecimal; reads `token_file`."""
    if token.sha256 is not None:
        return token.sha256.lower()
    text: str | None = token.token
    if token.token_file is not None:
        try:
            text = Path(token.token_file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"the file of token {token.name}, {token.token_file}, cannot be read: {error}"
            ) from None
    if not text:
        raise ConfigError(f"token {token.name} is empty")
    if len(text) < MIN_TOKEN_CHARS:
        raise ConfigError(
            f"token {token.name} is shorter than {MIN_TOKEN_CHARS} characters and can be guessed; "
            "`openssl rand -base64 32` makes a good one"
        )
    return hashlib.sha256(text.encode()).hexdigest()


def _check_engine(config: Config, sources: Mapping[str, str]) -> None:
    engine = config.engine
    for field in engine.__struct_fields__:
        value = getattr(engine, field)
        if isinstance(value, int) and value < 1:
            place = sources.get(f"engine.{field}", "default")
            raise ConfigError(f"{place}: engine.{field} must be at least 1")
    if engine.backoff_max_ms < engine.backoff_min_ms:
        place = sources.get("engine.backoff_max_ms", sources.get("engine.backoff_min_ms", "default"))
        raise ConfigError(f"{place}: engine.backoff_max_ms is less than engine.backoff_min_ms; raise it")


def _check_listening(name: str, listening: Listening, sources: Mapping[str, str]) -> None:
    if (listening.tls_cert is None) != (listening.tls_key is None):
        given, missing = ("tls_cert", "tls_key") if listening.tls_key is None else ("tls_key", "tls_cert")
        place = sources.get(f"{name}.{given}")
        raise ConfigError(f"{place}: {name}.{given} needs {name}.{missing} beside it")
    if listening.tls_client_ca is not None and listening.tls_cert is None:
        place = sources.get(f"{name}.tls_client_ca")
        raise ConfigError(f"{place}: {name}.tls_client_ca needs {name}.tls_cert and {name}.tls_key beside it")


def _check_matrix(matrix: Matrix, sources: Mapping[str, str]) -> None:
    if matrix.homeserver is not None and not matrix.homeserver.startswith(("http://", "https://")):
        place = sources.get("doors.matrix.homeserver")
        raise ConfigError(f"{place}: doors.matrix.homeserver is an address such as http://127.0.0.1:8009")
    if matrix.homeserver is not None and matrix.registration is None:
        place = sources.get("doors.matrix.homeserver")
        raise ConfigError(
            f"{place}: doors.matrix.homeserver needs doors.matrix.registration; `tarry matrix register` makes one"
        )
    for network in matrix.trusted_proxies:
        try:
            ipaddress.ip_network(network, strict=False)
        except ValueError:
            place = sources.get("doors.matrix.trusted_proxies")
            raise ConfigError(
                f"{place}: doors.matrix.trusted_proxies: {network} is neither an address nor a network such as 10.0.0.0/8"
            ) from None


def _check_pipeline(pipeline: PipelineSection, log: str, sources: Mapping[str, str]) -> None:
    if pipeline.token is not None and pipeline.token_file is not None:
        raise ConfigError(
            f"{sources.get('pipeline.token_file')}: give one of pipeline.token and pipeline.token_file"
        )
    if pipeline.server is not None and not pipeline.server.startswith(("http://", "https://")):
        place = sources.get("pipeline.server")
        raise ConfigError(f"{place}: pipeline.server is an address such as http://host:8080")
    place = sources.get("pipeline.source", "default")
    if pipeline.source == "server" and pipeline.server is None:
        raise ConfigError(f'{place}: pipeline.source = "server" needs its address: set pipeline.server')
    if pipeline.source == "log" and log != "kafka":
        raise ConfigError(
            f'{place}: pipeline.source = "log" needs a ledger in a log: set ledger.log = "kafka", as the servers have it'
        )


def _check_token(token: TokenSection, place: str) -> None:
    if sum(value is not None for value in (token.token, token.token_file, token.sha256)) != 1:
        raise ConfigError(f"{place}: token {token.name}: give exactly one of token, token_file and sha256")
    if 0 < token.operations_per_second < 1:
        raise ConfigError(
            f"{place}: token {token.name}: operations_per_second is at least 1, or 0 for no limit"
        )
    for namespace in token.namespaces:
        if namespace == "*":
            continue
        try:
            parse_namespace(namespace)
        except Invalid as error:
            raise ConfigError(f"{place}: token {token.name}: {namespace}: {error.reason}") from None
