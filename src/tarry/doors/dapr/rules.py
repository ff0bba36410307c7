"""The routing rules of subscriptions: the part of CEL that Dapr documents for them (ADR 0017). Pure.

An expression speaks of the event: `event.type == "order.v2" && event.data.total > 100`. There are the literals of CEL,
selection and indexing, `!` `-` `*` `/` `%` `+` comparison `in` `&&` `||` `?:`, `has()`, `size()`, `string()`, `int()`,
`double()`, and the methods `startsWith`, `endsWith`, `contains`, `matches`, `size`. Anything else is refused when the
rule is read, never when a message comes.

What cannot be evaluated for an event (a field that is not there, a number beside a text) is `NoMatch`; `&&` and `||` take
the other side's word for it where that decides, as in CEL.

`matches` is RE2, as CEL says: the engine comes with pyarrow, needs time in proportion to the text whatever the pattern
is, and does not hold the interpreter's lock. The pattern is written in the rule, so that it is read with it. Even so
a large pattern on a long text takes a while: both are bounded, and who evaluates a rule that `searches` does so in a thread.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from tarry.core.errors import Invalid

EventFields = Mapping[str, Any]
Expression = Callable[[EventFields], Any]

_TOKEN: Final = re.compile(
    r"\s*(?:(?P<number>(?:\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|0x[0-9a-fA-F]+|\d+)u?)"
    r"|(?P<raw>[rR](?:\"[^\"]*\"|'[^']*'))"
    r"|(?P<text>\"(?:[^\"\\]|\\.)*\"|'(?:[^'\\]|\\.)*')"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign>&&|\|\||==|!=|<=|>=|[<>!+\-*/%?:.,()\[\]]))"
)
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "a": "\a", "b": "\b", "f": "\f", "v": "\v"}
_ESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_CONSTANTS: Final = {"true": True, "false": False, "null": None}
_BINDING: Final = {
    "||": 1, "&&": 2, "==": 3, "!=": 3, "<": 3, "<=": 3, ">": 3, ">=": 3, "in": 3, "+": 4, "-": 4, "*": 5, "/": 5, "%": 5,
}  # fmt: skip
MAX_DEPTH: Final = 50
MAX_OPERATIONS: Final = 500
"""Signs, selections and calls of one rule: each may be a turn deeper on the stack when it is evaluated."""
MAX_TEXT: Final = 1 << 18
"""Characters of a text, and items of a list, that a rule may put together."""
MAX_PATTERN: Final = 500
MAX_SEARCHED: Final = 16_384
"""Characters of a pattern, and of a text in which it is looked for; of a longer one a rule says nothing."""


class NoMatch(Exception):
    """The expression says nothing about this event."""


class RuleToken(NamedTuple):
    """A piece of the text."""

    kind: str
    text: str


def compile_rule(text: str) -> Expression:
    """Read a routing rule; raises `Invalid` with its mistake."""
    return _Parser(text).whole()


def searches(text: str) -> bool:
    """Whether a rule looks for a pattern, which may take a while."""
    return any(token == ("name", "matches") for token in _tokens(text))


def matches(expression: Expression, event: EventFields) -> bool:
    """Whether an event fits. A rule that says nothing about it does not."""
    try:
        return expression(event) is True
    except (NoMatch, RecursionError):
        # Values that are nested deeply may be too deep to be compared.
        return False


class _Parser:
    """A parser by precedence; each method gives a function of the event."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._at = 0
        self._depth = 0
        self._operations = 0

    def whole(self) -> Expression:
        expression = self._choice()
        if self._peek() is not None:
            raise _wrong(f"did not expect {self._tokens[self._at].text!r}")
        return expression

    def _peek(self) -> str | None:
        return self._tokens[self._at].text if self._at < len(self._tokens) else None

    def _is(self, sign: str) -> bool:
        here = self._at < len(self._tokens) and self._tokens[self._at]
        return bool(here) and here.kind in ("sign", "name") and here.text == sign  # type: ignore[union-attr]

    def _take(self, sign: str) -> bool:
        found = self._is(sign)
        self._at += found
        return found

    def _need(self, sign: str) -> None:
        if not self._take(sign):
            raise _wrong(f"expected {sign!r} before {self._peek() or 'the end'!r}")

    def _operate(self) -> None:
        self._operations += 1
        if self._operations > MAX_OPERATIONS:
            raise _wrong(f"has more than {MAX_OPERATIONS} operations")

    def _choice(self) -> Expression:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise _wrong("is nested too deeply")
        test = self._binary(0)
        if self._take("?"):
            self._operate()
            yes = self._choice()
            self._need(":")
            no = self._choice()
            self._depth -= 1
            return lambda event: yes(event) if _boolean(test(event)) else no(event)
        self._depth -= 1
        return test

    def _binary(self, least: int) -> Expression:
        left = self._unary()
        while (sign := self._peek()) in _BINDING and self._is(sign or "") and _BINDING[sign or ""] > least:
            assert sign is not None
            self._operate()
            self._at += 1
            left = _combine(sign, left, self._binary(_BINDING[sign]))
        return left

    def _unary(self) -> Expression:
        if self._take("!"):
            self._operate()
            inner = self._unary()
            return lambda event: not _boolean(inner(event))
        if self._take("-"):
            self._operate()
            inner = self._unary()
            return lambda event: -_number(inner(event))
        return self._member(self._primary())

    def _primary(self) -> Expression:
        if self._at >= len(self._tokens):
            raise _wrong("ends too soon")
        token = self._tokens[self._at]
        self._at += 1
        if token.kind == "number":
            return _constant(_read_number(token.text))
        if token.kind == "raw":
            return _constant(token.text[2:-1])
        if token.kind == "text":
            return _constant(_unescape(token.text[1:-1]))
        if token.text == "(":
            inner = self._choice()
            self._need(")")
            return inner
        if token.text == "[":
            items = self._arguments("]")
            return lambda event: [item(event) for item in items]
        if token.kind != "name":
            raise _wrong(f"did not expect {token.text!r}")
        if token.text in _CONSTANTS:
            return _constant(_CONSTANTS[token.text])
        if self._take("("):
            return self._function(token.text)
        if token.text != "event":
            raise _wrong(f"{token.text} is not known; a rule speaks of event")
        return lambda event: event

    def _arguments(self, end: str) -> list[Expression]:
        items: list[Expression] = []
        while not self._take(end):
            if items:
                self._need(",")
            items.append(self._choice())
        return items

    def _function(self, name: str) -> Expression:
        function = _FUNCTIONS.get(name)
        if function is None:
            raise _wrong(f"the function {name}() is not one of {', '.join(sorted(_FUNCTIONS))}")
        arguments = self._arguments(")")
        if len(arguments) != 1:
            raise _wrong(f"{name}() takes one argument")
        argument = arguments[0]
        if name == "has":
            return lambda event: _is_there(argument, event)
        return lambda event: function(argument(event))

    def _member(self, value: Expression) -> Expression:
        while True:
            if self._take("."):
                token = self._tokens[self._at] if self._at < len(self._tokens) else RuleToken("", "the end")
                if token.kind != "name":
                    raise _wrong(f"expected a name before {token.text!r}")
                self._operate()
                self._at += 1
                value = self._method(value, token.text) if self._take("(") else _select(value, token.text)
            elif self._take("["):
                self._operate()
                index = self._choice()
                self._need("]")
                value = _index(value, index)
            else:
                return value

    def _method(self, value: Expression, name: str) -> Expression:
        if name == "size" and self._take(")"):
            return lambda event: _size(value(event))
        if name == "matches":
            found = self._pattern()
            return lambda event: found(_text(value(event)))
        method = _METHODS.get(name)
        if method is None:
            raise _wrong(
                f"the method {name}() is not one of {', '.join(sorted((*_METHODS, 'matches', 'size')))}"
            )
        arguments = self._arguments(")")
        if len(arguments) != 1:
            raise _wrong(f"{name}() takes one argument")
        argument = arguments[0]
        return lambda event: method(_text(value(event)), _text(argument(event)))

    def _pattern(self) -> Callable[[str], bool]:
        """The pattern that is written here, as a test of texts."""
        token = self._tokens[self._at] if self._at < len(self._tokens) else RuleToken("", "the end")
        if token.kind not in ("text", "raw"):
            raise _wrong(f"matches() takes a pattern in quotes, and not {token.text!r}")
        self._at += 1
        self._need(")")
        return _found(token.text[2:-1] if token.kind == "raw" else _unescape(token.text[1:-1]))


