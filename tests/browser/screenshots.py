"""Pictures of the dashboard for the documentation: `python -m tests.browser.screenshots`.

They are taken of a real server with made-up messages of every door, part of them indexed, and written into docs/images.
With `--every FOLDER` all pages are taken instead, as everybody sees them, on a desk and on a phone: somebody has to look at them
after a change to the pages.
"""

import argparse
import asyncio
import json
import re
import tempfile
import threading
import time
from http.server import HTTPServer
from pathlib import Path
from random import Random
from typing import Any

from tarry.core.limits import DAY_MS, HOUR_MS, MINUTE_MS
from tarry.core.messages.message import Message
from tarry.index.progress import Progress, write_progress
from tarry.testing.insides import InsidesOf
from tests.browser.conftest import TOKENS, VIEWS, Busy
from tests.browser.webdriver import Browser, browser
from tests.pipeline.kit import index_folder
from tests.processes import ROOT
from tests.serving import Serving, serving

IMAGES = ROOT / "docs" / "images"


async def fill(served: Serving, data: Path) -> str:
    """Messages of every door, most of them indexed; gives the id of one to look at."""
    random, engine = Random(7), served.engine
    messages = [
        Message(
            destination="orders", payload=b"x" * 60, owner=f"owner-{n % 40}", door=door, key=f"order-{n}",
            delay_ms=max(20_000, int(delay_ms)),
        )
        for n in range(4_000)
        for door, delay_ms in (
            ("http", random.expovariate(1 / (25 * MINUTE_MS))),
            ("pulsar", random.gauss(28 * MINUTE_MS, 6 * MINUTE_MS)),
            ("matrix", random.expovariate(1 / (3 * HOUR_MS))),
            ("dapr", random.uniform(0, 20 * DAY_MS)),
        )
    ]  # fmt: skip
    for start in range(0, len(messages), 1_000):
        await engine.schedule_many(messages[start : start + 1_000])
    await asyncio.to_thread(index_folder, str(data / "ledger"))
    seq, now_ms = InsidesOf(engine).durable_seq, engine.clock.now_ms()
    (data / "pipeline").mkdir(exist_ok=True)
    write_progress(
        data / "pipeline",
        Progress(state="running", at_ms=now_ms + MINUTE_MS, cursor=seq, commits=1, last_commit_at_ms=now_ms),
    )
    for topic, entries in (("orders", 0), ("alarms", 37), ("mail", 4)):
        await served.client.put(f"/v1/topics/public/default/{topic}/subscriptions/workers")
        for _ in range(entries):
            await served.client.post(f"/v1/topics/public/default/{topic}/messages", json={"payload": "x"})
    soon = [
        Message(destination="orders", payload=b"x", door=random.choice(("http", "pulsar", "matrix")), delay_ms=random.randrange(8_000))
        for _ in range(900)
    ]  # fmt: skip
    await engine.schedule_many(soon)
    shown = {"destination": "orders", "delay": "2h", "key": "order-1234", "owner": "shop"}
    payload = {"payload_json": {"order": 1234, "reminder": "first"}}
    answer = await served.client.post("/v1/messages", json=shown | payload)
    await asyncio.sleep(9)
    return str(answer.json()["id"])


async def show_everything(served: Serving) -> str:
    """One of everything that has a page of its own; gives the id of a command by filter."""
    client, here = served.client, "public/default"
    await client.post(
        f"/v1/topics/{here}/seen/messages", json={"payload_json": {"order": 1234}, "key": "order-1234"}
    )
    repeats: dict[str, dict[str, Any]] = {
        "seen": {"destination": "seen", "every": "1d", "payload": "good morning"},
        "standup": {
            "destination": "seen",
            "cron": "30 8 * * mon-fri",
            "zone": "Europe/Berlin",
            "payload_json": {"room": 7},
        },
        "invoices": {"destination": "mail", "cron": "0 6 1 * *", "owner": "shop", "jitter": "10m"},
    }
    for name, asked in repeats.items():
        await client.put(f"/v1/repeats/{here}/{name}", json=asked)
    await client.post(f"/v1/repeats/{here}/invoices/pause")
    await client.post("/v1/pauses", json={"destination": "https://example.org"})
    command = await client.post("/v1/commands", json={"action": "cancel", "filter": {"owner": "shop"}})
    return str(command.json()["id"])


