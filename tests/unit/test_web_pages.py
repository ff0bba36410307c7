"""The dashboard's files as the server gives them."""

import re
from pathlib import Path

import pytest

from tests.processes import ROOT
from tests.serving import serving

STATIC = ROOT / "src" / "tarry" / "web" / "static"


async def test_the_page_and_its_files_are_served_to_everybody(tmp_path: Path) -> None:
    tokens = [{"name": "ops", "token": "admin-secret", "roles": ["admin"]}]
    async with serving(tmp_path / "data", tokens=tokens) as served:
        page = await served.client.get("/")
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        named = re.findall(r'(?:src|href)="(/ui/[^"]+)"', page.text)
        named += [f"/ui/{file.name}" for file in STATIC.iterdir() if file.name != "index.html"]
        for path in named:
            found = await served.client.get(path)
            assert found.status_code == 200, path
            assert found.headers["x-content-type-options"] == "nosniff"
            again = await served.client.get(path, headers={"if-none-match": found.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        head = await served.client.head("/")
        assert (head.status_code, head.content) == (200, b"")
        assert (await served.client.post("/")).status_code == 405
        for path in ("/ui/", "/ui/../pages.py", "/ui/nothing.js"):
            assert (await served.client.get(path)).status_code == 401, path


@pytest.mark.parametrize("path", ["/ui/app.js", "/openapi.json"])
async def test_who_takes_it_gets_them_compressed(tmp_path: Path, path: str) -> None:
    async with serving(tmp_path / "data") as served:
        plain = await served.client.get(path, headers={"accept-encoding": "identity"})
        assert "content-encoding" not in plain.headers
        for accepted in ("gzip", "br, GZIP;q=0.5", "*"):
            short = await served.client.get(path, headers={"accept-encoding": accepted})
            assert short.headers["content-encoding"] == "gzip"
            assert (short.content, short.headers["vary"]) == (plain.content, "accept-encoding")
            assert int(short.headers["content-length"]) < len(plain.content) / 2
            # What a cache has of one form is not the other.
            assert short.headers["etag"] != plain.headers["etag"]
        for refused in ("gzip;q=0", "br", ""):
            answer = await served.client.get(path, headers={"accept-encoding": refused})
            assert "content-encoding" not in answer.headers


async def test_every_module_is_asked_for_at_once(tmp_path: Path) -> None:
    page = (STATIC / "index.html").read_text("utf-8")
    named = set(re.findall(r'(?:modulepreload" href|script type="module" src)="/ui/([^"]+)"', page))
    assert named == {file.name for file in STATIC.glob("*.js")}, "a module that is found late is waited for"


async def test_the_policy_lets_nothing_else_in(tmp_path: Path) -> None:
    async with serving(tmp_path / "data") as served:
        policy = (await served.client.get("/")).headers["content-security-policy"]
    rules = dict(rule.strip().partition(" ")[::2] for rule in policy.split(";"))
    assert {name for name, allowed in rules.items() if allowed == "'self'"} == {
        "script-src", "style-src", "img-src", "connect-src",
    }  # fmt: skip
    assert {name for name, allowed in rules.items() if allowed == "'none'"} == {
        "default-src", "base-uri", "form-action", "frame-ancestors", "trusted-types",
    }  # fmt: skip
    assert rules["require-trusted-types-for"] == "'script'"


async def test_every_file_is_what_it_says_and_stays_among_its_own(tmp_path: Path) -> None:
    types = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
    async with serving(tmp_path / "data") as served:
        for file in STATIC.iterdir():
            path = "/" if file.name == "index.html" else f"/ui/{file.name}"
            headers = (await served.client.get(path)).headers
            assert headers["content-type"].partition(";")[0] == types[file.suffix[1:]], path
            assert headers["x-frame-options"] == "DENY"
            assert headers["referrer-policy"] == "no-referrer"
            assert headers["cross-origin-opener-policy"] == "same-origin"
            assert headers["cross-origin-resource-policy"] == "same-origin"
            assert headers["permissions-policy"] == "camera=(), geolocation=(), microphone=()"
            # Asked for again each time, so that a new version of the server is seen at once.
            assert headers["cache-control"] == "no-cache"


def test_no_file_names_another_place_or_holds_a_script_or_style() -> None:
    for file in STATIC.iterdir():
        text = file.read_text(encoding="utf-8").replace('"http://www.w3.org/2000/svg"', "")
        assert not re.search(r"(?:https?:)?//[a-z0-9-]+\.[a-z]", text), file.name
        assert "innerHTML" not in text, file.name
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"<style|\sstyle=|\son\w+=", page)
    assert re.findall(r"<script[^>]*>(.*?)</script>", page, re.DOTALL) == [""]
