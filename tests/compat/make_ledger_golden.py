"""Make the golden ledger of the present format: `python -m tests.compat.make_ledger_golden`.

Run it once for each format version, when that version is released, and never again: a later program must
read what was written then. It refuses to overwrite; before a release, remove the folder first.
"""

import json
import sys
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec
import numpy as np
from google_crc32c import value

from tarry.ledger.disk import RealDisk
from tarry.ledger.fired import unit_of_fired
from tarry.ledger.frame import FORMAT_VERSION
from tarry.ledger.ledger import Ledger, LedgerSettings
from tarry.ledger.record import (
    NO_PUT,
    Encoded,
    Entry,
    Key,
    Put,
    Record,
    decode,
    decode_put,
    encode,
)
from tests.unit.ledger_kit import LEDGER_ID, StandingClock, record

SETTINGS = LedgerSettings(segment_bytes=12288, spare_segments=1)
GOLDEN = Path(__file__).parent
NAMES = ("00000001.seg", "00000002.seg", "head")


def sample(kind: Any, name: str, n: int) -> Any:
    """A value of this type that follows from its name and number."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return None if n % 3 == 0 and type(None) in args else sample(args[0], name, n)
    if origin is dict:
        return {n if args[0] is int else f"{name}-{n}": sample(args[1], name, n)}
    if origin is list:
        return [sample(args[0], name, n + i) for i in range(3)]
    if origin is tuple:
        return tuple(sample(arg, name, n + i) for i, arg in enumerate(args))
    if kind is Key:
        return Key(1_700_000_000_000 + n, n)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return kind(**{of.name: sample(of.type, of.name, n + i) for i, of in enumerate(fields)})
    made = {
        int: n,
        float: n / 8,
        bool: n % 2 == 0,
        str: f"{name} {n} é",
        bytes: name.encode() + bytes([n % 256]),
        Any: n,
    }
    return made[kind]


TOPIC, NOW_MS = "persistent://public/default/topic", 1_700_000_000_500
FIRED: Put = sample(Put, "put", 1)
FIRED_KEY = Key(FIRED.fire_at_ms, 42)


def entries() -> list[Entry]:
    """Entries of every sort: published, delayed, carried forward, cancelled, and fired."""
    published = Entry(
        TOPIC,
        0,
        NOW_MS,
        7,
        None,
        NO_PUT,
        b"payload",
        {"a": "b"},
        "key",
        "producer",
        12,
        None,
        "owner",
        "http",
    )
    delayed = Entry(
        TOPIC,
        NOW_MS + 9,
        NOW_MS,
        8,
        None,
        NO_PUT,
        b"later",
        due_at_ms=NOW_MS + 8,
        door="pulsar",
        ttl_ms=60_000,
        messages=3,
        trace=bytes(range(25)),
    )
    carried = msgspec.structs.replace(delayed, carries=Key(delayed.fire_at_ms, 43))
    cancelled = msgspec.structs.replace(carried, payload=b"", cancelled=True)
    put = msgspec.Raw(encode(FIRED).body)
    sent = Entry(TOPIC, 0, NOW_MS, 9, FIRED_KEY, put, owner=FIRED.owner)
    return [published, delayed, carried, cancelled, sent]


def shortest(of: Record) -> Encoded:
    """A record without the fields that have defaults, as a program wrote it that did not know them yet."""
    wanted = [one for one in msgspec.structs.fields(of) if one.required]
    values: list[Any] = msgspec.msgpack.decode(encode(of).body)
    body = msgspec.msgpack.encode(values[: 1 + len(wanted)])
    return encode(decode(body))._replace(body=body, crc=value(body))


def quickly_fired() -> Encoded:
    """A fired entry as a burst encodes it: without the fields that have defaults."""
    key = FIRED_KEY
    put = encode(FIRED).body
    body = unit_of_fired(TOPIC, 10, NOW_MS, np.array([key.fire_at_ms]), np.array([key.seq]), [put]).bodies
    return encode(decode(body))._replace(body=body, crc=value(body))


def encoded() -> list[Encoded]:
    """Records of each kind, whole and as short as they may be."""
    kinds = [kind for kind in get_args(Record) if kind is not Entry]
    whole = [*(sample(kind, "record", n) for n in range(3) for kind in kinds), *entries()]
    short = [sample(kind, "record", 1) for kind in kinds]
    return [*map(encode, whole), *map(shortest, short), quickly_fired()]


def plain(of: Any) -> Any:
    """As JSON, with the names of fields, so that fields that are added later do not matter."""
    if isinstance(of, msgspec.Struct):
        return {name: plain(getattr(of, name)) for name in of.__struct_fields__}
    if isinstance(of, bytes | msgspec.Raw):
        return bytes(of).hex()
    if isinstance(of, dict):
        return {name: plain(each) for name, each in of.items()}
    return [plain(each) for each in of] if isinstance(of, list | tuple) else of


def described(of: Record) -> dict[str, Any]:
    """A record as JSON: its kind, its fields, and those of the version that it fires, if it is such an entry."""
    made = {"kind": type(of).__name__, "fields": plain(of)}
    if isinstance(of, Entry) and of.put != NO_PUT:
        made["fired"] = plain(decode_put(of.put))
    return made


def write(ledger: Ledger, units: list[list[Encoded]]) -> None:
    """One frame for each unit."""
    for unit in units:
        ledger.append(unit, lambda error: None)
        ledger.commit()


def units() -> list[list[Encoded]]:
    """Single records, a batch, and enough for a second segment."""
    each = encoded()
    half = len(each) // 2
    return [*([of] for of in each[:half]), each[half:], [record(1, 0), record(2, 5000)]]


def main() -> None:
    """Write the golden files of the present format version."""
    folder = GOLDEN / f"ledger-v{FORMAT_VERSION}"
    if folder.exists():
        sys.exit(f"{folder} exists. Golden files are made once; see the docstring.")
    ledger = Ledger.open(RealDisk(), str(folder), SETTINGS, StandingClock(), new_ledger_id=LEDGER_ID)
    write(ledger, units())
    ledger.close()
    for path in folder.iterdir():
        if path.name not in NAMES:
            path.unlink()
    assert {path.name for path in folder.iterdir()} == set(NAMES)
    expected = {
        "frames": [[[*of[:6], of.body.hex()] for of in unit] for unit in units()],
        "records": [described(decode(of.body)) for of in encoded()],
    }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
