"""Schemas of topics, kept in the catalogue: one record for each version, so that a new one costs its own size.

All versions have the type of the first; whether two go together is decided by the topic's strategy (`compatibility`). Before
there were records for versions, all of them were one value under the topic's name: those are still read, and come first.
"""

from functools import lru_cache
from typing import Final

import msgspec
from msgspec import Struct

from tarry.doors.pulsar.compatibility import reason_against, reason_against_reading
from tarry.doors.pulsar.errors import Code, PulsarRefusal
from tarry.doors.pulsar.rules import RuleBook
from tarry.doors.pulsar.schema import TopicSchema, type_name
from tarry.engine.answer import Answer, failed, settled
from tarry.engine.engine import Engine

MAX_VERSIONS: Final = 256
MAX_SCHEMA_BYTES: Final = 64 * 1024
"""The size of a schema with its properties. Schemas are held in memory."""


class Version(Struct, frozen=True, array_like=True):
    """One version as it is kept."""

    schema: TopicSchema
    added_at_ms: int


class StoredSchemas:
    """See `tarry.doors.pulsar.schema.Schemas`."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._rules = RuleBook(engine)

    def versions(self, topic: str) -> list[Version]:
        """All versions of a topic's schema, the first one first."""
        versions = list(_decoded_all(self._engine.catalogue.get("schema", topic) or b"[]"))
        while (stored := self._engine.catalogue.get("schema", _key(topic, len(versions)))) is not None:
            versions.append(_decoded(stored))
        return versions

    def add(self, topic: str, schema: TopicSchema) -> Answer[int]:
        """See `Schemas`."""
        versions = [version.schema for version in self.versions(topic)]
        if schema in versions:
            return settled(versions.index(schema))
        try:
            self._check_size(topic, schema, versions)
            self._check(schema, versions, reason_against(schema, versions, self._rules.strategy(topic)))
        except PulsarRefusal as refused:
            return failed(refused)
        version = Version(schema, self._engine.clock.now_ms())
        entered = self._engine.catalogue.enter(
            "schema", _key(topic, len(versions)), msgspec.json.encode(version)
        )
        return entered.map(lambda _: len(versions))

    def find(self, topic: str, version: int | None) -> tuple[int, TopicSchema] | None:
        """See `Schemas`."""
        versions = self.versions(topic)
        at = len(versions) - 1 if version is None else version
        return (at, versions[at].schema) if 0 <= at < len(versions) else None

    def check(self, topic: str, schema: TopicSchema) -> None:
        """See `Schemas`."""
        versions = [version.schema for version in self.versions(topic)]
        self._check(schema, versions, reason_against_reading(schema, versions, self._rules.strategy(topic)))

    def check_new(self, topic: str, schema: TopicSchema) -> None:
        """Raise if a producer's schema does not go with the topic's."""
        versions = [version.schema for version in self.versions(topic)]
        if schema not in versions:
            self._check(schema, versions, reason_against(schema, versions, self._rules.strategy(topic)))

    def remove(self, topic: str) -> Answer[int]:
        """Remove every version; the answer is how many there were."""
        count = len(self.versions(topic))
        if not count:
            return settled(0)
        names = [topic, *(_key(topic, number) for number in range(count))]
        return self._engine.catalogue.remove("schema", names).map(lambda _: count)

    @staticmethod
    def _check_size(topic: str, schema: TopicSchema, versions: list[TopicSchema]) -> None:
        size = len(schema.data) + sum(len(k.encode()) + len(v.encode()) for k, v in schema.properties.items())
        if size > MAX_SCHEMA_BYTES:
            raise PulsarRefusal(
                Code.NotAllowedError, f"the schema has {size} bytes; {MAX_SCHEMA_BYTES} are allowed"
            )
        if len(versions) >= MAX_VERSIONS:
            raise PulsarRefusal(
                Code.NotAllowedError,
                f"the schema of {topic} has {MAX_VERSIONS} versions, which is as many as are kept;"
                " an administrator can delete it, and it begins anew",
            )

    @staticmethod
    def _check(schema: TopicSchema, versions: list[TopicSchema], reason: str | None) -> None:
        if versions and versions[-1].type != schema.type:
            reason = (
                f"exists schema type {type_name(versions[-1].type)}, new schema type {type_name(schema.type)}"
            )
        if reason is not None:
            raise PulsarRefusal(Code.IncompatibleSchema, f"Incompatible schema: {reason}")


def _key(topic: str, version: int) -> str:
    """The name of a version in the catalogue; no topic's name has a slash at its end."""
    return f"{topic}/{version}"


@lru_cache(maxsize=1024)
def _decoded(stored: bytes) -> Version:
    return msgspec.json.decode(stored, type=Version)


@lru_cache(maxsize=64)
def _decoded_all(stored: bytes) -> tuple[Version, ...]:
    return msgspec.json.decode(stored, type=tuple[Version, ...])
