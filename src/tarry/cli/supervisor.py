"""Keeps child processes running: starts them, starts again what ends by itself, and ends them together.

A child that ends is started again after a wait that doubles while it keeps ending soon, and begins anew once
it has run for a while. One that ends cleanly, or fails soon after its very first start (its configuration is
wrong: trying again helps nobody), ends the whole. One that is not essential never does; if it says that it cannot run here, it is
left alone. A signal to stop is passed on, and after it nothing is started again. In a container this is the first
process, which is given the orphans of all others: those that have ended are taken leave of.
"""

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Final

from tarry.cli.exits import NOT_INSTALLED
from tarry.cli.show import say
from tarry.core.time.backoff import doubling

FIRST_WAIT_S: Final = 0.5
LONGEST_WAIT_S: Final = 30.0
STEADY_AFTER_S: Final = 10.0
"""A child that ran for so long had started well: the next wait begins small again. A first start that fails before is not tried again."""
GRACE_S: Final = 60.0
"""How long children may take to end before they are killed."""
_LIBC: Final = ctypes.CDLL(None)
_PR_SET_PDEATHSIG: Final = 1


def _end_with_parent() -> None:
    """In the child: be told to stop if the supervisor is killed, so that nothing is left that holds the lock."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Child:
    """One process, and when to start it again."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        *,
        essential: bool = True,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.command = list(command)
        self.settings = dict(settings or {})
        """Variables that it gets beside ours."""
        self.essential = essential
        """Whether the whole ends when this one ends cleanly, or cannot be started at all."""
        self.process: subprocess.Popen[bytes] | None = None
        self.starts = 0
        self.started_at_s = 0.0
        self.start_at_s: float | None = 0.0
        """When to start it (again); None while it runs, and once it is not to be."""
        self._waits = doubling(FIRST_WAIT_S, LONGEST_WAIT_S)

    def start(self, now_s: float) -> None:
        """Start it."""
        # Our own command; and there is one thread only, so that the child may run Python before it begins.
        self.process = subprocess.Popen(  # noqa: S603
            self.command,
            preexec_fn=_end_with_parent,  # noqa: PLW1509
            env={**os.environ, **self.settings},
        )
        self.starts += 1
        self.started_at_s = now_s
        self.start_at_s = None

    def ended(self, code: int, now_s: float) -> int | None:
        """Decide what its end means: a code ends the whole, None means that it is started again."""
        self.process = None
        ran_s = now_s - self.started_at_s
        if self.essential and (code == 0 or (self.starts == 1 and ran_s < STEADY_AFTER_S and code > 0)):
            return code
        if not self.essential and code == NOT_INSTALLED:
            say(f"{self.name} cannot run here; the rest goes on without it")
            return None
        if ran_s >= STEADY_AFTER_S:
            self._waits = doubling(FIRST_WAIT_S, LONGEST_WAIT_S)
        wait_s = next(self._waits)
        self.start_at_s = now_s + wait_s
        say(f"{self.name} ended ({_reason(code)}); it starts again in {wait_s:g} s")
        return None


class Supervisor:
    """Runs child processes until one of them, or a signal, ends the supervisor."""

    def __init__(self, children: Sequence[Child]) -> None:
        self._children = list(children)
        self._stopped_by: int | None = None

    def run(self) -> int:
        """Run until the end; gives the exit code."""
        wake, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._stop)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        code = 0
        try:
            while self._stopped_by is None:
                ended = self._turn(time.monotonic())
                if ended is not None:
                    code = ended
                    break
                self._sleep(wake)
        finally:
            self._end_all()
            signal.set_wakeup_fd(-1)
            os.close(wake)
            os.close(waker)
        return code

    def _turn(self, now_s: float) -> int | None:
        """Start the children whose time has come, and look which have ended; an exit code ends the supervisor."""
        for child in self._children:
            if child.process is not None and (code := child.process.poll()) is not None:
                ended = child.ended(code, now_s)
                if ended is not None:
                    return ended
            if child.start_at_s is not None and child.start_at_s <= now_s and self._stopped_by is None:
                child.start(now_s)
        self._reap_orphans()
        return None

    def _reap_orphans(self) -> None:
        own = {child.process.pid for child in self._children if child.process is not None}
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if ended.si_pid in own:
                    # Its end is looked at in the next turn, to which its signal wakes us.
                    return
                os.waitpid(ended.si_pid, 0)

    def _sleep(self, wake: int) -> None:
        """Wait until a child ends, a signal comes, or a child is to be started again."""
        starts = [child.start_at_s for child in self._children if child.start_at_s is not None]
        timeout_s = max(0.0, min(starts) - time.monotonic()) if starts else None
        ready, _, _ = select.select([wake], [], [], timeout_s)
        if ready:
            os.read(wake, 4096)

    def _stop(self, number: int, _frame: object) -> None:
        self._stopped_by = number

    def _end_all(self) -> None:
        running = [child.process for child in self._children if child.process is not None]
        for process in running:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + GRACE_S
        for process in running:
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                say("a part did not end in time and is killed")
                process.kill()
                process.wait()


def _reason(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
