"""Texts of errors say which rule was broken, by what, and what would work, as far as a look at the source can tell.

Each text that is raised in the source is read as a user sees it, with `{}` where a value stands. What cannot be seen so, such as
whether the named cure is the right one, is a reader's business.
"""

import ast
import re
from collections.abc import Iterator
from typing import Final, NamedTuple

import pytest

from tests.processes import ROOT

SOURCE: Final = ROOT / "src" / "tarry"

WHERE: Final = {
    "Invalid": 1, "Misconfigured": 1, "RateLimited": 1, "RegistryDamage": 1, "Damage": 2, "HttpRefusal": 2,
    "BadResource": 3,
}  # fmt: skip
"""The place of the text among the arguments of errors that begin with something else, such as the field that is wrong."""

ELSEWHERE: Final = {"TooLarge", "MatrixError", "RestError", "PulsarRefusal"}
"""Errors whose texts are not here: `TooLarge` says its limit itself, and two doors answer in the words of Synapse and of Pulsar's broker."""

STATED: Final = {"NotFound", "Damage", "RegistryDamage", "BrokerUnreachable", "Denied", "LibraryMissing"}
"""Errors that say how things are: nothing that the caller could write differently would work."""

LIMITED: Final = re.compile(
    r"\btoo (long|large|many|much|far|short|fast|deeply)\b|\b(longer|larger|shorter|more|less|fewer) than\b"
)
"""Words that tell of a limit."""
NUMBER: Final = re.compile(r"\d|\{\}|\b(one|two|three|half|once|a (day|year|century|second))\b")

CURE: Final = re.compile(
    r"[;:]|\b(missing|in a moment|give|use|write|name|set|choose|take|make|say|add|try|end|is for|has to|must|between|at least|at most|neither|one of|"
    r"such as|like|only|need(s|ed)?|not \w+|no such|from \S+ to|or)\b|\d|\{\}"
)
"""Signs that a text says what would work: a command, a bound, an example, or the thing that something is not."""


class Rule(NamedTuple):
    """One rule for texts of errors."""

    breaks: re.Pattern[str]
    why: str


RULES: Final = (
    Rule(
        re.compile(
            r"^((it|its|they|them|he|she|we|you)\b|(this|that|these|those) (is|are|was|has|have|needs?|can|cannot|may|must|does)\b)",
            re.IGNORECASE,
        ),
        "begins with a pronoun: name the thing",
    ),
    Rule(
        re.compile(r"^(what|who|whoever|which|whatever|whose)\b", re.IGNORECASE),
        "begins with a clause: name the thing",
    ),
    Rule(
        re.compile(r"\b(that|which|who) (is|are) none\b|\bis none\b(?! of )"),
        "says what a thing is not by «none»: say what it has to be",
    ),
    Rule(
        re.compile(
            r"\b(somehow|something|whatever|stuff|bad|wrong|illegal|improper|weird|unexpected|unknown error)\b"
        ),
        "has a vague word: say what was found",
    ),
    Rule(
        re.compile(r"\b(please|sorry|oops|unfortunately)\b|!$", re.IGNORECASE),
        "is polite: say what would work",
    ),
    Rule(
        re.compile(r"[^.…]\.$|^(?!Spark )[A-Z][a-z]+ [a-z]+ [a-z]+"),
        "is a sentence with a capital or a full stop: texts are put behind a field or a file",
    ),
)


class Text(NamedTuple):
    """A text of an error, and where it is raised."""

    error: str
    text: str
    place: str


def shape(node: ast.expr) -> str | None:
    """A text as a user sees it, `{}` for its values; None if it is no text of this place."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else None
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        sides = shape(node.left), shape(node.right)
        return None if sides == (None, None) else "".join(side or "{}" for side in sides)
    return None


def errors() -> set[str]:
    """The names of the errors: the tree of `core/errors`, and the errors that other modules hang on it."""
    bases: dict[str, set[str]] = {}
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases[node.name] = {base.id for base in node.bases if isinstance(base, ast.Name)}
    found = {"TarryError"}
    while more := {name for name, of in bases.items() if of & found} - found:
        found |= more
    return found


def texts_in(source: str, names: set[str], file: str = "") -> Iterator[Text]:
    """The texts of the errors of these names that a module makes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names:
            name, at = node.func.id, WHERE.get(node.func.id, 0)
            said = shape(node.args[at]) if at < len(node.args) else None
            if said is not None:
                yield Text(name, said, f"{file}:{node.lineno}")


def broken(text: str, error: str = "Invalid") -> list[str]:
    """The rules that a text of an error breaks."""
    found = [rule.why for rule in RULES if rule.breaks.search(text)]
    if LIMITED.search(text) and not NUMBER.search(text):
        found.append("tells of a limit without saying it")
    if error not in STATED and not CURE.search(text):
        found.append("does not say what would work")
    return found


def all_texts() -> list[Text]:
    names = errors() - ELSEWHERE
    return [
        text
        for path in sorted(SOURCE.rglob("*.py"))
        for text in texts_in(path.read_text("utf-8"), names, str(path.relative_to(ROOT)))
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("it is too late: send it earlier than {}", "pronoun"),
        ("what waits cannot be sent; wait", "clause"),
        ("a ping that is none; send 8 bytes", "none"),
        ("something is wrong; try again", "vague"),
        ("is too long; shorten it", "limit"),
        ("is empty", "what would work"),
        ("The name is taken; give another one.", "full stop"),
    ],
)
def test_a_poor_text_is_found(text: str, why: str) -> None:
    assert any(why in one for one in broken(text)), broken(text)


def test_a_good_text_passes() -> None:
    for text in (
        "is empty; give 1 to 255 letters",
        "larger than {} bytes",
        "there is no such message",
        "is not a number",
        "is none of {}",
    ):
        assert not broken(text), text


def test_texts_are_found_in_every_form() -> None:
    source = 'raise Invalid("a", "b" + c)\nraise Damage(f, 1, f"at {seq}")\nraise Unavailable("x")\nraise Other("y")\nInvalid("a", c)'
    found = [text.text for text in texts_in(source, {"Invalid", "Damage", "Unavailable"})]
    assert found == ["b{}", "at {}", "x"]


def test_texts_of_errors_say_what_was_broken_and_what_would_work() -> None:
    found = all_texts()
    assert len(found) > 500
    poor = [
        f"{text.place}: {text.error}: {text.text}\n    {'; '.join(why)}"
        for text in found
        if (why := broken(text.text, text.error))
    ]
    assert not poor, "\n".join(poor)
