"""Rules about imports that the contracts cannot state: cycles with the imports for types counted, reaches, what an import brings along."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCES = Path(__file__).parent.parent.parent / "src"

REACH = re.compile(r"engine\.(_?parts|journal|dispatcher|upkeep|flights|horizon)\b(?! import)")


def modules() -> dict[str, Path]:
    found = {}
    for path in SOURCES.joinpath("tarry").rglob("*.py"):
        name = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


def imports(known: dict[str, Path]) -> dict[str, set[str]]:
    """Which modules each imports, those that it needs for its types alone too."""
    return {name: set(_imported(known, path)) - {name} for name, path in known.items()}


def _imported(known: dict[str, Path], path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            yield from (name if name in known else node.module for name in names)


def reached(graph: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    waiting = [start]
    while waiting:
        for name in graph[waiting.pop()] - seen:
            seen.add(name)
            waiting.append(name)
    return seen


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    reach = {name: reached(graph, name) for name in graph}
    found = {frozenset(other for other in reach[name] if name in reach[other]) for name in graph}
    return [set(cycle) for cycle in found if len(cycle) > 1]


def test_a_cycle_is_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"b"}, "d": {"a"}}) == [{"b", "c"}]


def test_modules_do_not_import_each_other_in_circles() -> None:
    assert not [sorted(cycle) for cycle in cycles(imports(modules()))]


FACADE = {"tarry.engine.engine", "tarry.engine.api", "tarry.engine.answer"}


def test_doors_import_the_facade_of_the_engine_and_nothing_else_of_it() -> None:
    """The contract `facade` lists the rooms that there were when it was written; this finds any other too."""
    graph = imports(modules())
    doors = {name: found for name, found in graph.items() if name.startswith("tarry.doors.")}
    assert set().union(*doors.values()) >= FACADE
    inside = {
        name: sorted(one for one in found if one.startswith("tarry.engine") and one not in FACADE)
        for name, found in doors.items()
    }
    assert not {name: found for name, found in inside.items() if found}


def test_nobody_outside_reaches_through_the_engine() -> None:
    """Callers ask the façade; tests look through `tarry.testing.insides`."""
    outside = [
        path
        for path in SOURCES.joinpath("tarry").rglob("*.py")
        if not path.is_relative_to(SOURCES / "tarry/engine") and path.name != "insides.py"
    ]
    reaches = [
        f"{path.relative_to(SOURCES)}:{at}: {line.strip()}"
        for path in outside
        for at, line in enumerate(path.read_text().splitlines(), 1)
        if REACH.search(line) and not line.startswith(("from ", "import "))
    ]
    assert not reaches


def test_the_engine_starts_without_what_only_the_pipeline_needs() -> None:
    """Delta tables are for the server that has an index, and for staging; no engine reads them itself."""
    code = "import sys, tarry.engine.engine as _; print(*{'deltalake', 'pyspark'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_the_client_and_the_command_line_import_nothing_that_only_a_server_has() -> None:
    # Spans of a worker are asked for, and are another extra's.
    client = {name for name in modules() if name.startswith("tarry.client")} - {
        "tarry.client.worker.telemetry"
    }
    program = (
        "import sys; from importlib import import_module; import tarry.cli.app; "
        f"[import_module(name) for name in {sorted(client)!r}]; "
        "print(*{name.partition('.')[0] for name, module in sys.modules.items() if getattr(module, '__file__', None)})"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    bare = subprocess.run(
        [sys.executable, "-c", "import sys, typer, rich.progress, msgspec; " + program.rpartition("; ")[2]],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    brought = set(done.stdout.split()) - set(bare.stdout.split()) - sys.stdlib_module_names
    assert brought == {"tarry"}
