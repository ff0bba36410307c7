"""Make the golden records of the replicated log: `python -m tests.compat.make_log_golden`.

Run it once for each version of the envelope, when that version is released, and never again. It refuses to overwrite.
"""

import json
import sys
from pathlib import Path
from typing import Any

from tarry.ledger.frame import FORMAT_VERSION, rows_parts, segment_id_of, unit_of
from tarry.ledger.log.envelope import (
    LOG_VERSION,
    LogClaim,
    LogRelease,
    encode_claim,
    encode_frame,
    encode_release,
)
from tarry.ledger.log.fold import Fold, ValidClaim, ValidFrame, ValidRelease
from tarry.ledger.segment import BLOCK_BYTES, SegmentHeader, encode_segment_header
from tests.unit.ledger_kit import LEDGER_ID, record

GOLDEN = Path(__file__).parent
CLAIM = LogClaim(
    "node é",
    bytes(range(8)),
    LEDGER_ID,
    b"check",
    FORMAT_VERSION,
    1,
    1_700_000_000_000,
    {"http": "https://a:1"},
)
PART_BYTES = 256


def frame(number: int, first_seq: int, size: int) -> list[bytes]:
    """The pieces of a frame of two records in segment 1."""
    unit = unit_of([record(first_seq, 10), record(first_seq + 1, size)])
    return rows_parts([unit], segment_id_of(LEDGER_ID, 1), number, first_seq)


def records() -> list[bytes]:
    """One record of each kind, a frame that begins a segment and one in parts."""
    block = encode_segment_header(SegmentHeader(LEDGER_ID, 1, 1, 1_700_000_000_000, 12288))
    first = frame(0, 1, 30)
    after = BLOCK_BYTES + sum(map(len, first))
    return [
        encode_claim(1, CLAIM),
        *encode_frame(1, 1, 0, [block, *first]),
        *encode_frame(1, 1, after, frame(1, 3, 600), PART_BYTES),
        encode_release(1, LogRelease("node é", 1_700_000_000_001)),
    ]


def folded(data: list[bytes]) -> list[dict[str, Any]]:
    """The valid records, as JSON."""
    fold, found = Fold(), []
    for offset, one in enumerate(data):
        valid = fold.take(offset, one)
        if valid is None:
            continue
        told: dict[str, Any] = {"valid": type(valid).__name__, "position": list(valid.position)}
        if isinstance(valid, ValidFrame):
            told |= {"segment": valid.segment, "offset": valid.offset, "data": valid.data.hex()}
        elif isinstance(valid, ValidClaim):
            claim = valid.claim
            told["claim"] = [
                claim.node,
                claim.nonce.hex(),
                claim.ledger_id.hex(),
                claim.id_check.hex(),
                claim.format_version,
                claim.next_seq,
                claim.clock_ms,
                dict(claim.addresses),
            ]
        elif isinstance(valid, ValidRelease):
            told["release"] = [valid.release.node, valid.release.clock_ms]
        found.append(told)
    return found


def main() -> None:
    """Write the golden file of the present version."""
    path = GOLDEN / f"log-v{LOG_VERSION}" / "records.json"
    if path.exists():
        sys.exit(f"{path} exists. Golden files are made once; see the docstring.")
    path.parent.mkdir(exist_ok=True)
    made = {"records": [one.hex() for one in records()], "folded": folded(records())}
    path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
