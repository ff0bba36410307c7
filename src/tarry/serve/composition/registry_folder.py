"""The folder of the registry: an engine is made on the registry in it, and a damaged one is replaced.

A damaged registry is restored from its newest snapshot that is sound, and the ledger gives the rest; without a snapshot the ledger
alone gives it again, if nothing of it was reclaimed.
"""

import logging
from collections.abc import Callable
from pathlib import Path

from tarry.core.errors import Unavailable
from tarry.engine.engine import Engine
from tarry.ledger.ledger import Ledger
from tarry.registry.registry import REGISTRY_FILE, Registry
from tarry.registry.snapshots import mark_damaged, marked_damaged, remove_backups, restore, set_aside, unmark
from tarry.registry.table import RegistryDamage

log = logging.getLogger("tarry.serve")


class RegistryFolder:
    """The registry of one data folder, which is open while an engine has it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._registry: Registry | None = None

    def engine(
        self, ledger: Ledger, make: Callable[[Registry], Engine], begin: Callable[[Engine], object]
    ) -> Engine:
        """An engine that has begun on the registry; a damaged one is replaced first."""
        self._folder.mkdir(mode=0o700, exist_ok=True)
        folder = str(self._folder)
        remove_backups(folder)
        try:
            if (reason := marked_damaged(folder)) is not None:
                raise RegistryDamage("marked", reason)
            engine = make(self._open())
            begin(engine)
        except RegistryDamage as damage:
            log.error("recovery: %s", damage)
            self._replace(ledger, damage)
            unmark(folder)
            engine = make(self._open())
            begin(engine)
        assert self._registry is not None
        self._registry.on_damage = self._damaged
        return engine

    def _open(self) -> Registry:
        self._registry = Registry(str(self._folder / REGISTRY_FILE))
        return self._registry

    def _damaged(self, damage: RegistryDamage) -> None:
        """Damage that shows while running; what needs that row gets an error, and the next start mends it."""
        log.error("%s; the next start replaces the registry by its snapshot and the ledger", damage)
        mark_damaged(str(self._folder), str(damage.reason))

    def _replace(self, ledger: Ledger, damage: RegistryDamage) -> None:
        self.close()
        path = str(self._folder / REGISTRY_FILE)
        if restore(str(self._folder), path):
            return
        if ledger.first_seq != 1:
            raise Unavailable(
                f"{path} is damaged ({damage.reason}), and so are its snapshots: "
                "bring the data folder back from a backup"
            ) from damage
        # Nothing was reclaimed yet: the ledger alone gives it again.
        set_aside(path)
        log.error("the registry was damaged; it is set aside, and made anew from the ledger")

    def close(self) -> None:
        """Close the registry, if it is open."""
        if self._registry is not None:
            self._registry.close()
            self._registry = None
