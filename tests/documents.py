"""The documentation as tests see it: its blocks of code, who runs them, and why a few are not run.

Every block of shell or Python in the README, in `docs/` and in `examples/` is run by one of the tests in `RUN_BY`, as it stands there but for what
`Reader` swaps: ports, folders, numbers that only the reader's own machine knows. What cannot be run so is in `NOT_RUN`,
with the reason. `tests/unit/test_docs.py` fails for a block that is in neither.
"""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple

from tests.applications import Application, application
from tests.processes import ROOT, environment

SHELL: Final = ("", "sh")
"""A block without a language is one for a shell, too."""

RUN_BY: Final = {
    "README.md": ("tests/unit/test_readme.py", "tests/conformance/matrix/test_private_homeserver.py"),
    "docs/bulk.md": ("tests/unit/test_docs.py", "tests/pipeline/test_docs.py"),
    "docs/client.md": ("tests/unit/test_client_docs.py",),
    "docs/worker.md": ("tests/unit/test_client_docs.py",),
    "docs/data.md": ("tests/pipeline/test_docs.py", "tests/pipeline/test_data_docs.py"),
    "docs/doors/dapr.md": ("tests/unit/test_docs.py",),
    "docs/doors/http.md": ("tests/unit/test_docs.py",),
    "docs/doors/pulsar.md": ("tests/unit/test_docs.py",),
    "docs/operations/backup.md": ("tests/unit/test_docs.py",),
    "docs/operations/deploy.md": ("tests/system/test_container.py",),
    "docs/operations/matrix.md": ("tests/unit/test_docs.py",),
    "docs/outlets/webhook.md": ("tests/unit/test_docs.py",),
    "docs/quickstart/dapr.md": ("tests/unit/test_docs.py",),
    "docs/quickstart/http.md": ("tests/unit/test_docs.py",),
    "docs/quickstart/matrix.md": ("tests/conformance/matrix/test_private_homeserver.py",),
    "docs/quickstart/pulsar.md": ("tests/unit/test_docs.py",),
    "docs/pipeline.md": ("tests/pipeline/test_docs.py",),
    "docs/pytest.md": ("tests/unit/test_pytest_plugin.py",),
    "docs/testing.md": ("tests/unit/test_docs.py",),
    "examples/campaign/README.md": ("tests/examples/test_pages.py",),
    "examples/dapr_order_saga/README.md": ("tests/examples/test_pages.py",),
    "examples/django_reminder/README.md": ("tests/examples/test_pages.py",),
    "examples/element_call_leave/README.md": ("tests/conformance/matrix/test_private_homeserver.py",),
    "examples/fastapi_reminder/README.md": ("tests/examples/test_pages.py",),
    "examples/pulsar_retry/README.md": ("tests/examples/test_pages.py",),
    "examples/webhook_receiver/README.md": ("tests/examples/test_pages.py",),
    "examples/worker/README.md": ("tests/examples/test_pages.py",),
}
"""By page: the tests that run every block of it that is not in `NOT_RUN`."""

_MAKE: Final = "sets up or runs a whole clone; that its targets exist is tested"
_DOCKER: Final = "needs a Docker engine; tests/deploy runs the server as the file says"
_CLUSTER: Final = "needs a cluster; tests/deploy runs the server as the manifest says"
NOT_RUN: Final = {
    ("README.md", "make run     #"): _MAKE,
    ("README.md", "make run\n"): _MAKE,
    ("README.md", "TARRY_WEBHOOK__ALLOW=127.0.0.1 make run"): _MAKE,
    ("docs/operations/deploy.md", "python3 -m venv /opt/tarry"): "installs the published package, as root",
    (
        "docs/operations/cluster.md",
        "kafka-topics.sh",
    ): "a program of Kafka's; tests/cluster makes its topics with these settings",
    ("docs/operations/compose.md", "cd deploy/compose"): _DOCKER,
    ("docs/operations/compose.md", "curl -s http://127.0.0.1:8080"): _DOCKER,
    ("docs/operations/kubernetes.md", "   kubectl create secret"): _CLUSTER,
    ("docs/operations/kubernetes.md", "helm install"): _CLUSTER,
    ("docs/operations/kubernetes.md", "kubectl apply"): _CLUSTER,
    ("docs/testing.md", "make soak"): "takes hours",
    ("docs/testing.md", "make cluster"): "takes minutes, and half of this machine",
    (
        "docs/testing.md",
        "make linearizable",
    ): "takes half an hour; tests/linearizability has some seconds of it",
}
"""By page and how it begins: blocks that no test runs, and why."""

LINES_NOT_RUN: Final = {
    "pip install ": "what it installs is installed for the tests",
    "pulsar-admin ": "a program of Pulsar's, which tests/conformance/pulsar runs where it can be had",
    "make simulate SEEDS=100000": "takes hours",
    "tarry pipeline ": "as a process of its own, once and until it is stopped: tests/pipeline/test_program.py",
    "tarry audit /var/lib/tarry": "needs Spark; run for docs/data.md, and on a backup by tests/pipeline/test_backup.py",
}
"""By how they begin: single lines of blocks that are run otherwise, and why."""


