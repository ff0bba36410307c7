"""Words of Kafka's library about what failed."""

from confluent_kafka import KafkaError


def told(error: BaseException) -> str:
    """The text of an exception of the library."""
    first = error.args[0] if error.args else error
    return first.str() if isinstance(first, KafkaError) else str(first) or type(error).__name__
