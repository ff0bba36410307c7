"""Snapshots of the registry in shared storage: with one of them, and the log from its place on, any node makes the ledger's state (R12).

    20 digits of the seq, "-", random        the snapshot
    the same, and ".json"                    its note, put last: a snapshot without one does not count

The owner uploads, standbys fetch. The two newest are kept, and the log is trimmed only as far as the older of them does
without (`trimmable_seq`): so either of them will do, whatever happens to the other. A node that has been superseded may
upload as well: of what it has, everything is valid (R14), and nothing here is ever overwritten.
"""

import contextlib
import hashlib
import io
import logging
import os
import secrets
from typing import Final

import msgspec
from msgspec import Struct

from tarry.core.errors import Damage, NotFound, Unavailable
from tarry.core.limits import DAY_MS
from tarry.ledger.disk import sync_path
from tarry.ledger.log.envelope import LogClaim
from tarry.ledger.log.fold import LogPosition
from tarry.registry.shared_storage import PIECE_BYTES, SharedStorage, Source

KEPT: Final = 2
NOTE: Final = ".json"
LEFT_BEHIND_MS: Final = DAY_MS
"""An object that has been without a note for so long is what an upload left that did not end."""

log = logging.getLogger(__name__)


class SnapshotOrigin(Struct, frozen=True, kw_only=True):
    """The ledger that a snapshot of the registry belongs to, and how far the ledger was then."""

    claim: LogClaim
    """The claim of the node that owned the ledger."""
    seq: int
    """Everything up to this seq is in the snapshot."""
    begin: LogPosition
    """In the log before the oldest segment that the owner had: with all from there on nothing is missing."""
    made_at_ms: int


class SharedSnapshot(Struct, frozen=True, kw_only=True):
    """A snapshot in shared storage, as its note says."""

    name: str
    origin: SnapshotOrigin
    sha256: str
    size_bytes: int

    @property
    def rank(self) -> tuple[int, int, str]:
        """The order of snapshots: by the place in the log at which they begin, then by age.

        A new owner may reach further back than the one before. Its snapshots are newer, and begin where the log was trimmed:
        they must not push out those that still go with the log.
        """
        return self.origin.begin.next_seq, self.origin.seq, self.name


class SharedSnapshots:
    """The snapshots of one ledger."""

    def __init__(self, storage: SharedStorage) -> None:
        self._storage = storage

    def upload(self, source: Source, sha256: str, origin: SnapshotOrigin) -> SharedSnapshot:
        """Store a snapshot whose digest is known; raises `Damage` if it is not that, `Unavailable` if it cannot be stored."""
        name = f"{origin.seq:020}-{secrets.token_hex(4)}"
        proved = _Proved(source)
        self._storage.put(name, proved)
        if proved.sha256 != sha256:
            raise Damage(name, 0, "the snapshot of the registry does not match its checksum")
        stored = SharedSnapshot(name=name, origin=origin, sha256=sha256, size_bytes=proved.size_bytes)
        self._storage.put(name + NOTE, io.BytesIO(msgspec.json.encode(stored)))
        return stored

    def newest(self, ledger_id: bytes | None = None) -> list[SharedSnapshot]:
        """The snapshots that are there, of one ledger or of whichever, the newest first; raises `Unavailable`."""
        names = {one.name for one in self._storage.objects()}
        noted = (self._note(name) for name in names if name.endswith(NOTE))
        found = [
            one
            for one in noted
            if one is not None and one.name in names and ledger_id in (None, one.origin.claim.ledger_id)
        ]
        return sorted(found, key=lambda one: one.rank, reverse=True)

    def trimmable_seq(self, ledger_id: bytes) -> int:
        """The seq up to which nobody needs the log who begins with one of the two newest snapshots; raises `Unavailable`."""
        kept = self.newest(ledger_id)[:KEPT]
        if len(kept) < KEPT:
            return 0
        return min(one.origin.begin.next_seq for one in kept) - 1

    def prune(self, ledger_id: bytes, now_ms: int) -> None:
        """Remove snapshots older than the two newest of a ledger, and the files of uploads that did not end."""
        for one in self.newest(ledger_id)[KEPT:]:
            # Without its note the snapshot does not count: it goes first.
            self._storage.remove(one.name + NOTE)
            self._storage.remove(one.name)
        noted = {one.name for one in self.newest()}
        for stored in self._storage.objects():
            name = stored.name.removesuffix(NOTE)
            old = stored.changed_at_ms is not None and stored.changed_at_ms < now_ms - LEFT_BEHIND_MS
            if name not in noted and old:
                self._storage.remove(stored.name)

    def fetch(self, snapshot: SharedSnapshot, path: str) -> None:
        """Write a snapshot into a file, synced; raises `Damage` if its bytes are damaged, `NotFound` if it is gone."""
        with contextlib.suppress(FileNotFoundError):
            os.remove(path)
        with self._storage.open(snapshot.name) as stored, open(path, "xb") as file:
            os.fchmod(file.fileno(), 0o600)
            proved = _Proved(stored)
            while piece := proved.read(PIECE_BYTES):
                file.write(piece)
        if proved.sha256 != snapshot.sha256:
            os.remove(path)
            raise Damage(snapshot.name, 0, "the snapshot in shared storage does not match its checksum")
        sync_path(path)

    def _note(self, name: str) -> SharedSnapshot | None:
        """The content of a note; None if it is torn, or was removed meanwhile."""
        try:
            with self._storage.open(name) as stored:
                return msgspec.json.decode(stored.read(), type=SharedSnapshot)
        except NotFound:
            return None
        except msgspec.DecodeError as error:
            log.warning("%s in shared storage is no note of a snapshot: %s", name, error)
            return None


def registry_folder(root: str, topic: str) -> str:
    """The folder of the snapshots of the ledger in a topic, in the storage that its servers share."""
    return f"{root.rstrip('/')}/{topic}/registry"


def usable(snapshots: list[SharedSnapshot], first_offset: int, end: int) -> list[SharedSnapshot]:
    """The snapshots from whose place on the log has everything; raises `Unavailable` if there is none."""
    found = [one for one in snapshots if first_offset <= one.origin.begin.offset <= end]
    if not found:
        raise Unavailable(
            f"the log has the offsets from {first_offset} to {end}, and shared storage has no snapshot of the registry that goes with it: "
            "begin with a copy of the owner's data folder, or with a backup"
        )
    return found


class _Proved:
    """A source that is read once, and its digest."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._digest = hashlib.sha256()
        self.size_bytes = 0

    @property
    def sha256(self) -> str:
        """The digest of the bytes read so far."""
        return self._digest.hexdigest()

    def read(self, size: int = -1) -> bytes:
        """Read the next bytes."""
        piece = self._source.read(size)
        self._digest.update(piece)
        self.size_bytes += len(piece)
        return piece
