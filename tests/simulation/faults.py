"""Faults of one run: crashes, disks that fail or fill up or go bad, clocks that jump."""

import errno
from collections.abc import Callable
from typing import TYPE_CHECKING

from tarry.core.errors import Damage, Unavailable
from tests.simulation.checker import Violation

if TYPE_CHECKING:
    from tests.simulation.world import Simulation

STEPS_AFTER_ROT = 60
JUMPS_MS = (-1, -50, -1_000, -70_000, -3_600_000, 50, 10_000, 3_600_000)


class Faults:
    """The faults that a run injects."""

    def __init__(self, sim: "Simulation") -> None:
        self._sim = sim
        self._random = sim.random

    def actions(self) -> dict[str, Callable[[], None]]:
        """The faults."""
        return {
            "crash": self.crash,
            "fault": self.fault,
            "jump": lambda: self.jump(self._random.choice(JUMPS_MS)),
            "flip": self.flip,
            "rot": self.rot,
        }

    def crash(self) -> None:
        """A crash now, between two steps, or soon, within one of the disk's operations; or a clean stop."""
        sim, kind = self._sim, self._random.random()
        if kind < 0.5:
            self.crash_soon()
        elif kind < (0.6 if sim.cluster is None else 0.7):
            sim.say("stop cleanly")
            sim.coverage.note("clean stop")
            while sim.commit_frame():
                pass
            sim.world.stop()
            sim.crash("after a clean stop")
        else:
            sim.crash("between two steps")

    def crash_soon(self) -> None:
        """A crash within one of the disk's next operations."""
        self._sim.world.disk.crash_at(self._random.randint(1, 30))
        self._sim.say("crash soon")

    def fault(self) -> None:
        """The disk fails, or is full, or SQLite's is."""
        disk, random = self._sim.world.disk, self._random
        kind = random.choice(("sync", "write", "prepare", "full", "full", "registry"))
        self._sim.say(f"fault {kind}")
        match kind:
            case "sync" | "write":
                disk.fail_next(kind, random.choice((errno.EIO, errno.ENOSPC)))
            case "prepare":
                disk.fail_next(random.choice(("create", "rename", "sync_folder")), errno.EIO)
            case "full" if disk.capacity_bytes is None:
                disk.capacity_bytes = disk._used_bytes() + random.choice((0, 5_000, 20_000))
            case "full":
                disk.capacity_bytes = None
            case _:
                self._sim.world.registry_disk.failing = random.randint(1, 3)

    def jump(self, ms: int) -> None:
        """The clock is set."""
        sim = self._sim
        sim.say(f"the clock jumps by {ms}")
        if ms > 0:
            sim.coverage.note("clock set forward")
        elif sim.up:
            sim.coverage.set_back(sim)
        if ms < 0:
            # What is accepted from now on may be late until the clock shows this again.
            sim.note_due(sim.clock.now_ms())
            sim.model.set_back()
        sim.clock.jump(ms)

    def jump_between(self) -> None:
        """Set the clock where it is rarely set by chance: when messages are due and have not gone out."""
        sim = self._sim
        if sim.jumpy and self._random.random() < 0.4 and sim.coverage.is_between(sim):
            self.jump(self._random.choice(JUMPS_MS))

    # Damage

    def _flip(self) -> str:
        """Flip a bit of the ledger, most often where something is; gives the path."""
        disk, random = self._sim.world.disk, self._random
        names = [name for name in disk.listdir("ledger") if name.endswith(".seg") or name == "head"]
        path = f"ledger/{random.choice(names)}"
        file = disk.open(path)
        used = len(file.read(file.size(), 0).rstrip(b"\0"))
        limit = used + 16 if random.random() < 0.9 else file.size()
        offset, bit = random.randrange(max(1, min(limit, file.size()))), random.randrange(8)
        disk.flip_bit(path, offset, bit)
        self._sim.say(f"flip bit {bit} of byte {offset} of {path}")
        return path

    def flip(self) -> None:
        """The medium goes bad while the server is down: it must refuse to start, or not be affected at all."""
        sim = self._sim
        # Two bits flipped may be the last frame's and the head's: that nobody can tell from a torn write.
        if self._random.random() < 0.7 or sim.model.damaged:
            return
        sim.crash("to flip a bit", power=False)
        path = self._flip()
        try:
            sim.boot(calm=True)
        except Damage as damage:
            if damage.file != path and not sim.model.damaged:
                raise Violation(
                    f"a bit of {path} was flipped, but the damage is said to be: {damage}"
                ) from damage
            sim.coverage.note("flipped bit refused at the start")
            sim.refuse(damage)
        except Unavailable as error:
            sim.refuse(error)
        else:
            # What the index has is not read at a start, and may be later.
            sim.model.damaged |= sim.world.index.cursor > 0

    def rot(self) -> None:
        """The medium goes bad while the server runs: messages may end as failed, but never arrive changed."""
        if self._random.random() < 0.5:
            return
        self._flip()
        self._sim.coverage.note("flipped bit while the server runs")
        self._sim.model.damaged = True
        self._sim.steps = min(self._sim.steps, self._sim.step + STEPS_AFTER_ROT)
