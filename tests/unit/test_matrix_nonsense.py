"""Nonsense at the Matrix door: whatever comes, the answer is an error in the words of Matrix, and nothing is sent at once.

Requests are made from one seed: parts of real ones, put together wrongly.
"""

import json
import random
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import httpx

from tests.unit.matrix_kit import MatrixServing, matrix_serving

ROUNDS: Final = 700

_CLIENT: Final = "/_matrix/client"
_PREFIXES: Final = ("v3", "v1", "r0", "unstable/org.matrix.msc4140", "unstable/io.element.msc3140")
_NAMES: Final = (
    "!room:example.org", "!r%2f:x", "room", "", "m.room.message", "m.room.redaction", "t" * 300, "a%2Fb", "%F0%9F%92%A9",
    "%ff", "%00", "..", "{}", "$event", "0" * 32, "f" * 33, "..%2f..", "future", "send", "restart", "-1",
)  # fmt: skip
_NUMBERS: Final = (
    "0",
    "-1",
    "1.5",
    '"10"',
    "10",
    str(2**63),
    "9" * 400,
    "",
    "NaN",
    "1e3",
    "٣",
    "true",
    "null",
    "[]",
)
_PARAMETERS: Final = (
    "delay", "org.matrix.msc4140.delay", "future_timeout", "future_group_id", "io.element.msc3140.future_timeout", "timeout",
    "status", "from", "delay_id", "dir", "from_ts", "to_ts", "limit", "room_id", "type", "user_id", "access_token",
    "org.matrix.msc4354.sticky_duration_ms",
)  # fmt: skip
_FIELDS: Final = (
    "delay", "delay_ms", "content", "state_key", "action", "timeout", "m.timeout", "send_on_timeout", "send_on_action",
    "send_now", "m.send_now", "type", "redacts", "org.matrix.msc4354.sticky_duration_ms",
)  # fmt: skip


class Nonsense:
    """Makes requests that nobody should send."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def request(self) -> tuple[str, str]:
        """A method and a path of the door's own, or nearly."""
        choose = self._random.choice
        room, name, more = (quote(choose(_NAMES), safe="%!$:.") for _ in range(3))
        if self._random.random() < 0.6:
            room = _NAMES[0]
        method, place = choose(
            (
                ("PUT", f"rooms/{room}/delayed_event/{name}/{more}"),
                ("PUT", f"rooms/{room}/send_future/{name}/{more}"),
                ("PUT", f"rooms/{room}/state_future/{name}/{more}"),
                ("PUT", f"rooms/{room}/state_future/{name}"),
                ("PUT", f"rooms/{room}/send/future/{name}"),
                ("GET", "delayed_events"),
                ("GET", f"delayed_events/{name}"),
                ("POST", f"delayed_events/{name}"),
                ("POST", f"delayed_events/{name}/{more}"),
                ("GET", "future"),
                ("POST", f"future/{name}"),
            )
        )
        if self._random.random() < 0.1:
            method = choose(("PUT", "POST", "GET", "DELETE", "OPTIONS", "PATCH"))
        return method, f"{_CLIENT}/{choose(_PREFIXES)}/{place}"

    def delayed(self) -> str:
        """A path of the homeserver's, with a query that makes it the door's."""
        choose = self._random.choice
        place = choose(("send/m.room.message/t", "state/org.example/k", "state/org.example", "redact/$e/t"))
        parameter = choose(_PARAMETERS[:5])
        value = quote(choose([number for number in _NUMBERS if number != "10"]))
        if "group" in parameter:
            parameter, value = f"{parameter}", "nobody"
        return f"{_CLIENT}/{choose(('v3', 'r0'))}/rooms/!room:example.org/{place}?{parameter}={value}"

    def query(self) -> str:
        """Parameters that may mean something elsewhere."""
        pairs = [
            f"{self._random.choice(_PARAMETERS)}={quote(self._random.choice((*_NUMBERS, *_NAMES)), safe='%')}"
            for _ in range(self._random.choice((0, 0, 1, 2, 3)))
        ]
        return "?" + "&".join(pairs) if pairs else ""

    def body(self) -> bytes:
        """JSON and what is not."""
        kind = self._random.random()
        if kind < 0.2:
            return self._random.choice(
                (
                    b"",
                    b"[",
                    b"[]",
                    b"null",
                    b'"x"',
                    b"\xff\xfe",
                    b"{}" * 2,
                    b'{"a":' * 3000,
                    b"0" * 1000,
                    b'{"delay":1e999}',
                )
            )
        return json.dumps({self._random.choice(_FIELDS): self._value(0) for _ in range(4)}).encode()

    def _value(self, depth: int) -> Any:
        kind = self._random.random()
        if kind < 0.4 and depth < 3:
            return {self._random.choice(_FIELDS): self._value(depth + 1) for _ in range(3)}
        if kind < 0.5:
            return [self._value(depth + 1) if depth < 3 else 0]
        plain: tuple[Any, ...] = (
            0,
            -1,
            1.5,
            2**63,
            2**70,
            5,
            True,
            None,
            "10",
            "x",
            "\ud800",
            "$m.send_now.event_id",
            "",
        )
        return self._random.choice(plain)


async def _ask(serving: MatrixServing, nonsense: Nonsense, chance: random.Random) -> httpx.Response:
    method, path = nonsense.request()
    token = "Bearer ann-token" if chance.random() < 0.9 else chance.choice(("Bearer x", "Basic x", ""))
    return await serving.client.request(
        method, path + nonsense.query(), content=nonsense.body(), headers={"authorization": token}
    )


async def test_nonsense_is_refused_in_the_words_of_matrix(tmp_path: Path) -> None:
    nonsense, chance = Nonsense(1), random.Random(2)
    statuses: dict[int, int] = {}
    async with matrix_serving(
        tmp_path / "data",
        future_guesses=0,
        schedule_per_second=0.0,
        manage_per_second=0.0,
        list_per_second=0.0,
    ) as serving:
        for _ in range(ROUNDS):
            asked = serving.homeserver.got[:]
            answer = await _ask(serving, nonsense, chance)
            if len(serving.homeserver.got) > len(asked):
                # It was no path of the door's own, after all.
                continue
            where = f"{answer.request.method} {answer.request.url} {answer.request.content[:200]!r}: {answer.text[:300]}"
            statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
            assert answer.status_code < 500, where
            assert answer.headers["access-control-allow-origin"] == "*", where
            if answer.status_code >= 400:
                assert answer.json()["errcode"].isupper(), where
    assert {400, 401, 404, 405} <= set(statuses), statuses


async def test_a_query_that_asks_to_wait_is_never_passed_on(tmp_path: Path) -> None:
    nonsense = Nonsense(3)
    async with matrix_serving(tmp_path / "data", schedule_per_second=0.0) as serving:
        for _ in range(150):
            answer = await serving.client.put(
                nonsense.delayed(), json={"body": "x"}, headers={"authorization": "Bearer ann-token"}
            )
            assert answer.status_code in (400, 409), (str(answer.request.url), answer.text)
        assert serving.homeserver.got == []
