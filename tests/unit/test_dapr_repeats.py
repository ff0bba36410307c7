"""Schedules that repeat: what may be said, when the next one is, and that a series neither ends early nor doubles."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tarry.core.errors import Invalid
from tarry.outlets.dapr.repeats import repeat_of
from tests.unit.dapr_kit import app, dapr, in_s, to


def ms(text: str) -> int:
    return (datetime.fromisoformat(text).replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(
        milliseconds=1
    )


@pytest.mark.parametrize(
    ("text", "at", "following"),
    [
        ("R5/PT30M", "2026-01-01T10:00:00", "2026-01-01T10:30:00"),
        ("P1M", "2026-01-31T10:00:00", "2026-03-03T10:00:00"),
        ("R/P1D", "2026-01-31T10:00:00", "2026-02-01T10:00:00"),
        ("@every 1m30s", "2026-01-01T10:00:00", "2026-01-01T10:01:30"),
        ("@hourly", "2026-01-01T10:20:00", "2026-01-01T11:00:00"),
        ("@daily", "2026-12-31T23:59:59", "2027-01-01T00:00:00"),
        ("@yearly", "2026-01-01T00:00:00", "2027-01-01T00:00:00"),
        ("*/15 * * * * *", "2026-01-01T10:00:15", "2026-01-01T10:00:30"),
        ("0 30 8 * * mon-fri", "2026-11-13T08:30:00", "2026-11-16T08:30:00"),
        ("30 8 * * 7", "2026-11-13T08:30:00", "2026-11-15T08:30:00"),
        ("0 0 0 29 feb *", "2026-01-01T00:00:00", "2028-02-29T00:00:00"),
        ("0 0 12 1,15 * ?", "2026-01-02T00:00:00", "2026-01-15T12:00:00"),
        ("0 0 0 13 * fri", "2026-11-14T00:00:00", "2026-11-20T00:00:00"),
        ("5/20 * * * * *", "2026-01-01T10:00:00", "2026-01-01T10:00:05"),
    ],
)
def test_the_next_occurrence(text: str, at: str, following: str) -> None:
    assert repeat_of(text).next_ms(ms(at), ms(at)) == ms(following)


@pytest.mark.parametrize("text", ["R3/PT10S", "@every 10s", "*/10 * * * * *"])
def test_what_was_missed_is_passed_over(text: str) -> None:
    at, now = ms("2026-01-01T10:00:00"), ms("2026-01-01T10:01:05")
    assert repeat_of(text).next_ms(at, now) == ms("2026-01-01T10:01:10")


def test_the_count_goes_down() -> None:
    assert repeat_of("R5/PT30M").written() == "R4/PT30M"
    assert repeat_of("R5/PT30M").left == 5
    for text in ("R/PT30M", "@every 5s", "0 0 * * * *", "P1D"):
        assert repeat_of(text).left is None
        assert repeat_of(repeat_of(text).written()).next_ms(0, 0) == repeat_of(text).next_ms(0, 0)


@pytest.mark.parametrize(
    "text",
    [
        "", "R", "R5", "R5/", "R-1/PT1S", "R5/PT30", "R5/1h", "R1/2026-01-01T00:00:00Z/PT1S", "R5/PT0S", "R5/PT0.5S",
        "@every", "@every 5", "@every 10ms", "@never", "* * * *", "* * * * * * *", "60 * * * * *", "0 60 * * * *",
        "0 0 24 * * *", "0 0 0 0 * *", "0 0 0 32 * *", "0 0 0 * 13 *", "0 0 0 * * 8", "0 0 0 30 2 *", "*/0 * * * * *",
        "P1000000D", "PT99999999999999999999S", "@every 99999999999999h", "5-1 * * * * *", "a * * * * *", "1- * * * * *", "0 0 0 * foo *", "x" * 300, "PT30", "tomorrow",
    ],
)  # fmt: skip
def test_what_is_no_schedule_is_refused(text: str) -> None:
    with pytest.raises(Invalid) as caught:
        repeat_of(text)
    assert caught.value.field == "scheduledRepeat"


async def test_a_series_goes_to_its_topic_and_ends(tmp_path: Path) -> None:
    async with app(to("t")) as shop, dapr(tmp_path, app_port=shop.port) as doors:
        answer = await doors.publish("t", {"n": 1}, scheduledSendTime=in_s(0.2), scheduledRepeat="R3/PT1S")
        assert answer.status_code == 204
        await shop.count(3)
        assert doors.engine.stats().pending == 0
        assert len({event["id"] for _, event in shop.got}) == 3
        assert shop.data == [{"n": 1}] * 3
        bad = await doors.publish("t", 1, scheduledRepeat="R5")
        assert (bad.status_code, bad.json()["errorCode"]) == (400, "ERR_PUBSUB_REQUEST_METADATA")


async def test_a_series_goes_on_after_a_restart_and_ends_with_a_cancel(tmp_path: Path) -> None:
    async with app(to("t")) as shop:
        async with dapr(tmp_path, app_port=shop.port) as doors:
            await doors.publish("t", 1, scheduledRepeat="@every 1s")
            await shop.count(1)
        async with dapr(tmp_path, app_port=shop.port) as doors:
            await shop.count(2)
            assert doors.engine.stats().pending == 1
            (waiting,) = (await doors.served.client.get("/v1/messages", params={"owner": "app"})).json()[
                "messages"
            ]
            await doors.served.client.delete(f"/v1/messages/{waiting['id']}")
            assert doors.engine.stats().pending == 0


async def test_a_series_goes_on_though_its_owner_may_have_no_more(tmp_path: Path) -> None:
    """An occurrence and what follows it are one message of the owner's at a time."""
    async with app(to("t")) as shop, dapr(tmp_path, app_port=shop.port) as doors:
        policy = {"max_pending_per_owner": 1, "accept_per_second": 0.1}
        answer = await doors.served.client.put("/v1/policies/namespaces/public/default", json=policy)
        assert answer.status_code in (200, 204)
        await doors.publish("t", {"n": 1}, scheduledSendTime=in_s(0.2), scheduledRepeat="R3/PT1S")
        refused = await doors.publish("t", {"n": 2}, scheduledSendTime=in_s(0.2))
        assert refused.status_code == 429
        await shop.count(3)
        assert shop.data == [{"n": 1}] * 3


async def test_a_series_from_long_ago_holds_nobody_up(tmp_path: Path) -> None:
    """`P0MT1S` from 1970 was walked to now in steps of a second: for hours, and again at every start."""
    async with app(to("t")) as shop:
        async with dapr(tmp_path, app_port=shop.port) as doors:
            answer = await doors.publish(
                "t", 1, scheduledSendTime="1970-01-01T00:00:00Z", scheduledRepeat="P0MT1S"
            )
            assert answer.status_code == 204
            await shop.count(2)
        async with dapr(tmp_path, app_port=shop.port) as doors:
            await shop.count(3)
            assert doors.engine.stats().pending == 1
