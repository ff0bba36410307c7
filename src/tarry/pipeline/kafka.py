"""The ledger in a topic of Kafka, as the driver and its tasks read it: the brokers, the topic, and the places found so far.

Options of the data source:

    kafka             addresses of the brokers
    topic             the topic, by default `tarry`
    kafka.NAME        a further setting of librdkafka that is no secret
    kafka_file.NAME   the file, on the driver's machine, that holds the value of such a setting
    shared            the storage that servers share (`cluster.shared`): needed once the log has been trimmed
    begin             where the log can be read from, if the caller has found that out: offset, epoch, next seq

`tarry pipeline` gives its planner processes all settings, with the content of secret files, in the variable
`TARRY_LEDGER__KAFKA`; it is used for the brokers that it names and no others. Executors get them inside the pickled reader.
Neither is shown by anything.
"""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any, Final

from tarry.cluster.reserved import RESERVED
from tarry.core.errors import Invalid, Unavailable
from tarry.index.files import filesystem_of
from tarry.ledger.log.fold import LogPosition
from tarry.ledger.log.follow import KnownLog, LogBegin, LogFollower, LogNotes, LogScan
from tarry.ledger.log.partition import LogPartition
from tarry.registry.shared_aside import aside_folder, shared_aside
from tarry.registry.shared_snapshots import SharedSnapshots, registry_folder
from tarry.registry.shared_storage import SharedStorage

SETTINGS_VARIABLE: Final = "TARRY_LEDGER__KAFKA"
ADDRESSES: Final = "bootstrap.servers"
TOPIC: Final = "tarry"
PARTITION: Final = 0
_SECRET: Final = ("password", "passphrase", "secret", "key.pem", "jaas", "token")
"""Words in the names of settings whose values may not stand in an option."""


def is_of_kafka(option: str) -> bool:
    """Whether an option of a read is about the ledger's log."""
    return option in ("kafka", "topic", "shared", "begin") or option.startswith(("kafka.", "kafka_file."))


class SharedNotes(LogNotes):
    """The notes of servers in the storage that they share."""

    def __init__(self, shared: str, topic: str) -> None:
        self._shared = shared
        self._topic = topic

    def begin(self, first_offset: int, end: int) -> LogBegin:
        """The place of the snapshot that reaches back furthest of those that go with the log."""
        snapshots = SharedSnapshots(self._storage(registry_folder)).newest()
        origins = [one.origin for one in snapshots if first_offset <= one.origin.begin.offset <= end]
        if not origins:
            raise Unavailable(
                f"the log has the offsets from {first_offset} to {end}, and {self._shared} has no snapshot of the registry "
                "that goes with it: is it the storage that the servers share?"
            )
        first = min(origins, key=lambda origin: origin.begin.offset)
        return LogBegin(first.begin, first.claim)

    def set_aside(self) -> frozenset[int]:
        """The seqs in the lists of all owners."""
        return shared_aside(self._storage(aside_folder))

    def _storage(self, folder_of: Callable[[str, str], str]) -> SharedStorage:
        filesystem, root = filesystem_of(self._shared)
        return SharedStorage(filesystem, folder_of(root, self._topic))


class KafkaLedger:
    """The ledger's topic, and what opens it. Travels to the executors with the places found so far; shows no secrets."""

    def __init__(
        self, settings: Mapping[str, str], topic: str, shared: str | None, known: KnownLog | None = None
    ) -> None:
        """`settings` are librdkafka's own."""
        self._settings = dict(settings)
        self._topic = topic
        self._shared = shared
        self._scan = self._scan_from(known)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "KafkaLedger":
        """The topic that options of a read name; raises `Invalid`."""
        settings = _settings_of(options)
        known = None
        if begin := options.get("begin"):
            place = LogPosition(*map(int, begin.split(",")))
            known = KnownLog([place], None, place.next_seq)
        return cls(settings, options.get("topic", TOPIC), options.get("shared"), known)

    def follower(
        self,
        patience_s: float,
        begin: LogPosition | None = None,
        upto_seq: int = 0,
        aside: frozenset[int] = frozenset(),
    ) -> LogFollower:
        """A reader of it; with a place, one that reads only from there on, up to this seq, which is known to be there.

        Records at the seqs `aside` are flagged, beside those that this ledger knew when it was pickled.
        """
        if begin is None:
            return LogFollower(self._scan, patience_s)
        aside |= self._scan.known().aside
        return LogFollower(self._scan_from(KnownLog([begin], None, upto_seq + 1, aside)), patience_s)

    def begin_option(self, seq: int, patience_s: float) -> dict[str, str]:
        """The option with the place before a seq, so that another process begins there."""
        place = self._scan.read_on(patience_s).place_before(seq)
        return {} if place is None else {"begin": ",".join(map(str, place))}

    def __repr__(self) -> str:
        return f"{self._topic} at {self._settings.get(ADDRESSES)}"

    def __getstate__(self) -> tuple[Any, ...]:
        return self._settings, self._topic, self._shared, self._scan.known()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]

    def _scan_from(self, known: KnownLog | None) -> LogScan:
        notes = SharedNotes(self._shared, self._topic) if self._shared else None
        return LogScan(self._connect, notes, known)

    def _connect(self) -> LogPartition:
        try:
            from tarry.cluster.kafka_partition import KafkaPartition
        except ImportError:
            raise Unavailable(
                "the ledger's log cannot be read without confluent-kafka: pip install 'tarry[kafka]', on executors too"
            ) from None
        return KafkaPartition(self._settings, self._topic, PARTITION)


def _settings_of(options: Mapping[str, str]) -> dict[str, str]:
    addresses = options["kafka"]
    given = json.loads(os.environ.get(SETTINGS_VARIABLE) or "{}")
    settings: dict[str, str] = dict(given) if given.get(ADDRESSES) == addresses else {}
    for option, value in options.items():
        kind, _, name = option.partition(".")
        if not name or kind not in ("kafka", "kafka_file"):
            continue
        if name in RESERVED or name == ADDRESSES:
            raise Invalid(option, f"{name} cannot be set here: Tarry sets it itself")
        if kind == "kafka_file":
            settings[name] = _content(option, value)
        elif any(word in name for word in _SECRET):
            raise Invalid(
                option, f"{name} may be a secret, and options are shown: give kafka_file.{name}, a file"
            )
        else:
            settings[name] = value
    return {**settings, ADDRESSES: addresses}


def _content(option: str, path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(option, f"{path} cannot be read: {error}") from None
