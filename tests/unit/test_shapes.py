"""Messages and entries have the same fields wherever they are told of."""

import inspect
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tarry import client
from tarry.client import operations
from tarry.client import shapes as theirs
from tarry.core.messages.bulk_command import BulkCommand
from tarry.core.messages.lifecycle import State
from tarry.core.messages.message import MessageQuery, MessageView, NamedMessage, Scheduled
from tarry.core.messages.repeat import Repeat
from tarry.core.messages.shapes import (
    AttemptFacts,
    BulkCommandFacts,
    DelayedFacts,
    EntryFacts,
    MessageFacts,
    PauseFacts,
    RepeatFacts,
    ScheduledFacts,
)
from tarry.doors.http import shapes
from tarry.doors.http.messages.commands import CommandAnswer
from tarry.doors.http.messages.messages import show
from tarry.doors.http.messages.pauses import PauseAnswer
from tarry.doors.http.messages.repeats import RepeatAnswer
from tarry.doors.http.openapi import build_document
from tarry.doors.http.topics.delayed import DelayedAnswer
from tarry.engine.api import DelayedEntry, Received, RepeatView
from tarry.engine.queries.views import view_of_ended, view_of_put
from tarry.engine.records.versions import end_of, row_of
from tarry.ledger.record import (
    Entry,
    EntryStart,
    Finalise,
    Kept,
    Key,
    Put,
    PutHead,
    ReadEntry,
    ReadPut,
    Tried,
)
from tarry.registry.registry import EndedRow

CONTENT = {"payload", "payload_base64"}
"""Fields that only the wire has, instead of the payload as bytes."""
READABLE = {"due_at"}
"""Instants as text, beside those in milliseconds."""


def fields(kind: type[msgspec.Struct]) -> set[str]:
    return {field.encode_name for field in msgspec.structs.fields(kind)}


@pytest.mark.parametrize(
    ("facts", "engine", "answer", "of_the_client"),
    [
        (ScheduledFacts, Scheduled, shapes.ScheduledAnswer, client.Scheduled),
        (MessageFacts, MessageView, shapes.MessageAnswer, client.MessageView),
        (EntryFacts, Received, shapes.EntryAnswer, client.Received),
        (DelayedFacts, DelayedEntry, DelayedAnswer, theirs.Delayed),
    ],
)
def test_the_engine_the_api_and_the_client_tell_the_same(
    facts: Any, engine: Any, answer: Any, of_the_client: Any
) -> None:
    assert fields(facts) <= fields(engine)
    told = fields(answer) - CONTENT - READABLE - {"headers"}
    told -= {"name", "kept", "replaced"} if answer is shapes.ScheduledAnswer else set()
    assert told == fields(facts) - {"headers"}
    # Whatever the API answers, the client has; text beside milliseconds is for people.
    assert fields(answer) - READABLE <= fields(of_the_client)
    types = {field.name: field.type for field in msgspec.structs.fields(facts)}
    for kind in (engine, answer, of_the_client):
        for field in msgspec.structs.fields(kind):
            assert field.name not in types or field.type == types[field.name] or field.type is State, (
                kind,
                field.name,
            )


@pytest.mark.parametrize(
    ("facts", "answer", "of_the_client", "more", "readable"),
    [
        (RepeatFacts, RepeatAnswer, theirs.Repeat, {"headers", *CONTENT}, {"next_due_at"}),
        (BulkCommandFacts, CommandAnswer, theirs.BulkCommand, {"filter"}, {"asked_at"}),
        (PauseFacts, PauseAnswer, theirs.Pause, set(), {"since"}),
    ],
)
def test_repeats_commands_and_pauses_are_told_by_the_api_as_by_the_client(
    facts: Any, answer: Any, of_the_client: Any, more: set[str], readable: set[str]
) -> None:
    assert issubclass(answer, facts)
    assert issubclass(of_the_client, facts)
    assert fields(answer) - readable == fields(of_the_client) == fields(facts) | more


def test_a_command_is_told_as_its_record_has_it() -> None:
    assert fields(BulkCommand) - {"number", "chosen", "page"} == fields(BulkCommandFacts) - {"id"}


def test_a_repeat_is_told_as_it_was_asked_for() -> None:
    assert fields(Repeat) - {"payload", "headers"} <= fields(RepeatFacts)
    assert fields(RepeatView) == fields(RepeatFacts) | {"headers", "payload"}


texts = st.text(max_size=5)
instants = st.none() | st.integers(0, 1 << 47)
views = st.builds(
    MessageView,
    id=texts, state=st.sampled_from(State), destination=texts, namespace=texts, owner=texts, door=texts,
    key=st.none() | texts, group=st.none() | texts, due_at_ms=instants, accepted_at_ms=st.integers(0, 1 << 47),
    delay_ms=instants, ttl_ms=instants, attempts=st.integers(0, 9), last_error=st.none() | texts,
    last_attempt_at_ms=instants, next_attempt_at_ms=instants,
    attempts_made=st.lists(st.builds(AttemptFacts, st.integers(0, 9), st.integers(0, 1 << 47), texts), max_size=2).map(tuple), finalised_at_ms=instants, reason=st.none() | texts,
    reference=st.none() | texts, headers=st.dictionaries(texts, texts), payload=st.binary(max_size=5),
)  # fmt: skip


@given(views)
def test_a_message_arrives_at_the_client_as_the_engine_shows_it(view: MessageView) -> None:
    arrived = msgspec.json.decode(msgspec.json.encode(show(view)), type=client.MessageView)
    for name in MessageFacts.__struct_fields__:
        assert getattr(arrived, name) == getattr(view, name), name
    assert (arrived.headers, arrived.payload) == (view.headers, view.payload)


