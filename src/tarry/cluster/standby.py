"""A server that stands by: it follows the log into its copy, and claims the ledger when the group says that it is its turn.

    follows     reads what the owner appends, and measures how far behind it is
    stands      once it has caught up it joins the group, which tells one of its members to try
    claims      when it is told so; another may be quicker, and then it stands by on

All of it is in one thread, from `start` until the ledger is this node's, `close`, or something that only an operator can mend.
What passes, such as brokers that do not answer, is tried again for as long as it takes.
"""

import logging
import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from msgspec import Struct

from tarry.cluster.candidacy import Candidacy
from tarry.cluster.kafka_partition import KafkaPartition
from tarry.cluster.members import reader_of
from tarry.core.errors import Conflict, NotFound, TarryError, Unavailable
from tarry.core.time.clock import SteadyClock
from tarry.ledger.copy import LedgerCopy
from tarry.ledger.disk import Disk
from tarry.ledger.log.partition import LogPartition
from tarry.ledger.log.replicated_log import LogNode, ReplicatedLog

FOLLOW_S: Final = 0.1
"""So long one look for new records waits."""
MEASURE_EVERY_S: Final = 1.0
TRY_AGAIN_S: Final = 1.0
PARTITION: Final = 0
NEVER: Final = 1 << 63

log = logging.getLogger(__name__)

OnTurn = Callable[[ReplicatedLog | Exception], object]
"""Told, in the thread, once: the log that is this node's now, or why it never can be."""


class Snapshots(Protocol):
    """The snapshots of the registry in storage that all nodes share, as a standby uses them before it stands."""

    def begin(self, first_offset: int, end: int) -> object:
        """Have the copy's folder begin anew at the place of a snapshot for which the log has everything; raises `Unavailable`.

        The log is there from the first offset to its end.
        """

    def renew(self, copy: LedgerCopy) -> object:
        """Take the newest one for the registry, if that is behind it, and let go of what the copy needs no more."""


class FollowedPartition(LogPartition, Protocol):
    """A connection to the log, as a standby uses it."""

    def connect(self) -> None:
        """Get ready to send."""

    def renew(self) -> None:
        """Send by another connection from now on: of what was sent nothing more is heard. Only for who owns nothing."""

    def commit(self, offset: int) -> None:
        """Tell others up to where this node has read."""


class LogAddress(Struct, frozen=True):
    """Where the log is, and how a node takes part in it."""

    client: Mapping[str, Any]
    """Settings of Kafka's library: addresses, TLS, SASL."""
    topic: str
    session_timeout_ms: int
    """After so long without a sign of life the group forgets a node."""


class Lag(Struct, frozen=True):
    """How far a standby is behind the owner."""

    records: int
    """Records of the log that were not read yet."""
    seconds: float
    """Since when there have been some."""


