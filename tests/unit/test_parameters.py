"""Parameters: a call with so many arguments that nobody counts them gives them by name."""

import ast
from typing import Final

from tests.processes import ROOT

MOST: Final = 12
"""Parameters that a function may be given by position, with `self`."""


def test_functions_with_many_parameters_take_them_by_name() -> None:
    counted = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {len(node.args.args)}"
        for path in sorted((ROOT / "src/tarry").rglob("*.py"))
        # Typer calls a command with the names of its options.
        if "cli" not in path.parts
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and len(node.args.args) > MOST
    ]
    assert not counted, "these mix up arguments easily: put a `*` before their parameters:\n" + "\n".join(
        counted
    )
