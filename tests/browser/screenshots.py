"""Pictures of the dashboard for the documentation: `python -m tests.browser.screenshots`.

They are taken of a real server with made-up messages of every door, part of them indexed, and written into docs/images.
"""

import asyncio
import json
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from tarry.core.limits import DAY_MS, HOUR_MS, MINUTE_MS
from tarry.core.message import Message
from tarry.index.progress import Progress, write_progress
from tarry.testing.insides import InsidesOf
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


async def main() -> None:
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