def take(tab: Browser, url: str, id_: str) -> None:
    """All the pictures."""
    IMAGES.mkdir(exist_ok=True)
    for name, width, height, dark, phone in (
        ("light", 1280, 1500, False, False),
        ("dark", 1280, 1130, True, False),
        ("phone", 390, 1100, False, True),
    ):
        tab.look(width, height, dark=dark, phone=phone)
        tab.go(f"{url}/ui/icon.svg")
        tab.go(url)
        tab.sees("Complete up to seq")
        tab.sees("due in the next")
        # The first figures are drawn again once everything has its place.
        time.sleep(3)
        tab.picture(IMAGES / f"dashboard-{name}.png", whole=False)
    tab.look(1280, 760)
    tab.go(f"{url}/#/messages/{id_}")
    tab.find("ol.life")
    tab.picture(IMAGES / "dashboard-message.png", whole=False)


FAILED = "http://127.0.0.1:1/hooks/orders"
"""A destination that nobody listens at."""


async def show_troubles(served: Serving, receiver: str) -> dict[str, str]:
    """Messages in every state, and commands, pauses and policies; gives addresses of pages by the names of their pictures."""
    client, here = served.client, "public/default"

    async def schedule(**fields: Any) -> str:
        answer = await client.post(
            "/v1/messages", json={"destination": "orders", "owner": "shop", "delay": "3h", **fields}
        )
        assert answer.status_code == 201, answer.text
        return f"/#/messages/{answer.json()['id']}"

    async def counted(path: str) -> dict[str, Any]:
        while True:
            found: dict[str, Any] = (await client.get(path)).json()
            if found["phase"] != "counting":
                return found
            await asyncio.sleep(0.05)

    async def ask(action: str, then: str | None = None, *, delay: str | None = None, **chosen: str) -> str:
        asked = {"action": action, "filter": {"namespace": here, **chosen}, "delay": delay}
        answer = await client.post("/v1/commands", json=asked)
        assert answer.is_success, answer.text
        id_ = answer.json()["id"]
        found = await counted(f"/v1/commands/{id_}")
        given = {"counted": found["counted"]} if then == "confirm" else None
        if then is not None:
            await client.post(f"/v1/commands/{id_}/{then}", json=given)
        return f"/#/commands/{id_}"

    order: dict[str, Any] = {
        "order": 1234,
        "total": 59.9,
        "currency": "EUR",
        "lines": [{"sku": "A-17", "count": 2}, {"sku": "B-4", "count": 1}],
    }
    headers = {"content-type": "application/json", "x-shop": "north"}
    pages = {
        "failed": await schedule(destination=FAILED, delay="1ms", key="order-1201", payload_json=order),
        "retrying": await schedule(destination=f"{receiver}/hooks/mail", delay="1ms", key="order-1202", payload_json=order),
        "sent": await schedule(destination="mail", delay="1ms", key="order-1203", payload_json=order),
        "paused": await schedule(destination="mail", key="order-1204", name="reminder-1204"),
        "cancelled": await schedule(destination="mail", key="order-1205", payload="a plain text"),
        "scheduled": await schedule(destination="mail", key="order-1206", name="trial-42", payload_json=order, headers=headers),
        "held": await schedule(destination="https://example.org/hooks/9c5a27/very/long/path/of/a/receiver", key="order-1207", ttl_ms=3_600_000),
        "bytes": await schedule(destination="mail", payload_base64="AAECAwQFBgc=", key="order-1208", owner="@alice:matrix.example.org"),
    }  # fmt: skip
    for n in range(12):
        await schedule(destination=FAILED, delay="1ms", key=f"order-13{n:02}", owner=f"owner-{n}")
    for page, command in (("paused", "pause"), ("cancelled", "cancel")):
        id_ = pages[page].rpartition("/")[2]
        await client.post(f"/v1/messages/{id_}/{command}")
    await client.post("/v1/pauses", json={"owner": "owner-7"})
    await client.post("/v1/pauses", json={"topic": "persistent://public/default/alarms"})
    for n in range(130):
        body = {"payload_json": order | {"order": n}, "key": f"order-{n}", "headers": {"x-shop": "north"}}
        await client.post(f"/v1/topics/{here}/shipments/messages", json=body)
    for n in range(5):
        await client.post(
            f"/v1/topics/{here}/shipments/messages",
            json={"payload": "later", "delay": "2h", "key": f"order-{n}"},
        )
    for name, kind in (
        ("workers", "shared"),
        ("audit", "failover"),
        ("a-subscription-with-a-long-name", "key_shared"),
    ):
        await client.put(
            f"/v1/topics/{here}/shipments/subscriptions/{name}", json={"type": kind, "start": "earliest"}
        )
    await client.post(f"/v1/topics/{here}/shipments/subscriptions/workers/ack", json={"up_to": 60})
    await client.put("/v1/policies/broker", json={"tick_ms": 2_000, "retention_ms": 7 * DAY_MS})
    await client.put(
        f"/v1/policies/topics/{here}/shipments", json={"send_per_second": 50, "max_delay_ms": 30 * DAY_MS}
    )
    pages |= {
        "command-asked": await ask("move", delay="1h", owner="owner-1"),
        "command-done": await ask("cancel", "confirm", owner="owner-2"),
        "command-stopped": await ask("send", "stop", owner="owner-3", door="pulsar"),
        "topic": f"/#/topics/{here}/shipments", "topic-live": f"/#/topics/{here}/shipments?live=1", "topic-paused": f"/#/topics/{here}/alarms",
        "policies-topic": f"/#/policies?level=topic&name={here}/shipments", "repeat-cron": f"/#/repeats/{here}/standup",
        "repeat-paused": f"/#/repeats/{here}/invoices", "repeat-change": f"/#/repeat/{here}/standup",
        "list-retrying": "/#/messages?state=retrying", "list-filtered": "/#/messages?owner=shop", "list-ended": "/#/messages?state=finalised",
        "list-empty": "/#/messages?owner=nobody", "no-message": "/#/messages/" + "0" * 32,
        "schedule-filled": "/#/schedule?destination=orders&delay=1h&payload=hello&name=trial-43", "command-retry": "/#/command?state=failed&owner=shop",
        "command-move": "/#/command?action=move&owner=shop",
    }  # fmt: skip
    return pages


