"""What an operator may set about the Matrix door."""

from typing import Annotated

from msgspec import Meta

from tarry.config.listening import Listening
from tarry.config.table import Path


class Matrix(Listening, frozen=True, kw_only=True):
    """Matrix delayed events, in front of a homeserver."""

    enabled: bool = False
    """Whether the door is open."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 8008
    """Port to listen on; 0 takes a free one and prints it."""
    homeserver: str | None = None
    """Address of the homeserver behind the door, such as http://127.0.0.1:8009. Without one `tarry up` starts a private Synapse."""
    registration: Path | None = None
    """The registration file that the homeserver was given; `tarry matrix register` writes one."""
