"""Properties of every table of the configuration."""

from typing import Annotated, Final

from msgspec import Meta, Struct

SECRET: Final = Meta(extra={"secret": True})
DOTTED: Final = Meta(extra={"dotted": ""})
"""A table of somebody else's settings, by their own names, which have dots."""
SPARK: Final = Meta(extra={"dotted": "spark"})
"""A table of Spark's settings, whose names all begin so; that word may be left out."""


Path = Annotated[str, Meta(extra={"path": True})]
"""A file or folder; in the file, relative to the file's own folder."""
Secret = Annotated[str, SECRET]
"""Never shown."""


class Section(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One table of the file."""
