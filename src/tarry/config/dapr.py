"""What an operator may set about the Dapr door."""

from typing import Annotated

from msgspec import Meta

from tarry.config.listening import Listening


class Dapr(Listening, frozen=True, kw_only=True):
    """Dapr's pub/sub, with scheduled publish."""

    enabled: bool = False
    """Whether the door is open."""
    port: Annotated[int, Meta(ge=0, le=65535)] = 3500
    """Port to listen on; 0 takes a free one and prints it."""
