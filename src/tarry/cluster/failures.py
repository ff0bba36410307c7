"""Words of Kafka's library about what failed."""

from typing import Final

from confluent_kafka import KafkaError

RIGHTS: Final = (
    "a server's user needs Read, Write, Describe, DescribeConfigs and Delete on the topic, and Read and Describe on the "
    "groups that begin with tarry-"
)

_REASONS: Final = {
    KafkaError._AUTHENTICATION: "set sasl.username, and in ledger.kafka_files sasl.password, to a user of the brokers",
    KafkaError._SSL: "set ssl.ca.location to the certificate with which the brokers' are signed",
}
"""Errors of a connection that are its reason, and what would mend them. The others only say that there is none."""
_REFUSED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.GROUP_AUTHORIZATION_FAILED,
        # So says a broker to a producer that may not write to any topic.
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)


def told(error: BaseException | KafkaError) -> str:
    """The text of an error of the library, or of an exception."""
    if isinstance(error, TimeoutError):
        return "they did not answer in time"
    first = error.args[0] if isinstance(error, BaseException) and error.args else error
    if isinstance(first, KafkaError):
        return f"{first.str()}: {RIGHTS}" if first.code() in _REFUSED else first.str()
    return str(first) or type(error).__name__


class Reason:
    """Why a client has no connection, which the library says once, in a callback, and no call that fails for it repeats."""

    def __init__(self) -> None:
        self._text = ""

    def heard(self, error: KafkaError) -> None:
        """The callback, `error_cb`."""
        if (mends := _REASONS.get(error.code())) is not None:
            self._text = f": {error.str()}; {mends}"

    def __str__(self) -> str:
        """The words that go behind those of an error; none while no reason is known."""
        return self._text
