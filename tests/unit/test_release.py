"""The version is written in `pyproject.toml` alone; the changelog and the TypeScript package follow it."""

import json
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent

VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

HEADINGS = re.compile(r"^## (.+)$", re.MULTILINE)


def sections() -> dict[str, str]:
    """Each section of the changelog by its heading, newest first."""
    parts = HEADINGS.split((ROOT / "CHANGELOG.md").read_text())[1:]
    return dict(zip(parts[::2], parts[1::2], strict=True))


def test_the_newest_release_in_the_changelog_is_this_version() -> None:
    unreleased, newest, *_ = sections()
    assert unreleased == "[Unreleased]"
    assert re.fullmatch(rf"\[{re.escape(VERSION)}\] - \d{{4}}-\d\d-\d\d", newest)


def test_a_release_says_how_to_upgrade() -> None:
    for heading, text in list(sections().items())[1:]:
        kinds = re.findall(r"^### (.+)$", text, re.MULTILINE)
        assert set(kinds) <= {
            "Upgrade notes",
            "Added",
            "Changed",
            "Deprecated",
            "Removed",
            "Fixed",
            "Security",
        }, heading
        assert kinds[0] == "Upgrade notes", heading


def test_the_typescript_client_has_the_same_version() -> None:
    package = json.loads((ROOT / "clients/typescript/package.json").read_text())
    lock = json.loads((ROOT / "clients/typescript/package-lock.json").read_text())
    assert {package["version"], lock["version"], lock["packages"][""]["version"]} == {VERSION}


def test_no_source_states_the_version() -> None:
    stating = [path for path in (ROOT / "src").rglob("*.py") if f'"{VERSION}"' in path.read_text()]
    assert not stating
