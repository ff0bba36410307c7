"""The documentation site: gather the pages of the repository, add the references, and let MkDocs build them.

    python tools/docs_site.py [--to FOLDER | --serve]

MkDocs wants its sources in one folder of their own; ours are the README beside the code, `docs/` and a few pages more, and they
link to each other as they stand in the repository. So they are copied as they stand. Two references are made: the Python client's from its
docstrings, the HTTP API's from the OpenAPI document that a server answers with. Any broken link fails the build. MkDocs calls this
file too, as a hook (`mkdocs.yml`): the sections at the side are the rows of `docs/README.md`.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from tarry import __version__
from tarry.doors.http.openapi import build_document

ROOT: Final = Path(__file__).parent.parent
SOURCE: Final = ROOT / "build" / "docs-source"

PAGES: Final = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "bench/RESULTS.md",
    "clients/typescript/README.md",
)
"""Pages that stand outside `docs/`."""

BY_TASK: Final = "docs/README.md"
"""The page that lists the others by task: a row of its table is a section of the site."""

ROW: Final = re.compile(r"^\| (\S.*?) \| (.+) \|$", re.MULTILINE)
NAMED: Final = re.compile(r"\[([^\]]+)\]\(([^):#]+\.md)\)")
"""A link to a page, with its name."""

LEFT_OUT: Final = re.compile(r"docs/README\.md|docs/adr/\d.*|examples/.+/README\.md")
"""Pages that another page lists one by one."""

LINK: Final = re.compile(r"\]\(([^)#:\s]+)[)#]")
"""A link to a file of the repository."""

HTTP_REFERENCE: Final = """# The HTTP API, operation by operation

Made from the document that every server answers with at `/openapi.json`. The rules behind it are on the page of the
[native door](../docs/doors/http.md). [The document itself](openapi.json).

[OAD(./openapi.json)]
"""

CLIENT_HEAD: Final = """# The Python client, name by name

Made from the docstrings; the pages about the [client](../docs/client.md), the [worker](../docs/worker.md) and the
[pytest plugin](../docs/pytest.md) have examples. All names but those of the last section are imported from `tarry`.
"""
CLIENT_OPTIONS: Final = """    options:
      inherited_members: true
      heading_level: 3
      show_if_no_docstring: true
"""
BY_INSPECTION: Final = ("tarry.Client", "tarry.AsyncClient")
"""Classes whose methods are made when they are loaded; of all others the source is read, which has their fields."""
CLIENT_REFERENCE: Final = {
    "Clients": ("tarry.Client", "tarry.AsyncClient", "tarry.ClientCall"),
    "The worker": ("tarry.Worker", "tarry.Backoff", "tarry.Delivery"),
    "Messages and entries": (
        "tarry.Scheduled", "tarry.Message", "tarry.MessageView", "tarry.MessagePage", "tarry.Entry", "tarry.Received",
        "tarry.Published", "tarry.Delayed", "tarry.DelayedPage",
    ),
    "Repeats, commands, pauses, policies and batches": (
        "tarry.Repeat", "tarry.RepeatPage", "tarry.BulkCommand", "tarry.Pause", "tarry.Policy", "tarry.Batch",
        "tarry.BatchPage",
    ),
    "Errors": (
        "tarry.TarryError", "tarry.Rejected", "tarry.Invalid", "tarry.TooLarge", "tarry.DelayTooLong", "tarry.Forbidden",
        "tarry.Unauthorized", "tarry.NotFound", "tarry.Conflict", "tarry.TooManyPending", "tarry.QuotaExceeded",
        "tarry.RateLimited", "tarry.Unavailable", "tarry.Unreachable",
    ),
    "Fixtures of pytest, and the clock": (
        "tarry.pytest.plugin.tarry_server", "tarry.pytest.plugin.tarry_settings", "tarry.pytest.server.TarryServer",
        "tarry.pytest.server.ServerClock",
    ),
}  # fmt: skip
"""Objects of the Python reference, by section. A test sees that every exported name is among them."""


def client_reference() -> str:
    """The page of the Python reference, for mkdocstrings."""
    parts = [CLIENT_HEAD]
    for section, names in CLIENT_REFERENCE.items():
        parts.append(f"## {section}\n")
        for name in names:
            inspected = "      force_inspection: true\n" if name in BY_INSPECTION else ""
            parts.append(f"::: {name}\n{CLIENT_OPTIONS}{inspected}")
    return "\n".join(parts)


def gather(to: Path = SOURCE) -> None:
    """Copy the pages, and make the references, into an empty folder."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(ROOT / "docs", to / "docs")
    for page in (*PAGES, *(str(path.relative_to(ROOT)) for path in ROOT.glob("examples/**/README.md"))):
        target = to / page
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / page, target)
    _add_linked_files(to)
    reference = to / "reference"
    reference.mkdir()
    (reference / "openapi.json").write_text(json.dumps(_openapi(), indent=1), "utf-8")
    (reference / "http.md").write_text(HTTP_REFERENCE, "utf-8")
    (reference / "client.md").write_text(client_reference(), "utf-8")


