"""The agreement between the server and a stager of a batch (R10): where to stage and on what terms, and what was staged."""

import hashlib
import secrets
from typing import Annotated, Final

from msgspec import Meta, Struct

from tarry.core.limits import (
    MAX_DELAY_MS,
    MAX_DESTINATION_BYTES,
    MAX_NAME_BYTES,
    MAX_OWNER_BYTES,
    NEVER_MS,
)
from tarry.ledger.record import StagedFile

DOOR: Final = "bulk"
"""The door of messages that came in a batch."""

MAX_FILES: Final = 10_000
"""Files of one batch: its record must fit a frame, and every one of them becomes a live file of the index."""

_Instant = Annotated[int, Meta(ge=0, le=NEVER_MS)]
_Count = Annotated[int, Meta(ge=1, le=1 << 40)]


class Terms(Struct, frozen=True, kw_only=True):
    """The terms of staging at one place."""

    delayed_delivery: bool
    tick_ms: int
    slot_ms: int
    max_delay_ms: int

    @property
    def longest_ms(self) -> int:
        """The longest delay that is taken."""
        return self.max_delay_ms or MAX_DELAY_MS


class StagingPlace(Struct, frozen=True, kw_only=True):
    """Where a batch is staged, and on what terms."""

    index: str
    """The folder or address of the index, as the server knows it."""
    ledger: str
    """The ledger's id in hexadecimal; a manifest repeats it."""
    now_ms: int
    """The server's clock: delays count from here."""
    outlets: list[str]
    """The schemes of destinations that are not topics."""
    broker: Terms
    namespaces: dict[str, Terms]
    """Where a policy is set: what is in force there."""
    topics: dict[str, Terms]
    unit_max_bytes: int = 1 << 40
    """Maximum bytes of a message's record; a server of an earlier version does not say."""


class ManifestFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file that was staged; see `tarry.ledger.record.StagedFile`."""

    path: Annotated[str, Meta(min_length=1, max_length=MAX_DESTINATION_BYTES)]
    size_bytes: _Count
    rows: _Count
    slot: Annotated[str, Meta(pattern="^[0-9]{1,15}_[0-9]{1,15}$")]
    low_ms: _Instant
    high_ms: _Instant

    def staged(self) -> StagedFile:
        """As the ledger holds it."""
        return StagedFile(self.path, self.size_bytes, self.rows, self.slot, self.low_ms, self.high_ms)


class BatchManifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A batch that was staged and is to be adopted."""

    ledger: Annotated[str, Meta(pattern="^[0-9a-f]{32}$")]
    files: Annotated[list[ManifestFile], Meta(min_length=1, max_length=MAX_FILES)]
    owners: dict[Annotated[str, Meta(max_length=MAX_OWNER_BYTES)], _Count]
    """How many messages belong to each owner."""
    held: dict[
        Annotated[str, Meta(max_length=2 * MAX_NAME_BYTES + 1)],
        dict[Annotated[str, Meta(max_length=MAX_OWNER_BYTES)], _Count],
    ] = {}
    """Owners by namespace. Where there is one namespace only it may be left out."""
    namespaces: dict[Annotated[str, Meta(max_length=2 * MAX_NAME_BYTES + 1)], _Instant]
    """The last due instant of each namespace that messages fall under."""
    fingerprint: Annotated[str, Meta(max_length=64)] = ""
    """A digest of the request: the same name with another one is a conflict. Empty: the name alone identifies the batch."""

    @property
    def count(self) -> int:
        """How many messages there are."""
        return sum(file.rows for file in self.files)


def new_token(name: str) -> str:
    """The name of a folder of one's own to stage a batch in. It is good for a batch of that name only."""
    return secrets.token_hex(8) + _mark_of(name)


def is_token_for(token: str, name: str) -> bool:
    """Whether a folder is for a batch of that name: so the same files cannot be adopted under another one too."""
    return token[16:] == _mark_of(name)


def _mark_of(name: str) -> str:
    return hashlib.blake2b(name.encode(), digest_size=8).hexdigest()
