"""Coverage: which kinds of faults and rare events runs have met. One that no run meets is one that nobody tests."""

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from tests.simulation.model import group_of

if TYPE_CHECKING:
    from tarry.core.time.clockwatch import ClockWatch
    from tests.simulation.world import Simulation

KINDS: Final = (
    # Lives
    "power loss",
    "kill",
    "clean stop",
    "crash within an operation of the disk",
    "crash during recovery",
    "registry lost as a whole",
    "registry restored from a snapshot",
    "restore from a snapshot, an own or a shared one",
    # Disks
    "failed sync",
    "failed write",
    "failed preparation of a segment",
    "full disk",
    "failed transaction of the registry",
    "flipped bit refused at the start",
    "flipped bit while the server runs",
    # The clock
    "clock set forward",
    "clock set back",
    "clock set back while due messages wait for their turn",
    "clock set back while bodies are fetched",
    "clock set back while a chain waits",
    "clock ahead, unconfirmed",
    "clock ahead, set right before it is trusted",
    "clock ahead, trusted after ten minutes",
    "watermark taken back",
    "watermark taken back more than once",
    "watermark past where it was taken back",
    "start with a watermark that was taken back",
    # Owners, order keys and groups
    "messages of several owners wait",
    "several order keys under way",
    "message waits behind another of its order key",
    "message waits for its namespace's share",
    "group claimed before the others of it",
    "group begun by its leader",
    "claimed message sent in more than one life",
    # The engine
    "segments reclaimed",
    "dead seqs forgotten",
    "snapshot of the registry",
    "chain carried",
    "bodies fetched from the index",
    "version of the index gone while it is read",
    "attempt without a reply",
    "batch adopted",
    "batch cancelled",
    "partial acknowledgement",
    "delays honoured in order",
    "dead letter",
    "state compared with that of a restart",
    "message replaced under its name",
    "message kept under its name",
    "occurrence of a repeat",
    "repeat paused or removed",
    "bulk command confirmed",
    "bulk command done: cancel",
    "bulk command done: move",
    "bulk command done: send",
    "bulk command done: retry",
    "bulk command goes on after a crash",
    "failed message retried",
    "dead letter taken back",
    "message paused",
    "delayed entry paused",
    "place paused",
    "place resumed",
    "due message held by its place",
)
REPLICATED_KINDS: Final = (
    "takeover while the owner lives",
    "takeover by an engine that followed the log",
    "planned hand-over",
    "claim lost to a quicker server",
    "claim of an epoch that was taken",
    "claim of a server with another id key",
    "takeover by a server whose clock is behind",
    "frames in flight at a claim",
    "void frame of a superseded owner",
    "frame cut in parts",
    "frame without its last parts",
    "success without an offset",
    "gap read by an owner",
    "server cut off from the log",
    "copy healed from the log",
    "log trimmed",
    "server begins at a shared snapshot",
    "superseded owner wakes after a lapse",
    "superseded owner has consumers",
    "superseded owner learns of it",
    "superseded owner stops",
    "answer of a superseded owner",
    "attempt by a superseded owner within the window",
    "entries of a superseded owner within the window",
)
"""Cases that only servers on a replicated log meet."""
ENOUGH_SEEDS: Final = 2_000
"""With so many seeds, each kind has been met many times."""


