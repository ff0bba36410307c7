"""The dashboard in a real Chromium: what people do with it, by pointer and by keyboard."""

import re
import threading
from http.server import HTTPServer
from typing import Any
from urllib.parse import quote

import pytest

from tests.browser.conftest import PAGES, VIEW_IDS, VIEWS, Audit, Busy, Dashboard

TAB, ENTER, ESCAPE, RIGHT = "\ue004", "\ue007", "\ue00c", "\ue014"


def readout(dashboard: Dashboard) -> str:
    return dashboard.tab.find(".readout").text


# Signing in


def test_one_signs_in_with_a_token_and_out_again(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    dashboard.open(role=None)
    tab.fill("#token", "not-a-token")
    tab.click("button", "Sign in")
    tab.sees("This token is not known.")
    tab.fill("#token", "admin-secret")
    tab.press(ENTER)
    tab.find("nav a", "Overview")
    tab.sees("Ready")
    assert tab.run("return sessionStorage.getItem('tarry.token')") == "admin-secret"
    assert tab.run("return [localStorage.length, document.cookie, location.href.includes('secret')]") == [
        0,
        "",
        False,
    ]
    tab.click("button", "Sign out")
    tab.find("#token")
    assert tab.run("return sessionStorage.length") == 0


def test_who_may_only_read_sees_no_buttons_for_more(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    id_ = dashboard.schedule(key="looked-at")
    dashboard.open("screen")
    tab.sees("read only")
    assert not tab.all("nav a", "Policies")
    assert not tab.all("nav a", "Schedule")
    tab.click("nav a", "Messages")
    tab.find("#id")
    assert not tab.all("form.filters"), "lists are for admins"
    dashboard.look_up(id_)
    assert "looked-at" in dashboard.text()
    assert not tab.all(".commands")
    # And who may do more, has them.
    dashboard.open("produce", f"/#/messages/{id_}")
    tab.find(".commands")
    assert len(tab.all(".commands button")) == 4
    # A page that is not for a token says so, and shows nothing of it.
    dashboard.open("screen", "/#/policies")
    tab.sees("There is no such page")


# What is coming


def test_the_chart_shows_what_is_coming_and_can_be_zoomed(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    for minutes in (5, 20, 21, 22, 50):
        dashboard.schedule(delay=f"{minutes}m", owner="chart")
    dashboard.open()
    tab.until(lambda: "5 due in the next 1 h" in readout(dashboard), "the next hour does not show")
    assert len(tab.all(".chart .door-http")) == 5
    # By buttons: the next ten minutes, and then the next twenty.
    tab.click("button", "10 min")
    tab.until(lambda: readout(dashboard).startswith("1 due in the next 10 min"), "it does not zoom")
    tab.click("button", "Zoom out")
    tab.until(lambda: "due in the next 20 min" in readout(dashboard), "it does not zoom out")
    # What is looked at has an address, by which somebody else sees it too.
    assert tab.run("return location.hash") == "#/?span=20m"
    dashboard.open("screen", "/#/?span=20m")
    tab.until(lambda: "due in the next 20 min" in readout(dashboard), "the address shows something else")
    dashboard.open()
    # By pointer: the second quarter of the next hour, about.
    tab.click("button", "1 h")
    tab.until(lambda: "next 1 h" in readout(dashboard), "it does not go back")
    tab.drag(tab.find(".chart"), -280, 0)
    tab.until(
        lambda: re.match(r"3 due in \d+ min( \d+ s)? from", readout(dashboard)),
        "it does not take what was dragged",
    )
    dragged, asked = readout(dashboard), tab.run("return location.hash")
    dashboard.open(page=f"/{asked}")
    tab.until(lambda: readout(dashboard) == dragged, "the address shows something else")
    # By keyboard: Escape goes back, the arrows read the bars, Enter zooms into one.
    tab.run("document.querySelector('.chart').focus()")
    tab.press(ESCAPE)
    tab.until(lambda: "next 1 h" in readout(dashboard), "Escape does not go back")
    for _ in range(200):
        tab.press(RIGHT)
        if "1 due (http 1)" in readout(dashboard):
            break
    tab.press(ENTER)
    tab.until(lambda: re.match(r"1 due in .* from", readout(dashboard)), "Enter does not zoom")
    # As numbers, for those who do not see bars.
    tab.press(ESCAPE)
    tab.until(lambda: "next 1 h" in readout(dashboard), "Escape does not go back")
    tab.click("summary", "As a table")
    tab.until(lambda: tab.all(".as-table tbody tr"), "there is no table")


def test_what_was_sent_and_who_lags_behind_shows_by_itself(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    dashboard.client.put("/v1/topics/public/default/live/subscriptions/slow", json={"start": "earliest"})
    dashboard.open()
    tab.sees("slow")
    for _ in range(3):
        dashboard.schedule(destination="live", delay="1ms")
    tab.find("td", "≤ ")
    row = "return [...document.querySelectorAll('tr')].find((one) => one.textContent.includes('slow'))?.innerText"
    tab.until(lambda: "3" in str(tab.run(row)).split(), "the backlog does not show")
    # What fails, and why.
    dashboard.schedule(destination="http://127.0.0.1:1/nobody", delay="1ms")
    tab.sees("http://127.0.0.1:1/nobody")
    # The state of the ledger, the index and the pipeline.
    for text in ("Durable up to seq", "No pipeline has run here", "No slot holds anything"):
        tab.sees(text)


# Messages


def test_a_message_is_found_looked_at_moved_sent_and_cancelled(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    first, second = (
        dashboard.schedule(key="order-1", owner="ann"),
        dashboard.schedule(key="order-2", owner="ann"),
    )
    dashboard.open(page="/#/messages")
    dashboard.browse(owner="ann")
    tab.sees("2 found.")
    dashboard.browse(destination="orders", key="order-1")
    tab.sees("1 found.")
    tab.click("section[aria-label=Found] a")
    tab.find("ol.life")
    shown = dashboard.text()
    assert first in shown
    assert "hello" in shown
    assert tab.run("return location.hash") == f"#/messages/{first}"
    due_ms = dashboard.message(first)["due_at_ms"]
    tab.click("button", "Reschedule")
    tab.click("main form button", "Reschedule")
    tab.sees("The message is rescheduled.")
    assert dashboard.message(first)["due_at_ms"] < due_ms
    tab.click("button", "Send now")
    tab.click(".asks button", "Send now")
    tab.sees("The message is due now.")
    tab.until(lambda: dashboard.message(first)["state"] == "sent", "it is not sent")
    tab.until(lambda: "sent" in tab.find("h1").text, "the page does not say that it is sent")
    assert not tab.all(".commands"), "what was sent can be sent again"
    dashboard.look_up(second)
    tab.click("button", "Cancel")
    assert dashboard.message(second)["state"] == "scheduled", "it asks first"
    tab.click(".asks button", "Cancel the message")
    tab.until(lambda: dashboard.message(second)["state"] == "cancelled", "it is not cancelled")
    tab.until(lambda: not tab.all(".commands"), "what has ended can still be ended")


def test_all_of_it_by_keyboard(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    id_ = dashboard.schedule(key="by-keyboard")
    dashboard.open()
    tab.press(TAB)
    assert tab.run("return document.activeElement.textContent") == "Skip to the content"
    go_to(dashboard, "Messages")
    tab.press(ENTER)
    tab.until(lambda: tab.run("return document.activeElement.id") == "main", "the page has no focus")
    go_to(dashboard, "id")
    tab.press(*id_, ENTER)
    tab.find("ol.life")
    tab.until(lambda: tab.run("return document.activeElement.id") == "main", "the message has no focus")
    go_to(dashboard, "Send now")
    tab.press(ENTER, TAB, ENTER)
    tab.until(lambda: dashboard.message(id_)["state"] == "sent", "it is not sent")


def go_to(dashboard: Dashboard, wanted: str) -> None:
    """Press Tab until something with this text or id has the focus."""
    met = []
    for _ in range(30):
        met.append(
            dashboard.tab.run("return document.activeElement.id || document.activeElement.textContent")
        )
        if met[-1] == wanted:
            return
        dashboard.tab.press(TAB)
    raise AssertionError(f"{wanted} cannot be reached by Tab; met {met}")


def test_policies_are_shown_set_and_removed(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    dashboard.open(page="/#/policies")
    tab.choose("#level", "namespace")
    tab.sees("Set for public/default")
    assert not [line for line in tab.log() if "/policies" in line], "a level without a policy is no error"
    tab.fill("#set-tick_ms", "2000")
    tab.click("button", "Save")
    tab.sees("in force 2.0 s")
    path = "/v1/policies/namespaces/public/default"
    assert dashboard.client.get(path).json() == {"tick_ms": 2000}
    tab.click("button", "Remove")
    tab.until(lambda: dashboard.client.get(path).status_code == 404, "it is not removed")
    tab.sees("The policy is removed.")


def test_the_policy_that_was_asked_for_last_is_shown(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    path = "/v1/policies/namespaces/public/default"
    assert dashboard.client.put(path, json={"tick_ms": 3_000}).status_code == 200
    dashboard.open(page="/#/policies")
    tab.sees("Set for the broker")
    tab.run(
        """
        const ask = window.fetch;
        window.fetch = async (...how) => {
            const answer = await ask(...how);
            if (String(how[0]).includes("/topics/")) await window.held;
            window.asked = (window.asked ?? 0) + 1;
            return answer;
        };
        window.held = new Promise((letGo) => { window.letGo = letGo; });
        """
    )
    tab.choose("#level", "topic")
    tab.until(lambda: "level=topic" in tab.run("return location.hash"), "the topic is not asked for")
    tab.choose("#level", "namespace")
    tab.sees("Set for public/default")
    before = tab.run("window.letGo(); return window.asked")
    tab.until(lambda: tab.run("return window.asked") >= before + 2, "the first answers do not come")
    # They are drawn, if they are, once they have been read.
    tick = "return new Promise((done) => setTimeout(() => done(document.querySelector('#set-tick_ms').value), 200))"
    assert tab.run(tick) == "3s", "under the namespace's name stands what its topic has"
    dashboard.client.delete(path)


def test_saving_a_policy_keeps_what_was_not_changed(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    path = "/v1/policies/namespaces/public/default"
    before = {
        "tick_ms": 20, "retention_ms": -1, "retention_bytes": 4096, "message_ttl_ms": 60_000, "backlog_bytes": 1 << 20,
        "backlog_ms": 5_000, "backlog_action": "producer_exception", "command_per_second": 7.0, "deduplication": True,
    }  # fmt: skip
    assert dashboard.client.put(path, json=before).status_code == 200
    dashboard.open(page="/#/policies")
    tab.choose("#level", "namespace")
    tab.sees("Set for public/default")
    tab.fill("#set-max_delay_ms", "86400000")
    tab.click("button", "Save")
    tab.sees("The policy is set.")
    assert dashboard.client.get(path).json() == before | {"max_delay_ms": 86_400_000}
    dashboard.client.delete(path)


def test_a_message_shows_each_attempt_and_is_retried(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    # Nobody listens: the first attempt is made again, the second is the last one here.
    id_ = dashboard.schedule(destination="http://127.0.0.1:1/retried", delay="1ms")

    def steps() -> list[str]:
        found: list[str] = tab.run(
            "return [...document.querySelectorAll('ol.life strong')].map((one) => one.textContent)"
        )
        return found

    tab.until(lambda: dashboard.message(id_)["state"] == "failed", "it does not fail")
    dashboard.open("produce", f"/#/messages/{id_}")
    tab.find("ol.life")
    assert steps() == ["Accepted", "Due", "Attempt 1 failed", "Failed"]
    assert "at attempt 2" in tab.find("ol.life").text
    tab.click("button", "Retry now")
    tab.click(".asks button", "Retry")
    tab.sees("The message is accepted once more.")
    tab.until(
        lambda: steps()[-1:] == ["Failed"] and dashboard.message(id_)["state"] == "failed", "it does not end"
    )
    tab.click("button", "Retry later")
    tab.click(".asks button", "Retry")
    tab.until(lambda: dashboard.message(id_)["state"] == "scheduled", "it is not retried")
    tab.until(lambda: tab.find("h1").text == "Message scheduled", "the page does not say so")


def test_a_message_that_is_tried_again_says_why_and_when(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    with HTTPServer(("127.0.0.1", 0), Busy) as busy:
        threading.Thread(target=busy.serve_forever, daemon=True).start()
        id_ = dashboard.schedule(destination=f"http://127.0.0.1:{busy.server_port}/hook", delay="1ms")
        tab.until(lambda: dashboard.message(id_)["last_error"], "it was not tried")
        dashboard.open(page=f"/#/messages/{id_}")
        tab.find("ol.life")
        shown = dashboard.text()
        busy.shutdown()
    assert "Last error" in shown
    assert "503" in shown
    assert "Next attempt" in shown


# Safety


def test_what_clients_name_stays_text(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    hostile = "<img src=x onerror='window.hit=1'><script>window.hit=1</script>"
    dashboard.schedule(key=hostile, payload=hostile, owner="hostile")
    topic = "/v1/topics/public/default/hostile"
    for body in ({"payload": hostile, "key": hostile}, {"payload": hostile, "delay": "2h"}):
        dashboard.client.post(f"{topic}/messages", json=body | {"headers": {"x": hostile}})
    # One that begins at the newest entry would let go of these, sooner or later.
    named = quote("<b>bold<b>", safe="")
    dashboard.client.put(f"{topic}/subscriptions/{named}", json={"start": "earliest"})
    untouched = (
        "return [window.hit ?? null, document.querySelectorAll('main img, main script, main b').length]"
    )
    dashboard.open(page="/#/messages?owner=hostile")
    tab.sees("onerror")
    tab.click("section[aria-label=Found] a")
    tab.find("pre")
    assert tab.run(untouched) == [None, 0]
    dashboard.open(page="/#/topics/public/default/hostile")
    tab.sees("<b>bold<b>")
    tab.click("details.entry summary")
    tab.find("details.entry pre")
    assert tab.run(untouched) == [None, 0]
    # What an address says is shown as text too.
    dashboard.open(page="/#/schedule?destination=" + quote(hostile) + "&payload=" + quote(hostile))
    tab.find("#payload")
    assert tab.run(untouched) == [None, 0]


def test_nothing_from_elsewhere_or_inline_runs(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    for page in PAGES:
        dashboard.open(page=page)
        tab.sees(PAGES[page])
    # A browser that is shown a bare picture asks for its own.
    known = ("/favicon.ico",)
    assert [line for line in tab.log() if not any(path in line for path in known)] == []
    loaded = tab.run("return performance.getEntriesByType('resource').map((one) => one.name)")
    assert loaded
    assert all(name.startswith(dashboard.url) for name in loaded)
    tried = tab.run("""
        const said = [];
        try { document.body.innerHTML = "<b>x</b>"; said.push("markup"); } catch { /* as it should be */ }
        const script = document.createElement("script");
        try { script.textContent = "window.ran = 1"; document.head.append(script); } catch { /* as it should be */ }
        document.body.setAttribute("style", "outline: 7px solid red");
        return [said, window.ran ?? null, getComputedStyle(document.body).outlineWidth];
    """)
    assert tried == [[], None, tried[2]]
    assert tried[2] != "7px"
    said: list[str] = []

    def complained() -> bool:
        said.extend(tab.log())
        return any("Content Security Policy" in line or "Trusted" in line for line in said)

    tab.until(complained, "nobody complains")


# Everybody's eyes and hands

DARKNESS = "return getComputedStyle(document.body).backgroundColor.match(/\\d+/g).every((one) => one < 64)"

FAINT = """
    const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
    const light = (rgb) => {
        const [r, g, b] = rgb.slice(0, 3).map((one) => { one /= 255; return one <= 0.03928 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4; });
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const paint = (one) => numbers(getComputedStyle(one).fill);
    const faint = [];
    for (const one of document.querySelectorAll("svg text.cell-text")) {
        const [a, b] = [light(paint(one)), light(paint(one.previousElementSibling))];
        const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        if (contrast < 4.5) faint.push(`${contrast.toFixed(1)} ${one.getAttribute("class")} ${one.textContent}`);
    }
    return faint;
"""
"""Figures on the cells of a picture that can hardly be read: axe compares them with what is behind the picture."""


SHIFTS = """
    return new Promise((done) => {
        let sum = 0;
        new PerformanceObserver((list) => { for (const one of list.getEntries()) sum += one.value; }).observe({ type: "layout-shift", buffered: true });
        setTimeout(() => done(sum), 300);
    });
"""
"""How much of the page has moved since it was opened."""


@pytest.mark.parametrize("phone", [True, False], ids=["phone", "desk"])
@pytest.mark.parametrize(("role", "page", "words"), VIEWS, ids=VIEW_IDS)
def test_every_page_is_for_everybody_and_nothing_moves_while_it_comes(
    dashboard: Dashboard, audit: Audit, role: str | None, page: str, words: str, phone: bool
) -> None:
    tab = dashboard.tab
    for dark in (False, True):
        tab.look(*((390, 844) if phone else (1280, 900)), dark=dark, phone=phone)
        if not dark:
            dashboard.open(role, page)
            tab.sees(words)
            moved: Any = tab.run(SHIFTS)
            assert moved < 0.02
            wide: Any = tab.run("return [document.documentElement.scrollWidth, innerWidth]")
            assert wide[0] <= wide[1], "it goes beyond the screen"
        assert tab.run(DARKNESS) is dark
        assert tab.run(FAINT) == []
        assert audit(tab) == []


def test_found_messages_fit_on_a_phone_and_their_columns_are_named(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    dashboard.schedule(
        destination="https://hooks.example.org/a/path/that/is/rather/long", owner="@alice:matrix.example.org",
        key="order-1", delay="3h",
    )  # fmt: skip
    tab.look(390, 844, phone=True)
    dashboard.open(page="/#/messages?owner=" + quote("@alice:matrix.example.org"))
    tab.sees("1 found.")
    cells: Any = tab.run(
        """
        return [...document.querySelectorAll("section[aria-label=Found] td")].map((cell) => [
            getComputedStyle(cell, "::before").content.replaceAll('"', "").trim(),
            Math.round(cell.getBoundingClientRect().height / parseFloat(getComputedStyle(cell).lineHeight)),
            cell.getBoundingClientRect().right <= innerWidth,
        ]);
        """
    )
    assert [cell[0] for cell in cells] == ["none", "none", "Destination", "Key", "Owner", "Door"]
    assert [cell[1] for cell in cells] == [1, 1, 2, 1, 1, 1]
    assert all(cell[2] for cell in cells)
    assert tab.run("const box = document.querySelector('.scroll'); return box.scrollWidth <= box.clientWidth")
