"""A consistent backup of a running server, copied from its files while it goes on.

The server holds the ledger meanwhile and has made a snapshot of the registry. Then the order makes it consistent, because
each of these only ever grows: the registry is at most as far as the index, and the index at most as far as the ledger.

    1  the registry, as its snapshot                   at some seq R
    2  the index and the history, each at one version  complete up to C, where what R relies on is below C
    3  the ledger's durable head H is read             R ≤ H, C ≤ H
    4  the ledger up to H, with zeros after it; staged batches; the tables' files

At a start from it the server replays from R and C to H, as after a crash at that moment.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.fs
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError, TableNotFoundError

from tarry import __version__
from tarry.core.errors import Damage, Unavailable
from tarry.index.files import Folder, filesystem_of
from tarry.index.schema import STAGED
from tarry.index.table import CURSOR
from tarry.ledger.follow import FolderFollower
from tarry.ledger.head import HEAD_NAME, DurableHead, encode_head
from tarry.ledger.segment import segment_name, segment_number
from tarry.registry.registry import REGISTRY_FILE
from tarry.serve.backup.archive import Archive, Manifest
from tarry.serve.datafolder import ID_CHECK, ID_KEY, LEDGER, REGISTRY

TABLES: Final = "tables"
TRIES: Final = 5
"""How many times tables are begun again because files were replaced and removed while they were copied."""

Renew = Callable[[], None]
"""Tells the server that the backup goes on; raises if it was given up."""


class Begun(NamedTuple):
    """The server's answer to the beginning of a backup."""

    snapshot: str
    ledger_id: str


class Moved(Exception):
    """A file of a table was removed while it was copied."""


def back_up(
    data: Path,
    tables: str,
    storage: dict[str, str],
    folder: Path,
    begun: Begun,
    renew: Renew,
    id_key_file: Path | None = None,
) -> Manifest:
    """Copy everything into a folder, prove the copy, and write its manifest.

    Of a replicated log the owner's copy is taken, which has all of it: restored, it is a ledger of its own.
    """
    follower = FolderFollower(str(data / LEDGER))
    if follower.ledger_id().hex() != begun.ledger_id:
        raise Unavailable(
            f"{data} is not the data folder of the server that answered; name that one with --data"
        )
    archive = Archive(folder, _now_and_then(renew))
    _add_registry(archive, data / REGISTRY / begun.snapshot)
    for name, path in ((ID_KEY, id_key_file or data / ID_KEY), (ID_CHECK, data / ID_CHECK)):
        with path.open("rb") as source:
            archive.add(name, source)
    head, pinned = _add_ledger_and_tables(archive, data / LEDGER, lambda: _pin(tables, storage), renew)
    _prove_ledger(archive.folder / LEDGER, head)
    manifest = Manifest(
        tarry=__version__,
        made_at_ms=time.time_ns() // 1_000_000,
        ledger_id=begun.ledger_id,
        seq=head.seq,
        index_cursor=pinned[0].cursor if pinned else None,
        files=dict(sorted(archive.files.items())),
    )
    archive.seal(manifest)
    return manifest


def _add_ledger_and_tables(
    archive: Archive, ledger: Path, pin: Callable[[], list["PinnedTable"]], renew: Renew
) -> tuple[DurableHead, list["PinnedTable"]]:
    """Both as of one moment; again from the beginning if files of the tables go while they are copied."""
    gone = ""
    for _ in range(TRIES):
        pinned = pin()
        # The head is read after the tables were pinned, so that it is past them.
        head = FolderFollower(str(ledger)).head()
        _add_ledger(archive, ledger, head)
        # If the server still holds the ledger, nothing was reclaimed while it was copied.
        renew()
        try:
            for table in pinned:
                _add_table(archive, table)
        except Moved as moved:
            gone = str(moved)
            archive.discard(f"{LEDGER}/", f"{TABLES}/")
        else:
            return head, pinned
    raise Unavailable(f"the tables change faster than they can be copied: {gone}")


def _now_and_then(renew: Renew, every_s: float = 30.0) -> Callable[[int], None]:
    """Tell the server that it goes on, at the most so often."""
    last = time.monotonic()

    def after(_size_bytes: int) -> None:
        nonlocal last
        if time.monotonic() - last >= every_s:
            last = time.monotonic()
            renew()

    return after


# The registry and the ledger


