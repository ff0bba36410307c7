"""One Chromium for all tests of the dashboard, and a server with a token for each sort of reader."""

from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.browser.webdriver import Browser, browser, missing
from tests.processes import ServerProcess, running

TOKENS = {"admin": ["admin"], "produce": ["produce"], "screen": ["consume"]}


PAGES = {
    "/#/": "due in the next", "/#/messages": "Find by id", "/#/messages?state=failed": "Find by id", "/#/messages/ID": "Accepted",
    "/#/topics": "Backlog", "/#/topics/public/default/seen": "Entry 0", "/#/repeats": "every 1 d", "/#/repeats/public/default/seen": "Next occurrences",
    "/#/repeat": "How often", "/#/pauses": "Pause a place", "/#/commands": "1 counted", "/#/commands/COMMAND": "Nothing is done yet",
    "/#/command": "Count the messages", "/#/policies": "in force", "/#/schedule": "Destination",
}  # fmt: skip
"""Every page, with words that it shows when it is complete. ID is that of a message, COMMAND that of a command by filter."""

READ_ONLY = {
    "/#/": "due in the next", "/#/messages": "Find by id", "/#/messages/ID": "Accepted", "/#/topics": "Backlog",
    "/#/topics/public/default/seen": "Entry 0", "/#/policies": "There is no such page",
}  # fmt: skip
"""Pages as a token sees them that may only consume."""

PRODUCING = {
    "/#/": "due in the next", "/#/messages": "Find by id", "/#/messages/ID": "Send now", "/#/topics/public/default/seen": "Entries are shown",
    "/#/repeats": "every 1 d", "/#/repeats/public/default/seen": "Next occurrences", "/#/repeat": "How often", "/#/schedule": "Destination",
}  # fmt: skip
"""Pages as a token sees them that may only produce."""

VIEWS: list[tuple[str | None, str, str]] = [
    *(("admin", page, words) for page, words in PAGES.items()),
    *(("screen", page, words) for page, words in READ_ONLY.items()),
    *(("produce", page, words) for page, words in PRODUCING.items()),
    ("admin", "/#/messages/" + "0" * 32, "There is no such message"),
    (None, "/", "Sign in"),
]
"""Visitors of each page, with the words of a complete one; nobody is signed out."""

VIEW_IDS = [f"{role or 'signed out'} {page}" for role, page, _ in VIEWS]


SEEN = {"action": "cancel", "filter": {"key": "seen", "destination": "seen"}}
"""A command by filter for the message that every page has."""

AXE = Path(__file__).parent / "npm" / "node_modules" / "axe-core" / "axe.min.js"
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
Audit = Callable[[Browser], list[str]]


class Busy(BaseHTTPRequestHandler):
    """A receiver that asks everybody to come again in an hour."""

    def do_POST(self) -> None:
        self.send_response(503)
        self.send_header("retry-after", "3600")
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Dashboard:
    """A server, a client that may do everything, and the page."""

    def __init__(self, server: ServerProcess, tab: Browser) -> None:
        self.url = server.url
        self.tab = tab
        self.seen = ""
        """The id of a message that waits."""
        self.counted = ""
        """The id of a command by filter that waits to be confirmed."""
        self.client = httpx.Client(
            base_url=server.url, headers={"authorization": "Bearer admin-secret"}, timeout=30, trust_env=False
        )

    def schedule(self, **fields: Any) -> str:
        """Schedule a message; gives its id."""
        body = {"destination": "orders", "payload": "hello", "delay": "2h", **fields}
        answer = self.client.post("/v1/messages", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def message(self, id_: str) -> dict[str, Any]:
        """A message as the server has it."""
        found: dict[str, Any] = self.client.get(f"/v1/messages/{id_}").json()
        return found

    def open(self, role: str | None = "admin", page: str = "") -> None:
        """The page, signed in with a token, in a tab that knows nothing of earlier ones."""
        # A picture of the same server: its storage is the page's, and no script runs.
        self.tab.go(f"{self.url}/ui/icon.svg")
        self.tab.run("sessionStorage.clear()")
        if role is not None:
            self.tab.run("sessionStorage.setItem('tarry.token', arguments[0])", f"{role}-secret")
        self.tab.go(self.url + page.replace("ID", self.seen).replace("COMMAND", self.counted))
        # Whoever is not let in is asked for a token.
        self.tab.find("nav a" if role else "#token")

    def text(self) -> str:
        """The text of the page without its bar."""
        return str(self.tab.run("return document.querySelector('main').innerText"))

    def browse(self, **said: str) -> None:
        """Search with the form of the messages page."""
        for name, value in said.items():
            if name in ("state", "door"):
                self.tab.choose(f"#{name}", value)
            else:
                self.tab.fill(f"#{name}", value)
        self.tab.click("form.filters button", "Search")

    def look_up(self, id_: str) -> None:
        """Open a message by its id."""
        self.tab.click("nav a", "Messages")
        self.tab.fill("#id", id_)
        self.tab.click("form.search button", "Open")
        self.tab.find("ol.life")


@pytest.fixture(scope="session")
def tab() -> Iterator[Browser]:
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    with browser() as made:
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder: Path = tmp_path_factory.mktemp("dashboard") / "data"
    tokens = "".join(
        f'[[tokens]]\nname = "{name}"\ntoken = "{name}-secret"\nroles = {roles}\n'
        for name, roles in TOKENS.items()
    )
    # A message for a port that nobody listens on fails at its first attempt.
    engine = '[engine]\nattempts = 2\nbackoff_min_ms = 100\n[webhook]\nallow = ["127.0.0.1/32"]\n'
    with running(folder, engine + tokens) as process:
        yield process


@pytest.fixture
def dashboard(tab: Browser, server: ServerProcess) -> Iterator[Dashboard]:
    tab.look(1280, 900)
    shown = Dashboard(server, tab)
    # What a page shows is there.
    if shown.client.get("/v1/topics/public/default/seen").status_code == 404:
        shown.client.post("/v1/topics/public/default/seen/messages", json={"payload": "seen"})
    shown.client.put(
        "/v1/repeats/public/default/seen", json={"destination": "seen", "every": "1d", "payload": "seen"}
    )
    shown.seen = shown.schedule(
        destination="seen", delay="300d", key="seen", payload_json={"seen": True}, payload=None
    )
    shown.client.post("/v1/pauses", json={"owner": "seen"})
    shown.counted = shown.client.post("/v1/commands", json=SEEN).json()["id"]
    tab.log()
    yield shown
    shown.client.post(f"/v1/commands/{shown.counted}/stop")
    shown.client.post("/v1/pauses/resume", json={"owner": "seen"})
    shown.client.delete(f"/v1/messages/{shown.seen}")
    shown.client.close()


@pytest.fixture(scope="session")
def audit() -> Audit:
    """Faults that axe finds in a page, by its rules for everybody's access."""
    if not AXE.exists():
        pytest.skip("axe is not installed: tools/browser.sh installs it with npm")
    script = AXE.read_text("utf-8")

    def look(tab: Browser) -> list[str]:
        tab.devtools("Runtime.evaluate", expression=script)
        found: list[str] = tab.run(
            """
            return axe.run({ runOnly: arguments[0], resultTypes: ["violations"] }).then(({ violations }) => violations.flatMap((one) =>
                one.nodes.map((node) => `${one.id}: ${node.failureSummary.split("\\n").slice(1).join(" ").trim()} ${node.html.slice(0, 120)}`)));
            """,
            RULES,
        )
        return found

    return look
