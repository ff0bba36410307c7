"""The native HTTP door: single messages, NDJSON, Arrow, commands, names, repeats, policies, listings, topics."""

import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import httpx
import pyarrow as pa

from tests.fuzz.values import TENANTS, Values

BATCH = "/v1/messages/batch"


class Native:
    """Feeds the native door. `accepted` are the ids of messages that it has accepted."""

    def __init__(self, client: httpx.AsyncClient, values: Values) -> None:
        self.client = client
        self.values = values
        self.accepted: list[str] = []

    async def step(self) -> None:
        """Do one thing."""
        chosen: Callable[[], Awaitable[None]] = self.values.one(
            self._schedule, self._schedule, self._group, self._ndjson, self._ndjson, self._arrow, self._arrow,
            self._command, self._command, self._command_by_name, self._repeat, self._repeat, self._policy, self._look,
            self._publish, self._consume,
        )  # fmt: skip
        await chosen()

    async def _ask(self, method: str, path: str, **how: Any) -> httpx.Response:
        try:
            answer = await self.client.request(method, path, **how)
        except httpx.HTTPError as error:
            raise AssertionError(f"{error!r} for {method} {path} with {str(how)[:500]}") from error
        assert answer.status_code != 500, (method, path[:200], answer.text)
        return answer

    def _message(self) -> dict[str, Any]:
        values = self.values
        times = values.one(
            {"delay_ms": values.delay_ms()},
            {"due_at_ms": values.instant_ms()},
            {"delay_ms": values.soon_ms()},
            {},
        )
        return {
            "destination": values.topic(),
            "payload": values.payload(),
            **times,
            **values.some(
                key=lambda: values.text(1_100),
                owner=lambda: values.one(values.name(), values.text(260)),
                headers=values.headers,
                ttl_ms=values.integer,
            ),
            **({"name": self._own_name(), "on_conflict": values.one("fail", "keep", "replace")} if values.chance(0.3) else {}),
        }  # fmt: skip

    def _own_name(self) -> str:
        return str(self.values.one(self.values.name(), self.values.name(), self.values.text(300)))

    async def _post(self, message: dict[str, Any], key: bytes | None = None) -> None:
        content = json.dumps(message).encode(errors="surrogatepass")
        headers: dict[bytes, bytes] = {b"content-type": b"application/json"}
        if key is not None:
            headers[b"idempotency-key"] = key
        answer = await self._ask("POST", "/v1/messages", content=content, headers=headers)
        if answer.status_code == 201:
            self.accepted.append(answer.json()["id"])

    async def _schedule(self) -> None:
        values = self.values
        # A few keys over and over, and some that are none.
        key = values.one(
            None,
            None,
            None,
            values.name().encode(),
            values.text(260).encode().replace(b"\n", b"").strip(b" \0"),
        )
        await self._post(self._message(), None if key is None else key.replace(b"\0", b""))

    async def _group(self) -> None:
        """A full group, or more than that."""
        values = self.values
        group = {"group": values.text(200) or "g", "owner": values.name(), "destination": values.topic()}
        size = values.one(1, 5, 101)
        delay_ms = values.soon_ms()
        for n in range(size):
            times = {"delay_ms": delay_ms + n % 3} if n == 0 or values.chance(0.5) else {}
            await self._post({"payload": values.payload(), **group, **times})

    async def _ndjson(self) -> None:
        values = self.values
        lines = [json.dumps(self._message()) for _ in range(values.one(1, 10, 60, 300))]
        if values.chance(0.2):
            lines.insert(
                values.random.randrange(len(lines)), values.one("", "{", "[]", "null", "x" * 100_000)
            )
        query = values.one("", "?destination=t&delay_ms=5", f"?delay_ms={values.integer()}")
        answer = await self._ask(
            "POST", BATCH + query, content="\n".join(lines).encode(errors="surrogatepass"),
            headers={"content-type": "application/x-ndjson"},
        )  # fmt: skip
        if answer.status_code == 200:
            said = map(json.loads, answer.text.splitlines())
            self.accepted += [line["id"] for line in said if line.get("id")]

    async def _arrow(self) -> None:
        table = self._table(self.values.one(0, 1, 50, 3_000))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=self.values.one(None, 7, 1_000))
        query = self.values.one(
            "?destination=t&delay_ms=5", "?destination=t", "", f"?delay_ms={self.values.integer()}"
        )
        answer = await self._ask(
            "POST", BATCH + query, content=sink.getvalue().to_pybytes(),
            headers={"content-type": "application/vnd.apache.arrow.stream"},
        )  # fmt: skip
        if answer.status_code == 200:
            with pa.ipc.open_stream(answer.content) as reader:
                ids = reader.read_all()["id"].to_pylist()
            self.accepted += [id_ for id_ in ids if id_][:50]

    def _table(self, rows: int) -> pa.Table:
        values = self.values

        def texts(most: int) -> Any:
            if values.chance(0.1):
                return pa.nulls(values.one(rows, rows * 1_000))
            some = [
                values.text(most).encode("utf-8", "replace").decode() for _ in range(values.one(1, 3, 40))
            ]
            column = pa.array(
                [values.one(*some) for _ in range(rows)], values.one(pa.string(), pa.large_string())
            )
            return column.dictionary_encode() if values.chance(0.4) else column

        def numbers(make: Callable[[], int]) -> Any:
            kept = [
                value if -(1 << 63) <= value < 1 << 63 else None for value in (make() for _ in range(rows))
            ]
            return pa.array(kept, pa.int64())

        pairs = [("a", "b"), ("é", "x" * 200)] * values.one(0, 1, 40)
        columns = {
            "payload": lambda: texts(200),
            "destination": lambda: pa.array([values.topic() for _ in range(rows)], pa.string()),
            **values.some(
                delay_ms=lambda: lambda: numbers(values.delay_ms),
                key=lambda: lambda: texts(1_100),
                owner=lambda: lambda: texts(260),
                ttl_ms=lambda: lambda: numbers(values.integer),
                headers=lambda: lambda: pa.array([pairs] * rows, pa.map_(pa.string(), pa.string())),
            ),
        }
        made = {name: make() for name, make in columns.items()}
        longest = max(map(len, made.values()))
        return pa.table({name: column for name, column in made.items() if len(column) == longest})

    async def _command(self) -> None:
        if not self.accepted:
            return
        values = self.values
        path = f"/v1/messages/{values.one(*self.accepted[-200:], values.text(90))}"
        what = values.one("get", "cancel", "send", "restart", "restart")
        if what == "get":
            await self._ask("GET", quote(path))
        elif what == "restart":
            times = values.one({}, {"delay_ms": values.delay_ms()}, {"due_at_ms": values.instant_ms()})
            await self._ask("POST", quote(f"{path}/restart"), json=times)
        else:
            await self._ask(
                "DELETE" if what == "cancel" else "POST", quote(path if what == "cancel" else f"{path}/send")
            )

    async def _command_by_name(self) -> None:
        path = f"/v1/names/{self.values.one(*TENANTS)}/{quote(self._own_name() or 'x', safe='')}"
        match self.values.one("get", "cancel", "send", "restart"):
            case "get":
                await self._ask("GET", path)
            case "cancel":
                await self._ask("DELETE", path)
            case "send":
                await self._ask("POST", f"{path}/send")
            case _:
                await self._ask("POST", f"{path}/restart", json={"delay_ms": self.values.delay_ms()})

    async def _repeat(self) -> None:
        """A repeat, at times one that is due all the time or was for ever, or something done to one."""
        values = self.values
        path = f"/v1/repeats/{values.one(*TENANTS)}/{values.name()}"
        match values.one("set", "set", "get", "pause", "resume", "remove"):
            case "set":
                content = json.dumps(self._asked_again()).encode(errors="surrogatepass")
                await self._ask("PUT", path, content=content, headers={"content-type": "application/json"})
            case "get":
                await self._ask("GET", path)
            case "remove":
                await self._ask("DELETE", path)
            case what:
                await self._ask("POST", f"{path}/{what}")

    def _asked_again(self) -> dict[str, Any]:
        values = self.values
        rhythm = values.one(
            {"every_ms": values.one(1, 1, 7, 500, values.integer())},
            {"every": values.one("1ms", "P1D", f"{values.integer()}h", values.text(80))},
            {"cron": values.one("* * * * * *", "*/7 * 29 2 mon", "0 0 30 2 *", "@yearly", values.text(250))},
            {"cron": "30 2 * * *", "zone": values.one("Europe/Berlin", "Pacific/Apia", "Europe/Berlim", values.text(80))},
        )  # fmt: skip
        return {
            "destination": values.topic(),
            "payload": values.payload(),
            **rhythm,
            **values.some(
                start_at_ms=values.instant_ms,
                end_at_ms=values.instant_ms,
                count=values.integer,
                jitter_ms=values.integer,
                ttl_ms=values.integer,
                key=lambda: values.text(1_100),
                headers=values.headers,
                missed=lambda: values.one("all", "latest", "none"),
            ),
        }

    async def _policy(self) -> None:
        content = json.dumps(self.values.policy()).encode()
        place = self.values.one(
            "broker", f"namespaces/{self.values.one(*TENANTS)}", f"topics/public/default/{self.values.name()}"
        )
        await self._ask(
            "PUT", f"/v1/policies/{place}", content=content, headers={"content-type": "application/json"}
        )

    async def _look(self) -> None:
        values = self.values
        path = values.one(
            "/v1/messages", "/v1/messages?state=finalised", f"/v1/messages?limit={values.integer()}",
            f"/v1/messages?due_from_ms={values.integer()}&due_to_ms={values.integer()}", "/v1/overview",
            f"/v1/upcoming?from_ms={values.integer()}&to_ms={values.integer()}&buckets={values.integer()}",
            f"/v1/messages?page={quote(values.text(40))}", "/v1/backlogs", "/v1/slots", "/v1/topics", "/v1/status",
            "/metrics", "/v1/ledger",
        )  # fmt: skip
        await self._ask("GET", path)

    def _topic_path(self) -> str:
        return f"/v1/topics/public/default/{self.values.name()}"

    async def _publish(self) -> None:
        values = self.values
        for _ in range(values.one(1, 3, 20)):
            times = values.one({}, {"delay_ms": values.delay_ms()}, {"due_at_ms": values.instant_ms()})
            rest = values.some(
                key=lambda: values.text(300),
                headers=values.headers,
                producer=values.name,
                producer_sequence=values.integer,
            )
            await self._ask(
                "POST", f"{self._topic_path()}/messages", json={"payload": values.payload(), **times, **rest}
            )

    async def _consume(self) -> None:
        values = self.values
        path = f"{self._topic_path()}/subscriptions/{values.name()}"
        type_ = values.one("shared", "exclusive", "failover", "key_shared")
        await self._ask(
            "PUT", path, json={"type": type_, "start": values.one("earliest", "latest", values.integer())}
        )
        await self._ask(
            "POST", f"{path}/receive", json={"max": values.one(1, 100, values.integer()), "wait_ms": 1}
        )
        await self._ask("GET", f"{self._topic_path()}/delayed")