def _add_linked_files(to: Path) -> None:
    """Copy what pages link to and is no page: units, charts, pictures. Links to anything else are broken."""
    for page in list(to.rglob("*.md")):
        for link in LINK.findall(page.read_text("utf-8")):
            target = (page.parent / link).resolve()
            if not target.is_relative_to(to) or target.exists():
                continue
            file = ROOT / target.relative_to(to)
            if file.is_file() and file.suffix != ".md":
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, target)


def on_config(config: Any) -> Any:
    """MkDocs' hook: what stands where at the side of the site."""
    config.nav = navigation(SOURCE)
    return config


def navigation(source: Path) -> list[dict[str, Any]]:
    """The sections of the site, by task, each page in the first that names it; pages that no row names come last."""
    left = {
        path.relative_to(source).as_posix()
        for path in source.rglob("*.md")
        if not LEFT_OUT.fullmatch(path.relative_to(source).as_posix())
    }
    sections: list[dict[str, Any]] = []
    for task, links in ROW.findall((source / BY_TASK).read_text("utf-8"))[1:]:
        found = {os.path.normpath(f"docs/{link}"): name for name, link in NAMED.findall(links)}
        pages = [{_title(name): page} for page, name in found.items() if page in left]
        left -= found.keys()
        sections.append({_title(task): pages})
    references = {"The Python client": "reference/client.md", "The HTTP API": "reference/http.md"}
    left -= set(references.values())
    sections.append({"Look things up": [{name: page} for name, page in references.items()]})
    if left:
        sections.append({"More": sorted(left)})
    return [section for section in sections if all(section.values())]


def _title(words: str) -> str:
    return words[0].upper() + words[1:]


def _openapi() -> object:
    return json.loads(build_document(__version__, is_open=False))


def build(site: Path | None = None) -> int:
    """Build the site; gives MkDocs' exit code."""
    gather()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]
    if site is not None:
        command += ["--site-dir", str(site)]
    # Material speaks of its successor at every build. (With --quiet no warning would count, so --strict could not fail.)
    said = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=said, capture_output=True, text=True, check=False)
    for line in done.stderr.splitlines() if done.returncode else ():
        if not line.startswith("INFO"):
            print(line, file=sys.stderr)
    return done.returncode


def serve() -> int:
    """Show the site at http://127.0.0.1:8000, and build it again when its sources change."""
    gather()
    return subprocess.run([sys.executable, "-m", "mkdocs", "serve"], cwd=ROOT, check=False).returncode


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--serve", action="store_true", help="show the site on this machine")
    parser.add_argument(
        "--to", type=Path, metavar="FOLDER", help="where the site is written (default: build/site)"
    )
    args = parser.parse_args()
    return serve() if args.serve else build(args.to)


if __name__ == "__main__":
    sys.exit(main())
