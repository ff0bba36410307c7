"""Records that are set aside, in the storage that servers share: for readers of the ledger's log, which does not mark them.

Each owner that goes on without some records puts the list of their seqs there at its start, as an object of its own. No record
comes back once it was set aside, so a reader takes all lists together.
"""

import io
import secrets
from collections.abc import Collection

import msgspec

from tarry.core.errors import Damage, NotFound
from tarry.registry.shared_storage import SharedStorage

_decode = msgspec.json.Decoder(frozenset[int]).decode


def aside_folder(root: str, topic: str) -> str:
    """The folder of these lists for the ledger in a topic, in the storage that its servers share."""
    return f"{root.rstrip('/')}/{topic}/set-aside"


def share_aside(storage: SharedStorage, seqs: Collection[int]) -> None:
    """Put a list there, if it says anything new; raises `Unavailable`."""
    if not shared_aside(storage).issuperset(seqs):
        storage.put(secrets.token_hex(8), io.BytesIO(msgspec.json.encode(sorted(seqs))))


def shared_aside(storage: SharedStorage) -> frozenset[int]:
    """The seqs of all lists; raises `Unavailable`, or `Damage` if one cannot be read."""
    found: set[int] = set()
    for one in storage.objects():
        try:
            with storage.open(one.name) as stored:
                found |= _decode(stored.read())
        except NotFound:
            continue
        except msgspec.DecodeError as error:
            raise Damage(
                one.name, 0, f"{error}; remove it from set-aside in shared storage, and restart the owner"
            ) from None
    return frozenset(found)
