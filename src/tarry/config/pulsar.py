"""What an operator may set about the Pulsar door."""

from typing import Annotated

from msgspec import Meta

from tarry.config.listening import Listening


class Pulsar(Listening, frozen=True, kw_only=True):
    """Apache Pulsar's binary protocol."""

    enabled: bool = False
    """Whether the door is open."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 6650
    """Port to listen on; 0 takes a free one and prints it."""
