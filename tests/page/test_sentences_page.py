"""A pod in one sentence on the page: what keeps it pending and what helps, or why it is there; the rest is folded."""

import re

import pytest
from playwright.sync_api import expect

from tests.api import bodies
from tests.api.processes import Server
from tests.changes import PAGE
from tests.page.conftest import Opener
from tests.page.test_page import WITH_MARKUP, pod, post

pytestmark = pytest.mark.nightly(of=PAGE)


def test_a_pending_pods_drawer_reads_sentence_remedies_then_details(open_page: Opener, server: Server) -> None:
    page = open_page()
    post(server, "filter", bodies.args(pod("short-of-room", 8), ["a100-0", "t4-1", "cpu-0"]))
    page.evaluate("location.hash = 'pod/default/short-of-room'")
    dialog = page.get_by_role("dialog", name="default/short-of-room")
    expect(dialog.locator(".sentence")).to_have_text(
        re.compile(r"^needs 8 GPUs; a100-0 has \d free, default/job-\d+, .* and default/job-\d+ hold \d")
    )
    expect(dialog.get_by_role("listitem").nth(1)).to_contain_text(re.compile(r"wait for default/job-\d+.* to end"))
    command = "kerf what-if --waiting --add-node auto"
    copy = dialog.get_by_role("button", name=f"Copy {command}")
    copy.click()
    page.wait_for_function(
        "(command) => document.querySelector('dialog[open]').innerText.includes('Copied')"
        " || String(getSelection()) === command",
        arg=command,
    )
    reasons = dialog.get_by_text("1 × needs 8 GPUs, no GPUs here")
    expect(reasons).to_be_hidden()
    dialog.get_by_text("Details", exact=True).focus()
    page.keyboard.press("Enter")
    expect(reasons).to_be_visible()


def test_a_placed_pods_drawer_says_why_there_and_what_the_score_is_made_of(open_page: Opener, server: Server) -> None:
    page = open_page()
    post(server, "filter", bodies.args(pod("has-room", 2, policy="tightest"), ["a100-1", "h100-1", "cpu-0"]))
    page.evaluate("location.hash = 'pod/default/has-room'")
    dialog = page.get_by_role("dialog", name="default/has-room")
    expect(dialog.locator(".sentence")).to_have_text(
        "On h100-1: 4 GPUs left over; on a100-1, the next: 6 GPUs left over."
    )
    table = dialog.get_by_role("table", name="Parts of the score", exact=True)
    expect(table).to_be_hidden()
    dialog.get_by_text("Details", exact=True).click()
    row = table.get_by_role("row").filter(has_text="leftOver")
    expect(row).to_have_text("leftOver: free ones left over on the node: the fewer, the better-4-6")


def test_sentences_and_remedies_are_text(open_page: Opener) -> None:
    page = open_page()
    told = page.evaluate(
        """async (markup) => {
          const { remedies } = await import('/page/sentences.js');
          const one = { kind: 'move', text: markup, command: markup };
          const made = remedies({ pod: 'a/b', remedies: [one] });
          document.body.append(made);
          const images = made.querySelectorAll('img').length;
          const [link] = made.querySelectorAll('a');
          const told = { images, text: made.querySelector('li').textContent, href: link.getAttribute('href') };
          made.remove();
          return told;
        }""",
        WITH_MARKUP,
    )
    assert told == {"images": 0, "text": f"{WITH_MARKUP}: Make room {WITH_MARKUP} Copy", "href": "#room/a/b"}
