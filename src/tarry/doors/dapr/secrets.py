"""Where the secrets of component files come from: the environment, or a file.

Dapr's two local stores are known, `secretstores.local.env` and `secretstores.local.file`, by the component files
that describe them. A `secretKeyRef` of a component that names no store is looked up in the environment.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from tarry.doors.dapr.resources import Document
from tarry.outlets.dapr.properties import Properties

ENVIRONMENT: Final = "secretstores.local.env"
FILE: Final = "secretstores.local.file"


class SecretStore(Protocol):
    """Gives secrets by their name and key."""

    def get(self, name: str, key: str) -> str | None:
        """A secret, None if there is no such one."""


class EnvironmentSecrets:
    """Secrets in environment variables, whose names may have a prefix."""

    def __init__(self, environment: Mapping[str, str], prefix: str = "") -> None:
        self._environment = environment
        self._prefix = prefix

    def get(self, name: str, key: str) -> str | None:
        """The variable of that name; there is but one value in it, whatever the key."""
        return self._environment.get(self._prefix + name)


class FileSecrets:
    """Secrets in a JSON file; a nested secret has its path as its name, unless the store is multi-valued."""

    def __init__(self, content: Mapping[str, Any], separator: str, *, multi_valued: bool) -> None:
        self._values: dict[str, str | dict[str, str]] = {}
        for name, value in content.items():
            if multi_valued and isinstance(value, dict):
                self._values[name] = dict(_flat(value, "", separator))
            else:
                self._values.update(_flat({name: value}, "", separator))

    def get(self, name: str, key: str) -> str | None:
        """The value of that name, or, of a multi-valued one, of that key in it."""
        found = self._values.get(name)
        return found.get(key) if isinstance(found, dict) else found


def _flat(value: Mapping[str, Any], path: str, separator: str) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for name, inner in value.items():
        at = f"{path}{separator}{name}" if path else name
        if isinstance(inner, list):
            inner = {str(place): one for place, one in enumerate(inner)}
        if isinstance(inner, dict):
            pairs.extend(_flat(inner, at, separator))
        else:
            pairs.append((at, inner if isinstance(inner, str) else json.dumps(inner)))
    return pairs


def secret_store(document: Document, properties: Properties, environment: Mapping[str, str]) -> SecretStore:
    """The store that a component document describes; raises `BadResource`."""
    if document.text("spec.type") == ENVIRONMENT:
        return EnvironmentSecrets(environment, properties.text("prefix"))
    named = properties.text("secretsFile")
    if not named:
        raise document.refuse("spec.metadata.secretsFile", "is missing")
    # Relative to where Tarry runs, as in Dapr; or else beside the component file.
    path = Path(named)
    if not path.is_file():
        path = Path(document.file).parent / named
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise document.refuse("spec.metadata.secretsFile", f"cannot be read: {error}") from None
    except ValueError:
        raise document.refuse("spec.metadata.secretsFile", f"{path} is not JSON") from None
    if not isinstance(content, dict):
        raise document.refuse("spec.metadata.secretsFile", f"{path} is not a JSON object")
    return FileSecrets(
        content,
        properties.text("nestedSeparator", ":"),
        multi_valued=properties.flag("multiValued"),
    )
