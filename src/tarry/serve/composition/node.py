"""This server among those that share a ledger: it looks at the topic, stands by, and owns the ledger from its claim on."""

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from itertools import count
from typing import Final

from tarry.cluster.failures import told
from tarry.cluster.inspection import topic_settings
from tarry.cluster.members import GroupMember, Members
from tarry.cluster.standby import PARTITION, LogAddress, Standby
from tarry.cluster.topic_safety import doubtful, unsafe
from tarry.config import Config
from tarry.config.kafka import kafka_settings
from tarry.core.errors import Unavailable
from tarry.core.telemetry.figure import AnyFigure, Figure, Histogram, HistogramFigure
from tarry.core.tenants.access import Access
from tarry.core.time.clock import SteadyClock
from tarry.doors.http.operator.figures import ClusterFigures, StandbyFigures
from tarry.doors.http.settings import HttpSettings
from tarry.doors.http.standby import StandbyApp
from tarry.engine.due.horizon import Offload
from tarry.ledger.disk import RealDisk
from tarry.ledger.log.replicated_log import APPEND_S, LogNode, ReplicatedLog
from tarry.serve.composition.shared import SnapshotFetches, SnapshotUploads, shared_snapshots
from tarry.serve.datafolder import DataFolder

TRY_AGAIN_S: Final = 1.0
LOOK_EVERY_S: Final = 5.0
"""So often the owner looks who stands by."""
TOPIC_EVERY: Final = 12
"""At every so many of these looks it looks at the topic's settings too."""
NO_APPENDS: Final = Histogram(APPEND_S)

log = logging.getLogger("tarry.serve")


def node_name(config: Config) -> str:
    """The name of this server among those that share the ledger."""
    return config.cluster.node or socket.gethostname()


