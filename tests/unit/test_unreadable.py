"""JSON from outside that is nested more deeply than the stack is refused like any other that cannot be read."""

import ast
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from aiohttp import web

import tarry
from tarry.config.dapr import DaprApp
from tarry.doors.dapr.channel import AppMessage, HttpChannel, Status, bulk_envelope
from tarry.doors.dapr.delayed_message import Undecodable, decode_entry
from tarry.doors.dapr.receiving import Receiving
from tarry.doors.dapr.subscriptions import AppSubscription, RoutingRule
from tarry.doors.dapr.topic_events import topic_event
from tarry.outlets.dapr.component import BrokerMessage, Settlement
from tarry.testing.clock import SimulatedClock
from tests.unit.dapr_kit import dapr

DEEP = b"[" * 100_000 + b"]" * 100_000
ARRIVAL = AppMessage({"id": "1"}, b'{"id":"1"}', "pubsub", "t", "/in", "1", {}, b"", None, False)
SUBSCRIPTION = AppSubscription(pubsub="pubsub", topic="t", rules=(RoutingRule("", "/in"),))
OF_MSGSPEC = {"MsgspecError", "DecodeError", "ValidationError"}
GOOD = {
    "doors/dapr/bulk_body.py:_items": "the caller catches the rest",
    "doors/dapr/subscriptions.py:_declared": "it was read before",
    "doors/http/bodies.py:read_query": "parameters are text",
    "doors/pulsar/admin/policies.py:_set": "a parameter is text",
    "doors/pulsar/admin/policies.py:set_": "a parameter is text",
}
"""By place: why an error of msgspec is caught there without the others."""


def caught(handler: ast.ExceptHandler) -> set[str]:
    """The last parts of the names of what is caught."""
    types = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return {ast.unparse(one).rpartition(".")[2].lstrip("*") for one in types if one is not None}


def one_sided() -> Iterator[str]:
    """Every place in doors and outlets where errors of msgspec are caught, and what else cannot be read is not."""
    root = Path(tarry.__file__).parent
    for file in sorted([*root.glob("doors/**/*.py"), *root.glob("outlets/**/*.py")]):
        text = file.read_text()
        if "from google.protobuf.message import DecodeError" in text:
            continue
        for function in ast.walk(ast.parse(text)):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for block in ast.walk(function):
                if isinstance(block, ast.Try):
                    names = set().union(*map(caught, block.handlers))
                    if names & OF_MSGSPEC and "UNREADABLE" not in names:
                        yield f"{file.relative_to(root)}:{function.name}"


def test_who_reads_what_others_wrote_catches_all_that_can_be_wrong_with_it() -> None:
    assert set(one_sided()) == set(GOOD)


@pytest.mark.parametrize("path", ["publish/pubsub/t", "publish/bulk/pubsub/t"])
@pytest.mark.parametrize("type_", ["application/json", "application/cloudevents+json"])
async def test_a_publish_that_is_nested_too_deeply_is_no_fault_of_the_server(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str, type_: str
) -> None:
    async with dapr(tmp_path) as doors:
        answer = await doors.client.post(f"/v1.0/{path}", content=DEEP, headers={"content-type": type_})
        entry = [{"entryId": "1", "event": "EVENT", "contentType": type_}]
        body = json.dumps(entry).encode().replace(b'"EVENT"', DEEP)
        await doors.client.post("/v1.0/publish/bulk/pubsub/t", content=body)
    if path == "publish/pubsub/t" and type_ == "application/json":
        assert answer.status_code == 204, "as other text that is no JSON it is text"
    else:
        assert "inside" not in answer.text
        assert answer.status_code in (400, 500), answer.text
    assert "failed with" not in caplog.text


async def test_what_an_application_answers_may_be_nested_too_deeply() -> None:
    async def answer(_: web.Request) -> web.Response:
        return web.Response(body=DEEP)

    web_app = web.Application()
    web_app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(web_app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        channel = HttpChannel(DaprApp(app_port=runner.addresses[0][1]))
        try:
            assert await channel.subscriptions() == []
            assert await channel.actors() == []
            assert await channel.deliver(ARRIVAL) is Status.SUCCESS
            # Of a bulk nothing is known then: it comes again.
            assert await channel.deliver_bulk([ARRIVAL]) == {"1": Status.RETRY}
        finally:
            await channel.close()
    finally:
        await runner.cleanup()


def test_what_is_no_base64_may_also_not_be_ascii() -> None:
    """Python has two errors for that, of which only one is `binascii.Error`."""
    root = Path(tarry.__file__).parent
    assert not [file for file in root.glob("**/*.py") if "binascii.Error" in file.read_text()]
    event = msgspec.structs.replace(ARRIVAL, event={"id": "1", "data_base64": "é"})
    assert topic_event(event).data == "é".encode()
    with pytest.raises(Undecodable):
        decode_entry('{"entryId":"1","event":"é"}'.encode(), {})


async def test_a_message_that_is_nested_too_deeply_is_no_event() -> None:
    """Another one may have published it, straight to the broker."""

    async def deliver(_: AppMessage) -> Status:
        raise AssertionError("it cannot be given to anybody")

    receiving = Receiving(SUBSCRIPTION, Any, DaprApp(), SimulatedClock(), deliver)  # type: ignore[arg-type]
    assert (
        await receiving.receive(BrokerMessage(topic="t", data=b'{"data":' + DEEP + b"}")) is Settlement.NACK
    )


def test_several_events_are_given_together_as_they_came() -> None:
    """However deep they are: encoded again, one that could just be read would take the others with it."""
    body = b'{"id":"1","data":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    together = msgspec.json.encode(bulk_envelope([msgspec.structs.replace(ARRIVAL, body=body)]))
    assert body in together
