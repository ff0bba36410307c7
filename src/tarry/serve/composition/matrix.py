"""The Matrix door, wired: its listener, the proxy and the endpoints, and the outlet to the homeserver."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from tarry.config import ConfigError
from tarry.config.matrix import Matrix
from tarry.core.messages.delivery import Outlet
from tarry.core.rules.policy import Policy
from tarry.core.telemetry.figure import Figure
from tarry.core.tenants.access import MIN_TOKEN_CHARS
from tarry.core.time.clock import Clock, SystemClock
from tarry.doors.matrix.accounts import Accounts
from tarry.doors.matrix.app import MatrixApp
from tarry.doors.matrix.parts import Parts
from tarry.doors.matrix.settings import EVENTS, FUTURES, MatrixSettings
from tarry.engine.engine import Engine
from tarry.http.application import Application
from tarry.outlets.matrix import Homeserver, HomeserverSettings, MatrixOutlet
from tarry.outlets.matrix.destination import SCHEME
from tarry.outlets.matrix.lines import MAX_KEPT
from tarry.serve.transport.callers import traced_app
from tarry.serve.transport.connection_budget import ConnectionBudget
from tarry.serve.transport.listener import Listener

NAME: Final = "doors.matrix"

SOON_MS: Final = 2_500
LOOK_EVERY_S: Final = 0.5
"""How far is looked ahead for events that are due, and how often."""


class Registration(Struct, kw_only=True):
    """The parts of an application service's registration that Tarry needs."""

    as_token: str
    hs_token: str


class MatrixDoor:
    """Delayed events in front of a homeserver."""

    mounts: Mapping[str, Application] = {}
    figures: Sequence[Figure] = ()

    def __init__(self, config: Matrix, budget: ConnectionBudget, clock: Clock | None = None) -> None:
        tokens = tokens_of(config)
        self._config = config
        self._clock = clock or SystemClock()
        self._settings = settings_of(config, tokens)
        self._homeserver = Homeserver(
            HomeserverSettings(url=config.homeserver or "", as_token=tokens.as_token)
        )
        # A client that waits for news holds a connection here and one to the homeserver.
        self._listener = Listener(config, budget.share_of(NAME, config.max_connections, files_each=2))
        budget.reserve(MAX_KEPT)
        self._looking: asyncio.Task[None] | None = None
        self.outlets: Mapping[str, Outlet] = {SCHEME: MatrixOutlet(self._homeserver, self._clock)}

    def bind(self) -> list[str]:
        """Take the address."""
        return [self._listener.bind()]

    async def start(self, engine: Engine) -> None:
        """Begin to accept."""
        accounts = Accounts(self._homeserver, self._settings, self._clock)
        parts = Parts(engine, accounts, self._homeserver, self._settings, self._clock)
        await self._listener.start(traced_app(MatrixApp(parts), engine))
        self._looking = asyncio.create_task(self._look_ahead(engine))

    async def _look_ahead(self, engine: Engine) -> None:
        """Have connections ready for messages that are due soon: made at that instant, they would be too many at once."""
        while True:
            self._homeserver.expect(engine.due_soon(SCHEME, SOON_MS))
            await asyncio.sleep(LOOK_EVERY_S)

    def renew(self) -> None:
        """See `Door`."""
        self._listener.renew()

    def revoke(self) -> None:
        """See `Door`. Its tokens are the homeserver's."""

    async def stop(self) -> None:
        """Accept no more."""
        await self._listener.stop()

    async def close(self) -> None:
        """Close the connections to the homeserver."""
        if self._looking is not None:
            self._looking.cancel()
        await self._homeserver.close()


def policies_of(config: Matrix) -> dict[str, Policy]:
    """The limits on delayed events, as policies of their namespace."""
    if not config.enabled:
        return {}
    policy = Policy(
        max_delay_ms=config.max_delay_ms,
        max_pending_per_owner=config.max_pending_per_user,
        accept_per_second=config.schedule_per_second,
        send_per_second=config.send_per_second,
        command_per_second=config.manage_per_second,
    )
    return {EVENTS: policy, FUTURES: policy}


def settings_of(config: Matrix, tokens: Registration) -> MatrixSettings:
    """The door's settings, from the configuration."""
    shared = set(MatrixSettings.__struct_fields__) & set(config.__struct_fields__)
    return MatrixSettings(hs_token=tokens.hs_token, **{name: getattr(config, name) for name in shared})


def tokens_of(config: Matrix) -> Registration:
    """The tokens between Tarry and the homeserver; raises `ConfigError`."""
    if config.homeserver is None:
        raise ConfigError(f"{NAME} needs {NAME}.homeserver, the address of the homeserver behind it")
    if config.registration is None:
        raise ConfigError(f"{NAME} needs {NAME}.registration; `tarry matrix register` makes one")
    try:
        found = msgspec.yaml.decode(Path(config.registration).read_bytes(), type=Registration)
    except OSError as error:
        raise ConfigError(
            f"{NAME}.registration: {config.registration} cannot be read: {error.strerror}"
        ) from None
    except msgspec.MsgspecError:
        raise ConfigError(
            f"{NAME}.registration: {config.registration} is not a registration with as_token and hs_token"
        ) from None
    if min(len(found.as_token), len(found.hs_token)) < MIN_TOKEN_CHARS:
        raise ConfigError(
            f"{NAME}.registration: a token in {config.registration} is shorter than {MIN_TOKEN_CHARS} characters"
            " and can be guessed; `tarry matrix register` makes good ones"
        )
    return found
