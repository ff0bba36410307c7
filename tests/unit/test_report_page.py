"""The page of a report: whole, self-contained, and nothing from a message is taken for markup."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

from tarry.core.limits import HOUR_MS
from tarry.pipeline.report.page import chart, page_of
from tarry.pipeline.report.report import COMING, Bar, Failure, LatenessFigures, Owner, Report

START_MS = 1_794_740_400_000
EVIL = '<script>alert("x")</script>&'


def report(text: str) -> Report:
    coming = {
        unit: [Bar(START_MS + n * length, n % 7) for n in range(count)]
        for unit, (length, count) in COMING.items()
    }
    return Report(
        START_MS, 0, 5, 1, 0, coming, {"sent": 3}, [LatenessFigures("destination", text, 3, 1, 2, 3, 4)], [Failure(text, 2)],
        [Owner("public/default", text, 1, 2, 3)],
    )  # fmt: skip


class Balance(HTMLParser):
    """Counts what is opened and not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_brings_all_it_needs() -> None:
    page = page_of(report("orders"))
    parser = Balance()
    parser.feed(page)
    assert parser.open == []
    assert not {"script", "link", "img", "iframe"} & parser.tags
    assert not re.search(r"(?:src|href|url)\s*[=(]|https?://|@import", page)
    assert "prefers-color-scheme: dark" in page
    assert page.count("<svg") == 3


def test_what_comes_from_messages_is_escaped() -> None:
    page = page_of(report(EVIL))
    assert "<script" not in page
    assert page.count("&lt;script&gt;alert(&quot;x&quot;)&lt;/script&gt;&amp;") == 3


def test_a_chart_draws_each_unit_to_scale() -> None:
    bars = [Bar(START_MS, 0), Bar(START_MS + HOUR_MS, 10), Bar(START_MS + 2 * HOUR_MS, 5)]
    drawn = ElementTree.fromstring(chart(bars, "%H:%M", "Due & more"))
    heights = [float(rect.attrib["height"]) for rect in drawn.iter("rect")]
    assert heights[0] == 2 * heights[1]
    assert [title.text for title in drawn.iter("title")] == ["12:00 UTC: 10", "13:00 UTC: 5"]
    assert drawn.attrib["aria-label"] == "Due & more: 15 in all"


def test_a_chart_of_nothing() -> None:
    ElementTree.fromstring(chart([], "%H:%M", "none"))
    assert "<rect" not in chart([Bar(START_MS, 0)], "%H:%M", "none")
