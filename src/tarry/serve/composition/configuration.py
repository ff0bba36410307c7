"""Parts, settings and tokens that the configuration asks for, in the form in which the composition root takes them.

A part that is not asked for is not even imported: its packages may not be installed.
"""

import logging
from typing import TYPE_CHECKING

from tarry.config import Config, ConfigError
from tarry.config.check import token_digest
from tarry.core.rules.policy import Policy
from tarry.core.tenants.access import Access, Token
from tarry.core.time.clock import SteadyClock
from tarry.doors.http.settings import HttpSettings
from tarry.ledger.ledger import LedgerSettings
from tarry.serve.composition.doors import Door
from tarry.serve.datafolder import DataFolder
from tarry.serve.transport.connection_budget import ConnectionBudget

if TYPE_CHECKING:
    from tarry.serve.composition.node import ClusterNode
    from tarry.serve.composition.traces import OtelTracer

log = logging.getLogger("tarry.serve")


def doors_of(config: Config, access: Access, budget: ConnectionBudget, clock: SteadyClock) -> list[Door]:
    """The doors that are open. A closed one is not even imported."""
    doors: list[Door] = []
    if config.doors.pulsar.enabled:
        from tarry.serve.composition.pulsar import PulsarDoor

        doors.append(PulsarDoor(config.doors.pulsar, access, budget))
    if config.doors.dapr.enabled:
        from tarry.serve.composition.dapr import DaprDoor

        doors.append(DaprDoor(config.doors.dapr, access, budget))
    if config.brokers.allow:
        from tarry.serve.composition.brokers import BrokerDestinations

        doors.append(BrokerDestinations(config, budget, clock))
    if config.doors.matrix.enabled and config.doors.matrix.homeserver is None:
        log.warning("the Matrix door stays closed: doors.matrix.homeserver names none; `tarry up` runs one")
    elif config.doors.matrix.enabled:
        from tarry.serve.composition.matrix import MatrixDoor

        doors.append(MatrixDoor(config.doors.matrix, budget, clock))
    return doors


def cluster_node(config: Config, folder: DataFolder, clock: SteadyClock, url: str) -> "ClusterNode":
    """This server among those that share its ledger. Kafka's library is not even imported where the ledger is on the disk."""
    try:
        from tarry.serve.composition.node import ClusterNode
    except ImportError as error:
        raise ConfigError(
            f"ledger.log = \"kafka\", and {error.name} is not installed: pip install 'tarry[kafka]'"
        ) from None
    return ClusterNode(config, folder, clock, url)


def tracer_of(config: Config) -> "OtelTracer | None":
    """The tracer of accepted and sent messages. Its packages are not even imported where nothing is traced."""
    if config.traces.endpoint is None:
        return None
    try:
        from tarry.serve.composition.traces import OtelTracer
    except ImportError as error:
        raise ConfigError(
            f"traces.endpoint is set, and {error.name} is not installed: pip install 'tarry[otel]'"
        ) from None
    return OtelTracer(config.traces)


def namespace_policies(config: Config) -> dict[str, Policy]:
    """Policies of the doors' own namespaces, from their configuration."""
    if not config.doors.matrix.enabled:
        return {}
    from tarry.serve.composition.matrix import policies_of

    return policies_of(config.doors.matrix)


def ledger_settings(config: Config) -> LedgerSettings:
    """The ledger's settings, from the configuration."""
    given = config.ledger
    return LedgerSettings(**{name: getattr(given, name) for name in LedgerSettings.__struct_fields__})


def door_settings(config: Config) -> HttpSettings:
    """The native HTTP door's settings, from the configuration."""
    http = config.http
    shared = set(HttpSettings.__struct_fields__) & set(http.__struct_fields__)
    given = {name: getattr(http, name) for name in shared}
    return HttpSettings(**given, index=f"{config.tables().rstrip('/')}/index")


def tokens_of(config: Config) -> list[Token]:
    """Rights and rates of tokens, from the configuration; reads the files that hold tokens."""
    return [
        Token.of(
            token.name,
            f"sha256:{token_digest(token)}",
            token.roles,
            token.namespaces,
            token.operations_per_second,
        )
        for token in config.tokens
    ]
