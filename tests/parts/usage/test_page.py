"""Usage over time on the page, in a real browser."""

import json
import re
from typing import Any

import pytest
from playwright.sync_api import Page, Route, expect

from tests.changes import PAGE
from tests.page.conftest import Opener

pytestmark = [pytest.mark.slow, pytest.mark.nightly(of=PAGE)]

expect.set_options(timeout=30_000)  # ms; a busy machine is no fault
JSON = "application/json"
HOUR_S = 3600
NOW = 1_795_700_000
NAMES = ["research", "vision", "(other)"]
STATES = {"capacity": 16.0, "free": 5.0, "stranded": 2.0, "sick": 1.0, "booked": 8.0}
USED = {"used": 4.0, "measured": 8.0, "idle": 1.0}


def step(at: int, booked: float, step_s: int) -> dict[str, Any]:
    """A whole step, in which so many GPUs were booked and all others were free."""
    hours = {name: gpus * step_s / HOUR_S for name, gpus in (STATES | USED).items()}
    of_names = [booked * part * step_s / HOUR_S for part in (0.5, 0.25, 0.25)]
    hours |= {"booked": booked * step_s / HOUR_S, "free": (13 - booked) * step_s / HOUR_S}
    return {
        **{"at": at, "seconds": float(step_s), "bookedByNamespace": of_names},
        **{f"{name}GpuHours": amount for name, amount in hours.items()},
    }


def tell(page: Page, since_s: int, **more: Any) -> None:
    """Let Kerf tell of 24 steps of a length of time."""
    step_s = since_s // 24

    def answer(route: Route) -> None:
        steps = [step(NOW - since_s + number * step_s, 8.0 + number % 3, step_s) for number in range(24)]
        told: dict[str, Any] = {"source": "kerf", "since": NOW - since_s, "until": NOW, "stepSeconds": step_s}
        told |= {"knownSince": NOW - 30 * 86_400, "namespaces": NAMES, "steps": steps}
        route.fulfill(status=200, content_type=JSON, body=json.dumps(told | more))

    page.route("**/usage/over-time*", answer)


def opened(open_page: Opener, address: str = "", since_s: int = 86_400, **more: Any) -> Page:
    """The page at an address, with what it is to be told of usage over time."""
    page = open_page()
    tell(page, since_s, **more)
    return begin(page, address)


def begin(page: Page, address: str) -> Page:
    """It is loaded anew, at an address."""
    base = page.url.partition("#")[0]
    page.goto("about:blank")
    page.goto(f"{base}{address}")
    return page


def test_what_was_counted_is_drawn_at_once(open_page: Opener) -> None:
    """By a demo that has just begun: an hour of which a moment is known."""
    page = open_page(viewport={"width": 390, "height": 900})
    card = page.locator("#usage")
    expect(card).to_contain_text(re.compile(r"On average \d[\d.]* of 176 GPUs booked"))
    expect(card).to_contain_text(re.compile(r"Since .* \(Kerf's start\)"))
    expect(card.get_by_role("button", name="1 h")).to_have_attribute("aria-pressed", "true")
    assert card.locator(".chart path.free").get_attribute("d")
    inside = "card => [...card.querySelectorAll('*')].every(one => one.getBoundingClientRect().right <= 390)"
    assert card.evaluate(inside), "it fits a narrow window"
    expect(card).to_contain_text(re.compile(r"since .*\d+ % booked, \d+ % free, \d+ % stranded, \d+ % out of use"))
    row = card.get_by_role("table", name="GPU-hours by namespace").get_by_role("row", name="default")
    expect(row.get_by_role("cell").first).to_have_text(re.compile(r"^\d[\d,.]*$"))
    tell(page, 3600, source="prometheus", knownSince=None)
    page.reload()
    expect(card).to_contain_text(re.compile(r"From Prometheus[.,]"))


def test_the_chart_is_read_by_keyboard_and_by_mouse(open_page: Opener) -> None:
    page = opened(open_page)
    chart = page.locator("#usage").get_by_role("slider", name="GPUs in the last 24 h, by time")
    expect(page.locator("#usage")).to_contain_text("On average 9 of 16 GPUs booked (4 used), 4 free")
    chart.focus()
    page.keyboard.press("Home")
    words = re.compile(r".+ to .+: 8 of 16 GPUs booked \(4 used\), 5 free, 2 stranded, 1 out of use$")
    expect(chart).to_have_attribute("aria-valuetext", words)
    expect(page.locator("#usage .said")).to_have_text(words)
    page.keyboard.press("ArrowRight")
    expect(chart).to_have_attribute("aria-valuenow", "1")
    expect(page.locator("#usage .said")).to_contain_text(": 9 of 16 GPUs booked")
    for key in ("End", "ArrowRight"):
        page.keyboard.press(key)
    expect(chart).to_have_attribute("aria-valuenow", "23")
    page.keyboard.press("Tab")
    expect(page.locator("#usage .said")).to_contain_text("On average")
    page.locator("#usage .chart").hover(position={"x": 1, "y": 20})
    expect(page.locator("#usage .said")).to_contain_text(": 8 of 16 GPUs booked")
    page.locator("#usage h2").hover()
    expect(page.locator("#usage .said")).to_contain_text("On average")


def test_areas_are_as_high_as_their_parts_of_all_gpus_and_the_same_figures_are_a_table(open_page: Opener) -> None:
    page = opened(open_page, "#usage?since=9y&by=pod")  # which names nothing: as without
    for name, gpus in (("stranded", 2 + 2), ("free", 5), ("sick", 1)):  # two high, on steps that differ by two
        height = page.locator(f"#usage .chart path.{name}").evaluate("path => path.getBBox().height")
        assert height == pytest.approx(100 * gpus / 16, abs=0.1)
    page.locator("#usage summary").click()
    rows = page.get_by_role("table", name="GPUs over time").get_by_role("row")
    expect(rows).to_have_count(25)
    expect(rows.nth(24).get_by_role("cell")).to_have_text(["16", "8", "4", "5", "2", "1"])


def test_a_length_of_time_and_namespaces_are_chosen_and_can_be_shared(open_page: Opener) -> None:
    page = opened(open_page)
    card = page.locator("#usage")
    card.get_by_role("button", name="7 d").click()
    expect(card.get_by_role("button", name="7 d")).to_be_focused()
    card.get_by_role("button", name="By namespace").click()
    expect(card).to_contain_text("On average research 4.5, vision 2.3, (other) 2.3")
    assert page.url.endswith("#usage?since=7d&by=namespace")
    shared = opened(open_page, "#usage?since=7d&by=namespace")
    expect(shared.locator("#usage")).to_contain_text("On average research 4.5")
    expect(shared.get_by_role("slider", name="GPUs in the last 7 d")).to_be_visible()
    expect(shared.locator("#usage")).to_be_focused()
    expect(shared.locator("#usage")).to_be_in_viewport()


def test_what_can_not_be_told_says_why(open_page: Opener) -> None:
    page, detail = open_page(), '{"detail": "standby: the lease is held by b"}'
    page.route("**/usage/over-time*", lambda route: route.fulfill(status=503, content_type=JSON, body=detail))
    page.reload()
    expect(page.locator("#usage .fault")).to_have_text("standby: the lease is held by b")
