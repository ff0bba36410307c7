"""First sentences of docstrings name their subject, so that a reader need not open the neighbour to learn what it is."""

import ast
import re
from typing import Final

from tests.processes import ROOT

NAMELESS: Final = re.compile(r"\s*(The same|Some of|What|Of|Those|Who|It|Them)\b(?!')")
"""Beginnings that stand for a noun which is somewhere else."""

CLAUSE: Final = re.compile(
    r"\b(what (is|are|has|have|was|were|waits|comes|came|goes|can|cannot|could|others|else)|who (is|are|was|has|waits|asks|comes))\b",
    re.IGNORECASE,
)
"""A relative clause in place of a noun: "what waits" for pending messages, "who asks" for the caller."""


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


def first_sentences(source: str) -> list[str]:
    """The first sentences of the docstrings of a module, its classes and its functions."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(ast.parse(source)) if isinstance(node, kinds))
    return [re.split(r"(?<=[.:])\s", " ".join(text.split()), maxsplit=1)[0] for text in found if text]


def test_a_clause_is_found() -> None:
    assert first_sentences('def a():\n  """Put what waits into the tail.\n\n  More."""') == [
        "Put what waits into the tail."
    ]
    assert CLAUSE.search("Put what waits into the tail.")


def test_first_sentences_have_a_noun_where_one_is_meant() -> None:
    clauses = [
        f"{path.relative_to(ROOT)}: {sentence}"
        for path in sorted((ROOT / "src/tarry").rglob("*.py"))
        if not path.stem.endswith("_pb2")
        for sentence in first_sentences(path.read_text("utf-8"))
        if CLAUSE.search(sentence)
    ]
    assert not clauses, "\n".join(clauses)
