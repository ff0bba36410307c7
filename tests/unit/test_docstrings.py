"""First sentences of docstrings name their subject, so that a reader need not open the neighbour to learn what it is."""

import ast
import re
from typing import Final

from tests.processes import ROOT

NAMELESS: Final = re.compile(r"\s*(The same|Some of|What|Of|Those|Who|It|Them)\b(?!')")
"""Beginnings that stand for a noun which is somewhere else."""


def test_first_sentences_begin_with_their_noun_or_verb() -> None:
    nameless = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.value.value.splitlines()[0]}"
        for folder in ("src/tarry", "tests", "bench", "demo")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not path.stem.endswith("_pb2") and ".cache" not in path.parts
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        and NAMELESS.match(node.value.value)
    ]
    assert not nameless, "\n".join(nameless)
