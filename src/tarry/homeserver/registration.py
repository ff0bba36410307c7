"""The application service registration: how a homeserver knows Tarry, and Tarry proves who it is.

With it Tarry may send as any local user, without the homeserver's rate limits (Tarry has its own), and is told of
every event in the rooms of local users. It claims nobody exclusively, so nothing changes for users or other services.
"""

import re
import secrets
from pathlib import Path
from typing import Any, Final

import yaml

from tarry.homeserver.files import write_secret

ID: Final = "tarry"
SENDER: Final = "tarry"
"""The local part of the one user that is the service's own. It joins no room."""
_TOKEN_BYTES: Final = 32


def fresh(server_name: str, url: str | None) -> dict[str, Any]:
    """A new registration with new tokens. `url` is where the homeserver reaches the Matrix door, if it can."""
    return {
        "id": ID,
        "url": url,
        "as_token": secrets.token_urlsafe(_TOKEN_BYTES),
        "hs_token": secrets.token_urlsafe(_TOKEN_BYTES),
        "sender_localpart": SENDER,
        "rate_limited": False,
        "namespaces": {
            "users": [{"exclusive": False, "regex": f"@.*:{re.escape(server_name)}"}],
            "aliases": [],
            "rooms": [],
        },
    }


def write(path: Path, registration: dict[str, Any], *, replace: bool = False) -> None:
    """Write it, readable by its owner alone; `FileExistsError` if there is one and it is not to be replaced."""
    write_secret(path, yaml.safe_dump(registration, sort_keys=False), replace=replace)


def read(path: Path) -> dict[str, Any]:
    """The registration in a file."""
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return found
