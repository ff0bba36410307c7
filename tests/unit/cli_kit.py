"""The command line in this process: arguments in; exit code, output and errors out."""

import io
import json
import os
import sys
from typing import Any, NamedTuple

import pytest

from tarry.cli import main


class Ended(NamedTuple):
    """The end of a command: its exit code and output."""

    code: int
    out: str
    err: str

    def json(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


class Shell:
    """Runs commands as a shell would, in a folder and an environment without anything of Tarry's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self._monkeypatch = monkeypatch
        self._capsys = capsys
        for name in list(os.environ):
            if name.startswith("TARRY_"):
                monkeypatch.delenv(name)

    def set(self, name: str, value: str) -> None:
        self._monkeypatch.setenv(name, value)

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Ended:
        self._monkeypatch.setattr(sys, "argv", ["tarry", *arguments])
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        self._capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = self._capsys.readouterr()
        code = ended.value.code
        return Ended(code if isinstance(code, int) else 0 if code is None else 1, out, err)