class Standby:
    """One node's way from its start to owning the ledger."""

    def __init__(
        self,
        address: LogAddress,
        disk: Disk,
        folder: str,
        node: LogNode,
        clock: SteadyClock,
        told: OnTurn,
        snapshots: Snapshots | None = None,
        partition: FollowedPartition | None = None,
    ) -> None:
        """The caller holds the lock of the folder, in which the copy is. `partition` is the log, if it is not at the address."""
        reader = reader_of(address.topic, PARTITION, node.name)
        self._partition: FollowedPartition = partition or KafkaPartition(
            address.client, address.topic, PARTITION, reader
        )
        self._name = node.name
        self._session_s = address.session_timeout_ms / 1000
        self._snapshots = snapshots
        self._checked = False
        """Whether the log was compared with the copy since it was last found to lack something."""
        self._clock = clock
        self._told = told
        self._turn = threading.Event()
        self._candidacy = Candidacy(
            address.client,
            address.topic,
            PARTITION,
            node.name,
            session_timeout_ms=address.session_timeout_ms,
            chosen=self._chosen,
        )
        self.level = False
        """Whether it has caught up once, and asked the group to let it in."""
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tarry-standby", daemon=True)
        self._open: Callable[[], ReplicatedLog] = lambda: ReplicatedLog(
            self._partition, LedgerCopy.open(disk, folder), node
        )
        self.side = self._open()
        """This node's side of the log. Others may only read the copy, until they are told that it is theirs."""
        self._not_before_s = 0.0
        """When it may claim, after another node was quicker."""
        self._end = NEVER
        """The end of the log when that was measured last."""
        self._measured_s = 0.0
        self._level_s = 0.0
        """The last instant whose end of the log has been read; 0 until there is one."""
        self.lag = Lag(0, 0.0)
        self.trouble: str | None = None
        """Why it cannot follow or take over, while that is so."""

    @property
    def stands(self) -> bool:
        """Whether it would take over: it has caught up, can follow, and is a member of the group."""
        return self.level and self.trouble is None and self._candidacy.is_member

    @property
    def owner(self) -> str | None:
        """The name of the node that claimed the ledger last, as far as this one has read."""
        claim = self.side.copy.claim
        return None if claim is None else claim.node

    @property
    def owner_addresses(self) -> Mapping[str, str]:
        """Where clients reach that node."""
        claim = self.side.copy.claim
        return {} if claim is None else claim.addresses

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def close(self) -> None:
        """Leave the group; a standby also ends. What it has become, the owner, is not ended by it."""
        self._closing.set()
        self._candidacy.close()
        if self._thread.is_alive():
            self._thread.join()

    def _chosen(self, mine: bool) -> None:
        (self._turn.set if mine else self._turn.clear)()

    def _run(self) -> None:
        try:
            found: ReplicatedLog | Exception | None = self._stand_by()
        except Exception as error:
            if not isinstance(error, TarryError):
                log.exception("the standby failed")
            found = error
        if found is None or isinstance(found, Exception):
            self._partition.close()
            self.side.copy.close()
        if found is not None:
            self._told(found)

    def _stand_by(self) -> ReplicatedLog | None:
        """Follow, until the ledger is this node's; None if it was closed before."""
        while not self._closing.is_set():
            try:
                if not self._checked:
                    self._check()
                self._follow()
                if self._turn.is_set() and time.monotonic() >= self._not_before_s:
                    self._claim()
                    self.lag = Lag(0, 0.0)
                    return self.side
                self.trouble = self._candidacy.trouble
            except Conflict as conflict:
                log.warning("the ledger was not claimed: %s", conflict)
                wait_s = TRY_AGAIN_S
                if self.owner != self._name:
                    # The group and the log will agree: but not while two nodes claim in turns.
                    wait_s = self._session_s * random.uniform(1, 2)
                # Else an earlier claim of this node has won, of which it was told that nobody knows what became of it.
                self._not_before_s = time.monotonic() + wait_s
            except NotFound as gone:
                if self._snapshots is None or self.level:
                    # An engine may follow this copy: the next life begins with another one. A log that was lost is told as such.
                    self.side.check()
                    raise
                self.trouble = str(gone)
                self._checked = False
                self._closing.wait(TRY_AGAIN_S)
            except Unavailable as trouble:
                if str(trouble) != self.trouble:
                    log.warning("the log cannot be followed, and is tried again: %s", trouble)
                self.trouble = str(trouble)
                self.side.read_again()
                self._closing.wait(TRY_AGAIN_S)
        return None

    def _check(self) -> None:
        """Compare the log with the copy before anything is read, and go on from a snapshot if the records that come next were trimmed.

        Only then: a log that has lost records leaves the copy as it is, which may be the last to have them.
        """
        self.side.check_identity()
        try:
            self.side.check()
        except NotFound as gone:
            if self._snapshots is None:
                raise
            log.warning("this node begins anew at a snapshot of the registry: %s", gone)
            self._snapshots.begin(*self._partition.ends())
            self.side.copy.close()
            self.side = self._open()
        else:
            if self._snapshots is not None:
                self._snapshots.renew(self.side.copy)
        self._checked = True

    def _claim(self) -> None:
        try:
            self.side.claim(self._clock.now_ms(), os.urandom(16), os.urandom(16))
        except Unavailable:
            # The connection may have failed for good. Nothing but the claim was sent on it, and a claim may come late.
            self._partition.renew()
            raise

    def _follow(self) -> None:
        self.side.follow(FOLLOW_S)
        now_s = time.monotonic()
        if now_s - self._measured_s < MEASURE_EVERY_S:
            return
        read_to, records = self.side.offset, self.side.lag()
        if not records:
            self._level_s = now_s
        elif read_to >= self._end:
            self._level_s = self._measured_s
        self._end, self._measured_s = read_to + records, now_s
        self.lag = Lag(records, now_s - self._level_s)
        self._partition.commit(read_to)
        if self._level_s and not self.level:
            # Not before: it would be slow to take over, or never could, and hold the turn.
            self.side.check_key()
            self._partition.connect()
            self._candidacy.start()
            self.level = True
