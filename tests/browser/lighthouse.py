"""Lighthouse's scores of every page of the dashboard: `make lighthouse`. Fails if one of them is below 0.95.

The server is a real one with the made-up messages of the pictures. Lighthouse is what `tests/browser/npm` locks; it looks at each page
as a phone on a slow network does. On a busy machine a page seems slower than it is, so one that fails is looked at again.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.browser.conftest import PAGES
from tests.browser.screenshots import fill, show_everything
from tests.browser.webdriver import FLAGS
from tests.serving import serving

NPM = Path(__file__).parent / "npm"
LEAST = 0.95
TRIES = 3
TIMEOUT_S = 240

ONE = {"name": "admin", "token": "admin-secret", "roles": ["admin"]}
"""A token, so that who has none is asked for it."""


def look(url: str, *, desk: bool) -> dict[str, Any] | None:
    """Lighthouse's report of one page; none if Chromium or Lighthouse itself fell over, as they sometimes do."""
    command = [
        str(NPM / "node_modules" / ".bin" / "lighthouse"), url, "--quiet", "--output=json",
        f"--chrome-flags={' '.join(FLAGS)}", *(["--preset=desktop"] if desk else []),
    ]  # fmt: skip
    environment = {**os.environ, "CHROME_PATH": "/usr/bin/chromium"}
    done = subprocess.run(command, env=environment, timeout=TIMEOUT_S, capture_output=True, check=False)
    if done.returncode:
        print(f"     lighthouse failed: {' '.join(done.stderr.decode().split())[-300:]}", flush=True)
        return None
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def scores_of(report: dict[str, Any]) -> dict[str, float]:
    """The scores by category."""
    return {name: float(of["score"] or 0) for name, of in report["categories"].items()}


def wrong_with(report: dict[str, Any]) -> list[str]:
    """Findings that lower a score."""
    audits = report["audits"]
    return [
        f"    {category}: {audits[ref['id']]['title']} {audits[ref['id']].get('displayValue', '')}"
        for category, of in report["categories"].items()
        for ref in of["auditRefs"]
        if ref["weight"] and audits[ref["id"]]["score"] not in (None, 1)
    ]


def judge(url: str, name: str, *, desk: bool) -> bool:
    """Whether a page reaches the mark in one of the tries."""
    for attempt in range(1, TRIES + 1):
        report = look(url, desk=desk)
        if report is None:
            continue
        scores = scores_of(report)
        good = min(scores.values()) >= LEAST
        told = "  ".join(f"{category} {score:.2f}" for category, score in scores.items())
        print(f"{'ok ' if good else 'bad'}  {name:45} {told}", flush=True)
        if good:
            return True
        if attempt == TRIES:
            print("\n".join(wrong_with(report)))
    return False


async def main() -> int:
    parser = argparse.ArgumentParser(prog="make lighthouse", description=__doc__)
    parser.add_argument("--only", default="", help="only pages whose name has this in it")
    parser.add_argument("--desk", action="store_true", help="as a desk with a good network, not as a phone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        locked = Path(folder) / "locked"
        async with serving(data) as served, serving(locked, tokens=[ONE]) as closed:
            id_ = await fill(served, data)
            command = await show_everything(served)
            pages = {
                page: served.url + page.replace("ID", id_).replace("COMMAND", command) for page in PAGES
            } | {"signed out": closed.url}
            judged = [
                await asyncio.to_thread(judge, url, name, desk=options.desk)
                for name, url in pages.items()
                if options.only in name
            ]
    print(f"{sum(judged)} passed, {len(judged) - sum(judged)} failed")
    return 0 if all(judged) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
