"""The tables in `docs/conformance.md`: one row for each suite, and one line for each case that does not pass."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.peers.reasons import KINDS, Reason, pattern_for, reasons_of
from tests.peers.results import Stored, load_all

PAGE: Final = Path(__file__).parents[2] / "docs" / "conformance.md"
BEGIN: Final = "<!-- written by `make peers`: begin -->"
END: Final = "<!-- written by `make peers`: end -->"


def tables(results: Sequence[Stored], reasons: Callable[[str], Mapping[str, Reason]] = reasons_of) -> str:
    """All of the page that a run writes."""
    lines = ["| suite | version | passed | failed | skipped by itself |", "|---|---|---|---|---|"]
    lines += [
        f"| {one.title} | {one.version} | {one.passed} | {len(one.failed)} | {one.skipped} |"
        for one in results
    ]
    for one in results:
        if one.failed:
            lines += ["", f"### {one.title}: what does not pass", "", *_failures(one, reasons(one.name))]
    return "\n".join(lines)


def _failures(result: Stored, reasons: Mapping[str, Reason]) -> list[str]:
    lines = ["| case | kind | reason |", "|---|---|---|"]
    for case in result.failed:
        pattern = pattern_for(case, reasons)
        kind, text = ("**none**", "unexplained") if pattern is None else _told(reasons[pattern])
        lines.append(f"| `{_cell(case)}` | {kind} | {_cell(text)} |")
    return lines


def _told(reason: Reason) -> tuple[str, str]:
    return reason.kind, reason.text


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def kinds() -> str:
    """The kinds of reasons, as a list."""
    return "\n".join(f"- *{kind}*: {text}." for kind, text in KINDS.items())


def rewritten(page: str, results: Sequence[Stored]) -> str:
    """The page with its tables made anew."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has lost its marks {BEGIN} and {END}")
    return f"{before}{BEGIN}\n\n{kinds()}\n\n{tables(results)}\n\n{END}{after}"


def rewrite() -> None:
    """Write the tables of all stored results into the page."""
    PAGE.write_text(rewritten(PAGE.read_text("utf-8"), load_all()), "utf-8")