def _tokens(text: str) -> list[RuleToken]:
    tokens: list[RuleToken] = []
    at = 0
    end = len(text.rstrip())
    while at < end:
        found = _TOKEN.match(text, at)
        if found is None:
            raise _wrong(f"cannot read {text[at:].strip()[:20]!r}")
        tokens.append(RuleToken(found.lastgroup or "", found[found.lastgroup or ""]))
        at = found.end()
    if not tokens:
        raise _wrong("is empty")
    return tokens


def _wrong(reason: str) -> Invalid:
    return Invalid("match", reason)


def _constant(value: Any) -> Expression:
    return lambda _event: value


def _read_number(text: str) -> int | float:
    text = text.removesuffix("u")
    if text.startswith("0x"):
        return int(text, 16)
    return float(text) if any(sign in text for sign in ".eE") else int(text)


def _unescape(text: str) -> str:
    def replaced(found: re.Match[str]) -> str:
        code = found[1] or found[2] or found[3]
        if code:
            number = int(code, 16)
            if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
                raise _wrong(f"there is no character {found[0]}")
            return chr(number)
        return _ESCAPES.get(found[4], found[4])

    return _ESCAPE.sub(replaced, text)


def _select(value: Expression, name: str) -> Expression:
    return lambda event: _field(value(event), name)


def _index(value: Expression, index: Expression) -> Expression:
    return lambda event: _field(value(event), index(event))


def _field(value: Any, name: Any) -> Any:
    if isinstance(value, Mapping) and isinstance(name, str) and name in value:
        return value[name]
    if isinstance(value, list) and type(name) is int and 0 <= name < len(value):
        return value[name]
    raise NoMatch(f"there is no {name}")


