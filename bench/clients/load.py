"""One client library under load, in a process of its own: `python load.py CLIENT ADDRESS schedule|work WIDTH AMOUNT`.

`schedule`: WIDTH callers in a closed loop for AMOUNT seconds, each message an hour ahead. `work`: AMOUNT entries are there, and a
worker with WIDTH places handles them with a function that does nothing. Prints one JSON object. It imports nothing of
the benchmark, so that it runs in the environment of any library.
"""

import asyncio
import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

PAYLOAD = "x" * 200
HOUR_S = 3600
WARM_S = 0.4
DESTINATION = "persistent://public/default/bench"


class Latencies:
    """How long each call took, from the end of the warm-up on."""

    def __init__(self, seconds: float) -> None:
        self.begins = time.perf_counter() + WARM_S
        self.ends = self.begins + seconds
        self._seconds: list[float] = []

        self._last = self.begins

    def took(self, began: float, ended: float) -> None:
        # A call counts whole, also one that the end of the measurement finds under way.
        if began >= self.begins:
            self._seconds.append(ended - began)
            self._last = ended

    def found(self) -> dict[str, float]:
        self._seconds.sort()
        count = len(self._seconds)
        at = [self._seconds[int(share * (count - 1))] * 1000 for share in (0.5, 0.99)]
        return {"per_s": count / (self._last - self.begins), "p50": at[0], "p99": at[1]}


async def drive(call: Callable[[], Awaitable[Any]], width: int, seconds: float) -> dict[str, float]:
    """Callers on one event loop."""
    # The first call loads and connects.
    await call()
    latencies = Latencies(seconds)

    async def lane() -> None:
        while (began := time.perf_counter()) < latencies.ends:
            await call()
            latencies.took(began, time.perf_counter())

    await asyncio.gather(*(lane() for _ in range(width)))
    return latencies.found()


def drive_threads(call: Callable[[], Any], width: int, seconds: float) -> dict[str, float]:
    """Callers in threads."""
    call()
    latencies = Latencies(seconds)

    def lane() -> None:
        while (began := time.perf_counter()) < latencies.ends:
            call()
            latencies.took(began, time.perf_counter())

    threads = [threading.Thread(target=lane) for _ in range(width)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return latencies.found()


class Handled:
    """Counts what a worker has handled; the clock runs from the first to the last."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._seen = 0
        self._began = 0.0
        self._lock = threading.Lock()

    def one(self) -> bool:
        """One more; whether it was the last."""
        with self._lock:
            if not self._seen:
                self._began = time.perf_counter()
            self._seen += 1
            return self._seen == self._count

    def found(self) -> dict[str, float]:
        return {"per_s": (self._count - 1) / (time.perf_counter() - self._began)}


async def tarry_schedule(url: str, width: int, seconds: float, **options: Any) -> dict[str, float]:
    from tarry import AsyncClient

    async with AsyncClient(url, **options) as client:
        return await drive(
            lambda: client.schedule(DESTINATION, PAYLOAD, delay_ms=HOUR_S * 1000), width, seconds
        )


async def tarry_work(url: str, width: int, count: int) -> dict[str, float]:
    from tarry import AsyncClient, Worker

    async with AsyncClient(url) as client:
        lines = ({"destination": "work", "payload": PAYLOAD, "delay_ms": 0} for _ in range(count))
        async for _ in client.schedule_many(lines):
            pass
    worker, handled = Worker(url), Handled(count)

    @worker.on("work", concurrency=width)
    async def handle() -> None:
        if handled.one():
            worker.stop()

    await worker.run_async()
    return handled.found()


async def redis_schedule(address: str, width: int, seconds: float) -> dict[str, float]:
    from redis.asyncio import Redis

    redis = Redis(port=int(address), max_connections=width)
    due, number = time.time() + HOUR_S, 0

    async def add() -> None:
        nonlocal number
        number += 1
        await redis.zadd("due", {f"{number:08d}{PAYLOAD[8:]}": due})

    try:
        return await drive(add, width, seconds)
    finally:
        await redis.aclose()


def celery_app(address: str) -> Any:
    from celery import Celery

    app = Celery("bench", broker=f"redis://127.0.0.1:{address}/1")
    app.conf.update(
        task_ignore_result=True, broker_connection_retry_on_startup=True, worker_hijack_root_logger=False, worker_redirect_stdouts=False,
        broker_pool_limit=256, task_acks_late=True,
    )  # fmt: skip
    return app


def celery_schedule(address: str, width: int, seconds: float) -> dict[str, float]:
    def nothing(_: str) -> None: ...

    task = celery_app(address).task(nothing, name="bench.nothing")
    return drive_threads(lambda: task.apply_async((PAYLOAD,), countdown=HOUR_S, retry=False), width, seconds)


def celery_work(address: str, width: int, count: int) -> None:
    app, handled = celery_app(address), Handled(count)

    def handle(_: str) -> None:
        if handled.one():
            print(json.dumps(handled.found()), flush=True)
            # A worker that runs in this process has no end of its own.
            os._exit(0)

    task = app.task(handle, name="bench.handle")
    for _ in range(count):
        task.apply_async((PAYLOAD,))
    app.Worker(
        pool="threads",
        concurrency=width,
        quiet=True,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=True,
    ).start()


@contextlib.asynccontextmanager
async def procrastinate_app(address: str, width: int) -> Any:
    from procrastinate import App, PsycopgConnector

    conninfo = f"host=127.0.0.1 port={address} user=bench dbname=postgres"
    app = App(
        connector=PsycopgConnector(conninfo=conninfo, min_size=1, max_size=min(width + 2, 64), timeout=60)
    )
    async with app.open_async():
        if not await app.check_connection_async():
            await app.schema_manager.apply_schema_async()
        yield app


async def procrastinate_schedule(address: str, width: int, seconds: float) -> dict[str, float]:
    from datetime import UTC, datetime, timedelta

    async with procrastinate_app(address, width) as app:
        task = app.task(lambda **_: None, name="nothing")
        due = task.configure(schedule_at=datetime.now(UTC) + timedelta(seconds=HOUR_S))
        return await drive(lambda: due.defer_async(payload=PAYLOAD), width, seconds)


async def procrastinate_work(address: str, width: int, count: int) -> dict[str, float]:
    handled = Handled(count)
    async with procrastinate_app(address, width) as app:

        async def handle(**_: str) -> None:
            handled.one()

        task = app.task(handle, name="handle", queue="work")
        for first in range(0, count, 500):
            await task.batch_defer_async(*({"payload": PAYLOAD} for _ in range(min(500, count - first))))
        await app.run_worker_async(
            queues=["work"], concurrency=width, wait=False, install_signal_handlers=False,
            delete_jobs="always",
        )  # fmt: skip
    return handled.found()


def main() -> None:
    client, address, what, width_, amount = sys.argv[1:]
    width = int(width_)
    if what == "work":
        if client == "celery":
            celery_work(address, width, int(amount))
            return
        work = {"tarry": tarry_work, "procrastinate": procrastinate_work}[client]
        found = asyncio.run(work(address, width, int(amount)))
    elif client == "celery":
        found = celery_schedule(address, width, float(amount))
    elif client == "tarry-unrepeated":
        found = asyncio.run(tarry_schedule(address, width, float(amount), retry_for_s=0))
    else:
        schedule: Any = {
            "tarry": tarry_schedule, "redis": redis_schedule, "procrastinate": procrastinate_schedule,
        }[client]  # fmt: skip
        found = asyncio.run(schedule(address, width, float(amount)))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