LOOKS = {"desk": (1280, 900), "phone": (390, 844), "dark": (1280, 900)}


def take_every(
    tab: Browser, url: str, troubles: dict[str, str], seen: dict[str, str], folder: Path, only: str
) -> None:
    """Every page as everybody sees it."""
    folder.mkdir(parents=True, exist_ok=True)
    pages = [(role, page, re.sub(r"\W+", "-", page).strip("-") or "overview") for role, page, _ in VIEWS]
    pages += [("admin", page, name) for name, page in troubles.items()]
    pages += [
        (role, troubles[name], name)
        for role in ("produce", "screen")
        for name in ("failed", "scheduled", "topic")
    ]
    for role, page, what in pages:
        name = f"{what}-{role or 'signed-out'}"
        if not re.search(only, name):
            continue
        for look, (width, height) in LOOKS.items():
            tab.look(width, height, dark=look == "dark", phone=look == "phone")
            tab.go(f"{url}/ui/icon.svg")
            tab.run("sessionStorage.clear()")
            if role is not None:
                tab.run("sessionStorage.setItem('tarry.token', arguments[0])", f"{role}-secret")
            for word, meant in seen.items():
                page = page.replace(word, meant)
            tab.go(url + page)
            tab.find("#token" if role is None else "nav a")
            tab.until(
                lambda: tab.run("return !document.querySelector('main[aria-busy]')"), f"{page} does not come"
            )
            # Whatever is drawn once more when it has its place, is.
            time.sleep(0.5)
            tab.picture(folder / f"{name}-{look}.png")


async def every(folder: Path, only: str) -> None:
    """All pages, of a server that knows who is there."""
    tokens = [{"name": name, "token": f"{name}-secret", "roles": roles} for name, roles in TOKENS.items()]
    busy = HTTPServer(("127.0.0.1", 0), Busy)
    threading.Thread(target=busy.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as scratch:
        data = Path(scratch) / "data"
        async with serving(
            data, tokens=tokens, webhook__allow=["127.0.0.1/32"], engine__attempts=2
        ) as served:
            served.client.headers["authorization"] = "Bearer admin-secret"
            id_ = await fill(served, data)
            command = await show_everything(served)
            troubles = await show_troubles(served, f"http://127.0.0.1:{busy.server_port}")

            def pictures() -> None:
                with browser() as tab:
                    take_every(tab, served.url, troubles, {"ID": id_, "COMMAND": command}, folder, only)

            await asyncio.to_thread(pictures)
    busy.shutdown()
    busy.server_close()


async def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.browser.screenshots", description=__doc__)
    parser.add_argument(
        "--every", type=Path, metavar="FOLDER", help="all pages, as everybody sees them, into this folder"
    )
    parser.add_argument(
        "--only", default="", metavar="PATTERN", help="of all pages those whose pictures are so named"
    )
    options = parser.parse_args()
    if options.every is not None:
        await every(options.every, options.only)
        return
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        async with serving(data) as served:
            id_ = await fill(served, data)
            await show_everything(served)

            def pictures() -> None:
                with browser() as tab:
                    take(tab, served.url, id_)

            await asyncio.to_thread(pictures)
    print(json.dumps({path.name: path.stat().st_size for path in sorted(IMAGES.glob("dashboard-*.png"))}))


if __name__ == "__main__":
    asyncio.run(main())
