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

from tarry.ledger.disk import RealDisk
from tarry.ledger.frame import FORMAT_VERSION
from tarry.ledger.ledger import Ledger, LedgerSettings
from tarry.ledger.record import Encoded, Key, Record, encode
from tests.unit.ledger_kit import LEDGER_ID, StandingClock, arrow_unit, record

SETTINGS = LedgerSettings(segment_bytes=8192, spare_segments=1)
GOLDEN = Path(__file__).parent
NAMES = ("00000001.seg", "00000002.seg", "head")


def sample(kind: Any, name: str, n: int) -> Any:
    """A value of this type that follows from its name and number."""
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return None if n % 3 == 0 and type(None) in args else sample(args[0], name, n)
    if origin is dict:
        return {f"{name}-{n}": sample(args[1], name, n)}
    if origin is list:
        return [sample(args[0], name, n + i) for i in range(3)]
    if kind is Key:
        return Key(1_700_000_000_000 + n, n)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return kind(**{of.name: sample(of.type, of.name, n + i) for i, of in enumerate(fields)})
    if kind is msgspec.Raw:
        return msgspec.Raw(msgspec.msgpack.encode(None))
    made = {
        int: n,
        float: n / 8,
        bool: n % 2 == 0,
        str: f"{name} {n} é",
        bytes: name.encode() + bytes([n % 256]),
    }
    return made[kind]


def records() -> list[Any]:
    """Some of each kind."""
    return [sample(kind, "record", n) for n in range(3) for kind in get_args(Record)]


def plain(value: Any) -> Any:
    """As JSON, with the names of fields, so that fields that are added later do not matter."""
    if isinstance(value, msgspec.Struct):
        return {name: plain(getattr(value, name)) for name in value.__struct_fields__}
    if isinstance(value, bytes | msgspec.Raw):
        return bytes(value).hex()
    if isinstance(value, dict):
        return {name: plain(of) for name, of in value.items()}
    return [plain(of) for of in value] if isinstance(value, list | tuple) else value


def write(ledger: Ledger, units: list[list[Encoded] | range]) -> None:
    """One frame for each unit; a range is an Arrow unit."""
    for unit in units:
        if isinstance(unit, range):
            ledger.append_columns(arrow_unit(unit), lambda error: None)
        else:
            ledger.append(unit, lambda error: None)
        ledger.commit()


def units() -> list[list[Encoded] | range]:
    """Single records, a batch, an Arrow unit, and enough for a second segment."""
    made = [encode(of) for of in records()]
    half = len(made) // 2
    return [*([of] for of in made[:half]), made[half:], range(3, 8), [record(1, 0), record(2, 1500)]]


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
        "frames": [
            list(unit) if isinstance(unit, range) else [[*of[:6], of.body.hex()] for of in unit]
            for unit in units()
        ],
        "records": [{"kind": type(of).__name__, "fields": plain(of)} for of in records()],
    }
    (folder / "expected.json").write_text(json.dumps(expected, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
