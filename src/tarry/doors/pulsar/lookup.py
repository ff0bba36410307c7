"""Questions about topics: where they are, how many partitions they have, which there are, and their schemas."""

from tarry.core.errors import NotFound, TarryError
from tarry.core.names import parse_namespace, parse_topic, unpartitioned
from tarry.doors.pulsar import wire_pb2 as wire
from tarry.doors.pulsar.errors import Code, PulsarRefusal, say, say_code
from tarry.doors.pulsar.frames import text
from tarry.doors.pulsar.peer import PulsarPeer, TakeCommand
from tarry.doors.pulsar.schema import read_schema, version_bytes, wire_schema
from tarry.engine.answer import Answer, failed, settled

_Type = wire.BaseCommand


class Lookup:
    """Answers the questions of one connection."""

    def __init__(self, connection: PulsarPeer) -> None:
        self._connection = connection
        self.takes: dict[int, tuple[str, TakeCommand]] = {
            _Type.PARTITIONED_METADATA: ("partitionMetadata", self._partitions),
            _Type.LOOKUP: ("lookupTopic", self._lookup),
            _Type.GET_TOPICS_OF_NAMESPACE: ("getTopicsOfNamespace", self._topics),
            _Type.GET_SCHEMA: ("getSchema", self._schema),
            _Type.GET_OR_CREATE_SCHEMA: ("getOrCreateSchema", self._add_schema),
        }

    def _partitions(self, asked: wire.CommandPartitionedTopicMetadata, _: bytes) -> None:
        connection = self._connection
        answer = wire.CommandPartitionedTopicMetadataResponse(request_id=asked.request_id)

        def tell(found: Answer[int]) -> None:
            error = found.error()
            if error is None:
                answer.partitions = found.value()
                answer.response = wire.CommandPartitionedTopicMetadataResponse.Success
            else:
                answer.response = wire.CommandPartitionedTopicMetadataResponse.Failed
                say(answer, error)
            connection.send(type=_Type.PARTITIONED_METADATA_RESPONSE, partitionMetadataResponse=answer)

        try:
            name = connection.require(asked.topic, _Type.PARTITIONED_METADATA).full
            self._partitions_of(name, make=asked.metadata_auto_creation_enabled).then(tell)
        except TarryError as error:
            tell(failed(error))

    def _partitions_of(self, topic: str, *, make: bool) -> Answer[int]:
        """The number of partitions of a topic; one that is not there is made first if it is to have any."""
        broker = self._connection.broker
        topics = broker.engine.topics
        if topic in topics.by_name:
            return settled(topics.partitions(topic))
        if not make:
            # Clients ask so to learn whether a topic is there, such as one with an older name of theirs (PIP-344).
            raise NotFound(f"Topic {topic} not found")
        broker.rules.check_topic(topic)
        partitions = broker.rules.partitions(topic)
        if not partitions:
            return settled(0)
        broker.rules.check_topic_limit(parse_topic(topic).namespace_name, partitions)
        return topics.create(topic, partitions).map(lambda _: partitions)

    def _lookup(self, asked: wire.CommandLookupTopic, _: bytes) -> None:
        connection = self._connection
        answer = wire.CommandLookupTopicResponse(request_id=asked.request_id)
        try:
            connection.require(asked.topic, _Type.LOOKUP)
            if asked.advertised_listener_name:
                # Clients give up at this code at once; Pulsar's own has them try again until their time is out.
                raise PulsarRefusal(
                    Code.NotAllowedError,
                    f"the broker has no listener {text(asked.advertised_listener_name)}:"
                    " it has one address, and clients set no listener name",
                )
            url = connection.broker.settings.advertised_url or connection.url
            if url.startswith("pulsar+ssl"):
                answer.brokerServiceUrlTls = url
            else:
                answer.brokerServiceUrl = url
            # Whatever address the client has used, it leads here.
            answer.proxy_through_service_url = not connection.broker.settings.advertised_url
            answer.authoritative = True
            answer.response = wire.CommandLookupTopicResponse.Connect
        except TarryError as error:
            answer.response = wire.CommandLookupTopicResponse.Failed
            say(answer, error)
        connection.send(type=_Type.LOOKUP_RESPONSE, lookupTopicResponse=answer)

    def _topics(self, asked: wire.CommandGetTopicsOfNamespace, _: bytes) -> None:
        connection = self._connection

        def tell() -> None:
            namespace = parse_namespace(text(asked.namespace))
            connection.require_namespace(namespace, _Type.GET_TOPICS_OF_NAMESPACE)
            topics = connection.broker.engine.topics
            wanted = asked.mode != wire.CommandGetTopicsOfNamespace.NON_PERSISTENT
            names = (
                [name for name in topics.names(namespace) if not topics.partitions(name)] if wanted else []
            )
            answer = wire.CommandGetTopicsOfNamespaceResponse(request_id=asked.request_id, topics=names)
            connection.send(type=_Type.GET_TOPICS_OF_NAMESPACE_RESPONSE, getTopicsOfNamespaceResponse=answer)

        connection.attempt(asked.request_id, tell)

    def _schema(self, asked: wire.CommandGetSchema, _: bytes) -> None:
        connection = self._connection
        answer = wire.CommandGetSchemaResponse(request_id=asked.request_id)
        try:
            name = connection.require(asked.topic, _Type.GET_SCHEMA)
            version = int.from_bytes(asked.schema_version, "big") if asked.schema_version else None
            found = connection.broker.schemas.find(unpartitioned(name.full), version)
            if found is None:
                answer.error_code, answer.error_message = Code.TopicNotFound, "there is no such schema"
            else:
                answer.schema.CopyFrom(wire_schema(found[1]))
                answer.schema_version = version_bytes(found[0])
        except TarryError as error:
            say_code(answer, error)
        connection.send(type=_Type.GET_SCHEMA_RESPONSE, getSchemaResponse=answer)

    def _add_schema(self, asked: wire.CommandGetOrCreateSchema, _: bytes) -> None:
        connection = self._connection
        answer = wire.CommandGetOrCreateSchemaResponse(request_id=asked.request_id)

        def added(version: Answer[int]) -> None:
            error = version.error()
            if error is None:
                answer.schema_version = version_bytes(version.value())
            else:
                say_code(answer, error)
            connection.send(type=_Type.GET_OR_CREATE_SCHEMA_RESPONSE, getOrCreateSchemaResponse=answer)

        def add() -> None:
            name = connection.require(asked.topic, _Type.GET_OR_CREATE_SCHEMA)
            topic = unpartitioned(name.full)
            connection.broker.schemas.add(topic, read_schema(asked.schema)).then(added)

        connection.attempt(asked.request_id, add)