class ClusterNode:
    """A server's part in the cluster, until it leaves."""

    def __init__(self, config: Config, folder: DataFolder, clock: SteadyClock, url: str) -> None:
        """`url` is where the HTTP API listens."""
        settings = config.cluster
        self._config = config
        self._clock = clock
        self._folder = folder
        self._address = LogAddress(
            client=kafka_settings(config),
            topic=config.ledger.topic,
            session_timeout_ms=settings.session_timeout_ms,
        )
        self._node = LogNode(node_name(config), folder.id_check(), {"http": settings.advertise or url})
        self._snapshots = shared_snapshots(config)
        self._uploads: SnapshotUploads | None = None
        self._standby: Standby | None = None
        self._trouble: str | None = None
        self._looking: asyncio.Task[None] | None = None
        self._members: list[GroupMember] = []
        self._members_trouble: str | None = None
        self._unsafe: list[str] = []
        """Why the topic could lose acknowledged frames by now."""

    def app(self, access: Access, settings: HttpSettings) -> StandbyApp:
        """The HTTP API of this server while it stands by."""
        return StandbyApp(access, settings, self._reasons, self._owner, self.figures)

    async def inspect(self) -> None:
        """Refuse a topic that could lose the ledger; brokers that do not answer are asked again."""
        address = self._address
        topic = None
        while topic is None:
            try:
                topic = await asyncio.to_thread(topic_settings, address.client, address.topic)
                self._trouble = None
            except Unavailable as trouble:
                if str(trouble) != self._trouble:
                    log.warning("%s", trouble)
                self._trouble = str(trouble)
                await asyncio.sleep(TRY_AGAIN_S)
        if reasons := unsafe(topic):
            raise Unavailable("; ".join(reasons))
        for warning in doubtful(topic):
            log.warning("%s", warning)

    async def _inspect_again(self) -> None:
        """See what became of the topic's settings: too late to refuse it, and in time to say so."""
        topic = await asyncio.to_thread(topic_settings, self._address.client, self._address.topic)
        reasons = unsafe(topic)
        if reasons and reasons != self._unsafe:
            log.error(
                "the ledger's topic was changed, and could lose what it acknowledges: %s", "; ".join(reasons)
            )
        self._unsafe = reasons

    @property
    def warnings(self) -> list[str]:
        """Warnings that an operator should know of although messages are accepted and sent; everybody may ask, so the details are in the log."""
        if not self._unsafe:
            return []
        return [
            "the ledger's topic has settings by which acknowledged messages could be lost: the log says which"
        ]

    async def owned(self) -> ReplicatedLog:
        """Stand by until the ledger is this server's; raises what keeps it from ever being that."""
        loop = asyncio.get_running_loop()
        owned: asyncio.Future[ReplicatedLog] = loop.create_future()

        def told(found: ReplicatedLog | Exception) -> None:
            if owned.done():
                return
            if isinstance(found, Exception):
                owned.set_exception(found)
            else:
                owned.set_result(found)

        self._standby = Standby(
            self._address,
            RealDisk(),
            str(self._folder.ledger),
            self._node,
            self._clock,
            lambda found: loop.call_soon_threadsafe(told, found),
            self._fetches(),
        )
        self._standby.start()
        log.info("standing by", extra={"node": self._node.name, "topic": self._address.topic})
        side = await owned
        self._looking = asyncio.create_task(self._look_on())
        return side

    async def _look_on(self) -> None:
        """Look again and again who stands by, and now and then at the topic."""
        address = self._address
        members: Members | None = None
        for turn in count():
            try:
                members = members or Members(address.client, address.topic, PARTITION)
                self._members = await asyncio.to_thread(members.look)
                self._members_trouble = None
                if turn % TOPIC_EVERY == 0:
                    await self._inspect_again()
            except Exception as error:  # noqa: BLE001 - no look that fails may be the last one
                if not isinstance(error, Unavailable):
                    log.warning("it is not known who stands by: %s", told(error))
                self._members_trouble = told(error)
            await asyncio.sleep(LOOK_EVERY_S)

    @property
    def followed(self) -> ReplicatedLog | None:
        """The log, once this server has caught up with it, and its copy has something to read."""
        standby = self._standby
        if standby is None or not standby.level or not standby.side.copy.reader.segments:
            return None
        return standby.side

    def uploads(self, side: ReplicatedLog, offload: Offload) -> SnapshotUploads | None:
        """The uploads of the owner's snapshots of the registry; None without shared storage."""
        if self._snapshots is None:
            log.warning(
                "the log is never trimmed: set cluster.shared to a folder or bucket that all servers see"
            )
            return None
        self._uploads = SnapshotUploads(self._snapshots, side, self._clock, offload)
        return self._uploads

    def _fetches(self) -> SnapshotFetches | None:
        if self._snapshots is None:
            return None
        return SnapshotFetches(self._snapshots, RealDisk(), self._folder.ledger, self._folder.registry)

    async def leave(self) -> None:
        """Leave the group, so that another server takes over at once. The ledger was released, if it was this server's."""
        if self._looking is not None:
            self._looking.cancel()
        if self._standby is not None:
            await asyncio.to_thread(self._standby.close)

    # What it shows

    def _reasons(self) -> list[str]:
        # Everybody may ask, so the reasons name no server; the log does.
        standby = self._standby
        trouble = self._trouble or (standby.trouble if standby is not None else None)
        if trouble is not None:
            return ["standby, and not able to take over; the log says why"]
        return ["standby: another server owns the ledger"]

    def _owner(self) -> str:
        owner = None if self._standby is None else self._standby.owner
        if self._standby is None or owner is None:
            return "it is not known yet which server owns the ledger"
        where = self._standby.owner_addresses.get("http")
        return f"{owner} owns the ledger" + (f", at {where}" if where else "")

    def shown(self) -> ClusterFigures | None:
        """The servers that share the ledger, as the owner sees them."""
        if self._standby is None:
            return None
        side = self._standby.side
        end = side.position.offset
        return ClusterFigures(
            owner=self._node.name,
            epoch=side.epoch,
            standbys=[
                StandbyFigures(name=one.name, lag=None if one.offset is None else max(0, end - one.offset))
                for one in self._members
                if one.name != self._node.name
            ],
            trouble=self._members_trouble,
        )

    @property
    def figures(self) -> Sequence[AnyFigure]:
        """Figures of this server's part in the cluster."""
        return (
            self._figure("owner", "1 while this server owns the ledger", lambda at: at.side.owns),
            self._figure(
                "epoch",
                "The epoch of the ledger's owner: it rises by one with each takeover",
                lambda at: at.side.epoch,
            ),
            self._figure(
                "standing",
                "1 while this server stands by, has read the log to its end, can follow it, is a member of the group, and would take over",
                lambda at: at.stands and not at.side.owns,
            ),
            self._figure(
                "lag_records", "Records of the log that this standby has not read", lambda at: at.lag.records
            ),
            self._figure(
                "lag_seconds", "For how long there have been such records", lambda at: at.lag.seconds
            ),
            self._figure(
                "takeovers",
                "Claims of the ledger by any server, as far as this one has read them since it began",
                lambda at: at.side.claims,
                counts=True,
            ),
            self._figure(
                "void_records", "Records of the log that are not valid", lambda at: at.side.void, counts=True
            ),
            self._figure(
                "gaps",
                "How often the owner had to read a gap in the log before it could answer",
                lambda at: at.side.gaps,
                counts=True,
            ),
            Figure(
                name="tarry_cluster_snapshot_seq",
                text="The seq that the newest snapshot of the registry has reached which this owner has put into shared storage",
                values=lambda: {"": float(0 if self._uploads is None else self._uploads.uploaded_seq)},
            ),
            Figure(
                name="tarry_cluster_snapshot_failed",
                text="1 while such snapshots cannot be put there, and so the log is not trimmed",
                values=lambda: {"": float(self._uploads is not None and bool(self._uploads.failed))},
            ),
            HistogramFigure(
                name="tarry_cluster_append_seconds",
                text="From the sending of a frame to the log until it is durable there",
                of=lambda: NO_APPENDS if self._standby is None else self._standby.side.appends,
            ),
        )

    def _figure(
        self, name: str, text: str, value: Callable[[Standby], float], *, counts: bool = False
    ) -> Figure:
        def values() -> dict[str, float]:
            return {"": 0.0 if self._standby is None else float(value(self._standby))}

        return Figure(name=f"tarry_cluster_{name}", text=text, values=values, counts=counts)
