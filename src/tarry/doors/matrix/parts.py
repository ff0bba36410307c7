"""Parts that the endpoints of the door share."""

from msgspec import Struct

from tarry.core.time.clock import Clock
from tarry.doors.matrix.accounts import Accounts
from tarry.doors.matrix.settings import MatrixSettings
from tarry.engine.engine import Engine
from tarry.outlets.matrix.homeserver import Homeserver


class Parts(Struct, frozen=True):
    """The engine, the accounts, the homeserver behind, and the settings."""

    engine: Engine
    accounts: Accounts
    homeserver: Homeserver
    settings: MatrixSettings
    clock: Clock