class Block(NamedTuple):
    """A block of code."""

    page: str
    line: int
    language: str
    text: str


def blocks(page: str) -> list[Block]:
    """Every block of a page, in order."""
    text = (ROOT / page).read_text("utf-8")
    found = re.finditer(r"^( *)```(\S*)\n(.*?)^\1```$", text, re.DOTALL | re.MULTILINE)
    return [Block(page, text.count("\n", 0, one.start()) + 1, one[2], one[3]) for one in found]


def pages() -> list[str]:
    """The pages whose commands are to work."""
    found = [
        ROOT / "README.md",
        *(path for part in ("docs", "examples") for path in sorted((ROOT / part).rglob("*.md"))),
    ]
    return [str(path.relative_to(ROOT)) for path in found]


def excuse(block: Block) -> str | None:
    """Why a block is not run, if it is not."""
    found = (
        why for (page, begins), why in NOT_RUN.items() if page == block.page and block.text.startswith(begins)
    )
    return next(found, None)


_VARYING: Final = (
    (re.compile(r"\b[0-9a-f]{32}\b"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?Z"), "INSTANT"),
    (re.compile(r"\b\d+(\.\d+)? (ms|s|min|h|d|y)\b( \d+ (s|min|h|d)\b)?"), "SPAN"),
    (re.compile(r"\d+(\.\d+)?"), "N"),
    (re.compile(r" +"), " "),
)
"""Parts of an output that differ from run to run."""


def typed_and_shown(reader: "Reader", page: str, only: Callable[[Block], bool] = lambda _: True) -> list[str]:
    """Type the blocks of a page, and compare each output that the page shows."""
    told = []
    for block in filter(only, runnable(page)):
        told.append(reader.run(block))
        shown = output_below(block)
        assert shown is None or shows(shown, told[-1]), (
            f"{page}:{block.line} shows {shown}and a reader gets {told[-1]}"
        )
    return told


def output_below(block: Block) -> str | None:
    """The output that a page shows for a block: the block of language `text` right below it."""
    text = (ROOT / block.page).read_text("utf-8").splitlines(keepends=True)
    below = "".join(text[block.line - 1 :]).partition("```\n\n```text\n")
    if not below[1] or below[0].count("```") != 1:
        return None
    return below[2].partition("```")[0]


def shows(shown: str, told: str) -> bool:
    """Whether a command has told what a page shows of it: ids, instants, spans and numbers may differ, and `…` stands for anything."""
    pattern = ".*".join(re.escape(part) for part in _constant(shown).split("…"))
    return re.fullmatch(pattern, _constant(told), re.DOTALL) is not None


def _constant(output: str) -> str:
    for pattern, name in _VARYING:
        output = pattern.sub(name, output)
    return "\n".join(line.rstrip() for line in output.strip().splitlines())


def runnable(page: str, *languages: str) -> list[Block]:
    """The blocks of a page that are to be run, in order; without the lines that are not."""
    chosen = [one for one in blocks(page) if one.language in (languages or (*SHELL, "python"))]
    return [one._replace(text=_without(one.text)) for one in chosen if excuse(one) is None]


def _without(text: str) -> str:
    lines = text.splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith(tuple(LINES_NOT_RUN)))


class Reader:
    """Somebody who types what a page says, in a folder of their own."""

    def __init__(self, folder: Path, swaps: dict[str, str], **settings: str) -> None:
        self.folder = folder
        self.swaps = swaps
        """Values that differ on this machine from the page."""
        program = folder / ".venv" / "bin" / "tarry"
        program.parent.mkdir(parents=True)
        for name, does in (("tarry", "-m tarry"), ("python", "")):
            (program.parent / name).write_text(f'#!/bin/sh\nexec {sys.executable} {does} "$@"\n')
            (program.parent / name).chmod(0o755)
        path = f"{program.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
        # `python -m tests…` means this tree, too.
        self._settings = environment(PATH=path, **settings) | {"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}

    def typed(self, block: Block) -> str:
        """The block as typed, with its replacements for a test."""
        text = block.text
        for told, here in self.swaps.items():
            text = text.replace(told, here)
        return text

    def started(self, block: Block) -> AbstractContextManager[Application]:
        """Type what runs until it is stopped, and leave it running."""
        *before, last = self.typed(block).strip().splitlines()
        # In place of the shell, so that it is what is stopped.
        text = "\n".join([*before, f"exec env {last}"])
        return application(["bash", "-euc", text], self._settings, self.folder)

    def run(self, block: Block) -> str:
        """Type it; gives what it printed. It must succeed."""
        text = self.typed(block)
        command = ["bash", "-euo", "pipefail", "-c"] if block.language in SHELL else [sys.executable, "-c"]
        ended = subprocess.run(
            [*command, text], cwd=self.folder, env=self._settings, capture_output=True, text=True, timeout=280
        )
        assert ended.returncode == 0, (block.page, block.line, text, ended.stdout, ended.stderr)
        return ended.stdout
