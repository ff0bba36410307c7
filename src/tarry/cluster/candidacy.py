"""Candidacy: membership in a consumer group, which says who should try to own the ledger.

The group assigns the ledger's partition to one of the nodes that are there, and to another one when that one is gone. It is a
hint and no lock: who owns is decided by claims in the log, and a node that the group has forgotten goes on until it finds
one. So nothing here has to be right at every instant, only in the end.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tarry.cluster.failures import told
from tarry.cluster.members import group_of

POLL_S: Final = 0.05
LEFT_WITHIN_S: Final = 5.0
TRY_AGAIN_S: Final = 1.0

_CURES: Final = {
    KafkaError.INVALID_SESSION_TIMEOUT: ": the brokers take a session between their group.min.session.timeout.ms and "
    "group.max.session.timeout.ms; set cluster.session_timeout_ms within these, or allow it there",
}
"""Remedies for an error of the group."""

log = logging.getLogger("tarry.kafka")


class Candidacy:
    """One node's membership, in a thread of its own from `start` to `close`."""

    def __init__(
        self,
        settings: Mapping[str, Any],
        topic: str,
        partition: int,
        node: str,
        *,
        session_timeout_ms: int,
        chosen: Callable[[bool], None],
    ) -> None:
        """`node` is its name among the others. `chosen` is called in the thread with True when it is this node's turn, and with False when it is not any more."""
        self._settings = {
            "logger": log,
            "log_level": 5,
            **settings,
            "group.id": group_of(topic, partition),
            "client.id": node,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": session_timeout_ms,
            "heartbeat.interval.ms": max(100, session_timeout_ms // 20),
            "enable.auto.commit": False,
            "auto.offset.reset": "latest",
        }
        self.trouble: str | None = None
        """Why it is no member, while that is so and a reason was told."""
        self._joined = False
        self._mine = False
        """Whether it is this node's turn."""
        self._topic = topic
        self._partition = partition
        self._chosen = chosen
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tarry-candidacy", daemon=True)

    def start(self) -> None:
        """Join the group."""
        self._thread.start()

    def close(self) -> None:
        """Leave the group, so that another node gets its turn at once. Brokers that do not answer are not waited for."""
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join(LEFT_WITHIN_S)

    @property
    def is_member(self) -> bool:
        """Whether the group has this node, as far as it knows."""
        return self._joined and self.trouble is None

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                self._take_part()
            except KafkaException as error:
                self._failed(told(error))
            self._closing.wait(TRY_AGAIN_S)

    def _take_part(self) -> None:
        """Be a member, until it is closed or another consumer may do better."""
        consumer = Consumer(self._settings)
        try:
            consumer.subscribe(
                [self._topic], on_assign=self._assigned, on_revoke=self._gone, on_lost=self._gone
            )
            while not self._closing.is_set():
                message = consumer.poll(POLL_S)
                error = None if message is None else message.error()
                if error is None or error.code() == KafkaError._PARTITION_EOF:
                    continue
                self._failed(told(error) + _CURES.get(error.code(), ""))
                if not self._mine:
                    # Whoever has its turn would give it away.
                    return
        finally:
            try:
                consumer.close()
            finally:
                self._joined = False
                self._give(mine=False)

    def _failed(self, trouble: str) -> None:
        if trouble != self.trouble:
            log.warning("this node cannot stand for the ledger, and tries again: %s", trouble)
        self.trouble = trouble

    def _give(self, *, mine: bool) -> None:
        if mine != self._mine:
            self._mine = mine
            self._chosen(mine)

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # Without partitions too: a member that waits for its turn is told so.
        self._joined, self.trouble = True, None
        consumer.incremental_assign(partitions)
        # The group is only asked whose turn it is: what is in the log is read elsewhere.
        consumer.pause(partitions)
        if self._is_among(partitions):
            self._give(mine=True)

    def _gone(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_unassign(partitions)
        if self._is_among(partitions):
            self._give(mine=False)

    def _is_among(self, partitions: list[TopicPartition]) -> bool:
        return any(given.partition == self._partition for given in partitions)
