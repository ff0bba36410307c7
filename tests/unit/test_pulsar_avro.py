"""Schema resolution of Avro, case by case as its specification lists them, and with schemas that a hostile client sends."""

import json
import time
from typing import Any

import pytest

from tarry.doors.pulsar.avro import AvroSchema, Budget, NotAvro, TooManySteps, can_read


def reads(reader: Any, writer: Any) -> bool:
    return can_read(
        AvroSchema(json.dumps(reader).encode()), AvroSchema(json.dumps(writer).encode()), Budget()
    )


def record(*fields: Any, name: str = "R") -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": list(fields)}


def field(name: str, type_: Any, **more: Any) -> dict[str, Any]:
    return {"name": name, "type": type_, **more}


NODE = record(field("next", ["null", "R"]), field("value", "int"))
COLOURS = {"type": "enum", "name": "E", "symbols": ["RED", "BLUE"]}


@pytest.mark.parametrize(
    ("reader", "writer", "expected"),
    [
        ("int", "int", True), ("int", "long", False), ("long", "int", True), ("double", "float", True),
        ("float", "double", False), ("string", "bytes", True), ("bytes", "string", True), ("int", "string", False),
        ({"type": "int"}, "int", True), ({"type": {"type": "int"}}, "int", True),
        ({"type": "int", "logicalType": "date"}, "int", True),
        (["null", "int"], "int", True), ("int", ["null", "int"], False), (["null", "long"], ["null", "int"], True),
        (["null", "int"], ["null", "string"], False),
        ({"type": "array", "items": "long"}, {"type": "array", "items": "int"}, True),
        ({"type": "array", "items": "int"}, {"type": "map", "values": "int"}, False),
        ({"type": "map", "values": "string"}, {"type": "map", "values": "int"}, False),
        (COLOURS, COLOURS, True), (COLOURS, {**COLOURS, "symbols": ["GREEN"]}, False),
        ({**COLOURS, "default": "RED"}, {**COLOURS, "symbols": ["GREEN"]}, True),
        ({"type": "fixed", "name": "F", "size": 4}, {"type": "fixed", "name": "F", "size": 8}, False),
        # Fields: one that the writer has not needs a default; one that the reader has not is passed over.
        (record(field("a", "int")), record(field("a", "int"), field("b", "int")), True),
        (record(field("a", "int"), field("b", "int")), record(field("a", "int")), False),
        (record(field("a", "int"), field("b", "int", default=0)), record(field("a", "int")), True),
        (record(field("b", "int", aliases=["a"])), record(field("a", "int")), True),
        (record(field("b", "int", aliases=[[]])), record(field("a", "int")), False),
        (record(field("a", "string")), record(field("a", "int")), False),
        # Names of records are those of clients' classes.
        (record(field("a", "int"), name="Mine"), record(field("a", "int"), name="Theirs"), True),
        # Types that contain themselves, and names that stand for them.
        (NODE, NODE, True),
        (NODE, record(field("next", ["null", "R"]), field("value", "string")), False),
        (record(field("a", {"type": "enum", "name": "x.E", "symbols": ["A"]}), field("b", "x.E")),
         record(field("a", {"type": "enum", "name": "x.E", "symbols": ["A"]}), field("b", "x.E")), True),
    ],
)  # fmt: skip
def test_resolution(reader: Any, writer: Any, expected: bool) -> None:
    assert reads(reader, writer) is expected


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"7", b"{}", b'{"type":"record"}', b'{"type":"record","name":"R"}', b'{"type":"array"}', b"[7]",
     b'{"type":"record","name":"R","fields":[{"name":"a"}]}', b'{"type":"enum","name":"E","symbols":7}',
     b'{"type":"record","name":7,"fields":[]}', b"\xff", b"[" * 60_000],
)  # fmt: skip
def test_what_is_no_schema(text: bytes) -> None:
    with pytest.raises(NotAvro):
        AvroSchema(text)


def test_a_type_that_nobody_defines() -> None:
    with pytest.raises(NotAvro):
        reads("Unknown", "int")


def test_schemas_that_are_made_to_take_long_are_given_up() -> None:
    """Each branch of the writer goes with the last of the reader's only: millions of comparisons for 64 KiB."""
    other = [{"type": "map", "values": "int"} for _ in range(2_000)]
    wide = [*({"type": "array", "items": "int"} for _ in range(2_000)), other[0]]
    began = time.process_time()
    with pytest.raises(TooManySteps):
        reads(wide, other)
    assert time.process_time() - began < 2


def test_schemas_that_are_nested_deeply_are_given_up_or_compared() -> None:
    deep: Any = "int"
    for _ in range(400):
        deep = {"type": "array", "items": deep}
    text = json.dumps(deep).encode()
    try:
        assert can_read(AvroSchema(text), AvroSchema(text), Budget())
    except (TooManySteps, NotAvro):
        pass
