"""Requests of the outlet to a receiver, and its verdicts on the answers."""

import base64
import hashlib
import hmac
import urllib.parse

import pytest
from aiohttp import web

from tarry.core.messages.delivery import Delivered, Refused, Retry, Verdict
from tarry.outlets.webhook import verify
from tests.unit.webhook_kit import (
    KEY,
    NOW_MS,
    OTHER_KEY,
    OTHER_SECRET,
    SECRET,
    ScriptedResolver,
    receiving,
    sending,
    to,
)


async def test_a_delivery_as_the_receiver_sees_it() -> None:
    async with receiving() as (receiver, port), sending(secrets=(SECRET,)) as outlet:
        verdict = await outlet.send(
            to(
                f"http://127.0.0.1:{port}/hook%2Fx?sig=%2fa+b",
                b'{"n":1}',
                headers={"content-type": "application/json", "ce-subject": "é", "x-mine": "1"},
                key="a b",
                attempt=2,
            )
        )
    assert verdict == Delivered(reference=None)
    [(request, body)] = receiver.requests
    assert (request.method, request.raw_path) == ("POST", "/hook%2Fx?sig=%2fa+b")
    assert body == b'{"n":1}'
    assert request.headers["host"] == f"127.0.0.1:{port}"
    assert request.headers["content-type"] == "application/json"
    assert request.headers["content-length"] == "7"
    assert request.headers["accept-encoding"] == "identity"
    assert request.headers["x-mine"] == "1"
    attributes = {
        name.lower().removeprefix("ce-"): urllib.parse.unquote(value, errors="strict")
        for name, value in request.headers.items()
        if name.lower().startswith("ce-")
    }
    assert attributes == {
        "specversion": "1.0",
        "id": "m1",
        "source": "/tarry",
        "type": "tarry.message.due",
        "time": "2023-11-14T22:13:20.994Z",
        "tarryscheduledat": "2023-11-14T22:13:19.999Z",
        "tarryattempt": "2",
        "partitionkey": "a b",
        "subject": "é",
    }
    assert request.headers["webhook-id"] == "m1"
    assert request.headers["webhook-timestamp"] == "1700000000"
    expected = base64.b64encode(hmac.digest(KEY, b'm1.1700000000.{"n":1}', hashlib.sha256)).decode()
    assert request.headers["webhook-signature"] == f"v1,{expected}"


async def test_an_empty_payload() -> None:
    async with receiving() as (receiver, port), sending(secrets=(SECRET,)) as outlet:
        assert await outlet.send(to(f"http://127.0.0.1:{port}", b"")) == Delivered()
    [(request, body)] = receiver.requests
    assert (body, request.path, request.headers["content-length"]) == (b"", "/", "0")
    assert request.headers["content-type"] == "application/octet-stream"
    assert verify([SECRET], request.headers, body, now_ms=NOW_MS) == "m1"


async def test_a_large_payload_arrives_whole() -> None:
    payload = bytes(range(256)) * 20_480
    async with receiving() as (receiver, port), sending(secrets=(SECRET,)) as outlet:
        assert await outlet.send(to(f"http://127.0.0.1:{port}/", payload)) == Delivered()
    [(request, body)] = receiver.requests
    assert body == payload
    assert verify([SECRET], request.headers, body, now_ms=NOW_MS) == "m1"


async def test_structured_mode_signs_what_is_sent() -> None:
    async with receiving() as (receiver, port), sending(secrets=(SECRET,), mode="structured") as outlet:
        assert await outlet.send(to(f"http://127.0.0.1:{port}/")) == Delivered()
    [(request, body)] = receiver.requests
    assert request.headers["content-type"] == "application/cloudevents+json; charset=utf-8"
    assert b'"data_base64":"aGVsbG8="' in body
    assert verify([SECRET], request.headers, body, now_ms=NOW_MS) == "m1"


async def test_without_a_secret_there_is_no_signature() -> None:
    async with receiving() as (receiver, port), sending() as outlet:
        await outlet.send(to(f"http://127.0.0.1:{port}/", headers={"webhook-signature": "v1,forged"}))
    [(request, _)] = receiver.requests
    assert "webhook-signature" not in request.headers
    assert request.headers["webhook-id"] == "m1"


