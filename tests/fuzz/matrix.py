"""The Matrix door: delayed events in both dialects and by a query, futures, management, lists, and the homeserver's own calls."""

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final
from urllib.parse import quote

import httpx

from tests.fuzz.values import Values

CLIENT: Final = "/_matrix/client"
UNSTABLE: Final = f"{CLIENT}/unstable/org.matrix.msc4140"
ROOTS: Final = (f"{CLIENT}/v1/delayed_events", f"{UNSTABLE}/delayed_events")
FUTURES: Final = (
    f"{CLIENT}/v3",
    f"{CLIENT}/unstable/org.matrix.msc4140",
    f"{CLIENT}/unstable/io.element.msc3140",
)
ACTIONS: Final = ("cancel", "restart", "send")


class Matrix:
    """Users with these tokens in one room, and whoever knows the homeserver's token."""

    def __init__(
        self, client: httpx.AsyncClient, values: Values, tokens: Sequence[str], room: str, hs_token: str
    ) -> None:
        self.client = client
        self.values = values
        self.accepted: list[str] = []
        self._tokens = tokens
        self._room = f"rooms/{quote(room, safe='')}"
        self._hs_token = hs_token
        self._futures: list[str] = []
        self._sent = 0

    async def step(self) -> None:
        """Do one thing."""
        chosen: Callable[[], Awaitable[None]] = self.values.one(
            self._delay, self._delay, self._delay_by_query, self._delay_by_query, self._future, self._batch,
            self._manage, self._manage, self._list, self._transaction, self._anything,
        )  # fmt: skip
        await chosen()

    async def _ask(
        self, method: str, path: str, body: Any = None, token: str | None = None
    ) -> httpx.Response:
        values = self.values
        shown = token or (values.text(50) if values.chance(0.03) else values.one(*self._tokens))
        content = (
            body
            if isinstance(body, bytes)
            else json.dumps(body, allow_nan=True).encode(errors="surrogatepass")
        )
        headers = {"authorization": f"Bearer {shown.encode('ascii', 'ignore').decode().strip() or 'x'}"}
        try:
            answer = await self.client.request(method, path, content=content, headers=headers)
        except httpx.HTTPError as error:
            raise AssertionError(f"{error!r} for {method} {path[:300]} with {content[:500]!r}") from error
        assert answer.status_code != 500, (method, path[:300], content[:500], answer.text)
        return answer

    def _txn(self) -> str:
        self._sent += 1
        # At times one that was there before.
        return f"t{self._sent if self.values.chance(0.9) else self.values.random.randrange(self._sent + 1)}"

    def _content(self) -> Any:
        values = self.values
        if values.chance(0.6):
            return {"msgtype": "m.text", "body": values.text(30)}
        return values.one(
            {}, {"body": values.text(1_000)}, {"n": values.integer()}, {"a": {"b": [1] * 1_000}}, {"n": values.number()},
            {"body": "$m.send_now.event_id"}, {"body": values.text(70_000)}, [], None, {"msc4354_sticky_duration_ms": 1},
        )  # fmt: skip

    def _type(self) -> str:
        values = self.values
        return str(
            values.one(
                "m.x", "m.x", "m.room.message", "m.room.encrypted", quote(values.text(300) or "x", safe="")
            )
        )

    def _keep(self, answer: httpx.Response) -> None:
        if answer.status_code == 200 and (id_ := answer.json().get("delay_id")):
            self.accepted.append(id_)

    def _delay_ms(self) -> Any:
        values = self.values
        if values.chance(0.6):
            return values.soon_ms()
        return values.one(
            values.delay_ms(),
            values.soon_ms(),
            values.soon_ms(),
            values.integer(),
            values.text(5),
            values.number(),
        )

    async def _delay(self) -> None:
        """By the proposal's own endpoint, in either dialect."""
        values = self.values
        body = {
            values.one("delay", "delay_ms"): self._delay_ms(), "content": self._content(),
            **values.some(state_key=lambda: values.one("", values.text(300)), sticky_duration_ms=values.integer),
        }  # fmt: skip
        base = values.one(f"{CLIENT}/v1", f"{CLIENT}/v3", UNSTABLE)
        content = values.document() if values.chance(0.1) else body
        self._keep(
            await self._ask("PUT", f"{base}/{self._room}/delayed_event/{self._type()}/{self._txn()}", content)
        )

    async def _delay_by_query(self) -> None:
        values = self.values
        what = values.one(
            f"send/{self._type()}/{self._txn()}",
            f"state/{self._type()}",
            f"state/{self._type()}/k",
            f"redact/%24x/{self._txn()}",
        )
        query = f"{values.one('org.matrix.msc4140.delay', 'org.matrix.msc4140.delay', 'delay')}={quote(str(self._delay_ms()))}"
        if values.chance(0.2):
            query += values.one(
                f"&org.matrix.msc4354.sticky_duration_ms={values.integer()}",
                "&" + query,
                "&user_id=%40x",
                "&a=%ff",
            )
        content = values.document() if values.chance(0.2) else self._content()
        self._keep(await self._ask("PUT", f"{CLIENT}/v3/{self._room}/{what}?{query}", content))

    async def _future(self) -> None:
        values = self.values
        what = values.one(
            f"send_future/{self._type()}/{self._txn()}",
            f"state_future/{self._type()}",
            f"state_future/{self._type()}/k",
        )
        pairs = values.some(
            future_timeout=lambda: str(self._delay_ms()),
            future_group_id=lambda: values.one("g1", "g2", values.text(300)),
        )
        query = "&".join(f"{name}={quote(value, safe='')}" for name, value in pairs.items())
        answer = await self._ask(
            "PUT", f"{values.one(*FUTURES)}/{self._room}/{what}?{query}", self._content()
        )
        if answer.status_code == 200:
            self._futures += [str(token) for name, token in answer.json().items() if name.endswith("_token")]
        if self._futures and values.chance(0.5):
            token = quote(values.one(*self._futures, values.text(60)) or "x", safe="")
            await self._ask("POST", f"{values.one(*FUTURES)}/future/{token}", {})
        await self._ask("GET", f"{values.one(*FUTURES)}/future")

    async def _batch(self) -> None:
        """Events that are accepted together."""
        values = self.values

        def event() -> Any:
            return {"type": values.one("m.x", values.text(300)), "content": self._content(),
                    **values.some(state_key=lambda: values.text(30))}  # fmt: skip

        body = {
            "timeout": self._delay_ms(), "send_on_timeout": event(),
            **values.some(
                send_on_action=lambda: {f"a{n}": event() for n in range(values.one(0, 1, 5, 101))}, send_now=event,
            ),
        }  # fmt: skip
        await self._ask("PUT", f"{values.one(*FUTURES)}/{self._room}/send/future/{self._txn()}", body)

    async def _manage(self) -> None:
        values = self.values
        id_ = quote(values.one(*self.accepted[-50:], values.text(90)) or "x", safe="")
        action = values.one(*ACTIONS, *ACTIONS, values.text(10) or "x")
        root = values.one(*ROOTS)
        if values.chance(0.5):
            await self._ask(
                "POST", f"{root}/{id_}", values.one({"action": action}, {"action": action}, values.document())
            )
        else:
            await self._ask("POST", f"{root}/{id_}/{quote(action, safe='')}", {})
        await self._ask("GET", f"{root}/{id_}")

    async def _list(self) -> None:
        values = self.values
        query = values.some(
            limit=lambda: str(values.integer()), **{"from": lambda: values.text(20)}, status=lambda: values.one("scheduled", "finalised", values.text(9)),
        )  # fmt: skip
        path = values.one(*ROOTS, f"{CLIENT}/unstable/org.matrix.msc4486/delayed_events")
        await self._ask(
            "GET", f"{path}?{'&'.join(f'{name}={quote(value)}' for name, value in query.items())}"
        )

    async def _transaction(self) -> None:
        """Transactions of the homeserver: state events by which others may end."""
        values = self.values
        events = [
            values.one(
                {"type": "m.x", "room_id": values.text(50), "state_key": "", "sender": "@x:y", "content": {}, "event_id": "$x",
                 "origin_server_ts": values.integer(), "unsigned": {"age": values.integer()}},
                {"type": values.integer()}, None, [], {"state_key": values.text(300)},
            )
            for _ in range(values.one(0, 1, 300))
        ]  # fmt: skip
        body = values.document() if values.chance(0.2) else {"events": events}
        await self._ask("PUT", f"/_matrix/app/v1/transactions/{self._txn()}", body, self._hs_token)

    async def _anything(self) -> None:
        """A path that is nobody's, or the homeserver's, or is nearly one of the door's."""
        values = self.values
        path = values.one(
            f"{CLIENT}/versions", f"{CLIENT}/v3/capabilities", f"{CLIENT}/v3/account/whoami", f"{CLIENT}/v3/{self._room}/state",
            f"{ROOTS[0]}/", f"{ROOTS[0]}//", "/" + quote(values.text(100), safe=""), f"{CLIENT}/v3/rooms/%2F/delayed_event/a/b",
        )  # fmt: skip
        answer = await self.client.request(values.one("GET", "GET", "OPTIONS", "PUT"), path)
        assert "went wrong inside" not in answer.text, (path, answer.text)
