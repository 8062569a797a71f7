"""Addresses that alerts link to, in a real browser: each opens what it names."""

import re

import pytest
from playwright.sync_api import expect

from tests.changes import PAGE
from tests.install.test_alerts import LINKS
from tests.page.conftest import Opener

pytestmark = pytest.mark.nightly(of=PAGE)

expect.set_options(timeout=30_000)  # ms; a busy machine is no fault


@pytest.mark.parametrize("link", sorted(set(LINKS.values())))
def test_a_link_of_an_alert_opens_what_it_names(open_page: Opener, link: str) -> None:
    page = open_page(viewport={"width": 1000, "height": 400})
    base = page.url
    page.goto("about:blank")
    page.goto(base + link.replace("{{ $labels.node }}", "a100-0").replace("{{ $labels.namespace }}", "default"))
    if link.startswith("#node/"):
        expect(page.get_by_role("dialog", name="a100-0")).to_contain_text("of 8 GPUs booked")
        return
    card = page.locator(re.split(r"[?]", link)[0])
    expect(card).to_be_focused()
    expect(card.get_by_role("heading").first).to_be_in_viewport()
    if asked := re.search(r"(idle|pending)", link):
        expect(card.locator(".chips [aria-pressed=true]").first).to_contain_text(asked[1])
        expect(card.get_by_role("combobox").first).to_have_value("default")
