"""The meaning of failures of Kafka and of its library."""

from typing import Final

from confluent_kafka import KafkaError

from tarry.outlets.dapr.errors import BrokerUnreachable, ComponentError, Denied, NeverTaken, TopicMissing

_DENIED: Final = frozenset(
    (
        KafkaError._AUTHENTICATION,
        KafkaError.SASL_AUTHENTICATION_FAILED,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    )
)
_MISSING: Final = frozenset((KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC))
_NEVER: Final = frozenset(
    (
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.INVALID_MSG_SIZE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError._INVALID_ARG,
    )
)


class Denial:
    """The library's word beside a failed call, where it says more than the call: that somebody is not let in."""

    def __init__(self) -> None:
        self._error: KafkaError | None = None

    def heard(self, error: KafkaError) -> None:
        """Called by the library."""
        if error.code() == KafkaError._AUTHENTICATION:
            self._error = error

    def take(self, failed: KafkaError) -> KafkaError:
        """Why a call failed: the denial, if there was one since the last such call."""
        denied, self._error = self._error, None
        return denied or failed


def component_error(error: KafkaError, topic: str = "", *, sent: bool = False) -> ComponentError:
    """The error for a failure; `sent` if a record may have arrived."""
    text = f"Kafka: {error.str()}"
    if error.code() in _DENIED:
        return Denied(text)
    if error.code() in _MISSING:
        return TopicMissing(
            f"Kafka: there is no topic {topic}, and the cluster makes none by itself: make it"
        )
    if error.code() in _NEVER:
        return NeverTaken(text)
    return BrokerUnreachable(text, uncertain=sent)
