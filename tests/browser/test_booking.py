"""A slice is booked in the browser and comes alive on a node, in front of whoever watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.browser.conftest import Window
    from tests.stack import Stack

pytestmark = [pytest.mark.browser, pytest.mark.timeout(420), pytest.mark.xdist_group("browser")]

Open = Callable[..., "Window"]
SLICE = "mig:1g.10gb@H100-80GB"


@pytest.fixture(autouse=True)
def _nothing_is_left(product: Stack) -> Iterator[None]:
    """Whatever a test has booked is released."""
    from tests.stack import await_

    yield

    def held() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = product.rest("GET", "/reservations", user="anna")[1]["results"]
        return [row for row in rows if row["state"] in ("scheduled", "starting", "active", "ending")]

    for row in held():
        product.rest("POST", f"/reservations/{row['id']}/release", {}, user="anna")
    await_(lambda: not held(), "everything has ended")


def book(window: Window, title: str) -> Page:
    page = window.open("/book/")
    page.select_option("#id_what", SLICE)
    page.fill("#id_title", title)
    page.click("#room >> text=Book")
    page.wait_for_url("**/reservations/*/")
    return page


def test_a_slice_is_booked_comes_alive_without_reloading_and_is_released(
    window: Open, product: Stack
) -> None:
    page = book(window("milo"), "From the browser")
    page.evaluate("window.sameDocument = true")
    state = page.locator("#state")
    expect(state).to_have_text("Active", timeout=60_000)
    mig = page.locator("section[aria-labelledby=holds] .mono").first.inner_text()
    assert mig.startswith("MIG-")
    expect(page.locator("section[aria-labelledby=connect] pre").first).to_contain_text(
        f"CUDA_VISIBLE_DEVICES={mig}"
    )
    expect(page.locator("#live")).to_have_attribute("hx-trigger", "every 5s, seen", timeout=30_000)
    assert page.evaluate("window.sameDocument") is True
    page.click("text=Release…")
    page.click("#release .btn-danger")
    page.evaluate("window.sameDocument = true")
    expect(state).to_have_text("Ended", timeout=60_000)
    expect(page.locator("#live")).not_to_have_attribute("hx-trigger", "every 1s, seen")
    assert page.locator("#live[hx-get]").count() == 0, "what is over is looked at no more"
    assert page.evaluate("window.sameDocument") is True
    assert product.rest("GET", "/gpus")[1]["results"][0]["usable"]


def test_the_change_of_its_state_is_spoken(window: Open, product: Stack) -> None:
    product.stop("agent node-1")
    try:
        page = book(window("milo"), "Spoken")
        expect(page.locator("#state")).to_have_text("Starting")
    finally:
        product.go_on("agent node-1")
    expect(page.locator("#spoken")).to_have_text("Spoken: Active", timeout=60_000)


def test_an_open_dialog_and_what_is_typed_in_it_outlive_the_polling(window: Open) -> None:
    page = book(window("milo"), "Half typed")
    page.click("text=Extend…")
    page.fill("#extend-amount", "7")
    expect(page.locator("#state")).to_have_text("Active", timeout=60_000)
    with page.expect_response(lambda answer: answer.request.headers.get("hx-request") == "true"):
        pass
    assert page.locator("#extend:popover-open").count() == 1
    assert page.input_value("#extend-amount") == "7"
    page.keyboard.press("Escape")
    assert page.locator("#extend:popover-open").count() == 0


def test_the_free_count_follows_what_is_typed_and_a_refusal_keeps_it(window: Open) -> None:
    page = window("milo").open("/book/")
    page.select_option("#id_what", SLICE)
    page.fill("#id_count", "8")
    expect(page.locator("#room-says")).to_contain_text("8 asked, 7 free")
    page.fill("#id_title", "Too many")
    page.click("#room >> text=Book")
    problem = page.locator("#problem")
    expect(problem).to_contain_text("8 asked, 7 free for the whole time, of 7")
    expect(problem).to_be_focused()
    assert page.input_value("#id_title") == "Too many"
    assert page.input_value("#id_count") == "8"


def test_everything_works_without_script(window: Open) -> None:
    page = window("milo", java_script_enabled=False).open("/book/")
    page.select_option("#id_what", SLICE)
    page.click("text=Check first")
    expect(page.locator("#room-says")).to_contain_text("7 of 7 are free")
    page.select_option("#id_what", SLICE)
    page.fill("#id_title", "No script")
    page.click("#room >> text=Book")
    page.wait_for_url("**/reservations/*/")
    for _ in range(200):
        if "Active" in page.locator("#state").inner_text():
            break
        page.reload()
    expect(page.locator("#state")).to_have_text("Active")
    page.click("text=Extend…")
    page.click("#extend >> text=+ 30 min")
    expect(page.locator("[role=status]").first).to_contain_text("Extended: it ends")
    page.click("text=Release…")
    page.click("#release .btn-danger")
    expect(page.locator("[role=status]").first).to_contain_text("Released.")
