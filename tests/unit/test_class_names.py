"""One type has one name: no two public classes or aliases of the package are called the same, so that a name says which is meant.

The client is counted by itself. Its shapes have the names of what the server tells it (`Message`, `Policy`, `Entry`), users
import them from `tarry`, and a contract keeps the two apart.
"""

import ast
import re
from collections import defaultdict
from pathlib import Path

ALIAS = re.compile(r"[A-Z]\w*[a-z]\w*|[A-Z]")
"""The name of a type: not that of a constant."""
PACKAGE = Path(__file__).parent.parent.parent / "src" / "tarry"


def public_classes(source: str) -> list[str]:
    return [
        node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name[0] != "_"
    ]


def public_aliases(source: str) -> list[str]:
    """Names of types that stand for others. Options of commands are none: Typer reads them, and nobody else."""
    found = []
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() | ast.BinOp() | ast.Name()):
                if ALIAS.fullmatch(name) and "typer." not in ast.unparse(node.value):
                    found.append(name)
    return found


def homes() -> dict[tuple[bool, str], list[str]]:
    """The modules in which each class or alias is defined, by whether that is in the client, and its name."""
    found = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        module = path.relative_to(PACKAGE)
        if path.stem.endswith("_pb2"):
            continue
        source = path.read_text()
        for name in (*public_classes(source), *public_aliases(source)):
            found[module.parts[0] == "client", name].append(str(module))
    return found


def test_public_classes_are_found() -> None:
    assert public_classes("class A: ...\nclass _B: ...\nx = 1\nclass C(A):\n  class D: ...") == ["A", "C"]
    assert homes()[False, "DispatchClass"] == ["engine/due/due_batch.py"]
    assert len(homes()) > 700


def test_public_aliases_are_found() -> None:
    source = (
        "A = Callable[[int], None]\nB = int | str\n_C = list[int]\nLIMIT = X\nT = TypeVar('T')\nd = list[int]"
    )
    assert public_aliases(source) == ["A", "B"]
    assert public_aliases("Name = Annotated[str, typer.Option('--name')]") == []


def test_no_two_public_types_have_one_name() -> None:
    twice = {name: modules for (_, name), modules in homes().items() if len(modules) > 1}
    assert not twice