def _is_there(argument: Expression, event: EventFields) -> bool:
    try:
        argument(event)
    except NoMatch:
        return False
    return True


def _combine(sign: str, left: Expression, right: Expression) -> Expression:
    if sign in ("&&", "||"):
        return _logical(left, right, decides=sign == "||")
    operation = _OPERATIONS[sign]

    def evaluate(event: EventFields) -> Any:
        try:
            return _bounded(operation(left(event), right(event)))
        except (ArithmeticError, ValueError):
            raise NoMatch("beyond all numbers") from None

    return evaluate


def _bounded(value: Any) -> Any:
    """A value, if it is one of CEL's, whose whole numbers have 64 bits, and not too large."""
    if type(value) is int and not -(1 << 63) <= value < 1 << 64:
        raise NoMatch("beyond all numbers")
    if isinstance(value, str | list) and len(value) > MAX_TEXT:
        raise NoMatch("too long")
    return value


def _logical(left: Expression, right: Expression, *, decides: bool) -> Expression:
    def evaluate(event: EventFields) -> bool:
        try:
            if _boolean(left(event)) is decides:
                return decides
        except NoMatch:
            # The other side may decide alone; if it does not, nothing is known.
            if _boolean(right(event)) is decides:
                return decides
            raise
        return _boolean(right(event))

    return evaluate


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise NoMatch("not a boolean")
    return value


def _number(value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise NoMatch("not a number")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise NoMatch("not a text")
    return value


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, bool) != isinstance(right, bool):
        return False
    return bool(left == right)


def _compare(left: Any, right: Any, test: Callable[[Any, Any], bool]) -> bool:
    if isinstance(left, str) != isinstance(right, str):
        raise NoMatch("of two kinds")
    if not isinstance(left, str):
        _number(left), _number(right)
    return test(left, right)


def _add(left: Any, right: Any) -> Any:
    if isinstance(left, str) and isinstance(right, str):
        return left + right
    if isinstance(left, list) and isinstance(right, list):
        return left + right
    return _number(left) + _number(right)


def _divide(left: Any, right: Any) -> int | float:
    dividend, divisor = _number(left), _number(right)
    if not divisor:
        raise NoMatch("division by zero")
    if isinstance(dividend, float) or isinstance(divisor, float):
        return dividend / divisor
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


def _remainder(left: Any, right: Any) -> int | float:
    return _number(left) - _number(right) * int(_divide(left, right))


def _contained(left: Any, right: Any) -> bool:
    if isinstance(right, Mapping):
        return isinstance(left, str) and left in right
    if isinstance(right, list):
        return any(_equal(left, one) for one in right)
    raise NoMatch("neither a list nor a map")


def _size(value: Any) -> int:
    if isinstance(value, str | list | Mapping):
        return len(value)
    raise NoMatch("has no size")


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | float):
        return str(value)
    if isinstance(value, int):
        return str(_bounded(value))
    raise NoMatch("cannot be a text")


def _converted(type_: type[int] | type[float]) -> Callable[[Any], int | float]:
    def convert(value: Any) -> int | float:
        try:
            return type_(value)
        except (TypeError, ValueError, OverflowError):
            raise NoMatch("cannot be a number") from None

    return convert


def _found(pattern: str) -> Callable[[str], bool]:
    if len(pattern) > MAX_PATTERN:
        raise _wrong(f"the pattern has more than {MAX_PATTERN} characters")

    def found(text: str) -> bool:
        if len(text) > MAX_SEARCHED:
            raise NoMatch("too long to be searched")
        try:
            return bool(pc.match_substring_regex(pa.scalar(text), pattern).as_py())
        except UnicodeEncodeError:
            raise NoMatch("not valid Unicode") from None

    try:
        found("")
    except (pa.ArrowInvalid, UnicodeEncodeError) as error:
        raise _wrong(f"the pattern cannot be read: {str(error).rpartition('expression: ')[2]}") from None
    return found


_OPERATIONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "==": _equal,
    "!=": lambda left, right: not _equal(left, right),
    "<": lambda left, right: _compare(left, right, lambda one, other: one < other),
    "<=": lambda left, right: _compare(left, right, lambda one, other: one <= other),
    ">": lambda left, right: _compare(left, right, lambda one, other: one > other),
    ">=": lambda left, right: _compare(left, right, lambda one, other: one >= other),
    "in": _contained,
    "+": _add,
    "-": lambda left, right: _number(left) - _number(right),
    "*": lambda left, right: _number(left) * _number(right),
    "/": _divide,
    "%": _remainder,
}
_FUNCTIONS: Final[dict[str, Callable[[Any], Any]]] = {
    "has": bool,
    "size": _size,
    "string": _as_text,
    "int": _converted(int),
    "double": _converted(float),
}
_METHODS: Final[dict[str, Callable[[str, str], bool]]] = {
    "startsWith": str.startswith,
    "endsWith": str.endswith,
    "contains": lambda text, part: part in text,
}
