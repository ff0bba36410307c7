"""matrix-org/complement: what its tests of delayed events ask for, restated.

Complement cannot be had from the Go module proxy, and deploys homeservers as containers. So its cases
(`tests/msc4140/delayed_event_test.go` at the commit below) are said again here, each under its own name, over the same
requests. Where it waits and looks, this waits until it is so. "The server" that is restarted is the homeserver with Tarry.
"""

import re
import time
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Final
from urllib.parse import quote

import httpx

from tests.peers.matrix import Account, Stage, lacking, staged
from tests.peers.suite import Case
from tests.peers.workplace import Workplace
from tests.waiting import wait_until

EVENTS: Final = "/_matrix/client/unstable/org.matrix.msc4140/delayed_events"
TYPE: Final = "com.example.test"
DELAY: Final = "org.matrix.msc4140.delay"
ACTIONS: Final = ("cancel", "restart", "send")


class User:
    """A user, or nobody, at an address."""

    def __init__(self, url: str, account: Account | None) -> None:
        headers = {} if account is None else {"Authorization": f"Bearer {account.access_token}"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False, verify=False)

    def ask(self, method: str, path: str, body: Any = None, **query: str) -> httpx.Response:
        """One request; without a body it has none at all."""
        more = {} if body is None else {"json": body}
        return self._http.request(method, path, params=query, **more)

    def must(self, method: str, path: str, body: Any = None, **query: str) -> Any:
        """One request that succeeds."""
        answer = self.ask(method, path, body, **query)
        assert answer.is_success, f"{method} {path}: {answer.status_code} {answer.text}"
        return answer.json()

    def delayed(self) -> list[Any]:
        """The user's delayed events."""
        found: list[Any] = self.must("GET", EVENTS)["delayed_events"]
        return found

    def has(self, count: int) -> None:
        """Wait until the user has so many delayed events."""
        wait_until(lambda: len(self.delayed()) == count, lambda: f"{len(self.delayed())} and not {count}", 10)

    def clean_up(self) -> None:
        """Cancel all that is left: an event that is sent meanwhile is not found any more."""
        for one in self.delayed():
            answer = self.ask("POST", f"{EVENTS}/{one['delay_id']}/cancel", {})
            assert answer.is_success or answer.status_code in (404, 409), answer.text
        self.has(0)


class Scene:
    """Two users in a room, and nobody."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.user, self.other = (User(stage.url, stage.register()) for _ in range(2))
        self.nobody = User(stage.url, None)
        levels = {"events": {TYPE: 0}}
        room = {"preset": "public_chat", "power_level_content_override": levels}
        self.room: str = self.user.must("POST", "/_matrix/client/v3/createRoom", room)["room_id"]
        self.other.must("POST", f"/_matrix/client/v3/rooms/{quote(self.room)}/join", {})

    def path(self, *parts: str) -> str:
        """A path of the room's."""
        return "/_matrix/client/v3/rooms/" + "/".join(quote(part, safe="") for part in (self.room, *parts))

    def state(self, key: str) -> Any:
        """The content of a state event; None if there is none."""
        answer = self.user.ask("GET", self.path("state", TYPE, key))
        assert answer.status_code in (200, 404), answer.text
        return answer.json() if answer.status_code == 200 else None

    def delay_state(self, key: str, delay_ms: int, content: Any) -> str:
        """Schedule a state event; gives its delay id."""
        answer = self.user.must("PUT", self.path("state", TYPE, key), content, **{DELAY: str(delay_ms)})
        return str(answer["delay_id"])

    def manage(self, delay_id: str, action: str) -> httpx.Response:
        """Manage an event, without a token."""
        return self.nobody.ask("POST", f"{EVENTS}/{delay_id}/{action}", {})

    def messages(self, since: str) -> list[Any]:
        """The contents of the room's events after a place."""
        page = self.user.must("GET", self.path("messages"), dir="f", **{"from": since})
        return [event["content"] for event in page["chunk"]]


Check = Callable[[Scene], None]


def _empty(scene: Scene) -> None:
    scene.user.has(0)


def _authenticated(scene: Scene) -> None:
    assert scene.nobody.ask("GET", EVENTS).status_code == 401


class Timed:
    """Three messages that are sent one after another; its parts are cases of their own."""

    def __init__(self) -> None:
        self.since = ""
        self.ids: list[str] = []

    def schedule(self, scene: Scene) -> None:
        """Schedule them."""
        self.since = scene.user.must("GET", "/_matrix/client/v3/sync")["next_batch"]
        for number, delay_ms in enumerate((700, 800, 900)):
            path = scene.path("send", TYPE, f"txn-delayed-msg-timeout-{number}")
            answer = scene.user.must("PUT", path, {"count": number + 1}, **{DELAY: str(delay_ms)})
            self.ids.append(answer["delay_id"])

    def again(self, number: int) -> Check:
        """Send the transaction again, without its body."""

        def check(scene: Scene) -> None:
            if not self.ids:
                self.schedule(scene)
            path = scene.path("send", TYPE, f"txn-delayed-msg-timeout-{number}")
            answer = scene.user.must("PUT", path, **{DELAY: str(700 + 100 * number)})
            assert answer["delay_id"] == self.ids[number]

        return check

    def others(self, scene: Scene) -> None:
        """Another user has none of them."""
        scene.other.has(0)

    def sent(self, scene: Scene) -> None:
        """They arrive, each once and in order."""
        scene.user.has(0)
        wait_until(lambda: len(scene.messages(self.since)) == 3, lambda: str(scene.messages(self.since)), 10)
        assert scene.messages(self.since) == [{"count": number} for number in (1, 2, 3)]


