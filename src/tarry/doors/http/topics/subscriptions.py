"""Subscriptions: make, look at, remove, receive by long poll, acknowledge, give back, seek."""

import asyncio
from typing import Any

import msgspec

from tarry.core.errors import Invalid
from tarry.core.names import check_name, parse_topic
from tarry.doors.http.bodies import T, check_json, decode
from tarry.doors.http.responses import encoded_json, json_response, nothing
from tarry.doors.http.settings import HttpSettings
from tarry.doors.http.shapes import (
    AckRequest,
    NackRequest,
    ReceiveRequest,
    SeekRequest,
    SubscribeRequest,
)
from tarry.doors.http.topics.session import Session, SessionKey
from tarry.doors.http.topics.sessions import Sessions
from tarry.doors.http.topics.topics import reach_topic
from tarry.engine.api import Received
from tarry.engine.engine import Engine
from tarry.http.request import Request
from tarry.http.response import Response

_subscribe_decoder = msgspec.json.Decoder(SubscribeRequest)
_receive_decoder = msgspec.json.Decoder(ReceiveRequest)
_ack_decoder = msgspec.json.Decoder(AckRequest)
_nack_decoder = msgspec.json.Decoder(NackRequest)
_seek_decoder = msgspec.json.Decoder(SeekRequest)


def reach_subscription(request: Request) -> tuple[str, str]:
    """The topic's full name and the subscription's, once it is clear that the caller may consume there."""
    topic = reach_topic(request).full
    name = str(request.params["name"])
    check_name(name, "subscription")
    return topic, name


class SubscriptionEndpoints:
    """The endpoints under `…/subscriptions/{name}`, event streams apart."""

    def __init__(self, engine: Engine, sessions: Sessions, settings: HttpSettings) -> None:
        self._topics = engine.topics
        self._sessions = sessions
        self._settings = settings

    async def subscribe(self, request: Request) -> Response:
        """PUT …/subscriptions/{name}."""
        topic, name = reach_subscription(request)
        asked = _read(request, _subscribe_decoder, SubscribeRequest())
        if asked.dead_letter_topic is not None:
            if asked.max_redeliveries is None:
                raise Invalid(
                    "max_redeliveries",
                    "is missing; a dead-letter topic needs the number of redeliveries before it",
                )
            dead = parse_topic(asked.dead_letter_topic, "dead_letter_topic")
            request.caller.require_namespace(dead.namespace_name)
        await self._topics.subscribe(
            topic,
            name,
            asked.type,
            start=asked.start,
            durable=asked.durable,
            dead_letter_topic=asked.dead_letter_topic,
            max_redeliveries=asked.max_redeliveries,
        )
        return json_response(self._stats(topic, name))

    async def stats(self, request: Request) -> Response:
        """GET …/subscriptions/{name}."""
        return json_response(self._stats(*reach_subscription(request)))

    def _stats(self, topic: str, name: str) -> dict[str, Any]:
        return {"name": name, **self._topics.subscription(topic, name).stats()}

    async def unsubscribe(self, request: Request) -> Response:
        """DELETE …/subscriptions/{name}."""
        await self._topics.unsubscribe(*reach_subscription(request))
        return nothing()

    async def receive(self, request: Request) -> Response:
        """POST …/subscriptions/{name}/receive."""
        topic, name = reach_subscription(request)
        asked = _read(request, _receive_decoder, ReceiveRequest())
        session = self._sessions.poll(SessionKey(topic, name, asked.consumer), request.caller)
        batches = session.gather(asked.max)
        if not batches and asked.wait_ms:
            first = await self._wait(session, request, asked.wait_ms / 1000)
            if first is not None:
                # More may have come with it.
                batches = [[first], *session.gather(asked.max - 1)]
        timeout_ms = asked.ack_timeout_ms or self._settings.ack_timeout_ms
        session.hold(batches, timeout_ms / 1000)
        return encoded_json(self._sessions.json.show_all(batches))

    @staticmethod
    async def _wait(session: Session, request: Request, wait_s: float) -> Received | None:
        """The next entry; None when the time is over or the client has gone."""
        waiter = session.wait()
        request.on_gone = waiter.wake
        timer = asyncio.get_running_loop().call_later(wait_s, waiter.wake)
        first: Received | None = None
        try:
            await waiter.woken
            if session.ended is not None:
                raise session.ended
            first = None if request.gone else waiter.entry
            return first
        finally:
            timer.cancel()
            request.on_gone = None
            if first is None:
                session.give_up(waiter)

    async def ack(self, request: Request) -> Response:
        """POST …/subscriptions/{name}/ack. Good even after the session has ended, or the server restarted."""
        topic, name = reach_subscription(request)
        asked = _read(request, _ack_decoder, AckRequest())
        if (asked.entry_ids is None) == (asked.up_to is None):
            raise Invalid("entry_ids", "give entry_ids or up_to")
        subscription = self._topics.subscription(topic, name)
        entry_ids = asked.entry_ids or []
        answer = subscription.ack(entry_ids, below=0 if asked.up_to is None else asked.up_to + 1)
        session = self._sessions.find(SessionKey(topic, name, asked.consumer))
        if session is not None:
            session.acknowledged(entry_ids, asked.up_to)
        await answer
        return nothing()

    async def nack(self, request: Request) -> Response:
        """POST …/subscriptions/{name}/nack."""
        topic, name = reach_subscription(request)
        asked = _read(request, _nack_decoder, NackRequest())
        self._topics.subscription(topic, name)
        session = self._sessions.find(SessionKey(topic, name, asked.consumer))
        if session is not None:
            session.nack(asked.entry_ids)
        return nothing()

    async def seek(self, request: Request) -> Response:
        """POST …/subscriptions/{name}/seek."""
        topic, name = reach_subscription(request)
        asked = _read(request, _seek_decoder, SeekRequest())
        if (asked.entry_id is None) == (asked.at_ms is None):
            raise Invalid("entry_id", "give entry_id or at_ms")
        await self._topics.subscription(topic, name).seek(asked.entry_id, at_ms=asked.at_ms)
        self._sessions.sought(topic, name)
        return nothing()


def _read(request: Request, decoder: "msgspec.json.Decoder[T]", empty: T) -> T:
    """The body; none at all stands for one without fields."""
    if not request.body:
        return empty
    check_json(request)
    return decode(decoder, request.body)
