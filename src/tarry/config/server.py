"""Where the server is and how it is spoken to, by the configuration: the same for the command line and for programs."""

import os
import ssl
from collections.abc import Mapping
from typing import NamedTuple

from tarry.config.check import ConfigError
from tarry.config.fields import fields_of
from tarry.config.listening import Listening
from tarry.config.load import FILE_VARIABLE, load
from tarry.config.settings import Config
from tarry.config.tls import client_context
from tarry.core.errors import Invalid


class ConfiguredServer(NamedTuple):
    """A server's address, and how a client shows who it is."""

    url: str
    token: str | None
    tls: ssl.SSLContext | None


def configured_server(environment: Mapping[str, str] = os.environ) -> ConfiguredServer:
    """The server that `TARRY_*` variables and `tarry.toml` name; raises `Invalid`.

    Reads the file as every command does, and of the variables the known ones: a program's environment may hold others that begin
    so, which only a command takes for mistakes.
    """
    known = {FILE_VARIABLE, *(field.variable for field in fields_of().values())}
    try:
        config = load(None, {name: environment[name] for name in known & environment.keys()}).config
    except ConfigError as error:
        raise Invalid("configuration", str(error)) from None
    return ConfiguredServer(server_url(config), config.token, client_tls(config))


def server_url(config: Config) -> str:
    """Address of the configured server, as seen from this machine."""
    return config.url if config.url is not None else url_of(config.http)


def url_of(listening: Listening) -> str:
    """Address of a listener, as seen from this machine."""
    # An address that means «every address» is none to connect to.
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(listening.host, listening.host)  # noqa: S104
    shown = f"[{host}]" if ":" in host else host
    return f"{'https' if listening.tls_cert else 'http'}://{shown}:{listening.port}"


def client_tls(config: Config) -> ssl.SSLContext | None:
    """TLS with the certificate that the configuration shows to servers; None where it has none."""
    if config.tls_client_cert is None:
        return None
    try:
        return client_context(config.tls_client_cert, config.tls_client_key)
    except (OSError, ssl.SSLError) as error:
        raise Invalid("tls_client_cert", f"{config.tls_client_cert} cannot be used: {error}") from None
