"""Words of Kafka's library about what failed."""

from confluent_kafka import KafkaError


def told(error: BaseException) -> str:
    """What an exception of the library says."""
    first = error.args[0] if error.args else error
    return first.str() if isinstance(first, KafkaError) else str(first) or type(error).__name__
