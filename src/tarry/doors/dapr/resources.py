"""YAML files in Dapr's format, read document by document, and given out by kind of resource.

Whatever is wrong is refused with the file, the document's number and the field, so that it can be mended at once.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, get_args

import yaml
from msgspec import Struct
from msgspec.structs import fields

from tarry.core.errors import TarryError

SUFFIXES: Final = frozenset((".yaml", ".yml"))
MAX_FILE_BYTES: Final = 4 * 1024 * 1024


class BadResource(TarryError):
    """A file that cannot be used, with the place in it."""

    code = "bad-resource"

    def __init__(self, file: str, number: int | None, field: str, reason: str) -> None:
        place = [file, *([f"document {number}"] if number is not None else []), *([field] if field else [])]
        super().__init__(f"{': '.join(place)}: {reason}")
        self.file = file
        self.number = number
        self.field = field
        self.reason = reason


class Document(Struct, frozen=True):
    """One document of a file: its kind and its content, read with the methods below."""

    file: str
    number: int
    """Counted from 1."""
    content: dict[str, Any]

    @property
    def kind(self) -> str:
        """The document's kind: `Component`, `Subscription`, `Configuration` and so on."""
        return self.text("kind")

    def refuse(self, field: str, reason: str) -> BadResource:
        """An error that names this document and a field of it."""
        return BadResource(self.file, self.number, field, reason)

    def get(self, field: str) -> Any:
        """The value of a field by its path (`spec.metadata`), None where there is none."""
        value: Any = self.content
        at: list[str] = []
        for name in field.split("."):
            if value is None:
                return None
            if not isinstance(value, Mapping):
                raise self.refuse(".".join(at), "is not a mapping")
            value = field_of(value, name)
            at.append(name)
        return value

    def text(self, field: str, *, needed: bool = True) -> str:
        """A field that is text."""
        value = self.get(field)
        if value is None or value == "":
            if needed:
                raise self.refuse(field, "is missing")
            return ""
        if not isinstance(value, str):
            raise self.refuse(field, f"{value!r} is not text; put it in quotes")
        return value

    def texts(self, field: str) -> tuple[str, ...]:
        """A field that is a list of texts, empty where there is none."""
        value = self.get(field)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(one, str) and one for one in value):
            raise self.refuse(field, "is not a list of texts")
        return tuple(value)

    def mappings(self, field: str) -> list[Mapping[str, Any]]:
        """A field that is a list of mappings, empty where there is none."""
        value = self.get(field)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
            raise self.refuse(field, "is not a list of mappings")
        return value

    def version(self, *versions: str) -> str:
        """The `apiVersion` of a document, which must be among the given ones."""
        found = self.text("apiVersion")
        if found not in versions:
            raise self.refuse("apiVersion", f"{found!r} is not one of {', '.join(versions)}")
        return found


def field_of(mapping: Mapping[Any, Any], name: str) -> Any:
    """A field by its name, in any case if it is not there as it should be, as Dapr reads files; None if there is none."""
    if name in mapping:
        return mapping[name]
    return next(
        (value for key, value in mapping.items() if isinstance(key, str) and key.lower() == name.lower()),
        None,
    )


def respelled(value: Any, type_: type[Struct]) -> Any:
    """A mapping for a struct whose fields are spelled as the struct has them, whatever their case was; also within it."""
    if not isinstance(value, Mapping):
        return value
    found = {}
    for field in fields(type_):
        given = field_of(value, field.encode_name)
        if given is not None:
            found[field.encode_name] = _respelled_within(given, field.type)
    return found


def _respelled_within(value: Any, type_: Any) -> Any:
    for one in (type_, *get_args(type_)):
        if isinstance(one, type) and issubclass(one, Struct):
            if isinstance(value, list):
                return [respelled(item, one) for item in value]
            return respelled(value, one)
    return value


def read_documents(paths: Iterable[Path]) -> list[Document]:
    """The documents of files, and of the YAML files that lie in folders, by name; raises `BadResource`."""
    return [document for path in paths for file in _files(path) for document in _read(file)]


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(one for one in path.iterdir() if one.suffix in SUFFIXES and one.is_file())
    if not path.is_file():
        raise BadResource(str(path), None, "", "there is no such file or folder")
    return [path]


def _read(file: Path) -> list[Document]:
    try:
        if file.stat().st_size > MAX_FILE_BYTES:
            raise BadResource(str(file), None, "", f"is larger than {MAX_FILE_BYTES} bytes")
        loaded = list(yaml.safe_load_all(file.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError) as error:
        raise BadResource(str(file), None, "", f"cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise BadResource(str(file), None, "", f"is not YAML: {_on_one_line(error)}") from None
    documents = []
    for number, content in enumerate(loaded, 1):
        if content is None:
            continue
        if not isinstance(content, dict):
            raise BadResource(str(file), number, "", "is not a mapping")
        documents.append(Document(str(file), number, content))
    return documents


def _on_one_line(error: yaml.YAMLError) -> str:
    return " ".join(str(error).split())