class Coverage:
    """Cases that one run has met; `look` is called after every step."""

    def __init__(self) -> None:
        self.met: Counter[str] = Counter()
        self._first_seq = 0
        self._forgotten = 0
        self._watch: ClockWatch | None = None
        """The clock watch of the process that was looked at last, and what it said."""
        self._ahead = False
        self._back = self._lowered = self._ceilings = 0

    def note(self, kind: str) -> None:
        """Something happened."""
        assert kind in KINDS or kind in REPLICATED_KINDS, kind
        self.met[kind] += 1

    def look(self, sim: "Simulation") -> None:
        """See what the engine has come to."""
        world = sim.world
        first_seq, forgotten = world.first_seq, world.forgotten_seq
        if first_seq > self._first_seq:
            self.met["segments reclaimed"] += self._first_seq > 0
            self._first_seq = first_seq
        if forgotten != self._forgotten:
            self.met["dead seqs forgotten"] += forgotten > self._forgotten
            self._forgotten = forgotten
        if world.awaited:
            self.met["bodies fetched from the index"] += 1
        if world.engine_state.paused.get("place"):
            self.met["due message held by its place"] += 1
        if world.carried_keys:
            self.met["chain carried"] += 1
        if len(world.pending.by_holder) > 2:
            self.met["messages of several owners wait"] += 1
        if len(sim.checker.flying) > 1:
            self.met["several order keys under way"] += 1
        if world.chained:
            self.met["message waits behind another of its order key"] += 1
        if sim.world.shared and sim.world.waiting_for_shares:
            self.met["message waits for its namespace's share"] += 1
        self._look_at_clock(sim)

    def _look_at_clock(self, sim: "Simulation") -> None:
        """See what the engine makes of its clock, and of a watermark that a wrong clock took along."""
        state, watch = sim.world.engine_state, sim.world.upkeep.clock
        ceilings, lowered = len(state.passed.ceilings), state.counters["watermark_lowered"]
        ahead, back = watch.ahead_ms > 0, watch.steps["back"]
        if watch is not self._watch:
            self._watch, self._ahead, self._back = watch, False, 0
            self.met["start with a watermark that was taken back"] += ceilings > 0
        else:
            self.met["watermark taken back"] += lowered > self._lowered
            self.met["watermark past where it was taken back"] += ceilings < self._ceilings
        self.met["watermark taken back more than once"] += ceilings > 1
        self.met["clock ahead, unconfirmed"] += ahead
        if self._ahead and not ahead:
            right = back > self._back
            self.note(
                f"clock ahead, {'set right before it is trusted' if right else 'trusted after ten minutes'}"
            )
        self._ahead, self._back, self._lowered, self._ceilings = ahead, back, lowered, ceilings

    def is_between(self, sim: "Simulation") -> bool:
        """Whether messages are due and have not gone out."""
        return bool(sim.world.awaited or sim.world.lanes_waiting or sim.world.chained)

    def set_back(self, sim: "Simulation") -> None:
        """The clock is being set back."""
        self.note("clock set back")
        if sim.world.awaited:
            self.note("clock set back while bodies are fetched")
        if sim.world.lanes_waiting:
            self.note("clock set back while due messages wait for their turn")
        if sim.world.chained:
            self.note("clock set back while a chain waits")

    def ended(self, sim: "Simulation") -> Counter[str]:
        """The cases that the run has met, once it is over."""
        failed, met = sim.world.disk.failed, self.met
        met["failed sync"] += failed["sync"]
        met["failed write"] += failed["write"]
        met["failed preparation of a segment"] += failed["create"] + failed["rename"] + failed["sync_folder"]
        met["failed transaction of the registry"] += sim.world.registry_disk.failed
        met["snapshot of the registry"] += len(sim.world.registry_disk.snapshots)
        met["version of the index gone while it is read"] += sim.world.index.moved
        met["occurrence of a repeat"] += sum("@" in token for token in sim.model.messages)
        met["dead letter taken back"] += len(sim.model.withdrawn)
        met["dead letter"] += sum(map(len, sim.model.letters.values()))
        self._see_groups(sim)
        if sim.cluster is not None:
            met["frame cut in parts"] += sim.cluster.judge.parts
            met["log trimmed"] += sim.cluster.log.start > 0
            met["success without an offset"] += sim.cluster.log.silent
        return met

    def _see_groups(self, sim: "Simulation") -> None:
        """Count groups of which one member was sent."""
        accepted = sim.model.accepted()
        members = Counter(group_of(msg.message) for msg in accepted if msg.message.group)
        for msg in accepted:
            if msg.message.group and (msg.launches or msg.token in sim.model.places):
                self.met["group claimed before the others of it"] += members[group_of(msg.message)] > 1
                self.met["group begun by its leader"] += msg.leader is not None
                self.met["claimed message sent in more than one life"] += len(set(msg.arrivals)) > 1


def report(runs: int, seeds: Mapping[str, int]) -> str:
    """A line for each kind: in how many of the runs it was met."""
    return "\n".join(f"{seeds.get(kind, 0) / runs:8.2%}  {kind}" for kind in (*KINDS, *REPLICATED_KINDS))


def never_met(seeds: Mapping[str, int]) -> list[str]:
    """The kinds that no run has met."""
    return [kind for kind in (*KINDS, *REPLICATED_KINDS) if not seeds.get(kind)]