def _add_registry(archive: Archive, snapshot: Path) -> None:
    expected = snapshot.with_name(snapshot.name + ".sha256").read_text(encoding="ascii").strip()
    with snapshot.open("rb") as source:
        found = archive.add(f"{REGISTRY}/{REGISTRY_FILE}", source)
    if found.sha256 != expected:
        raise Damage(str(snapshot), 0, "the snapshot of the registry does not match its checksum")


def _add_ledger(archive: Archive, ledger: Path, head: DurableHead) -> None:
    """The segments up to the head; the last one only as far as it is durable, with zeros behind."""
    numbers = sorted(
        number
        for name in os.listdir(ledger)
        if (number := segment_number(name)) is not None and number <= head.segment
    )
    if numbers != list(range(head.segment - len(numbers) + 1, head.segment + 1)):
        raise Unavailable(f"{ledger}: segments are missing before number {head.segment}")
    for number in numbers:
        name = segment_name(number)
        with (ledger / name).open("rb") as source:
            if number < head.segment:
                archive.add(f"{LEDGER}/{name}", source)
            else:
                whole_bytes = os.fstat(source.fileno()).st_size
                archive.add(f"{LEDGER}/{name}", source, head.offset, whole_bytes)
    archive.add(f"{LEDGER}/{HEAD_NAME}", _Bytes(encode_head(head)))


def _prove_ledger(ledger: Path, head: DurableHead) -> None:
    """Read all of the copy: every frame has its checksum."""
    follower = FolderFollower(str(ledger))
    last_seq = follower.first_seq() - 1
    for frame in follower.frames(last_seq + 1, head.seq):
        last_seq = frame.first_seq + frame.count - 1
    if last_seq != head.seq:
        raise Damage(str(ledger), 0, f"the copy ends at seq {last_seq} and not at {head.seq}")


# The tables


class PinnedTable(NamedTuple):
    """A table at one version."""

    name: str
    uri: str
    version: int
    cursor: int
    files: list[str]


def _pin(tables: str, storage: dict[str, str]) -> list[PinnedTable]:
    """The newest versions: of the index first, for the history is committed before it and so never behind."""
    found = []
    for name in ("index", "history"):
        uri = f"{tables.rstrip('/')}/{name}"
        if "://" not in uri and not os.path.isdir(os.path.join(uri, "_delta_log")):
            continue
        try:
            table = DeltaTable(uri, storage_options=storage)
            paths = pa.table(table.get_add_actions(flatten=True)).column("path").to_pylist()
        except TableNotFoundError:
            continue
        except (DeltaError, OSError) as error:
            raise Unavailable(f"{uri} cannot be read: {error}") from error
        found.append(PinnedTable(name, uri, table.version(), table.transaction_version(CURSOR) or 0, paths))
    return found


def _add_table(archive: Archive, table: PinnedTable) -> None:
    filesystem, root = filesystem_of(table.uri)
    root = root.rstrip("/")
    # Not the note which checkpoint is the last: it may name one that is newer. Readers do without.
    log = [
        f"_delta_log/{name}"
        for name in _names(filesystem, f"{root}/_delta_log", recursive=False)
        if (number := name.partition(".")[0]).isdigit() and int(number) <= table.version
    ]
    # Batches that were adopted and are in no version yet; the record that adopts them is in the ledger.
    staged = [f"{STAGED}/{name}" for name in _names(filesystem, f"{root}/{STAGED}", recursive=True)]
    for name in sorted({*log, *table.files, *staged}):
        try:
            with filesystem.open_input_stream(f"{root}/{name}") as source:
                archive.add(f"{TABLES}/{table.name}/{name}", source)
        except FileNotFoundError as error:
            # Files that nobody adopted are removed once they are old.
            if name in table.files or name in log:
                raise Moved(str(error)) from error
            continue
    _prove_table(archive, table)


def _prove_table(archive: Archive, table: PinnedTable) -> None:
    """Read all of the copied files: every page has its checksum (R3)."""
    folder = Folder(str(archive.folder / TABLES / table.name))
    for name in table.files:
        for _ in folder.read(name):
            pass


def _names(filesystem: pyarrow.fs.FileSystem, folder: str, *, recursive: bool) -> list[str]:
    chosen = pyarrow.fs.FileSelector(folder, allow_not_found=True, recursive=recursive)
    files = [info.path for info in filesystem.get_file_info(chosen) if info.type == pyarrow.fs.FileType.File]
    return [path.removeprefix(f"{folder}/") for path in files]


class _Bytes:
    """Bytes that are read like a file."""

    def __init__(self, content: bytes) -> None:
        self._content = content

    def read(self, size: int, /) -> bytes:
        piece, self._content = self._content[:size], self._content[size:]
        return piece
