"""The page of a report: opened in a real Chromium, without a request, whatever is in the log."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from edictum.audit import report
from edictum.audit._report import ReportBuilder
from support.chromium import ROOT, Browser, start_browser

DEMO = ROOT / "examples" / "demo" / "demo.py"
SCREENSHOT = ROOT / "docs" / "guides" / "audit-report.png"
HOSTILE = [
    "<script>document.title = 'taken over'</script>",
    '"><img src="http://127.0.0.1:9/leak" onerror="document.title = \'taken over\'">',
    "</style><link rel=stylesheet href=http://127.0.0.1:9/leak.css>",
    "' onmouseover='document.title=1",
    "\u202egnp.exe \x1b[2J \x00",
]


class Page(HTMLParser):
    """The tags of a page and their attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def demo_log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    log = tmp_path_factory.mktemp("demo") / "audit.jsonl"
    command = [sys.executable, str(DEMO), "--audit", str(log)]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return log


def write_hostile_page() -> str:
    """Return the page of a log in which every text is an attack."""
    builder = ReportBuilder()
    for text in HOSTILE:
        builder.add(
            {
                "timestamp": "2026-07-01T09:30:00+00:00",
                "action": "call_denied",
                "outcome": "denied",
                "tool_name": text,
                "session_id": text,
                "principal": {"user_id": text},
                "decision_source": text,
                "decision_name": text,
                "reason": text,
                "policy_version": text,
                "contracts_evaluated": [{"name": text, "passed": False}],
            }
        )
    empty = report([])
    empty.reading.note_problem(HOSTILE[0], HOSTILE[1])
    return builder.build(HOSTILE, empty.wanted, empty.reading).to_html(HOSTILE[0])


def test_page_has_the_figures_of_the_demo(demo_log):
    """Each tool, the reasons, and a bar for each outcome."""
    made = report(demo_log)
    page = Page(made.to_html("The demo"))
    assert made.calls == 28
    for tool, tally in made.tools.sort():
        assert tool in page.text
        assert f"{tally.calls}" in page.text
    assert "max_consecutive_failures" in page.text
    bars = [attrs for tag, attrs in page.tags if tag == "rect"]
    assert {attrs["class"] for attrs in bars} == {name for name, n in made.outcomes.items() if n}


def test_page_names_nothing_outside_of_itself(demo_log):
    """Only these tags, no address, and a policy that forbids requests."""
    text = report(demo_log).to_html()
    page = Page(text)
    allowed = {"html", "head", "meta", "title", "style", "body", "main", "header", "h1", "h2", "p"}
    allowed |= {"dl", "dt", "dd", "div", "section", "svg", "g", "line", "text", "rect", "ul", "li"}
    allowed |= {"span", "table", "thead", "tbody", "tr", "th", "td", "footer", "strong"}
    assert {tag for tag, _ in page.tags} <= allowed
    assert not re.search(r"https?:|url\(|@import|src=|href=", text)
    assert "default-src 'none'" in text


def test_texts_of_a_log_become_text():
    """In every place where a text of the log is shown."""
    page = Page(write_hostile_page())
    assert "script" not in {tag for tag, _ in page.tags}
    assert "img" not in {tag for tag, _ in page.tags}
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    assert HOSTILE[0] in page.text
    assert "\x1b" not in page.text and "\u202e" not in page.text


# --- In a browser ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    with start_browser() as opened:
        yield opened


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_demo_page_opens_and_asks_for_nothing(browser: Browser, demo_log, tmp_path, scheme):
    """In Chromium, in both colour schemes; the picture in the docs is made here."""
    path = tmp_path / "report.html"
    path.write_text(report(demo_log).to_html("Audit of the demo"), encoding="utf-8")
    browser.open(path, width=1120, scheme=scheme)
    assert browser.list_requests() == [path.resolve().as_uri()]
    assert browser.evaluate("document.title") == "Audit of the demo"
    assert browser.evaluate("document.documentElement.scrollWidth") == 1120  # nothing sticks out
    assert browser.evaluate("document.querySelectorAll('svg rect').length") > 5
    shown = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert shown == {"light": "rgb(246, 247, 249)", "dark": "rgb(18, 21, 27)"}[scheme]
    image = browser.take_screenshot(1120, 1600)
    assert image.startswith(b"\x89PNG")
    if scheme == "light" and (os.environ.get("EDICTUM_SCREENSHOT") or not SCREENSHOT.exists()):
        SCREENSHOT.write_bytes(image)


@pytest.mark.slow
def test_page_is_readable_on_a_narrow_screen(browser: Browser, demo_log, tmp_path):
    """Nothing sticks out of a telephone."""
    path = tmp_path / "report.html"
    path.write_text(report(demo_log).to_html(), encoding="utf-8")
    browser.open(path, width=400, scheme="light")
    assert browser.evaluate("document.documentElement.scrollWidth") == 400


@pytest.mark.slow
def test_hostile_texts_do_nothing_in_a_browser(browser: Browser, tmp_path):
    """No script runs, and no address is asked."""
    path = tmp_path / "report.html"
    path.write_text(write_hostile_page(), encoding="utf-8")
    browser.open(path, width=1120, scheme="light")
    assert browser.evaluate("document.title") == HOSTILE[0]
    assert browser.list_requests() == [path.resolve().as_uri()]
