"""Both clients against a real server: every operation, once."""

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest

from tarry import AsyncClient, Client, Entry, Message, Policy, Scheduled
from tarry.core import errors
from tests.processes import ServerProcess, running
from tests.waiting import until


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(tmp_path_factory.mktemp("client") / "data") as started:
        yield started


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.url) as made:
        yield made


@pytest.fixture
async def async_client(server: ServerProcess) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(server.url) as made:
        yield made


def full(topic: str) -> str:
    return f"persistent://public/default/{topic}"


def test_one_message_from_schedule_to_cancel(client: Client) -> None:
    due_at = datetime.now(UTC) + timedelta(hours=1)
    scheduled = client.schedule(
        full("one"), b"\xff", due_at=due_at, key="k", owner="own", headers={"a": "ä"}, ttl_ms=5
    )
    assert scheduled.due_at_ms == -(-int(due_at.timestamp() * 1_000_000) // 1000)
    view = client.get(scheduled.id)
    assert (view.payload, view.key, view.owner, view.headers, view.ttl_ms) == (
        b"\xff",
        "k",
        "own",
        {"a": "ä"},
        5,
    )
    moved = client.restart(scheduled.id, delay=timedelta(hours=3))
    assert moved.due_at_ms is not None
    assert moved.due_at_ms > scheduled.due_at_ms
    assert client.cancel(scheduled.id).state == "cancelled"
    with pytest.raises(errors.Conflict) as caught:
        client.send(scheduled.id)
    assert caught.value.state == "cancelled"
    with pytest.raises(errors.NotFound):
        client.get("a" * 32)


def test_the_same_key_is_the_same_message(client: Client) -> None:
    first = client.schedule(full("idem"), "x", delay="1h", idempotency_key="same")
    again = client.schedule(full("idem"), "x", delay="1h", idempotency_key="same")
    assert not first.repeated
    assert again.repeated
    assert again.id == first.id
    with pytest.raises(errors.Conflict):
        client.schedule(full("idem"), "y", delay="1h", idempotency_key="same")


def test_errors_keep_their_kind(client: Client) -> None:
    with pytest.raises(errors.Invalid) as caught:
        client.schedule(full("bad"), delay_ms=-1)
    assert caught.value.field == "delay_ms"
    with pytest.raises(errors.TooLarge):
        client.schedule(full("bad"), b"x" * 6_000_000, delay_ms=1)
    with pytest.raises(errors.DelayTooLong):
        client.schedule(full("bad"), delay="6000w")


def test_many_in_several_requests_each_with_its_outcome(client: Client) -> None:
    count = 12_345
    wrong = {17, 10_000, 12_344}
    messages = (
        Message(
            destination=full("many"), payload=str(n), owner="many", delay_ms=-1 if n in wrong else 3_600_000
        )
        for n in range(count)
    )
    outcomes = list(client.schedule_many(messages))
    assert len(outcomes) == count
    assert {n for n, outcome in enumerate(outcomes) if isinstance(outcome, errors.Invalid)} == wrong
    ids = {outcome.id for outcome in outcomes if isinstance(outcome, Scheduled)}
    assert len(ids) == count - len(wrong)
    listed = [view.id for view in client.list(owner="many", limit=1000)]
    assert set(listed) == ids
    assert len(listed) == len(ids)


def test_an_arrow_table(client: Client) -> None:
    table = pa.table({"payload": ["a", "b"], "delay_ms": pa.array([3_600_000, -1], pa.int64())})
    answers = client.schedule_arrow(table, destination=full("arrow"), owner="arrow").to_pylist()
    assert answers[0]["error"] is None
    assert client.get(_text(answers[0]["id"])).payload == b"a"
    assert answers[1]["error"]


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def test_topics_and_subscriptions(client: Client) -> None:
    client.create_topic("ts")
    assert full("ts") in client.topics(namespace="public/default")
    client.subscribe("ts", "s", type="exclusive", start="earliest")
    assert client.publish("ts", {"a": 1}, headers={"h": "v"}, key="k").entry_ids == [0]
    (entry,) = client.receive("ts", "s", wait_ms=5000)
    assert entry.payload == b'{"a":1}'
    assert entry.headers == {"h": "v", "content-type": "application/json"}
    client.nack("ts", "s", [0])
    (again,) = client.receive("ts", "s", wait_ms=5000)
    assert again.redelivery_count == 1
    client.ack("ts", "s", up_to=0)
    client.seek("ts", "s", entry_id=0)
    assert len(client.receive("ts", "s", wait_ms=5000)) == 1
    assert client.topic_stats("ts")
    client.unsubscribe("ts", "s")
    client.delete_topic("ts")
    assert full("ts") not in client.topics()


def test_consume_gives_back_at_once_what_was_not_acknowledged(client: Client) -> None:
    client.subscribe("loop", "s", start="earliest")
    for n in range(7):
        client.publish("loop", str(n))
    seen = []
    entries = client.consume("loop", "s")
    for entry in entries:
        seen.append(entry.payload)
        if len(seen) == 3:
            break
        entry.ack()
    entries.close()
    began = time.monotonic()
    rest = {}
    for entry in client.consume("loop", "s", forever=False, wait_ms=300):
        with entry:
            rest[entry.payload] = entry.redelivery_count
    assert seen == [b"0", b"1", b"2"]
    # 2 was not acknowledged, the others were held: they come at once, not after the acknowledgement timeout.
    assert sorted(rest) == [b"2", b"3", b"4", b"5", b"6"]
    assert rest[b"2"] == 1
    assert time.monotonic() - began < 20
    assert list(client.consume("loop", "s", forever=False, wait_ms=100)) == []


def test_an_entry_whose_block_raises_comes_again(client: Client) -> None:
    client.subscribe("blocks", "s", start="earliest")
    client.publish("blocks", "once more")
    counts = []
    for entry in client.consume("blocks", "s"):
        counts.append(entry.redelivery_count)
        with contextlib.suppress(ValueError), entry:
            if len(counts) < 3:
                raise ValueError
        if len(counts) == 3:
            break
    assert counts == [0, 1, 2]


def test_threads_acknowledge_what_they_have_handled(client: Client) -> None:
    """Entries that a pool has not handled are not acknowledged, and no more are out than are allowed."""
    client.subscribe("pool", "s", start="earliest")
    for n in range(30):
        client.publish("pool", str(n))
    handled: list[bytes] = []
    proceed = threading.Event()

    def handle(entry: Entry) -> None:
        proceed.wait(20)
        with entry:
            handled.append(entry.payload)

    with ThreadPoolExecutor(8) as pool:
        given = []
        for entry in client.consume("pool", "s", max_unacked=10, forever=False, wait_ms=300):
            given.append(entry.payload)
            pool.submit(handle, entry)
            if len(given) == 10:
                stats = client.topic_stats("pool")["subscriptions"]["s"]
                assert (stats["backlog"], stats["unacked"]) == (30, 10)
                proceed.set()
    assert sorted(handled) == sorted(given)
    assert len(set(given)) == 30
    assert client.topic_stats("pool")["subscriptions"]["s"]["backlog"] == 0


def test_policies(client: Client) -> None:
    client.set_policy(Policy(tick_ms=1000, max_delay_ms=60_000), topic="a/b/ticked")
    assert client.policy(topic="a/b/ticked") == Policy(tick_ms=1000, max_delay_ms=60_000)
    assert client.policy(topic="a/b/ticked", effective=True).delayed_delivery is True
    scheduled = client.schedule("persistent://a/b/ticked", delay_ms=1500)
    assert scheduled.due_at_ms is not None
    assert scheduled.due_at_ms % 1000 == 0
    with pytest.raises(errors.DelayTooLong) as caught:
        client.schedule("persistent://a/b/ticked", delay_ms=60_001)
    assert caught.value.max_delay_ms == 60_000
    changed = client.update_policy(Policy(retention_ms=-1), clear=["tick_ms"], topic="a/b/ticked")
    assert changed == Policy(max_delay_ms=60_000, retention_ms=-1)
    assert client.policy(topic="a/b/ticked") == changed
    client.remove_policy(topic="a/b/ticked")
    assert client.policy(topic="a/b/ticked", effective=True).tick_ms == 1
    client.set_policy(Policy(max_pending_per_owner=1), namespace="a/limited")
    client.schedule("persistent://a/limited/t", delay="1h", owner="lim")
    with pytest.raises(errors.TooManyPending):
        client.schedule("persistent://a/limited/t", delay="1h", owner="lim")


def test_status(client: Client) -> None:
    assert client.ready()
    assert client.status()["ready"] is True


async def test_the_async_client_does_the_same(async_client: AsyncClient) -> None:
    client = async_client
    assert await client.ready()
    await client.subscribe("aloop", "s", start="earliest")
    scheduled = await client.schedule(full("aloop"), "due", delay_ms=100)
    async with contextlib.aclosing(client.consume("aloop", "s")) as entries:
        async for entry in entries:
            assert entry.payload == b"due"
            assert entry.due_at_ms is not None
            assert entry.published_at_ms >= entry.due_at_ms
            break
    assert (await client.get(scheduled.id)).state == "sent"
    # It was not acknowledged, so it comes again.
    async for entry in client.consume("aloop", "s", forever=False, wait_ms=1000):
        with entry:
            assert entry.payload == b"due"
    assert [entry async for entry in client.consume("aloop", "s", forever=False, wait_ms=300)] == []


async def test_spawned_tasks_acknowledge_nothing_that_was_not_handled(async_client: AsyncClient) -> None:
    """The obvious concurrent worker, a task for each entry: entries that no task has handled come again."""
    client = async_client
    await client.subscribe("tasks", "s", start="earliest")
    for n in range(30):
        await client.publish("tasks", str(n))
    handled: list[bytes] = []
    seen: set[bytes] = set()
    tasks = set()

    async def handle(entry: Entry) -> None:
        # An entry that came back because its consumer left, and was not given back, has no redelivery to its count.
        again = entry.payload in seen
        seen.add(entry.payload)
        with entry:
            if entry.payload in (b"7", b"8") and not again:
                raise ValueError
            if entry.payload == b"9" and not again:
                await asyncio.sleep(3600)
            handled.append(entry.payload)

    async def consume() -> None:
        async for entry in client.consume("tasks", "s", forever=False, wait_ms=500):
            tasks.add(asyncio.create_task(handle(entry)))

    await consume()
    assert (await client.topic_stats("tasks"))["subscriptions"]["s"]["backlog"] == 1
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await consume()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(handled) == sorted(str(n).encode() for n in range(30))

    async def settled() -> bool:
        return bool((await client.topic_stats("tasks"))["subscriptions"]["s"]["backlog"] == 0)

    # The last acknowledgements are on their way when the loop is left.
    await until(settled)


async def test_the_async_client_schedules_many_and_lists_them(async_client: AsyncClient) -> None:
    messages = [Message(destination=full("amany"), owner="amany", delay="1h") for _ in range(250)]
    outcomes = [outcome async for outcome in async_client.schedule_many(messages)]
    assert all(isinstance(outcome, Scheduled) for outcome in outcomes)
    listed = [view async for view in async_client.list(owner="amany", limit=100)]
    assert len(listed) == 250
    with pytest.raises(errors.NotFound):
        await async_client.cancel("a" * 32)
