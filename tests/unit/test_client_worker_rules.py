"""A worker's functions, payloads and waits, without a server."""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypedDict

import msgspec
import pytest

from tarry import Backoff, Delivery, Entry, Invalid, Received, Worker
from tarry.client.worker.handler import Invocation
from tarry.client.worker.payloads import BadPayload, reader_of
from tarry.client.worker.retrying import RetryTopics, attempt_of, duration_ms, waits_of


@dataclass
class Reminder:
    user: int
    text: str = "hello"


class Typed(TypedDict):
    user: int


class Record(msgspec.Struct):
    user: int


class Model:
    """The part of a pydantic model that is used; pydantic is not among the packages of this project."""

    def __init__(self, user: int) -> None:
        self.user = user

    @classmethod
    def model_validate_json(cls, payload: bytes) -> "Model":
        return cls(int(payload))


def entry(payload: bytes = b"", entry_id: int = 7, **given: Any) -> Entry:
    text = payload.decode()
    return Entry(Received(entry_id=entry_id, payload_text=text, **given), lambda *_: None)


@pytest.mark.parametrize(
    ("kind", "payload", "value"),
    [
        (bytes, b"\xff", b"\xff"),
        (str, "ä".encode(), "ä"),
        (dict, b'{"a":1}', {"a": 1}),
        (dict[str, int], b'{"a":1}', {"a": 1}),
        (list, b"[1]", [1]),
        (int, b"5", 5),
        (Any, b"null", None),
        (Reminder, b'{"user":1}', Reminder(1)),
        (Typed, b'{"user":1}', {"user": 1}),
        (Record, b'{"user":1}', Record(1)),
        (Record | None, b"null", None),
    ],
)
def test_a_payload_is_read_as_the_type_that_is_asked_for(kind: Any, payload: bytes, value: Any) -> None:
    assert reader_of(kind)(payload) == value


def test_a_model_reads_itself() -> None:
    assert reader_of(Model)(b"5").user == 5


@pytest.mark.parametrize(
    ("kind", "payload"), [(str, b"\xff"), (dict, b"no"), (Reminder, b'{"user":"x"}'), (Model, b"x")]
)
def test_a_payload_of_another_type_is_a_bad_one(kind: Any, payload: bytes) -> None:
    with pytest.raises(BadPayload):
        reader_of(kind)(payload)


def test_a_type_that_cannot_be_read_is_told_when_it_is_declared() -> None:
    worker = Worker("http://h")
    with pytest.raises(TypeError, match="cannot be read as"):

        @worker.on("t")
        def handle(payload: type) -> None: ...


def test_a_function_gets_what_its_signature_asks_for() -> None:
    delivery = Delivery("t", "s", entry(b'{"user":1}'), 1, 6)

    def both(reminder: Reminder, about: Delivery, other: int = 5) -> None: ...
    def second(about: Delivery, payload: bytes) -> None: ...
    def nothing() -> None: ...
    def plain(payload: Any) -> None: ...

    plain.__annotations__.clear()
    assert Invocation(both).arguments(delivery) == {"reminder": Reminder(1), "about": delivery}
    assert Invocation(second).arguments(delivery) == {"payload": b'{"user":1}', "about": delivery}
    assert Invocation(nothing).arguments(delivery) == {}
    assert Invocation(plain).arguments(delivery) == {"payload": b'{"user":1}'}


def test_a_function_that_asks_for_more_is_refused() -> None:
    def more(payload: bytes, other: int) -> None: ...
    def star(*payloads: bytes) -> None: ...

    with pytest.raises(TypeError, match="other: a worker's function takes"):
        Invocation(more)
    with pytest.raises(TypeError, match="cannot give"):
        Invocation(star)


async def a_coroutine() -> None: ...


class Callable:
    async def __call__(self) -> None: ...


def test_coroutine_functions_are_known_from_others() -> None:
    assert Invocation(a_coroutine).is_coroutine
    assert Invocation(Callable()).is_coroutine
    assert not Invocation(lambda: None).is_coroutine


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"concurrency": 0}, "concurrency"),
        ({"retries": -1}, "retries"),
        ({"timeout": "soon"}, "timeout"),
        ({"timeout": timedelta(seconds=-1)}, "timeout"),
        ({"backoff": "x"}, "backoff"),
        ({"backoff": Backoff(first="x")}, "backoff"),
    ],
)
def test_rules_that_make_no_sense_are_refused(given: Any, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        Worker("http://h").on("t", **given)(lambda: None)


def test_two_functions_do_not_share_a_subscription() -> None:
    worker = Worker("http://h")
    worker.on("t")(lambda: None)
    with pytest.raises(Invalid, match="name another subscription"):
        worker.on("persistent://public/default/t")
    worker.on("t", subscription="other")(lambda: None)


def test_waits_double_up_to_the_longest_and_are_the_same_for_one_entry() -> None:
    wait_ms = waits_of(Backoff("1s", "10s"))
    for failed, whole_ms in ((1, 1000), (2, 2000), (3, 4000), (5, 10_000), (90, 10_000)):
        spread = {wait_ms(failed, str(n)) for n in range(100)}
        assert len(spread) > 50
        assert min(spread) >= whole_ms / 2
        assert max(spread) <= whole_ms
        assert wait_ms(failed, "a") == wait_ms(failed, "a")
    assert [waits_of("30s")(failed, "") for failed in (1, 9)] == [30_000, 30_000]
    assert waits_of(timedelta(minutes=1))(1, "") == 60_000
    assert waits_of(lambda failed: timedelta(seconds=failed))(4, "") == 4000


def test_durations_are_rounded_up() -> None:
    assert duration_ms(timedelta(microseconds=1), "x") == 1


def test_the_calls_after_a_failure_are_the_same_again_and_those_of_another_entry_are_not() -> None:
    route = RetryTopics("persistent://a/b/t", "s", "dead")
    assert route.retries == "persistent://a/b/t-s-RETRY"
    one = entry(b"x", 1, published_at_ms=5, headers={"h": "v"}, key="k")
    again = route.again(one, route.topic, 2, 1000, ValueError("no\nway"))
    assert again == route.again(one, route.topic, 2, 1000, ValueError("no\nway"))
    body = msgspec.json.decode(again.body)
    assert body["headers"] == {"h": "v", "tarry-attempt": "2", "tarry-error": "ValueError: no way"}
    assert (body["key"], body["delay_ms"], body["destination"]) == ("k", 1000, route.retries)
    keys = {
        call.headers["idempotency-key"]
        for call in (
            again,
            route.dead_letter(one, route.topic, 2, ValueError()),
            route.again(one, route.retries, 2, 1000, ValueError()),
            route.again(entry(b"x", 2, published_at_ms=5), route.topic, 2, 1000, ValueError()),
            # A topic of that name was deleted and made again.
            route.again(entry(b"x", 1, published_at_ms=6), route.topic, 2, 1000, ValueError()),
        )
    }
    assert len(keys) == 5


def test_attempts_are_counted_in_a_header() -> None:
    assert attempt_of(entry()) == 1
    assert attempt_of(entry(headers={"tarry-attempt": "3"})) == 3
    assert attempt_of(entry(headers={"tarry-attempt": "x"})) == 1
