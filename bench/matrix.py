"""The Matrix door beside Synapse's own delayed events: rates of requests, and events that are due at one instant.

Both are asked the same requests, those of today's clients, in turns, and both end in the same Synapse. Synapse slows down as
its delayed events pile up: it begins every measurement of a rate without any but those that are needed for it. How late an event is
has two parts: until it was handed to the homeserver, which is Tarry's, and until a client that syncs has seen it.
"""

import itertools
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote

import numpy as np

from bench.figures import Figures, Lateness
from bench.http_wire import HttpReply
from bench.peers.peer import Skipped
from bench.peers.synapse import SynapseServer, call, wait_for
from bench.processes import CannotStart, Process, environment, free_port, python, tarry_environment
from bench.run import TARRY, Run
from bench.wire import connect, drive

SYNAPSE: Final = "Synapse"
CLIENTS: Final = (1, 16)
ACTIONS: Final = ("schedule", "restart", "cancel")
LEAD_MS: Final = 10_000
"""From the first request to the instant at which all are due."""
MOST_PER_S: Final = 10_000
"""More than anybody takes; a load that runs out of requests ends early, and its rate is right."""
HELD: Final = 2_000
"""Events that are there to be restarted."""
_UNSTABLE: Final = "/_matrix/client/unstable/org.matrix.msc4140"
_DELAY_ID: Final = re.compile(rb'"delay_id": ?"([^"]+)"')
_numbers = itertools.count()


_UNLIMITED: Final = """
max_pending_per_user = 100000000
schedule_per_second = 0
manage_per_second = 0
manage_per_second_per_event = 0
list_per_second = 0
send_per_second = 0
"""


class Door:
    """A running Tarry with an open Matrix door; a context manager."""

    def __init__(
        self, folder: Path, homeserver: str, registration: Path, port: int, *, unlimited: bool = True
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tarry.toml").write_text(
            f'[doors.matrix]\nenabled = true\nport = {port}\nhomeserver = "{homeserver}"\n'
            f'registration = "{registration}"\n{_UNLIMITED if unlimited else ""}'
        )
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._process = Process(
            python("tarry", "serve", "--data", str(folder / "data"), "--port", "0"),
            folder / "log",
            env=tarry_environment(),
            cwd=folder,
        )
        self._process.wait_for_line("ready on")
        wait_for(self.url)

    def __enter__(self) -> "Door":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.end()


@dataclass
class Target:
    """The measured server: an address that takes delayed events, and a user there."""

    who: str
    port: int
    token: str = ""
    rooms: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def schedule(self, room_id: str, delay_ms: int) -> bytes:
        """A request that schedules a message."""
        path = f"/_matrix/client/v3/rooms/{quote(room_id)}/send/m.room.message/{next(_numbers)}"
        body = b'{"msgtype":"m.text","body":"a message that somebody wrote for later"}'
        return self._request("PUT", f"{path}?org.matrix.msc4140.delay={delay_ms}", body)

    def manage(self, delay_id: str, action: str) -> bytes:
        """A request that restarts or cancels."""
        return self._request("POST", f"{_UNSTABLE}/delayed_events/{delay_id}/{action}", b"{}")

    def _request(self, method: str, path: str, body: bytes) -> bytes:
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {self.token}\r\n"
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def held(self, count: int) -> list[str]:
        """Schedule so many events that are due in a day; gives their ids."""
        ids: list[str] = []

        def take(body: bytes) -> None:
            # The body may be in chunks: it is searched and not parsed.
            found = _DELAY_ID.search(body)
            assert found is not None, body
            ids.append(found[1].decode())

        requests = (self.schedule(self.rooms[0], 80_000_000) for _ in range(count))
        drive(connect(self.port, 16), requests, lambda: HttpReply(take))
        return ids


def rates(figures: Figures, target: Target, seconds: float, begin: Callable[[], None]) -> None:
    """Requests a second: schedule, restart, cancel, with one client and with sixteen. `begin` comes before each of them."""
    for clients in CLIENTS:
        begin()
        room_id = target.rooms[0]
        schedules = [target.schedule(room_id, 80_000_000) for _ in range(int(MOST_PER_S * seconds))]
        loaded = drive(connect(target.port, clients), iter(schedules), HttpReply, seconds)
        figures.add(target.who, f"matrix schedule {clients}", loaded.per_s)
        begin()
        again = itertools.cycle([target.manage(one, "restart") for one in target.held(HELD)])
        loaded = drive(connect(target.port, clients), again, HttpReply, seconds)
        figures.add(target.who, f"matrix restart {clients}", loaded.per_s)
        figures.add(
            target.who,
            f"matrix restart {clients} p99",
            float(np.percentile(np.frombuffer(loaded.latencies_ns, np.int64), 99)) / 1e6,
        )
        begin()
        # Each can be cancelled once: as many as the restarts have shown that the time allows.
        enough = target.held(int(loaded.per_s * seconds * 1.5) + 100)
        cancels = iter([target.manage(one, "cancel") for one in enough])
        loaded = drive(connect(target.port, clients), cancels, HttpReply, seconds)
        figures.add(target.who, f"matrix cancel {clients}", loaded.per_s)


