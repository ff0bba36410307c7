"""The views of the dashboard in a real Chromium: browsing, links between them, topics, scheduling, time zones."""

import json
import re
import threading
import time
from datetime import UTC, datetime
from http.server import HTTPServer
from typing import Any

from tests.browser.conftest import Busy, Dashboard


def found(dashboard: Dashboard) -> list[list[str]]:
    """The cells of the list."""
    rows: list[list[str]] = dashboard.tab.run(
        "return [...document.querySelectorAll('section[aria-label=Found] tbody tr')].map((row) => [...row.cells].map((cell) => cell.innerText))"
    )
    return rows


def address(dashboard: Dashboard) -> str:
    return str(dashboard.tab.run("return location.hash"))


FIGURES = """
    const ask = window.fetch;
    window.fetch = async (path, how) => {
        const answer = await ask(path, how);
        if (!String(path).startsWith(window.faked)) return answer;
        return new Response(JSON.stringify({ ...await answer.json(), ...window.figures }), { headers: { "content-type": "application/json" } });
    };
    [window.faked, window.figures] = arguments;
    location.hash = "#/";
"""
"""Has the overview told of figures that are not there, beside all others of the server that is."""


# Browsing


def test_messages_are_browsed_without_searching_and_every_search_has_an_address(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    for n, minutes in enumerate((50, 10, 30)):
        dashboard.schedule(delay=f"{minutes}m", owner="browse", key=f"browse-{n}")
    dashboard.open(page="/#/messages")
    tab.sees("found")
    listed = [row[3] for row in found(dashboard) if row[3].startswith("browse-")]
    assert listed == ["browse-1", "browse-2", "browse-0"], "the next due comes first"
    dashboard.browse(owner="browse", key="browse-2")
    tab.sees("1 found.")
    assert address(dashboard) == "#/messages?owner=browse&key=browse-2"
    # Whoever is sent the address sees the same, and so does whoever goes back to it.
    dashboard.open(page="/#/messages?owner=browse")
    tab.sees("3 found.")
    tab.click("section[aria-label=Found] a")
    tab.find("ol.life")
    tab.run("history.back()")
    tab.sees("3 found.")
    tab.click("a", "Clear")
    tab.until(lambda: address(dashboard) == "#/messages", "the filters do not go")


def test_messages_are_browsed_by_state_and_by_range(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    ids = [dashboard.schedule(owner="states", key=key, delay="3h") for key in ("gone", "waits")]
    dashboard.client.post(f"/v1/messages/{ids[0]}/cancel")
    dashboard.schedule(owner="states", key="lost", destination="http://127.0.0.1:1/nobody", delay="1ms")
    for state, key in (("cancelled", "gone"), ("", "waits"), ("failed", "lost")):
        # What has ended is listed as of the last flush, some seconds later at the most.
        def listed(state: str = state, key: str = key) -> bool:
            dashboard.open(page=f"/#/messages?owner=states&state={state}")
            tab.sees("ound.")
            return [row[3] for row in found(dashboard)] == [key]

        tab.until(listed, f"{key} is not listed")
    due_ms = dashboard.message(ids[1])["due_at_ms"]
    for low, high, count in (
        (due_ms, due_ms + 1, 1),
        (due_ms + 1, due_ms + 60_000, 0),
        (due_ms - 60_000, due_ms, 0),
    ):
        dashboard.open(page=f"/#/messages?owner=states&from={low}&to={high}")
        tab.sees("1 found." if count else "Nothing was found.")
        assert len(found(dashboard)) == count


def test_bars_subscriptions_and_failures_lead_to_their_messages(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    dashboard.client.put("/v1/topics/public/default/led/subscriptions/behind", json={"start": "earliest"})
    for n in range(3):
        dashboard.client.post("/v1/topics/public/default/led/messages", json={"payload": f"led-{n}"})
    dashboard.client.post("/v1/topics/public/default/led/subscriptions/behind/ack", json={"up_to": 0})
    lost = dashboard.schedule(destination="http://127.0.0.1:1/led", delay="1ms")
    dashboard.open()
    tab.sees("127.0.0.1:1/led")
    # The failure.
    row = "return [...document.querySelectorAll('tr')].find((one) => one.textContent.includes(arguments[0])).querySelector('a').hash"
    assert tab.run(row, "127.0.0.1:1/led") == f"#/messages/{lost}"
    # The subscription: the entries from the first one that it has not acknowledged.
    tab.click("a", "behind")
    tab.sees("Entries 1 to 2")
    assert "led-2" in dashboard.text()
    assert "led-0" not in dashboard.text()
    # One bar, by pointer.
    dashboard.open()
    tab.click("button", "All")
    tab.until(
        lambda: re.search(r"next [34]\d\d d", tab.find(".readout").text), "the whole range does not show"
    )
    tab.run(
        """
        const bars = [...document.querySelectorAll(".chart rect[class^=door-]")].map((one) => one.getBoundingClientRect());
        const last = bars.reduce((a, b) => (b.right > a.right ? b : a));
        const at = { clientX: (last.left + last.right) / 2, clientY: (last.top + last.bottom) / 2, bubbles: true, button: 0, pointerId: 1, pointerType: "mouse" };
        const chart = document.querySelector(".chart");
        chart.setPointerCapture = () => {};
        for (const type of ["pointermove", "pointerdown", "pointerup"]) chart.dispatchEvent(new PointerEvent(type, at));
        """
    )
    tab.sees("1 found.")
    assert [line[3] for line in found(dashboard)] == ["seen"]
    # One bar of what was sent.
    sent = dashboard.schedule(destination="led", delay="1ms", key="led-sent")
    tab.until(lambda: dashboard.message(sent)["state"] == "sent", "it is not sent")
    dashboard.open()
    tab.find(".spark .way")
    tab.run(
        "[...document.querySelectorAll('.spark .way')].at(-1).dispatchEvent(new MouseEvent('click', { bubbles: true }))"
    )
    tab.until(
        lambda: re.match(r"#/messages\?state=sent&from=\d+&to=\d+$", address(dashboard)),
        "a bar leads nowhere",
    )
    tab.sees("ound")
    # A slot of the index: the server of the tests has none, so that the page is told of one.
    dashboard.open(page="/#/messages")
    hour = 3_600_000 * (int(time.time()) // 3_600)
    slot = {"size_ms": 3_600_000, "start_ms": hour, "versions": 12, "dels": 0, "files": 1, "size_bytes": 99}
    tab.run(
        FIGURES,
        "/v1/slots",
        {"slots": [slot], "versions": 12, "files": 1, "size_bytes": 99, "cursor": 1, "more": 0},
    )
    tab.sees("1 slot, 12 versions")
    tab.run("document.querySelector('.strip .way').dispatchEvent(new MouseEvent('click', { bubbles: true }))")
    slots = f"#/messages?from={hour}&to={hour + 3_600_000}"
    tab.until(lambda: address(dashboard) == slots, "a slot leads nowhere")
    # All of what is shown, by the link beside the words.
    dashboard.open()
    tab.find(".listed")
    tab.click(".listed")
    tab.until(lambda: address(dashboard).startswith("#/messages?from="), "it does not list them")


# One message


def test_a_message_shows_its_life_and_its_content(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    payload = '{"order":12345678901234567890,"lines":[{"sku":"a b"},[]],"note":"{not: json}"}'
    body = f'{{"destination":"orders","delay":"2h","headers":{{"x-shop":"north"}},"payload_json":{payload}}}'
    answer = dashboard.client.post("/v1/messages", content=body, headers={"content-type": "application/json"})
    id_ = answer.json()["id"]
    dashboard.open(page=f"/#/messages/{id_}")
    shown = tab.find("pre").text
    assert shown.splitlines()[:2] == ["{", '  "order": 12345678901234567890,'], (
        "a number is shown as it was sent"
    )
    assert '"note": "{not: json}"' in shown
    assert "    []" in shown
    assert json.loads(shown) == json.loads(payload)
    assert "x-shop" in dashboard.text()
    assert "2 h after it was accepted" in tab.find("ol.life").text
    # Signs that cannot be seen are told by their numbers.
    dashboard.open(page="/#/messages/" + dashboard.schedule(payload="a\x00b\x1b[31m\tc\nd"))
    tab.find("pre")
    assert tab.run("return document.querySelector('pre').textContent") == "a\\x00b\\x1b[31m\tc\nd"
    dashboard.client.post(f"/v1/messages/{id_}/send")
    tab.until(lambda: dashboard.message(id_)["state"] == "sent", "it is not sent")
    dashboard.open(page=f"/#/messages/{id_}")
    steps = tab.run("return [...document.querySelectorAll('ol.life strong')].map((one) => one.textContent)")
    assert steps[0] == "Accepted"
    assert steps[-1] == "Sent"
    dashboard.open(page="/#/messages/" + "0" * 32)
    tab.sees("There is no such message.")


def test_a_message_is_opened_by_its_name(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    old = dashboard.schedule(name="trial-42", key="trial-old")
    there = dashboard.schedule(
        destination="persistent://shop/names/orders", name="trial-42", key="trial-there"
    )

    def look_up(text: str) -> str:
        tab.click("nav a", "Messages")
        tab.fill("#id", text)
        tab.click("form.search button", "Open")
        tab.find("ol.life")
        return tab.find("p.id code").text

    dashboard.open("produce")
    assert look_up("trial-42") == old
    assert address(dashboard) == "#/messages/public/default/trial-42", "an address that lets nobody in"
    assert look_up("shop/names/trial-42") == there
    assert look_up(old) == old
    # The name leads to its address, which shows the same message.
    tab.click("dd a", "trial-42")
    tab.until(lambda: address(dashboard) == "#/messages/public/default/trial-42", "the name leads nowhere")
    tab.find("ol.life")
    # A list has names where there are some.
    dashboard.open(page="/#/messages?key=trial-old")
    tab.sees("1 found.")
    assert found(dashboard)[0][3:5] == ["trial-old", "trial-42"]
    dashboard.open("produce", f"/#/messages/{old}")
    tab.find("ol.life")
    # A command is for the message that is shown, and not for the one that has taken its name since.
    new = dashboard.schedule(name="trial-42", key="trial-new", on_conflict="replace")
    tab.until(lambda: tab.find("h1").text == "Message cancelled", "the page does not say what became of it")
    assert look_up("trial-42") == new
    tab.click("button", "Cancel")
    tab.click(".asks button", "Cancel the message")
    tab.until(lambda: dashboard.message(new)["state"] == "cancelled", "it is not cancelled")
    dashboard.open(page="/#/messages/public/default/nobody")
    tab.sees("No message has the name nobody in public/default.")
    # Who only consumes may not look up names, and is not asked for any.
    dashboard.open("screen", "/#/messages")
    tab.find("label", "Find by id")
    assert not tab.all("label", "Find by id or name")


def test_a_message_is_scheduled_by_hand(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    dashboard.open("produce", "/#/schedule?destination=by-hand&delay=2d")
    tab.choose("#kind", "json")
    tab.fill("#payload", '{"by": "hand"')
    tab.fill("#key", "by-hand-1")
    tab.click("form.sheet button", "Schedule")
    tab.sees("the payload is not JSON")
    tab.fill("#payload", '{"by": 12345678901234567890}')
    tab.fill("#delay", "two days")
    tab.click("form.sheet button", "Schedule")
    tab.sees("is not a duration")
    assert tab.run("return document.activeElement.id") == "delay"
    tab.fill("#delay", "2d")
    tab.fill("#ttl_ms", "a day")
    tab.click("form.sheet button", "Schedule")
    tab.sees("a day is not a duration like 1h30m")
    assert tab.run("return document.activeElement.id") == "ttl_ms"
    tab.fill("#ttl_ms", "1h30m")
    tab.click("summary", "More")
    tab.fill("#headers", "x-a: 1\nx-b: two words")
    tab.click("form.sheet button", "Schedule")
    tab.find("ol.life")
    made = dashboard.message(address(dashboard).rpartition("/")[2])
    assert made["destination"] == "persistent://public/default/by-hand"
    assert made["payload"] == '{"by": 12345678901234567890}'
    assert made["headers"] == {"x-a": "1", "x-b": "two words", "content-type": "application/json"}
    assert (made["delay_ms"], made["ttl_ms"], made["key"]) == (2 * 86_400_000, 5_400_000, "by-hand-1")


# Topics


def test_a_topic_shows_its_entries_and_follows_them_live(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    path = "/v1/topics/public/default/watched"
    dashboard.client.put(f"{path}/subscriptions/workers", json={"start": "earliest"})
    for n in range(120):
        dashboard.client.post(f"{path}/messages", json={"payload": f"entry-{n:03}"})
    waits = dashboard.client.post(f"{path}/messages", json={"payload": "waits", "delay": "1h"}).json()
    dashboard.open("screen", "/#/topics")
    tab.click("a", "watched")
    tab.sees("Entries 71 to 120 of those from 0 to 120")
    assert "entry-119" in dashboard.text()
    tab.click("a", "Earlier")
    tab.sees("Entries 21 to 70")
    assert address(dashboard) == "#/topics/public/default/watched?from=21"
    tab.click("a", "Oldest")
    tab.sees("Entries 0 to 49")
    tab.click("details.entry summary")
    assert tab.find("details.entry pre").text == "entry-000"
    # Looking has taken nothing away, and has left nothing behind.
    stats = dashboard.client.get(path).json()
    assert stats["subscriptions"]["workers"]["backlog"] == 121
    tab.until(
        lambda: list(dashboard.client.get(path).json()["subscriptions"]) == ["workers"], "a reader stays"
    )
    # What waits leads to its message.
    assert tab.run(
        "return [...document.querySelectorAll('section')].at(-1).querySelector('a').hash"
    ).startswith("#/messages/")
    assert waits["entry_ids"] == [120]
    # Live.
    tab.click("button", "Live")
    assert address(dashboard) == "#/topics/public/default/watched?live=1"
    tab.until(lambda: len(dashboard.client.get(path).json()["subscriptions"]) == 2, "nobody reads")
    for n in range(3):
        dashboard.client.post(f"{path}/messages", json={"payload": f"live-{n}", "key": "k"})
    tab.sees("3 since you came")
    lines = tab.run(
        "return [...document.querySelectorAll('details.entry code')].map((one) => one.textContent)"
    )
    assert lines == ["live-2", "live-1", "live-0"]
    tab.click("nav a", "Messages")
    tab.until(
        lambda: list(dashboard.client.get(path).json()["subscriptions"]) == ["workers"], "the tail stays"
    )
    # So it is with whoever leaves the page altogether.
    dashboard.open("screen", "/#/topics/public/default/watched?live=1")
    tab.until(lambda: len(dashboard.client.get(path).json()["subscriptions"]) == 2, "nobody reads")
    tab.go("about:blank")
    tab.until(
        lambda: list(dashboard.client.get(path).json()["subscriptions"]) == ["workers"], "the tail stays"
    )
    # Who only produces sees the figures, and no entries.
    dashboard.open("produce", "/#/topics/public/default/watched")
    tab.sees("Entries are shown to tokens with the role consume")


# Repeats


def test_a_repeat_is_begun_changed_paused_and_ended(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    dashboard.open("produce", "/#/repeats")
    tab.click("a", "Begin a repeat")
    tab.fill("#name", "standup")
    tab.fill("#destination", "meetings")
    tab.choose("#how", "cron")
    tab.fill("#cron", "30 8 * * mon-fry")
    tab.choose("#clock", "Europe/Berlin")
    tab.choose("#kind", "json")
    tab.fill("#payload", '{"room": 12345678901234567890}')
    tab.click("form.sheet button", "Begin")
    tab.sees("That did not work: cron")
    assert tab.run("return document.activeElement.id") == "cron"
    tab.fill("#cron", "30 8 * * mon-fri")
    tab.click("form.sheet button", "Begin")
    tab.find("ol.life")
    assert address(dashboard) == "#/repeats/public/default/standup"
    path = "/v1/repeats/public/default/standup"
    made = dashboard.client.get(path).json()
    assert (made["cron"], made["zone"], made["payload"]) == (
        "30 8 * * mon-fri",
        "Europe/Berlin",
        '{"room": 12345678901234567890}',
    )
    # The next five instants, in the zone that is shown.
    shown = tab.run("return [...document.querySelectorAll('ol.life .when')].map((one) => one.textContent)")
    expected = [datetime.fromtimestamp(at / 1_000, UTC) for at in made["next_due_at_ms"]]
    assert shown == [f"{at.day} {at:%b %Y, %H:%M:%S}" for at in expected]
    tab.click("button", "Pause")
    tab.sees("The repeat is paused.")
    assert dashboard.client.get(path).json()["state"] == "paused"
    tab.click("button", "Resume")
    tab.until(lambda: dashboard.client.get(path).json()["state"] == "active", "it does not go on")
    # What is there is in the form; what is not touched stays.
    tab.click("a", "Change")
    tab.find("#cron")
    tab.choose("#how", "every")
    tab.fill("#every", "12h")
    tab.fill("#count", "4")
    tab.click("form.sheet button", "Begin anew")
    tab.sees("0 of 4")
    after = dashboard.client.get(path).json()
    assert (after["every_ms"], after["cron"], after["count"], after["payload"]) == (
        12 * 3_600_000,
        None,
        4,
        made["payload"],
    )
    tab.click("button", "End")
    tab.click(".asks button", "End the repeat")
    tab.until(lambda: dashboard.client.get(path).status_code == 404, "it is not ended")
    tab.until(lambda: address(dashboard) == "#/repeats", "the list does not show")
    # Who only consumes has no such page.
    dashboard.open("screen", "/#/repeats")
    tab.sees("There is no such page")


# Pauses


def test_places_and_messages_are_paused_and_resumed(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    id_ = dashboard.schedule(owner="held", key="held-1", delay="2h")

    def paused() -> list[tuple[str, str]]:
        pauses = dashboard.client.get("/v1/pauses").json()["pauses"]
        return [(one["kind"], one["name"]) for one in pauses if not one["resumed"] and one["name"] != "seen"]

    # An owner, by an address that fills the form.
    dashboard.open(page="/#/pauses?owner=held")
    tab.click("form.sheet button", "Pause")
    tab.sees("held is paused.")
    assert paused() == [("owner", "held")]
    tab.click("a[href*='owner=held']", "List them")
    tab.sees("1 found.")
    assert found(dashboard)[0][1] == "paused"
    tab.click("section[aria-label=Found] a")
    tab.sees("Its owner is paused")
    tab.click(".note-bar a", "See the pauses")
    tab.find("h1", "Pauses")
    tab.until(lambda: len(tab.all("td button", "Resume")) == 2, "the pauses do not show")
    tab.run(
        "[...document.querySelectorAll('tr')].find((one) => one.textContent.includes('held')).querySelector('button').click()"
    )
    tab.until(lambda: paused() == [], "it is not resumed")
    # A destination that is none is refused, and said so at its field.
    tab.choose("#kind", "destination")
    tab.fill("#place", "mailto:somebody")
    tab.click("form.sheet button", "Pause")
    tab.sees("That did not work: destination")
    # A topic, where it is looked at.
    dashboard.client.put("/v1/topics/public/default/still")
    dashboard.open(page="/#/topics/public/default/still")
    tab.click("button", "Pause")
    tab.until(lambda: paused() == [("topic", "persistent://public/default/still")], "it is not paused")
    dashboard.open(page="/#/")
    tab.sees("2 places are paused.")
    dashboard.open(page="/#/topics/public/default/still")
    tab.click("button", "Resume")
    tab.until(lambda: paused() == [], "it is not resumed")
    # One message keeps what is left of its delay.
    dashboard.open("produce", f"/#/messages/{id_}")
    tab.click("button", "Pause")
    tab.sees("This message is paused")
    assert dashboard.text().count("later by as long as it is paused") == 2, "it says when it is due"
    assert dashboard.message(id_)["paused"] == "message"
    tab.click("button", "Resume")
    tab.until(lambda: dashboard.message(id_)["paused"] is None, "it does not go on")
    tab.until(lambda: tab.find("h1").text == "Message scheduled", "the page does not say so")
    assert "as long as it is paused" not in dashboard.text()


def test_what_is_tried_again_is_listed(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    with HTTPServer(("127.0.0.1", 0), Busy) as busy:
        threading.Thread(target=busy.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{busy.server_port}/hook"
        id_ = dashboard.schedule(destination=url, delay="1ms", owner="again", key="order-7")
        tab.until(lambda: dashboard.message(id_)["last_error"], "it was not tried")
        busy.shutdown()
    dashboard.open(page="/#/messages?state=retrying&key=order-*")
    tab.sees("1 found.")
    assert found(dashboard)[0][1].startswith("retrying in 59 min")
    tab.click("section[aria-label=Found] a")
    tab.until(lambda: tab.find("h1").text == "Message retrying", "the page does not say so")
    dashboard.client.post(f"/v1/messages/{id_}/cancel")


# Commands by filter


def schedule_many(dashboard: Dashboard, owner: str, many: int) -> None:
    line = json.dumps({"destination": "orders", "payload": "x", "delay": "2h", "owner": owner}) + "\n"
    answer = dashboard.client.post(
        "/v1/messages/batch", content=line * many, headers={"content-type": "application/x-ndjson"}
    )
    assert answer.text.count('"id"') == many


def waiting(dashboard: Dashboard, owner: str) -> list[dict[str, Any]]:
    path = f"/v1/messages?owner={owner}&namespace=public/default&limit=1000"
    found: list[dict[str, Any]] = dashboard.client.get(path).json()["messages"]
    return found


def life(dashboard: Dashboard) -> list[str]:
    lines: list[str] = dashboard.tab.run(
        "return [...document.querySelectorAll('ol.life li')].map((one) => [...one.children].slice(1).map((part) => part.textContent).join(' '))"
    )
    return lines


def test_messages_are_commanded_by_filter_once_their_count_is_confirmed(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    schedule_many(dashboard, "mass", 250)
    spared = dashboard.schedule(owner="spared")
    dashboard.open(page="/#/messages?owner=mass")
    tab.click("a", "Command all of these")
    tab.find("#action")
    assert address(dashboard) == "#/command?owner=mass"
    tab.click("button", "Count the messages")
    tab.sees("250 messages would be cancelled. Nothing is done yet.")
    assert len(waiting(dashboard, "mass")) == 250
    assert life(dashboard) == ["Asked for by admin"]
    # Whoever is sent the address sees the same, and who leaves it changes nothing.
    asked = address(dashboard)
    dashboard.open(page="/" + asked)
    tab.click("button", "Leave them")
    tab.until(lambda: life(dashboard)[-1:] == ["Stopped by admin"], "it is not stopped")
    assert len(waiting(dashboard, "mass")) == 250
    # Confirmed, it does what it says to those and no others, and says who did what.
    dashboard.open(page="/#/command?owner=mass")
    tab.click("button", "Count the messages")
    tab.click("button", "Cancel: 250 messages")
    done = ["Asked for by admin", "Confirmed by admin", "Done 250 messages cancelled"]
    tab.until(lambda: life(dashboard) == done, "it is not done")
    assert waiting(dashboard, "mass") == []
    assert dashboard.message(spared)["state"] == "scheduled"
    tab.click("nav a", "Commands")
    # The command's own page says so too: the list is there with its row.
    tab.find("tbody tr")
    tab.sees("250 of 250")
    newest = tab.run("return document.querySelector('tbody tr').innerText").split("\t")
    assert [one.strip() for one in newest[:6]] == [
        "Cancel", "done", "waiting, owner mass", "public/default", "250 of 250", "admin",
    ]  # fmt: skip
    tab.click("tbody tr a", "waiting, owner mass")
    tab.sees("Nothing was found.")
    # Commands are for admins.
    dashboard.open("produce", "/#/commands")
    tab.sees("There is no such page")


def test_messages_are_moved_by_filter_and_a_command_is_stopped_on_its_way(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    schedule_many(dashboard, "moving", 20_000)
    dashboard.open(page="/#/command?owner=moving&action=move&delay=5h")
    tab.click("button", "Count the messages")
    tab.sees("20,000 messages would be rescheduled.")
    tab.click("button", "Reschedule: 20,000 messages")
    tab.find("progress")
    tab.click("button", "Stop")
    tab.until(lambda: life(dashboard)[-1:] == ["Stopped by admin"], "it is not stopped")
    command = dashboard.client.get(f"/v1/commands/{address(dashboard).rpartition('/')[2]}").json()
    assert 0 < command["done"] < 20_000
    tab.sees(f"{command['done']:,} of 20,000 messages rescheduled.")
    # The last of the list are where they were: nobody came so far.
    later = dashboard.client.get(
        "/v1/upcoming",
        params={
            "from_ms": command["asked_at_ms"] + 4 * 3_600_000,
            "to_ms": command["asked_at_ms"] + 6 * 3_600_000,
            "buckets": 1,
        },
    ).json()
    assert later["total"] == command["done"]


def test_failed_messages_are_retried_by_filter(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    id_ = dashboard.schedule(owner="fell", destination="http://127.0.0.1:1/fell", delay="1ms")

    def listed() -> bool:
        dashboard.open(page="/#/messages?owner=fell&state=failed")
        tab.sees("ound.")
        return len(found(dashboard)) == 1

    tab.until(listed, "it does not fail")
    tab.click("a", "Command all of these")
    tab.find("#action")
    assert tab.run("return document.querySelector('#action').value") == "retry"
    assert not tab.all("#state"), "only failed messages are retried"
    tab.choose("#when", "delay")
    tab.fill("#delay", "3h")
    tab.click("button", "Count the messages")
    tab.click("button", "Retry: 1 message")
    tab.until(lambda: life(dashboard)[-1:] == ["Done 1 message retried"], "it is not done")
    assert dashboard.message(id_)["state"] == "scheduled"
    assert dashboard.message(id_)["due_at_ms"] > time.time() * 1_000 + 2 * 3_600_000
    # What cannot be is said at the field that it is about.
    dashboard.open(page="/#/command?namespace=nowhere")
    tab.click("button", "Count the messages")
    tab.sees("That did not work: namespace")
    assert tab.run("return document.activeElement.id") == "namespace"


# Policies


def test_policies_say_what_is_in_force_at_each_level(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    dashboard.client.put("/v1/policies/broker", json={"tick_ms": 2_000})
    dashboard.client.put("/v1/policies/namespaces/shop/levels", json={"retention_ms": -1})
    dashboard.open(page="/#/policies?level=topic&name=shop/levels/orders")
    tab.sees("Set for shop/levels/orders")

    def levels(name: str) -> list[str]:
        rows: list[str] = tab.run(
            "return [...document.querySelector(`#set-${arguments[0]}`).closest('.policy-row').querySelectorAll('li')].map((one) => one.textContent)",
            name,
        )
        return rows

    assert levels("tick_ms") == ["Broker 2.0 sset", "Namespace 2.0 s", "in force 2.0 s"]
    assert levels("retention_ms") == ["Broker none", "Namespace for everset", "in force for ever"]
    tab.fill("#set-max_delay_ms", "30d")
    tab.fill("#set-send_per_second", "no limit")
    tab.click("button", "Save")
    tab.sees("The policy is set.")
    path = "/v1/policies/topics/shop/levels/orders"
    assert dashboard.client.get(path).json() == {"max_delay_ms": 30 * 86_400_000, "send_per_second": 0.0}
    tab.until(lambda: levels("max_delay_ms")[-1] == "in force 30 dset", "it is not in force")
    tab.fill("#set-tick_ms", "soon")
    tab.click("button", "Save")
    tab.sees("neither a number nor a duration")
    for place in ("broker", "namespaces/shop/levels", "topics/shop/levels/orders"):
        dashboard.client.delete(f"/v1/policies/{place}")


# Several servers


def test_the_overview_says_who_owns_the_ledger_and_who_stands_by(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    dashboard.open("screen", "/#/messages")
    lagging = [
        {"name": "berlin", "lag": 0},
        {"name": "<b>oslo</b>", "lag": 12_345},
        {"name": "rome", "lag": None},
    ]
    cluster = {"owner": "paris", "epoch": 1_204, "standbys": lagging, "trouble": None}
    tab.run(FIGURES, "/v1/overview", {"cluster": cluster})
    tab.sees("due in the next")

    def servers() -> list[list[str]]:
        rows: list[list[str]] = tab.run(
            """
            const head = [...document.querySelectorAll("h3")].find((one) => one.textContent === "Servers");
            return [...head?.nextElementSibling.children ?? []].map((row) => [row.children[0].textContent, row.children[1].textContent, row.children[1].className]);
            """
        )
        return rows

    assert servers() == [
        ["Owner", "paris, epoch 1,204", "good"],
        ["Stands by", "berlin, up to date", "good"],
        ["Stands by", "<b>oslo</b>, 12,345 records behind", "good"],
        ["Stands by", "rome, position not known", "bad"],
    ]
    # The figures come again and again while the page is open: a standby that is gone, and one that nobody can tell of.
    owner = {"owner": "oslo", "epoch": 1_205, "standbys": []}
    tab.run("window.figures.cluster = arguments[0]", owner | {"trouble": None})
    tab.until(
        lambda: servers()[1:] == [["Stands by", "nobody", "bad"]], "it does not say that nobody is left"
    )
    assert servers()[0] == ["Owner", "oslo, epoch 1,205", "good"]
    tab.run(
        "window.figures.cluster = arguments[0]", owner | {"trouble": "the group's members cannot be read"}
    )
    tab.until(
        lambda: servers()[1:] == [["Stands by", "not known", "bad"]], "it takes for nobody whom it cannot see"
    )
    # A server by itself says nothing of others.
    tab.run("window.figures.cluster = null")
    tab.until(lambda: servers() == [], "a server by itself tells of others")


# Time


def choose_zone(dashboard: Dashboard, name: str) -> None:
    # All names are there once the field has the focus.
    dashboard.tab.run("document.querySelector('#zone').focus()")
    dashboard.tab.choose("#zone", name)


def test_instants_are_shown_and_typed_in_the_zone_that_was_chosen(dashboard: Dashboard) -> None:
    tab = dashboard.tab
    # Two instants beside the end of summer time in Berlin, whose clocks show the same.
    first, second = (int(datetime(2030, 10, 27, hour, 20, tzinfo=UTC).timestamp() * 1_000) for hour in (0, 1))
    ids = [dashboard.schedule(delay=None, due_at_ms=at, owner="zones") for at in (first, second)]
    for zone, shown in (
        ("UTC", ["27 Oct 2030, 00:20:00", "27 Oct 2030, 01:20:00"]),
        ("Asia/Tokyo", ["27 Oct 2030, 09:20:00"]),
        ("Europe/Berlin", ["27 Oct 2030, 02:20:00"]),
    ):
        # From an instant on: by then other tests may have left more messages than are looked through at once.
        dashboard.open(page=f"/#/messages?owner=zones&from={first}")
        choose_zone(dashboard, zone)
        for text in shown:
            tab.sees(text)
    dashboard.open(page=f"/#/messages/{ids[0]}")
    tab.sees("27 Oct 2030, 02:20:00")
    choose_zone(dashboard, "America/New_York")
    tab.sees("26 Oct 2030, 20:20:00")
    # What is typed is of that zone too: noon in New York in winter is 17:00 in London.
    tab.click("button", "Reschedule")
    tab.run("document.querySelector('#due').value = '2031-01-15T12:00:00'")
    tab.click("main form button", "Reschedule")
    tab.sees("15 Jan 2031, 12:00:00")
    assert dashboard.message(ids[0])["due_at_ms"] == datetime(2031, 1, 15, 17, tzinfo=UTC).timestamp() * 1_000
    tab.run("localStorage.clear()")
