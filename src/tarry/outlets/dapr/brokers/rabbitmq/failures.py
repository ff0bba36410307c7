"""The meaning of failures of RabbitMQ and of its library."""

from typing import Final

from aio_pika.exceptions import (
    AMQPError,
    AuthenticationError,
    ChannelNotFoundEntity,
    ConnectionClosed,
    ProbableAuthenticationError,
)
from aiormq.exceptions import ChannelAccessRefused, ConnectionNotAllowed
from pamqp.exceptions import PAMQPException

from tarry.outlets.dapr.errors import BrokerUnreachable, ComponentError, Denied, TopicMissing

FAILURES: Final = (AMQPError, PAMQPException, OSError, TimeoutError, RuntimeError)
"""The library says `RuntimeError` of connections that are closing."""
REFUSED: Final = (
    AuthenticationError,
    ProbableAuthenticationError,
    ChannelAccessRefused,
    ConnectionNotAllowed,
)


def component_error(error: BaseException, topic: str = "", *, sent: bool = False) -> ComponentError:
    """The error for a failure; `sent` if a message may have arrived."""
    text = f"RabbitMQ: {error}" if str(error) else f"RabbitMQ: {type(error).__name__}"
    if isinstance(error, REFUSED) or (isinstance(error, ConnectionClosed) and "ACCESS_REFUSED" in text):
        return Denied(text)
    if isinstance(error, ChannelNotFoundEntity):
        return TopicMissing(
            f"RabbitMQ: there is no exchange {topic}, and exchangeDeclareMode is passive: make it, or change that"
        )
    return BrokerUnreachable(text, uncertain=sent)