def _state_on_timeout(scene: Scene) -> None:
    content = {"setter": "on_timeout"}
    scene.delay_state("to_send_on_timeout", 900, content)
    (listed,) = scene.user.delayed()
    assert listed["content"] == content
    assert scene.state("to_send_on_timeout") is None
    wait_until(lambda: scene.state("to_send_on_timeout") == content, within_s=10)
    scene.user.has(0)


def _no_action(scene: Scene) -> None:
    assert scene.nobody.ask("POST", f"{EVENTS}/abc", {}).is_client_error


def _invalid_action(scene: Scene) -> None:
    assert scene.manage("abc", "oops").status_code == 404


def _unknown(action: str) -> Check:
    def check(scene: Scene) -> None:
        assert scene.manage("abc", action).status_code == 404

    return check


def _cancelled(scene: Scene) -> None:
    delay_id = scene.delay_state("to_never_send", 1500, {"setter": "none"})
    time.sleep(1)
    scene.user.has(1)
    assert scene.state("to_never_send") is None
    assert scene.manage(delay_id, "cancel").status_code == 200
    scene.user.has(0)
    # Past its time.
    time.sleep(1)
    assert scene.state("to_never_send") is None


def _on_request(scene: Scene) -> None:
    content = {"setter": "on_send"}
    delay_id = scene.delay_state("to_send_on_request", 100_000, content)
    scene.user.has(1)
    assert scene.state("to_send_on_request") is None
    assert scene.manage(delay_id, "send").status_code == 200
    # It is there when the request is answered.
    assert scene.state("to_send_on_request") == content
    scene.user.has(0)


def _restarted(scene: Scene) -> None:
    key, content = "to_send_on_restarted_timeout", {"setter": "on_timeout"}
    delay_id = scene.delay_state(key, 1500, content)
    time.sleep(1)
    scene.user.has(1)
    assert scene.manage(delay_id, "restart").status_code == 200
    time.sleep(1)
    scene.user.has(1)
    assert scene.state(key) is None
    wait_until(lambda: scene.state(key) == content, within_s=10)
    scene.user.has(0)


def _kept_on_restart(scene: Scene) -> None:
    scene.delay_state("1", 900, {})
    delays = [10_000 * number - 100 for number in (1, 2, 3, 4)]
    for number, delay_ms in enumerate(delays, 2):
        scene.delay_state(str(number), delay_ms, {})
    scene.user.has(1 + len(delays))
    scene.stage.stop()
    time.sleep(1)
    scene.stage.start()
    wait_until(lambda: scene.state("1") == {}, within_s=10)
    # The homeserver shows the event a moment before the door has heard that it was taken.
    wait_until(lambda: len(scene.user.delayed()) <= len(delays), within_s=10)
    left = len(scene.user.delayed())
    assert left > 0
    wait_until(lambda: len(scene.user.delayed()) < left, within_s=20)
    wait_until(lambda: scene.state("2") == {}, within_s=10)


def cases() -> Iterator[tuple[str, Check]]:
    """Every case under Complement's name for it."""
    timed = Timed()
    messages = "delayed message events are sent on timeout"
    again = f"{messages}/rerequesting delayed event path with the same txnID should have the same response"
    yield "delayed events are empty on startup", _empty
    yield "delayed event lookups are authenticated", _authenticated
    for number in range(3):
        yield again if not number else f"{again}#0{number}", timed.again(number)
    yield f"{messages}/cannot get delayed events of another user", timed.others
    yield messages, timed.sent
    yield "delayed state events are sent on timeout", _state_on_timeout
    yield "cannot update a delayed event without an action", _no_action
    yield "cannot update a delayed event with an invalid action", _invalid_action
    for action in ACTIONS:
        yield f"parallel/cannot {action} a delayed event without a matching delay ID", _unknown(action)
    yield "delayed state events can be cancelled", _cancelled
    yield "delayed state events can be sent on request", _on_request
    yield "delayed state events can be restarted", _restarted
    yield "delayed state events are kept on server restart", _kept_on_restart


class Complement:
    """See `Suite`."""

    name = "complement"
    title = "matrix-org/complement `tests/msc4140`, restated"
    version = "50044ed"
    programs = ()
    minutes = 2

    def lacking(self) -> str | None:
        """A Synapse that can be installed."""
        return lacking()

    def run(self, workplace: Workplace, only: str) -> list[Case]:
        """Start the homeserver and the door, and go through the cases in their order."""
        with staged(workplace) as stage:
            scene = Scene(stage)
            return [self._one(scene, name, check) for name, check in cases() if re.search(only, name)]

    @staticmethod
    def _one(scene: Scene, name: str, check: Check) -> Case:
        try:
            try:
                check(scene)
            finally:
                if "/" not in name:
                    scene.user.clean_up()
        except (AssertionError, httpx.HTTPError):
            return Case(name, "failed", traceback.format_exc())
        return Case(name, "passed")


SUITE: Final = Complement()
