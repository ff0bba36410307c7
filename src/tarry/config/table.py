"""Properties of every table of the configuration."""

from typing import Annotated, Final

from msgspec import Meta, Struct

SECRET: Final = Meta(extra={"secret": True})
DOTTED: Final = Meta(extra={"dotted": True})

Path = Annotated[str, Meta(extra={"path": True})]
"""A file or folder; in the file, relative to the file's own folder."""
Secret = Annotated[str, SECRET]
"""Never shown."""


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the file."""
