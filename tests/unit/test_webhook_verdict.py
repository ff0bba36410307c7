"""From status, Retry-After and failure to a verdict."""

import errno
import time
from datetime import UTC, datetime
from email.utils import format_datetime

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry.core.messages.delivery import Delivered, Refused, Retry
from tarry.outlets.retry_after import retry_after_ms
from tarry.outlets.webhook.verdict import of_failure, of_status

NOW_MS = 784_111_777_000  # Sun, 06 Nov 1994 08:49:37 GMT
HOUR_MS = 3_600_000


@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_delivered(status: int) -> None:
    assert of_status(status, "5", "h", NOW_MS, HOUR_MS) == Delivered()


@pytest.mark.parametrize("status", [502, 504, 520, 524])
def test_a_gateway_that_passed_it_on_does_not_know_whether_it_arrived(status: int) -> None:
    assert of_status(status, None, "h", NOW_MS, HOUR_MS) == Retry(f"HTTP {status} from h", uncertain=True)


@pytest.mark.parametrize("status", [408, 425, 429, 500, 501, 503, 599, 999])
def test_tried_again(status: int) -> None:
    assert of_status(status, None, "h", NOW_MS, HOUR_MS) == Retry(f"HTTP {status} from h")
    assert of_status(status, "7", "h", NOW_MS, HOUR_MS) == Retry(f"HTTP {status} from h", after_ms=7_000)


@pytest.mark.parametrize("status", [101, 400, 401, 403, 404, 405, 409, 410, 413, 415, 422, 451, 499])
def test_refused(status: int) -> None:
    assert of_status(status, "7", "h", NOW_MS, HOUR_MS) == Refused(f"HTTP {status} from h")


@pytest.mark.parametrize("status", [300, 301, 302, 303, 304, 307, 308, 399])
def test_redirects_are_refused_with_advice(status: int) -> None:
    verdict = of_status(status, None, "h", NOW_MS, HOUR_MS)
    assert isinstance(verdict, Refused)
    assert verdict.reason.startswith(f"HTTP {status} from h: redirects are never followed")


@pytest.mark.parametrize(
    ("value", "after_ms"),
    [
        (None, None),
        ("", None),
        ("0", None),
        ("1", 1_000),
        (" 120 ", 120_000),
        ("0000000000007", 7_000),
        ("3600", HOUR_MS),
        ("3601", HOUR_MS),
        ("9" * 5000, HOUR_MS),
        ("-1", None),
        ("1.5", None),
        ("\u0661\u0662", None),
        ("soon", None),
        ("Sun, 06 Nov 1994 08:49:38 GMT", 1_000),
        ("Sunday, 06-Nov-94 08:50:37 GMT", 60_000),
        ("Sun Nov  6 08:49:39 1994", 2_000),
        ("Sun, 06 Nov 1994 08:49:37 GMT", None),
        ("Sun, 06 Nov 1994 08:49:36 GMT", None),
        ("Wed, 21 Oct 2099 07:28:00 GMT", HOUR_MS),
        ("Sun, 06 Nov 99999 08:49:37 GMT", None),
        ("Sun, 99 Nov 1994 08:49:37 GMT", None),
    ],
)
def test_retry_after(value: str | None, after_ms: int | None) -> None:
    assert retry_after_ms(value, NOW_MS, HOUR_MS) == after_ms


def test_a_date_without_a_zone_is_in_gmt_wherever_we_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "LIM5")
    time.tzset()
    try:
        assert retry_after_ms("Sun Nov  6 08:49:39 1994", NOW_MS, HOUR_MS) == 2_000
    finally:
        monkeypatch.undo()
        time.tzset()


@given(
    st.one_of(st.text(max_size=40), st.datetimes().map(lambda at: format_datetime(at.replace(tzinfo=UTC))))
)
def test_retry_after_never_fails_and_is_bounded(value: str) -> None:
    after_ms = retry_after_ms(value, NOW_MS, HOUR_MS)
    assert after_ms is None or 0 < after_ms <= HOUR_MS


@given(st.integers(1, HOUR_MS // 1000 - 1))
def test_a_date_means_the_seconds_until_then(seconds: int) -> None:
    at = datetime.fromtimestamp(NOW_MS // 1000 + seconds, UTC)
    assert retry_after_ms(format_datetime(at, usegmt=True), NOW_MS, HOUR_MS) == seconds * 1000


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (TimeoutError(), "timed out (h)"),
        (aiohttp.ServerTimeoutError("secret"), "timed out (h)"),
        (ConnectionResetError(errno.ECONNRESET, "secret"), "connection reset by peer (h)"),
        (aiohttp.ClientOSError(errno.EPIPE, "secret"), "broken pipe (h)"),
        (aiohttp.ServerDisconnectedError("secret"), "the connection was closed without a response (h)"),
        (aiohttp.ClientPayloadError("secret"), "the response is not valid HTTP (h)"),
        (aiohttp.ClientError("secret"), "the connection failed (h)"),
        (OSError("secret"), "the connection failed (h)"),
        (RuntimeError("secret"), "the connection failed (h)"),
        (UnicodeError("secret"), "the connection failed (h)"),
    ],
)
def test_failures_are_tried_again_and_tell_nothing(error: Exception, reason: str) -> None:
    assert of_failure(error, "h") == Retry(reason, uncertain=True)
