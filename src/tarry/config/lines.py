"""Line numbers of keys in a TOML file. `tomllib` reads values and forgets their lines.

A scan by lines, good enough to point at: it knows tables, arrays of tables, dotted and quoted keys, and
skips what is inside multi-line strings. A key that it misses is shown without a line.
"""

import re
from typing import Final

_TABLE: Final = re.compile(r"\s*(\[\[?)\s*([^\[\]]+?)\s*\]")
_KEY: Final = re.compile(
    r"""\s*((?:"[^"]*"|'[^']*'|[A-Za-z0-9_\-]+)(?:\s*\.\s*(?:"[^"]*"|'[^']*'|[A-Za-z0-9_\-]+))*)\s*="""
)
_MULTILINE: Final = re.compile(r'"""|\'\'\'')


def key_lines(text: str) -> dict[str, int]:
    """The line, counted from 1, of every dotted key and every table; the first one of an array."""
    lines: dict[str, int] = {}
    table = ""
    inside = ""
    for number, line in enumerate(text.splitlines(), 1):
        if inside:
            if inside in line:
                inside = ""
            continue
        if header := _TABLE.match(line):
            table = _dotted(header[2])
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            lines.setdefault(f"{table}.{_dotted(key[1])}" if table else _dotted(key[1]), number)
        for quote in _MULTILINE.findall(line):
            inside = "" if inside == quote else inside or quote
    return lines


def _dotted(key: str) -> str:
    return ".".join(part.strip().strip("\"'") for part in key.split("."))