def test_the_document_says_which_fields_an_answer_always_has() -> None:
    schemas = msgspec.json.decode(build_document("1", is_open=True))["components"]["schemas"]
    for name, kind in (("MessageAnswer", shapes.MessageAnswer), ("EntryAnswer", shapes.EntryAnswer)):
        optional = {
            one.name for one in msgspec.structs.fields(kind) if msgspec.UnsetType in get_args(one.type)
        }
        assert optional >= CONTENT
        assert set(schemas[name]["required"]) == fields(kind) - optional
    assert schemas["ScheduleRequest"]["required"] == ["destination"], "what is asked has defaults"
    assert not schemas["Policy"]["required"], "what says nothing is left out"


# What is asked


TIMES = {"due_at_ms", "due_at", "delay_ms", "delay"}
PAYLOADS = {"payload", "payload_base64", "payload_json"}


def parameters(call: Any) -> set[str]:
    return set(inspect.signature(call).parameters)


def test_the_client_can_ask_for_all_that_the_api_takes() -> None:
    taken = fields(shapes.BatchLine)
    assert fields(shapes.ScheduleRequest) == taken
    mine = fields(client.Message)
    assert mine - {"payload"} == taken - PAYLOADS
    assert parameters(operations.schedule) - {"idempotency_key"} == mine
    assert (
        parameters(operations.restart) - {"id", "name", "namespace"} == TIMES == fields(shapes.RestartRequest)
    )
    assert fields(shapes.BatchDefaults) <= taken
    assert parameters(operations.list_page) == fields(MessageQuery) == fields(shapes.ListQuery)


@pytest.mark.parametrize(
    ("keywords", "kind", "apart"),
    [
        (theirs.ListFilters, MessageQuery, {"page", "limit"}),
        (theirs.LineDefaults, shapes.BatchDefaults, set()),
    ],
)
def test_keywords_of_the_clients_calls_are_the_fields_of_what_is_asked(
    keywords: Any, kind: Any, apart: set[str]
) -> None:
    """`list` turns pages itself, and without a limit it goes on to the last."""
    asked, taken = get_type_hints(keywords), get_type_hints(kind)
    assert asked.keys() - apart == taken.keys() - apart
    assert asked.keys() <= taken.keys()
    for name in asked.keys() - apart:
        assert asked[name] == taken[name], name


def test_the_api_can_ask_for_all_that_the_engine_takes() -> None:
    inside = {"door", "idempotency_key", "any_repeat", "listed", "subject", "leads", "follows"}
    assert fields(NamedMessage) - inside == fields(shapes.BatchLine) - PAYLOADS - TIMES | {
        "payload",
        "due_at_ms",
        "delay_ms",
    }


# What is stored


@pytest.mark.parametrize(
    ("start", "whole"), [(PutHead, Put), (ReadPut, Put), (EntryStart, Entry), (ReadEntry, Entry)]
)
def test_what_is_read_is_the_beginning_of_what_is_written(start: Any, whole: Any) -> None:
    names = start.__struct_fields__
    assert whole.__struct_fields__[: len(names)] == names
    assert start.__struct_config__.tag == whole.__struct_config__.tag


def test_the_row_of_an_end_is_what_its_record_says() -> None:
    assert set(EndedRow.__struct_fields__) < set(Finalise.__struct_fields__)
    types = {field.name: field.type for field in msgspec.structs.fields(Finalise)}
    for field in msgspec.structs.fields(EndedRow):
        assert types[field.name] == field.type, field.name
    # Every value is another one, so that two that change places are seen.
    record = Finalise(Key(1, 2), Key(3, 4), "sent", 5, "reason", "reference", 6, 7, 8, "namespace", "destination", "key", "owner",
                      "door", "group", True, "error", "subject", Kept(b"payload", {"a": "b"}, 9, 10, True))  # fmt: skip
    row = row_of(record)
    for name in EndedRow.__struct_fields__:
        assert getattr(row, name) == getattr(record, name), name


def test_a_view_shows_what_the_version_and_its_end_have() -> None:
    put = Put(1, 2, 3, "namespace", "destination", "key", "owner", "door", "group", 4, None, 5, True, b"payload", {"a": "b"}, 6, 7,
              commanded="send", tried=Tried(8, "refused"))  # fmt: skip
    waiting = view_of_put(put, "id", State.SCHEDULED)
    for name in set(Put.__struct_fields__) & set(MessageView.__struct_fields__) - {"commanded"}:
        assert getattr(waiting, name) == getattr(put, name), name
    assert (waiting.commanded, waiting.last_error, waiting.last_attempt_at_ms) == (True, "refused", 8)
    assert waiting.next_attempt_at_ms == 1
    record = end_of(put, Key(1, 9), "failed", 10, "gone", "their name", 11, "in their words")
    assert (record.reason, record.reference, record.attempts) == ("gone", "their name", 11)
    assert (record.outcome, record.finalised_at_ms, record.error) == ("failed", 10, "in their words")
    ended = view_of_ended(row_of(record), "id")
    for name in set(Finalise.__struct_fields__) & set(MessageView.__struct_fields__):
        assert getattr(ended, name) == getattr(record, name), name
    # A listed message is remembered with its content.
    for name in ("payload", "headers", "delay_ms", "delayed_since_ms"):
        assert getattr(ended, name) == getattr(put, name), name
    assert ended.state is State.FAILED
