"""The documentation site is built from the repository's pages, and a broken link fails the build."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tarry

ROOT = Path(__file__).parents[2]


def build(root: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "tools/docs_site.py", "--to", str(site)]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the parts of the repository that the site is made of."""
    tree = tmp_path / "tree"
    tree.mkdir()
    for page in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "mkdocs.yml"):
        shutil.copyfile(ROOT / page, tree / page)
    for folder in ("docs", "tools", "deploy", "src", "examples", "tests/system"):
        shutil.copytree(ROOT / folder, tree / folder, ignore=shutil.ignore_patterns("__pycache__"))
    (tree / "bench").mkdir()
    (tree / "clients/typescript").mkdir(parents=True)
    shutil.copyfile(ROOT / "clients/typescript/README.md", tree / "clients/typescript/README.md")
    shutil.copyfile(ROOT / "bench/RESULTS.md", tree / "bench/RESULTS.md")
    shutil.copytree(ROOT / "bench/plots", tree / "bench/plots")
    return tree


def test_the_site_has_every_page_and_both_references(tree: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    (tree / "docs/forgotten.md").write_text("# A page that no row of docs/README.md names\n", "utf-8")
    done = build(tree, site)
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(tree / "docs") for path in (tree / "docs").rglob("*.md")}
    for page in pages:
        name = page.parent / "index.html" if page.name == "README.md" else page.with_suffix(".html")
        assert (site / "docs" / name).is_file(), page
    client = (site / "reference/client.html").read_text("utf-8")
    for method in ("schedule", "cancel", "restart", "receive", "consume"):
        assert f'id="tarry.Client.{method}"' in client, method
        assert f'id="tarry.AsyncClient.{method}"' in client, method
    anchors = set(re.findall(r'id="(tarry[\w.]*)"', client))
    assert {f"tarry.{name}" for name in tarry.__all__ if name != "__version__"} - anchors == set()
    others = {"Entry.ack", "Message.due_at", "Policy.max_delay_ms", "Worker.on", "pytest.plugin.tarry_server"}
    assert {f"tarry.{name}" for name in (*others, "pytest.server.ServerClock.advance")} - anchors == set()
    assert 'id="post-v1messagesidrestart"' in (site / "reference/http.html").read_text("utf-8")
    assert (site / "search/search_index.json").is_file()
    # What stands at the side: the rows of docs/README.md, and at last what none of them names.
    side = (site / "docs/data.html").read_text("utf-8")
    told = [
        re.sub("<.*?>", "", one).strip() for one in re.findall(r'md-ellipsis">(.*?)</span>', side, re.DOTALL)
    ]
    wanted = [
        "Try it",
        "README",
        "Begin with a door, on half a page",
        "HTTP",
        "Change it",
        "Architecture",
        "Look things up",
        "The HTTP API",
    ]
    assert [one for one in told if one in wanted] == wanted
    assert told.index("More") > told.index("The HTTP API")
    assert 'href="forgotten.html"' in side


def test_broken_links_fail_the_build(tree: Path, tmp_path: Path) -> None:
    page = tree / "docs/data.md"
    links = ("nowhere.md", "bulk.md#no-such-heading", "../src/tarry/nothing.py")
    page.write_text(page.read_text("utf-8") + "".join(f"\n[a link]({link})\n" for link in links), "utf-8")
    done = build(tree, tmp_path / "site")
    assert done.returncode != 0
    assert all(link in done.stderr for link in ("nowhere.md", "no-such-heading", "nothing.py")), done.stderr
