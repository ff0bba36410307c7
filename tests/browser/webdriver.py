"""A real Chromium, driven over WebDriver: no more of it than the tests need.

`tools/browser.sh` installs it on Debian. Elements are found as people find them: by their role and their name.
"""

import base64
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.processes import free_port

ELEMENT = "element-6066-11e4-a52e-4f735466cecf"
"""The key by which WebDriver tells an element from an object."""

FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
    "--force-color-profile=srgb", "--no-proxy-server", "--disable-extensions",
)  # fmt: skip

WITHIN_S = 30.0
"""How long something may take to show on a busy machine."""


def missing() -> str | None:
    """Why there is no browser here, if there is none."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"{program} is not installed: tools/browser.sh installs it on Debian, as root"
    return None


class Stale(AssertionError):
    """The page was drawn anew, and an element that was found is no longer part of it."""


class Element:
    """An element of the page."""

    def __init__(self, browser: "Browser", id_: str) -> None:
        self._browser = browser
        self._path = f"/element/{id_}"
        self.id = id_

    @property
    def text(self) -> str:
        """The element's visible text."""
        return str(self._browser.get(self._path + "/text"))


class Browser:
    """One tab."""

    def __init__(self, url: str, session: str) -> None:
        self._client = httpx.Client(base_url=f"{url}/session/{session}", timeout=60, trust_env=False)

    def get(self, path: str) -> Any:
        return self._value(self._client.get(path))

    def post(self, path: str, **body: Any) -> Any:
        return self._value(self._client.post(path, json=body))

    def _value(self, answer: httpx.Response) -> Any:
        value = answer.json()["value"]
        if answer.is_error:
            kind = Stale if value["error"] == "stale element reference" else AssertionError
            raise kind(f"{value['error']}: {value['message']}")
        return value

    def go(self, url: str) -> None:
        """Open a page, and wait until it is loaded."""
        self.post("/url", url=url)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a script in the page; what it returns."""
        return self.post("/execute/sync", script=script, args=list(arguments))

    def devtools(self, command: str, **parameters: Any) -> Any:
        """A command of Chromium's own."""
        return self.post("/goog/cdp/execute", cmd=command, params=parameters)

    def find(self, css: str, text: str | None = None) -> Element:
        """The element that a selector names, which has this text if one is given; it is waited for."""
        found: list[Element] = []

        def look() -> bool:
            found[:] = self.all(css, text)
            return bool(found)

        self.until(look, f"there is no {css}" + (f" with {text!r}" if text else ""))
        return found[0]

    def all(self, css: str, text: str | None = None) -> list[Element]:
        """All elements that a selector names and that can be seen."""
        script = """
            const [css, text] = arguments;
            return [...document.querySelectorAll(css)].filter((one) => one.checkVisibility() &&
                (text === null || one.textContent.includes(text) || one.getAttribute("aria-label") === text));
        """
        return [Element(self, one[ELEMENT]) for one in self.run(script, css, text)]

    def click(self, css: str, text: str | None = None) -> None:
        """Click on what a selector names."""
        self._do(css, text, "click")

    def fill(self, css: str, text: str) -> None:
        """Type into a field, in the place of what is there."""
        self._do(css, None, "clear")
        self._do(css, None, "value", text=text)

    def _do(self, css: str, named: str | None, what: str, **body: Any) -> None:
        """Do something to an element; what was drawn again meanwhile is looked for again."""

        def done() -> bool:
            self.post(f"/element/{self.find(css, named).id}/{what}", **body)
            return True

        self.until(done, f"{css} is drawn again all the time")

    def choose(self, css: str, value: str) -> None:
        """Choose an option of the select that a selector names."""
        self.find(css)
        self.run(
            "const one = document.querySelector(arguments[0]); one.value = arguments[1];"
            "one.dispatchEvent(new Event('change'))", css, value,
        )  # fmt: skip

    def press(self, *keys: str) -> None:
        """Press keys one after another, wherever the focus is."""
        actions = [{"type": kind, "value": key} for key in keys for kind in ("keyDown", "keyUp")]
        self.post("/actions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    def drag(self, element: Element, from_x: int, to_x: int) -> None:
        """Drag across an element, from one place to another, counted from its middle."""
        origin = {ELEMENT: element.id}
        moves = [{"type": "pointerMove", "origin": origin, "x": x, "y": 0} for x in (from_x, to_x)]
        actions = [
            moves[0],
            {"type": "pointerDown", "button": 0},
            moves[1],
            {"type": "pointerUp", "button": 0},
        ]
        self.post("/actions", actions=[{"type": "pointer", "id": "mouse", "actions": actions}])

    def until(self, condition: Callable[[], object], why: str) -> None:
        """Ask again and again until it is so; the test fails if it never is.

        A condition that met an element of a page that was drawn anew meanwhile is asked again.
        """
        deadline = time.monotonic() + WITHIN_S
        while True:
            with contextlib.suppress(Stale):
                if condition():
                    return
            if time.monotonic() > deadline:
                shown = self.run("return document.body.innerText")
                raise AssertionError(f"{why}; the page shows:\n{shown}")
            time.sleep(0.05)

    def sees(self, text: str) -> None:
        """Wait until the page shows a text."""
        self.until(lambda: text in self.run("return document.body.innerText"), f"{text!r} does not show")

    def look(self, width: int, height: int, *, dark: bool = False, phone: bool = False) -> None:
        """Be a screen of this size, with a light or a dark system."""
        self.devtools(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=phone,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.devtools("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path, *, whole: bool = True) -> None:
        """A picture of the page, or of the part that shows."""
        shot = self.devtools(
            "Page.captureScreenshot",
            format="png",
            captureBeyondViewport=whole,
            **(self._whole() if whole else {}),
        )
        path.write_bytes(base64.b64decode(shot["data"]))

    def _whole(self) -> dict[str, Any]:
        width, height = self.run("return [innerWidth, document.documentElement.scrollHeight]")
        return {"clip": {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}}

    def log(self) -> list[str]:
        """The lines of the page's console since the last call."""
        return [entry["message"] for entry in self.post("/se/log", type="browser")]

    def close(self) -> None:
        self._client.delete("")
        self._client.close()


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """A Chromium of its own, with a folder of its own, that ends with the test."""
    port = free_port()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        driver = subprocess.Popen(
            ["chromedriver", f"--port={port}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
            env={**os.environ, "HOME": folder, "TMPDIR": folder},
        )  # fmt: skip
        try:
            url = f"http://127.0.0.1:{port}"
            _wait_for(url)
            options = {
                "args": [*FLAGS, f"--user-data-dir={folder}/profile"],
                "binary": shutil.which("chromium"),
            }
            wanted = {
                "browserName": "chrome",
                "goog:chromeOptions": options,
                "goog:loggingPrefs": {"browser": "ALL"},
            }
            made = httpx.post(
                f"{url}/session", json={"capabilities": {"alwaysMatch": wanted}}, timeout=60, trust_env=False
            )
            assert not made.is_error, made.text
            tab = Browser(url, made.json()["value"]["sessionId"])
            try:
                yield tab
            finally:
                tab.close()
        finally:
            driver.terminate()
            driver.wait(30)
            # A browser that did not hear of its end is in the driver's group.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(driver.pid, signal.SIGKILL)


def _wait_for(url: str) -> None:
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            if httpx.get(f"{url}/status", timeout=5, trust_env=False).json()["value"]["ready"]:
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline, "chromedriver does not answer"
        time.sleep(0.05)
