"""A real Chromium: that of the machine, or the one in the npm package ``@sparticuz/chromium``, which
runs without root. It is driven by the DevTools protocol over a pipe, so nothing else is needed.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / ".build" / "chromium"  # where npm puts it
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FIND_PACKAGED = "import('@sparticuz/chromium').then(async (it) => console.log(await it.default.executablePath()))"
MAX_S = 90
FLAGS = (
    *("--headless=shell", "--no-sandbox", "--no-zygote", "--single-process", "--disable-gpu"),
    *("--hide-scrollbars", "--no-first-run", "--disable-extensions", "--remote-debugging-pipe"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--font-render-hinting=none", "--force-color-profile=srgb"),
)


def find_chromium() -> str | None:
    """Return the path of a Chromium, installing the package if npm can; None if there is none."""
    found = os.environ.get("EDICTUM_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is not None:
        return found
    for path in sorted(Path.home().glob(".cache/ms-playwright/chromium*/*/*")):
        if path.name in ("chrome", "headless_shell") and os.access(path, os.X_OK):
            return str(path)
    return _find_packaged()


def _find_packaged() -> str | None:
    if shutil.which("npm") is None or shutil.which("node") is None:
        return None
    PACKAGE.mkdir(parents=True, exist_ok=True)
    try:
        with (PACKAGE / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two workers of the tests must not both install it
            if not (PACKAGE / "node_modules" / "@sparticuz").exists():
                _run_in_package("npm", "install", "--no-audit", "--no-fund", "@sparticuz/chromium")
            return _run_in_package("node", "-e", FIND_PACKAGED).strip() or None
    except (OSError, subprocess.SubprocessError):
        return None


def _run_in_package(*command: str) -> str:
    # The package unpacks its binary into the temporary directory, where that of another user may be.
    done = subprocess.run(
        command,
        cwd=PACKAGE,
        env={**os.environ, "TMPDIR": str(PACKAGE)},
        capture_output=True,
        text=True,
        timeout=240,
        check=True,
    )
    return done.stdout


class Browser:
    """One page of a Chromium."""

    def __init__(self, commands: int, answers: int) -> None:
        self._commands = os.fdopen(commands, "wb", buffering=0)
        self._answers = os.fdopen(answers, "rb")
        self._number = 0
        self._session: str | None = None
        self.events: list[dict[str, Any]] = []  # what the browser told without being asked
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask the browser for something, and return its answer."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        self._commands.write(json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            self.events.append(answer)
        assert "error" not in answer, answer["error"]
        result: dict[str, Any] = answer["result"]
        return result

    def wait_for(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._receive())

    def _receive(self) -> dict[str, Any]:
        data = bytearray()
        while (char := self._answers.read(1)) != b"\0":
            assert char, "Chromium has ended"
            data += char
        message: dict[str, Any] = json.loads(data)
        return message

    def open(self, page: Path | str, *, width: int, scheme: str) -> None:
        """Open a file or an address, as wide as that, in the light or the dark colour scheme."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.send("Emulation.setEmulatedMedia", features=features)
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=800,
            deviceScaleFactor=1,
            mobile=False,
        )
        self.events.clear()
        self.send("Page.navigate", url=page if isinstance(page, str) else page.resolve().as_uri())
        self.wait_for("Page.loadEventFired")

    def evaluate(self, expression: str) -> Any:
        answer = self.send("Runtime.evaluate", expression=expression, returnByValue=True)
        return answer["result"].get("value")

    def list_requests(self) -> list[str]:
        """Return the addresses that the page has asked for."""
        asked = (it for it in self.events if it.get("method") == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in asked]

    def take_screenshot(self, width: int, height: int) -> bytes:
        """Return a PNG of the upper part of the page."""
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        answer = self.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(answer["data"])

    def close(self) -> None:
        self._commands.close()
        self._answers.close()


def _open_pipe() -> tuple[int, int]:
    """Return a pipe whose numbers are free of those that the browser wants."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


@contextmanager
def start_browser() -> Iterator[Browser]:
    """Give a page of a Chromium; skip the test, loudly, where there is none."""
    found = find_chromium()
    if found is None:
        message = (
            "NO CHROMIUM: a page was not opened in a browser. Install one, or npm, which fetches"
            " @sparticuz/chromium; or name one in EDICTUM_CHROMIUM."
        )
        warnings.warn(pytest.PytestWarning(message), stacklevel=1)
        pytest.skip(message)
    with open_browser(found) as opened:
        yield opened


@contextmanager
def open_browser(path: str) -> Iterator[Browser]:
    """Start a Chromium, and end it afterwards."""
    command_out, command_in = _open_pipe()
    answer_out, answer_in = _open_pipe()
    # The browser reads from 3 and writes to 4.
    connect = f'exec "$0" "$@" 3<&{command_out} 4>&{answer_in}'
    with tempfile.TemporaryDirectory() as profile:
        process = subprocess.Popen(
            ["bash", "-c", connect, path, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(command_out, answer_in),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for fd in (command_out, answer_in):
            os.close(fd)
        watchdog = threading.Timer(MAX_S, process.kill)  # what waits for an answer then fails
        watchdog.start()
        browser = None
        try:
            browser = Browser(command_in, answer_out)
            yield browser
        finally:
            watchdog.cancel()
            process.kill()
            process.wait()
            if browser is not None:
                browser.close()
