"""Entries as MESSAGE frames.

What came through this door goes out as it came. What came through another one gets metadata of its own: its headers are the
properties, its key the partition key.
"""

from collections.abc import Sequence
from itertools import chain

from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.broker import DOOR
from tarry.doors.pulsar.frames import Places, message_head, message_heads, metadata_of, with_checksum
from tarry.engine.api import Received


def frames_of(consumer: bytes, places: Places, epoch: int | None, entries: Sequence[Received]) -> bytes:
    """The frames that bring entries of a topic to a consumer, whose id is given as a `varint`."""
    messages = [entry.payload if entry.door == DOOR else foreign(entry) for entry in entries]
    sizes = list(map(len, messages))
    if any(entry.redelivery_count or entry.left for entry in entries):
        heads = [
            message_head(consumer, places, entry.entry_id, entry.redelivery_count, entry.left, epoch, size)
            for entry, size in zip(entries, sizes, strict=True)
        ]
    else:
        heads = message_heads(consumer, places, [entry.entry_id for entry in entries], epoch, sizes)
    return b"".join(chain.from_iterable(zip(heads, messages, strict=True)))


def foreign(entry: Received) -> bytes:
    """A message that another door took in, as Pulsar's clients read it."""
    metadata = wire.MessageMetadata(
        producer_name="tarry",
        sequence_id=entry.entry_id,
        publish_time=entry.published_at_ms,
        uncompressed_size=len(entry.payload),
        properties=[wire.KeyValue(key=key, value=value) for key, value in entry.headers.items()],
    )
    if entry.key is not None:
        metadata.partition_key = entry.key
    if entry.due_at_ms is not None:
        metadata.deliver_at_time = entry.due_at_ms
    return with_checksum(metadata.SerializeToString(), entry.payload)


def batch_size(entry: Received) -> int | None:
    """How many messages a batch holds; None for an entry that is none, as a batch of one is one."""
    if entry.door != DOOR:
        return None
    metadata = wire.MessageMetadata.FromString(metadata_of(entry.payload))
    return metadata.num_messages_in_batch if metadata.HasField("num_messages_in_batch") else None
