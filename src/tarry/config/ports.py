"""The ports of a configuration: one offset shifts all of them, so that a second Tarry has ports of its own.

A port of 0, which takes a free one, stays 0.
"""

from collections.abc import MutableMapping
from typing import Any, Final, TypeVar

import msgspec

from tarry.config.check import ConfigError
from tarry.config.listening import Listening
from tarry.config.settings import Config

T = TypeVar("T", bound=Listening)

HIGHEST: Final = 65_535
_PORTS: Final = ("port", "grpc_port")


def shifted(config: Config, sources: MutableMapping[str, str]) -> Config:
    """The configuration with `port_offset` added to its ports; notes in `sources` that it was."""
    if not config.port_offset:
        return config
    doors, offset = config.doors, config.port_offset
    apps = tuple(
        _shifted(app, f"doors.dapr.apps[{at}]", offset, sources) for at, app in enumerate(doors.dapr.apps)
    )
    dapr = msgspec.structs.replace(_shifted(doors.dapr, "doors.dapr", offset, sources), apps=apps)
    return msgspec.structs.replace(
        config,
        http=_shifted(config.http, "http", offset, sources),
        doors=msgspec.structs.replace(
            doors,
            matrix=_shifted(doors.matrix, "doors.matrix", offset, sources),
            pulsar=_shifted(doors.pulsar, "doors.pulsar", offset, sources),
            dapr=dapr,
        ),
    )


def _shifted(listening: T, table: str, offset: int, sources: MutableMapping[str, str]) -> T:
    changes: dict[str, int] = {}
    for field in _PORTS:
        port = getattr(listening, field, 0)
        if not port:
            continue
        name = f"{table}.{field}"
        if port + offset > HIGHEST:
            if getattr(listening, "enabled", True) is False:
                continue
            place = sources.get("port_offset", "default")
            raise ConfigError(
                f"{place}: port_offset {offset} moves {name} = {port} beyond {HIGHEST}; take less"
            )
        changes[field] = port + offset
        sources[name] = f"{sources.get(name, 'default')} + port_offset"
    return msgspec.structs.replace(listening, **changes)


def port_variables(config: Config) -> dict[str, str]:
    """Variables that give another process exactly these ports, whatever offset it inherits."""
    variables = {"TARRY_PORT_OFFSET": "0", "TARRY_HTTP__PORT": str(config.http.port)}
    for name in ("matrix", "pulsar", "dapr"):
        variables[f"TARRY_DOORS__{name.upper()}__PORT"] = str(getattr(config.doors, name).port)
    variables["TARRY_DOORS__DAPR__GRPC_PORT"] = str(config.doors.dapr.grpc_port)
    if config.doors.dapr.apps:
        apps: Any = msgspec.to_builtins(config.doors.dapr.apps)
        given = [{key: value for key, value in app.items() if value is not None} for app in apps]
        variables["TARRY_DOORS__DAPR__APPS"] = msgspec.json.encode(given).decode()
    return variables