class Watcher:
    """A client that syncs: when it has first seen the message of each room."""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._token = url, token
        self.seen_ns: dict[str, int] = {}
        self._began_ms = time.time_ns() // 1_000_000
        self._since = self._sync(0)["next_batch"]
        self._running = True
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _sync(self, timeout_ms: int, since: str = "") -> Any:
        query = f"?timeout={timeout_ms}" + (f"&since={since}" if since else "")
        return call(self._url, "GET", f"/_matrix/client/v3/sync{query}", self._token)

    def _watch(self) -> None:
        while self._running:
            answer = self._sync(1_000, self._since)
            now_ns = time.time_ns()
            self._since = answer["next_batch"]
            for room_id, joined in answer.get("rooms", {}).get("join", {}).items():
                if any(self._is_new(event) for event in joined["timeline"]["events"]):
                    self.seen_ns.setdefault(room_id, now_ns)

    def _is_new(self, event: Any) -> bool:
        # Synapse keeps the answer to a first sync for two minutes: it may begin before the turn that was before this.
        return bool(event["type"] == "m.room.message" and event["origin_server_ts"] >= self._began_ms)

    def wait(self, count: int, within_s: float) -> None:
        """Until so many rooms have their message."""
        deadline = time.monotonic() + within_s
        while len(self.seen_ns) < count:
            if time.monotonic() > deadline:
                raise AssertionError(f"only {len(self.seen_ns)} of {count} events have arrived")
            time.sleep(0.05)
        self._running = False
        self._thread.join()


def burst(
    figures: Figures, target: Target, homeserver: SynapseServer, handed: Callable[[], dict[str, int]]
) -> None:
    """Events in as many rooms that are due at one instant: when they were handed over, and when a client saw them."""
    watcher = Watcher(homeserver.url, target.token)
    at_ms = time.time_ns() // 1_000_000 + LEAD_MS
    requests = (target.schedule(room, at_ms - time.time_ns() // 1_000_000) for room in target.rooms)
    drive(connect(target.port, 4), requests, HttpReply)
    due_ms = due_by_room(target)
    watcher.wait(len(target.rooms), LEAD_MS / 1000 + 120)
    _add(figures, target.who, "matrix seen", watcher.seen_ns, due_ms)
    _add(figures, target.who, "matrix handed", handed(), due_ms)


def due_by_room(target: Target) -> dict[str, int]:
    """The instants at which the server itself says that the burst is due."""
    due: dict[str, int] = {}
    query = ""
    while True:
        page = call(target.url, "GET", f"{_UNSTABLE}/delayed_events?status=scheduled{query}", target.token)
        for entry in page["delayed_events"]:
            if entry["delay"] <= LEAD_MS:
                due[entry["room_id"]] = entry["running_since"] + entry["delay"]
        if "next_batch" not in page:
            return due
        query = f"&from={quote(page['next_batch'])}"


def _add(figures: Figures, who: str, what: str, at_ns: dict[str, int], due_ms: dict[str, int]) -> None:
    late = [at_ns[room] / 1e6 - due for room, due in due_ms.items() if room in at_ns]
    if late:
        lateness = Lateness.of(np.array(late))
        figures.add_lateness(who, what, lateness)
        # Counted with those of all parts.
        figures.add(who, "early", lateness.early)


def measure(run: Run) -> None:
    """Everything: one Synapse, asked directly and through Tarry, in turns."""
    port, behind = free_port(), free_port()
    with run.place() as place:
        record = place / "record"
        try:
            homeserver = SynapseServer(place / "synapse", port)
        except (Skipped, CannotStart) as error:
            run.skip(SYNAPSE, str(error))
            return
        command = python("bench.recorder", str(behind), str(homeserver.port), str(record))
        recorder = Process(command, place / "recorder.log", env=environment())
        with homeserver, recorder:
            recorder.wait_for_port(behind)
            with Door(place / "tarry", f"http://127.0.0.1:{behind}", homeserver.registration, port):
                _turns(run, homeserver, port, record)


def _turns(run: Run, homeserver: SynapseServer, port: int, record: Path) -> None:
    # A user for rates and another for the burst: what waits of the one does not fill the lists of the other.
    load = [
        _target(SYNAPSE, homeserver.port, homeserver, "rates", 1),
        _target(TARRY, port, homeserver, "rates", 1),
    ]
    run.say(f"{run.plan.rooms} rooms for each")
    due = [
        _target(SYNAPSE, homeserver.port, homeserver, "burst", run.plan.rooms),
        _target(TARRY, port, homeserver, "burst", run.plan.rooms),
    ]
    for target in load:
        # The first requests fill caches, of tokens above all.
        target.held(HELD // 10)
    for _ in run.turns():
        for target in load:
            rates(run.figures, target, run.plan.load_s, homeserver.forget_delayed)
        for target in due:
            record.write_text("")
            burst(run.figures, target, homeserver, lambda: handed(record))


def _target(who: str, port: int, homeserver: SynapseServer, name: str, rooms: int) -> Target:
    token = homeserver.user(f"{who.lower()}-{name}")
    return Target(who, port, token, homeserver.rooms(token, rooms))


def handed(record: Path) -> dict[str, int]:
    """When each room's event was first handed to the homeserver."""
    found: dict[str, int] = {}
    for line in record.read_text().splitlines():
        at_ns, path = line.split(" ", 1)
        if "/rooms/" in path:
            found.setdefault(unquote(path.split("/rooms/", 1)[1].split("/", 1)[0]), int(at_ns))
    return found