async def test_secrets_by_host() -> None:
    async with receiving() as (receiver, port):
        by_host = {
            "one.example": (OTHER_SECRET, SECRET),
            "two.example": (),
            f"three.example:{port}": (OTHER_SECRET,),
            "three.example": (),
        }
        resolver = ScriptedResolver(["127.0.0.1"])
        async with sending(resolver, secrets=(SECRET,), secrets_by_host=by_host) as outlet:
            for host in ("one.example", "ONE.example.", "two.example", "three.example", "four.example"):
                assert await outlet.send(to(f"http://{host}:{port}/")) == Delivered()
    made = [request.headers.get("webhook-signature") for request, _ in receiver.requests]
    mine, other = (
        "v1," + base64.b64encode(hmac.digest(key, b"m1.1700000000.hello", "sha256")).decode()
        for key in (KEY, OTHER_KEY)
    )
    assert made == [f"{other} {mine}", f"{other} {mine}", None, other, mine]


async def test_no_cookie_and_no_header_is_carried_over() -> None:
    resolver = ScriptedResolver(["127.0.0.1"])
    async with receiving() as (receiver, port), sending(resolver) as outlet:
        receiver.answer = lambda _: web.Response(headers={"Set-Cookie": "a=b; Path=/"})
        await outlet.send(to(f"http://a.example:{port}/", headers={"authorization": "Bearer x"}))
        await outlet.send(to(f"http://a.example:{port}/"))
    second = receiver.requests[1][0]
    assert "cookie" not in second.headers
    assert "authorization" not in second.headers


async def test_a_message_that_http_cannot_carry_is_refused_and_not_sent() -> None:
    async with receiving() as (receiver, port), sending() as outlet:
        verdict = await outlet.send(to(f"http://127.0.0.1:{port}/", headers={"x": "a\r\nevil: 1"}))
        assert verdict == Refused("header 'x' has a value that HTTP cannot carry")
        assert await outlet.send(to(f"http://127.0.0.1:{port}/")) == Delivered()
    assert len(receiver.requests) == 1


@pytest.mark.parametrize(
    ("status", "headers", "verdict"),
    [
        (204, {}, Delivered()),
        (202, {"Location": "/x", "Retry-After": "3"}, Delivered()),
        (429, {"Retry-After": "3"}, Retry("HTTP 429 from 127.0.0.1", after_ms=3_000)),
        (503, {"Retry-After": "Tue, 14 Nov 2023 22:13:30 GMT"}, Retry("HTTP 503 from 127.0.0.1", 9_001)),
        (503, {}, Retry("HTTP 503 from 127.0.0.1")),
        (500, {}, Retry("HTTP 500 from 127.0.0.1")),
        (410, {}, Refused("HTTP 410 from 127.0.0.1")),
        (404, {}, Refused("HTTP 404 from 127.0.0.1")),
    ],
)
async def test_verdicts_on_statuses(status: int, headers: dict[str, str], verdict: Verdict) -> None:
    async with receiving() as (receiver, port), sending() as outlet:
        receiver.answer = lambda _: web.Response(status=status, headers=headers)
        assert await outlet.send(to(f"http://127.0.0.1:{port}/secret?token=secret")) == verdict


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirects_are_not_followed(status: int) -> None:
    async with receiving() as (receiver, port), sending() as outlet:
        for location in (
            "http://169.254.169.254/latest/meta-data/",
            f"http://127.0.0.1:{port}/next",
            "::bad::",
        ):
            receiver.answer = lambda _, at=location: web.Response(status=status, headers={"Location": at})  # type: ignore[misc]
            verdict = await outlet.send(to(f"http://127.0.0.1:{port}/first"))
            assert isinstance(verdict, Refused)
            assert "redirects are never followed" in verdict.reason
            assert location not in verdict.reason
    assert [request.path for request, _ in receiver.requests] == ["/first"] * 3
