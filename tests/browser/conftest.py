"""Debian's Chromium on a running product: one stack and one browser for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

    from tests.stack import Stack

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
#: Milliseconds; generous, because tests share the machine.
PATIENCE = 60_000
# Playwright's sync API runs in an event loop's thread, which Django would refuse.
os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"


@pytest.fixture(scope="session")
def product() -> Generator[Stack]:
    from tests.stack import stack

    with stack() as running:
        yield running


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    if not CHROMIUM.exists():
        pytest.skip("needs the package chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


class Window:
    """A signed-in browser window. `complaints` is what the browser had to say: CSP, script, missing files."""

    def __init__(self, context: BrowserContext, url: str) -> None:
        self.context = context
        self.url = url
        self.complaints: list[str] = []
        self.page = context.new_page()
        self.page.set_default_timeout(PATIENCE)
        self.page.on("console", lambda message: self._hear(message.type, message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def _hear(self, kind: str, text: str) -> None:
        # Chromium complains of every answer with an error status; a refused form is one, and no fault.
        if kind in ("error", "warning") and "the server responded with a status of" not in text:
            self.complaints.append(text)

    def open(self, path: str) -> Page:
        self.page.goto(self.url + path)
        return self.page

    def sign_in(self, name: str) -> None:
        from tests.cast import PASSWORD

        self.open("/login/")
        self.page.fill("#username", name)
        self.page.fill("#password", PASSWORD)
        self.page.click("main button[type=submit]")
        self.page.wait_for_url(self.url + "/")


@pytest.fixture
def window(product: Stack, chromium: Browser) -> Iterator[Any]:
    """Opens windows: `window("milo", color_scheme="dark")`; at the end, none may have complained."""
    opened: list[Window] = []

    def open_window(name: str, **options: Any) -> Window:
        made = Window(chromium.new_context(**options), product.url)
        opened.append(made)
        made.sign_in(name)
        return made

    yield open_window
    complaints = [complaint for one in opened for complaint in one.complaints]
    for one in opened:
        one.context.close()
    assert complaints == []
