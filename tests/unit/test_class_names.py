"""One class has one name: no two public classes of the package are called the same, so that a name says which is meant.

The client is counted by itself. Its shapes have the names of what the server tells it (`Message`, `Policy`, `Entry`), users
import them from `tarry`, and a contract keeps the two apart.
"""

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parent.parent.parent / "src" / "tarry"


def public_classes(source: str) -> list[str]:
    return [
        node.name for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name[0] != "_"
    ]


def homes() -> dict[tuple[bool, str], list[str]]:
    """The modules in which each class is defined, by whether that is in the client, and its name."""
    found = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        module = path.relative_to(PACKAGE)
        for name in public_classes(path.read_text()):
            found[module.parts[0] == "client", name].append(str(module))
    return found


def test_public_classes_are_found() -> None:
    assert public_classes("class A: ...\nclass _B: ...\nx = 1\nclass C(A):\n  class D: ...") == ["A", "C"]
    assert homes()[False, "DispatchClass"] == ["engine/due/dispatch_class.py"]
    assert len(homes()) > 700


def test_no_two_public_classes_have_one_name() -> None:
    twice = {name: modules for (_, name), modules in homes().items() if len(modules) > 1}
    assert not twice
