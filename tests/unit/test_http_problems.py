import inspect

import msgspec
import pytest

from tarry.core import errors
from tarry.core.errors import TarryError
from tarry.doors.http.problems import encode, headers_of, no_token, problem_of, timed_out
from tarry.doors.http.responses import refusal

CASES: list[tuple[TarryError, int, dict[str, object]]] = [
    (errors.Invalid("due_at_ms", "is negative"), 400, {"field": "due_at_ms"}),
    (errors.TooLarge("payload", 5), 413, {"field": "payload", "limit": 5}),
    (errors.DelayTooLong(1000), 400, {"max_delay_ms": 1000}),
    (errors.Forbidden("no"), 403, {}),
    (errors.Rejected("no"), 400, {}),
    (errors.NotFound("no"), 404, {}),
    (errors.Conflict("was sent", "sent"), 409, {"state": "sent"}),
    (errors.TooManyPending(7), 429, {"limit": 7}),
    (errors.QuotaExceeded("orders", "producer_exception"), 429, {}),
    (errors.RateLimited(1500), 429, {"retry_after_ms": 1500}),
    (errors.Unavailable("stopping"), 503, {"retry_after_ms": 1000}),
    (errors.OverShare("the token ann has its share"), 503, {"retry_after_ms": 1000}),
    (errors.Damage("/srv/secret/0001.seg", 17, "checksum"), 500, {}),
]


@pytest.mark.parametrize(("error", "status", "members"), CASES, ids=lambda value: type(value).__name__)
def test_every_error_has_its_problem(error: TarryError, status: int, members: dict[str, object]) -> None:
    problem = msgspec.json.decode(encode(problem_of(error)))
    assert problem["status"] == status
    assert problem["code"] == error.code
    assert problem["type"] == f"urn:tarry:problem:{error.code}"
    assert {name: problem.get(name) for name in members} == members
    assert set(problem) == {"type", "title", "status", "code", "detail", *members}


def test_no_error_of_the_tree_is_forgotten() -> None:
    tree = {
        kind for _, kind in inspect.getmembers(errors, inspect.isclass)
        if issubclass(kind, TarryError) and kind is not TarryError
    }  # fmt: skip
    assert tree == {type(error) for error, _, _ in CASES}


def test_damage_tells_callers_nothing_of_the_server_s_paths(caplog: pytest.LogCaptureFixture) -> None:
    problem = problem_of(errors.Damage("/srv/secret/0001.seg", 17, "checksum"))
    assert "secret" not in encode(problem).decode()
    assert "/srv/secret/0001.seg: damaged at byte 17" in caplog.text


def test_waiting_times_are_also_a_header_in_whole_seconds_rounded_up() -> None:
    assert (b"retry-after", b"2") in headers_of(errors.RateLimited(1500))
    assert (b"retry-after", b"1") in headers_of(errors.RateLimited(0))
    assert (b"retry-after", b"1") in headers_of(errors.Unavailable("stopping"))
    assert b"retry-after" not in dict(headers_of(errors.NotFound("no")))


def test_refusals_of_http_bring_their_headers() -> None:
    assert problem_of(no_token("send one")).status == 401
    assert (b"www-authenticate", b"Bearer") in headers_of(no_token("send one"))
    assert problem_of(timed_out()).status == 408
    assert refusal(timed_out()).close
