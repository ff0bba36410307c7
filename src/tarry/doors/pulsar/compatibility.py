"""Which schemas of a topic go together, by the strategy that its namespace or the topic sets. Pure."""

from collections.abc import Sequence
from typing import Final

from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.avro import AvroSchema, Budget, NotAvro, TooManySteps, can_read
from tarry.doors.pulsar.rules import Strategy
from tarry.doors.pulsar.schema import TYPE_NAMES, TopicSchema

_Type = wire.Schema

_RECORDS: Final = frozenset({_Type.Json, _Type.Protobuf, _Type.Avro})
"""Types whose schemas are written in Avro's language."""


def reason_against(new: TopicSchema, versions: Sequence[TopicSchema], strategy: Strategy) -> str | None:
    """The reason why a producer's schema does not go with those that are there; None if it does."""
    if not versions or strategy == "ALWAYS_COMPATIBLE":
        return None
    if strategy == "ALWAYS_INCOMPATIBLE":
        return "the strategy ALWAYS_INCOMPATIBLE allows no second schema"
    others = versions if strategy.endswith("_TRANSITIVE") else versions[-1:]
    budget = Budget()
    for other in others:
        reads = strategy.startswith("FORWARD") or _can_read(new, other, budget)
        is_read = strategy.startswith("BACKWARD") or _can_read(other, new, budget)
        if not (reads and is_read):
            return f"the schemas are not compatible by the strategy {strategy}"
    return None


def reason_against_reading(
    new: TopicSchema, versions: Sequence[TopicSchema], strategy: Strategy
) -> str | None:
    """The reason why a consumer cannot read a topic with its schema; None if it can."""
    if not versions or strategy.startswith("ALWAYS_") or new in versions:
        return None
    others = versions if strategy in ("BACKWARD_TRANSITIVE", "FULL_TRANSITIVE") else versions[-1:]
    budget = Budget()
    if all(_can_read(new, other, budget) for other in others):
        return None
    return "the consumer's schema cannot read the messages of the topic"


def _can_read(reader: TopicSchema, writer: TopicSchema, budget: Budget) -> bool:
    if reader.type == _Type.KeyValuePair:
        pairs = zip(_halves(reader), _halves(writer), strict=True)
        return all(one.type == other.type and _can_read(one, other, budget) for one, other in pairs)
    if reader.type not in _RECORDS or reader.data == writer.data:
        return True
    try:
        return can_read(AvroSchema(reader.data), AvroSchema(writer.data), budget)
    except NotAvro:
        # Some clients describe JSON in other languages; there is nothing to compare then.
        return True
    except TooManySteps:
        return False


def _halves(schema: TopicSchema) -> tuple[TopicSchema, TopicSchema]:
    """The schemas of key and value, each behind its length in four bytes."""
    key_end = 4 + int.from_bytes(schema.data[:4], "big")
    parts = (schema.data[4:key_end], schema.data[key_end + 4 :])
    kinds = (schema.properties.get(name, "") for name in ("key.schema.type", "value.schema.type"))
    key, value = (
        TopicSchema("", TYPE_NAMES.get(kind, 0), data) for kind, data in zip(kinds, parts, strict=True)
    )
    return key, value
