"""Rows of an adopted batch, made like all others (R10).

Its files are staged before anybody knows from which seq its messages are numbered and before which instant none may fire. Both
are said when it is adopted, and stand beside the file (`schema.py`); here they are written into the rows.
"""

import msgspec
import numpy as np
import pyarrow as pa

from tarry.index.table import IndexFile
from tarry.ledger.record import Adopt, Encoded, decode_put, encode


def files_of(adopt: Adopt) -> list[IndexFile]:
    """The files of a batch as they are added to the index: in the order of the manifest, which numbers them."""
    files: list[IndexFile] = []
    base = adopt.first_seq
    for staged in adopt.files:
        files.append(
            IndexFile(
                staged.path, staged.size_bytes, staged.rows, staged.slot, staged.low_ms, staged.high_ms,
                base, adopt.floor_ms, low_seq=0, high_seq=staged.rows - 1,
            )
        )  # fmt: skip
        base += staged.rows
    return files


def at_floor(body: bytes, floor_ms: int) -> Encoded:
    """The version of a body whose fire instant was before the floor: accepted, and therefore fired, at the floor."""
    put = decode_put(body)
    raised = msgspec.structs.replace(
        put, fire_at_ms=floor_ms, accepted_at_ms=max(put.accepted_at_ms, floor_ms)
    )
    return encode(raised)


def with_keys(rows: pa.Table, file: IndexFile) -> pa.Table:
    """The rows of a file with their own keys and bodies; they stay in the order of their keys."""
    if not file.base and not file.floor_ms:
        return rows
    seqs = rows.column("seq").to_numpy() + file.base
    rows = _set(rows, "seq", pa.array(seqs))
    early = np.flatnonzero(rows.column("fire_at_ms").to_numpy() < file.floor_ms)
    if not len(early) or "body" not in rows.column_names:
        fires = np.maximum(rows.column("fire_at_ms").to_numpy(), file.floor_ms)
        return _set(rows, "fire_at_ms", pa.array(fires))
    # Sorted by fire instant: what lies below the floor comes first.
    cut = int(early[-1]) + 1
    return pa.concat_tables([_raised(rows.slice(0, cut), file.floor_ms), rows.slice(cut)])


def _raised(rows: pa.Table, floor_ms: int) -> pa.Table:
    encoded = [at_floor(body, floor_ms) for body in rows.column("body").to_pylist()]
    count = len(encoded)
    rows = _set(rows, "fire_at_ms", pa.array(np.full(count, floor_ms, np.int64)))
    rows = _set(rows, "body", pa.array([one.body for one in encoded], rows.schema.field("body").type))
    rows = _set(rows, "crc", pa.array([one.crc for one in encoded], pa.int64()))
    accepted = np.maximum(rows.column("accepted_at_ms").to_numpy(), floor_ms)
    return _set(rows, "accepted_at_ms", pa.array(accepted, pa.int64()))


def _set(rows: pa.Table, name: str, values: pa.Array) -> pa.Table:
    at = rows.schema.get_field_index(name)
    return rows.set_column(at, rows.schema.field(name).with_type(values.type), values)
