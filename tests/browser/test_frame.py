"""What holds on every page, measured in a browser: policy, contrast, widths, keyboard, polling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from tests.browser.conftest import Window
    from tests.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(420), pytest.mark.xdist_group("browser")]

Open = Callable[..., "Window"]

#: A function that returns text which is too pale to be read.
TOO_PALE = Path(__file__).with_name("contrast.js").read_text()


def addresses(product: Stack) -> list[str]:
    gpu = product.rest("GET", "/gpus")[1]["results"][0]["uuid"]
    return [
        "/",
        "/nodes/",
        "/nodes/node-1/",
        f"/gpus/{gpu}/",
        "/book/",
        "/reservations/?group=all",
        "/nowhere/",
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_keeps_the_policy_and_can_be_read(window: Open, product: Stack, scheme: str) -> None:
    """The window fails the test if the browser complained, of the content security policy for one."""
    one = window("otto", color_scheme=scheme)
    for address in addresses(product):
        page = one.open(address)
        assert page.get_attribute("html", "data-bs-theme") == scheme
        assert page.evaluate(TOO_PALE) == [], address


@pytest.fixture
def long_title(product: Stack) -> Iterator[dict[str, Any]]:
    """A reservation that is titled with the longest word there can be."""
    ask = {"kind": "mig", "profile": "1g.10gb", "count": 1}
    wish = {"team": "vision", "pool": "main", "title": "W" * 200, "ask": ask, "duration": "PT1H"}
    status, made = product.rest("POST", "/reservations", wish, "lena")
    assert status == 201, made
    yield made
    product.rest("POST", f"/reservations/{made['id']}/release", {}, "lena")


@pytest.mark.parametrize(("language", "width"), [("en", 360), ("zh-CN", 360), ("en", 700), ("en", 900)])
def test_no_page_is_wider_than_its_screen(
    window: Open, product: Stack, long_title: dict[str, Any], language: str, width: int
) -> None:
    one = window("lena", viewport={"width": width, "height": 740}, locale=language)
    own = [f"/reservations/{long_title['id']}/", f"/gpus/{long_title['allocations'][0]['gpu_uuid']}/"]
    for address in [*addresses(product), *own]:
        page = one.open(address)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, address


def test_the_measure_of_contrast_finds_pale_text(window: Open) -> None:
    page = window("milo").open("/")
    page.evaluate("document.querySelector('h1').style.setProperty('color', '#ccc')")
    assert [found for found in page.evaluate(TOO_PALE) if "Overview" in found]


def test_the_first_stop_of_the_keyboard_leads_to_the_content(window: Open) -> None:
    page = window("milo").open("/")
    page.keyboard.press("Tab")
    expect(page.locator(":focus")).to_have_text("Skip to the content")
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_menus_open_and_close_by_keyboard(window: Open) -> None:
    page = window("milo").open("/")
    summary = page.locator("details.menu summary").last
    summary.focus()
    page.keyboard.press("Enter")
    expect(page.locator("text=Sign out")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("text=Sign out")).to_be_hidden()
    expect(summary).to_be_focused()


def test_a_request_of_htmx_that_is_no_form_carries_the_token(window: Open) -> None:
    page = window("milo").open("/")
    page.evaluate(
        """() => {
          const probe = document.createElement("button");
          probe.id = "probe";
          probe.textContent = "x";
          probe.setAttribute("hx-post", "/language/");
          probe.setAttribute("hx-swap", "none");
          document.querySelector("main").append(probe);
          htmx.process(probe);
        }"""
    )
    with page.expect_response("**/language/") as answer:
        page.click("#probe")
    assert answer.value.status < 400


def test_a_hidden_page_asks_for_nothing_until_it_is_seen_again(window: Open) -> None:
    page = window("milo").open("/")
    asked: list[str] = []
    page.on("request", lambda one: asked.append(one.url) if "hx-request" in one.headers else None)
    show = """(hidden) => {
      Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
      document.getElementById("live").dispatchEvent(new CustomEvent("seen"));
      document.dispatchEvent(new Event("visibilitychange"));
    }"""
    page.evaluate(show, True)
    assert asked == []
    with page.expect_response(lambda answer: answer.request.headers.get("hx-request") == "true"):
        page.evaluate(show, False)


def test_a_portal_that_does_not_answer_is_told_and_so_is_its_return(window: Open, product: Stack) -> None:
    one = window("milo")
    page = one.open("/")
    page.route("**/*", lambda route: route.abort())
    page.evaluate("document.getElementById('live').dispatchEvent(new CustomEvent('seen'))")
    expect(page.locator("#connection-lost")).to_be_visible()
    page.unroute("**/*")
    page.evaluate("document.getElementById('live').dispatchEvent(new CustomEvent('seen'))")
    expect(page.locator("#connection-lost")).to_be_hidden()
    one.complaints = [
        text for text in one.complaints if "ERR_FAILED" not in text and "fetch" not in text.lower()
    ]


def test_the_language_is_switched_in_the_frame(window: Open) -> None:
    page: Any = window("milo").open("/nodes/")
    page.locator("details.menu summary").first.click()
    page.click("button[lang=zh-hans]")
    expect(page.locator("html")).to_have_attribute("lang", "zh-hans")
    assert page.url.endswith("/nodes/")
