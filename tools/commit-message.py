#!/usr/bin/env python3
"""Checks the message of a commit: commit-message.py FILE, as git's hook `commit-msg` calls it.

The subject has at most 72 characters, an empty line follows, and a body says why. Lines that begin with `#` and everything below
git's scissors are no part of the message; messages that git makes itself (a merge, a fixup) are its own. Only the standard library
is there when this runs.
"""

import sys
from pathlib import Path

SUBJECT_CHARACTERS = 72
SCISSORS = "# ------------------------ >8 ------------------------"
ITS_OWN = ("Merge ", "Revert ", "fixup! ", "squash! ", "amend! ")
"""Beginnings of messages that git writes."""
TRAILERS = ("Co-authored-by:", "Signed-off-by:")
"""Beginnings of lines that are no body by themselves."""


def faults(message: str) -> list[str]:
    """The rules that a message breaks, each with what would be right."""
    lines = [
        line.rstrip()
        for line in message.split(SCISSORS, maxsplit=1)[0].splitlines()
        if not line.startswith("#")
    ]
    while lines and not lines[0]:
        lines.pop(0)
    if not lines:
        return [
            "The message is empty: give a subject that says what is different now, and a body that says why."
        ]
    subject, rest = lines[0], lines[1:]
    if subject.startswith(ITS_OWN):
        return []
    found = []
    if len(subject) > SUBJECT_CHARACTERS:
        found.append(
            f"The subject has {len(subject)} characters; at most {SUBJECT_CHARACTERS} are shown whole."
        )
    if rest and rest[0]:
        found.append("The second line is not empty; the body begins at the third.")
    if not any(line and not line.startswith(TRAILERS) for line in rest):
        found.append("There is no body; say why, after an empty line.")
    return found


def main() -> int:
    """Say what is wrong with the message in the file that the command line names; 1 if anything is."""
    found = faults(Path(sys.argv[1]).read_text("utf-8"))
    for fault in found:
        print(fault, file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    raise SystemExit(main())
