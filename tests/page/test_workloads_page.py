"""All workloads on the page, search over everything with a name, and addresses that can be shared."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.api import bodies
from tests.api.processes import Server
from tests.changes import PAGE
from tests.page.conftest import Opener
from tests.page.test_page import WITH_MARKUP, check, pod, post

pytestmark = pytest.mark.nightly(of=PAGE)

At = Callable[..., Page]
FIELD = "Search pods, owners, namespaces, nodes and GPU models"


@pytest.fixture
def at(open_page: Opener, server: Server) -> At:
    """Opens the page at an address."""

    def open_at(fragment: str, **options: Any) -> Page:
        page = open_page(**options)
        page.goto("about:blank")
        page.goto(f"http://127.0.0.1:{server.port}/{fragment}")
        page.locator("#map canvas").first.wait_for()
        return page

    return open_at


def rows(page: Page) -> Locator:
    """Those of the table of workloads."""
    return page.get_by_role("table", name="Workloads, and how they use their GPUs").locator("tbody tr")


def names(page: Page) -> list[str]:
    return [text.split("\n")[0] for text in rows(page).locator("th").all_inner_texts()]


def test_owners_are_listed_and_unfold_to_their_pods(at: At) -> None:
    page = at("#workloads")
    expect(page.locator("#workloads .count")).to_have_text(re.compile(r"^\d+ pods, [\d.]+ GPUs booked, \d+ requested"))
    group = rows(page).filter(has=page.get_by_role("link", name="Pods of Pod/train in default"))
    expect(group).to_contain_text(re.compile(r"3 pending.*18 requested"))
    toggle = group.get_by_role("button")
    expect(toggle).to_have_attribute("aria-expanded", "false")
    toggle.press("Enter")
    expect(toggle).to_have_attribute("aria-expanded", "true")
    expect(toggle).to_be_focused()
    inner = page.locator("#workloads tr.inner")
    expect(inner).to_have_count(3)
    expect(inner.first).to_contain_text("default/train-1")
    expect(inner.first).to_contain_text("8 GPUs")
    page.wait_for_timeout(6000)  # it is asked for again, and stays as it is
    expect(inner).to_have_count(3)
    toggle.press("Enter")
    expect(inner).to_have_count(0)


def test_pods_are_filtered_sorted_and_paged_and_the_address_says_so(at: At) -> None:
    page = at("#workloads")
    page.get_by_role("group", name="Rows of workloads").get_by_role("button", name="Pods").click()
    expect(rows(page)).to_have_count(50)
    expect(page.locator("#workloads .pager")).to_contain_text("60 pods, page 1 of 2")
    page.locator("#workloads").get_by_role("button", name="Next").click()
    expect(rows(page)).to_have_count(10)
    page.get_by_role("group", name="State of workloads").get_by_role("button", name="pending").click()
    expect(rows(page)).to_have_count(4)
    assert names(page)[:2] == ["default/train-1", "default/train-2"]  # most GPUs first
    page.get_by_role("button", name="Workload", exact=True).click()
    expect(page.get_by_role("columnheader", name="Workload")).to_have_attribute("aria-sort", "ascending")
    expect(rows(page).locator("th").first).to_contain_text("default/notebook-0")
    page.get_by_role("searchbox", name="Filter workloads").fill("train")
    expect(rows(page)).to_have_count(3)
    assert page.url.endswith("#workloads?q=train&state=pending&by=pod&sort=name")
    other = at(page.url[page.url.index("#") :])
    expect(rows(other)).to_have_count(3)
    assert names(other) == ["default/train-0", "default/train-1", "default/train-2"]
    expect(other.get_by_role("searchbox", name="Filter workloads")).to_have_value("train")
    chip = other.get_by_role("group", name="State of workloads").get_by_role("button", name="pending")
    expect(chip).to_have_attribute("aria-pressed", "true")


def test_a_namespace_is_chosen_and_what_is_chosen_by_address_can_be_taken_back(at: At) -> None:
    page = at("#workloads?owner=Pod/train&by=pod&namespace=nowhere")
    expect(page.locator("#workloads")).to_contain_text("No matching pod has or requests GPUs.")
    page.get_by_role("combobox", name="Namespace of workloads").select_option("default")
    expect(rows(page)).to_have_count(3)
    page.get_by_role("button", name="Without owner Pod/train").click()
    expect(rows(page)).to_have_count(50)
    page.get_by_role("group", name="Rows of workloads").get_by_role("button", name="Namespaces").click()
    expect(rows(page)).to_have_count(1)
    rows(page).get_by_role("link", name="default").click()
    assert page.url.endswith("#workloads?by=owner&namespace=default")


def test_what_an_address_can_not_ask_for_is_left_out(at: At) -> None:
    page = at("#workloads?by=luck&sort=%00&state=dead&limit=9&namespace=" + "n" * 500)
    expect(page.locator("#workloads")).to_contain_text("No matching pod has or requests GPUs.")
    at("#pod/%")
    at("#workloads?%")


def test_links_of_rows_open_the_drawer_and_closing_it_returns_to_the_address_before(at: At) -> None:
    page = at("#workloads?by=pod&node=h100-0")
    expect(rows(page).first).to_be_visible()
    before = page.url
    rows(page).first.get_by_role("link", name="h100-0").click()
    dialog = page.get_by_role("dialog", name="h100-0")
    expect(dialog).to_contain_text("of 8 GPUs booked")
    dialog.get_by_role("link").first.click()
    expect(page.get_by_role("dialog", name="default/job-")).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(page).to_have_url(before)
    assert len(names(page)) == rows(page).count()


def test_going_back_closes_the_drawer(at: At) -> None:
    page = at("#workloads?by=pod")
    rows(page).first.get_by_role("link", name="default/train-1").click()
    expect(page.get_by_role("dialog")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(page).to_have_url(re.compile(r"#workloads\?by=pod$"))


def told(**more: Any) -> dict[str, Any]:
    """A pod as `GET /workloads` has it."""
    return {
        **{"pod": "a/p", "namespace": "a", "owner": "Job/train", "gang": None, "state": "running", "node": "n"},
        **{"model": "t4", "gpus": 2.0, "indices": [0, 1], "memoryMiB": 32768, "request": None, "load": 0.01},
        **{"idleSeconds": None, "priority": 0, "since": None, "explain": "kerf explain a/p", **more},
    }


def test_what_is_idle_held_shared_or_of_a_gang_is_told_as_that(open_page: Opener) -> None:
    states = dict.fromkeys(("running", "starting", "ending", "held", "placing", "pending", "gated"), 0)
    pods = [
        told(pod="a/sleeps", idleSeconds=7200.0),
        told(pod="a/rests", idleSeconds=300.0),
        told(pod="a/share", gpus=0.25, indices=[3], memoryMiB=8192, gang="a/ring", owner="Pod/share"),
        told(pod="a/claim", owner="ResourceClaim/claim", state="held", explain=None),
        told(pod="a/slice", gpus=None, node=None, state="gated", request="2 GPU replicas"),
    ]
    totals = {"pods": 5, "states": states, "gpusBooked": 6.25, "gpusAsked": 0.0, "load": 0.01}
    answer = {
        **{"by": "pod", "pods": pods, "groups": [], "total": 5, "more": 0, "atLeast": True, "found": None},
        **{
            "totals": totals | {"idlePods": 1, "idleGpus": 2.0},
            "states": states | {"running": 3, "held": 1, "idle": 1},
        },
        "idleAfterSeconds": 1800.0,
    }
    page = open_page()
    page.route("**/workloads?*", lambda route: route.fulfill(json=answer))
    page.evaluate("location.hash = '#workloads?by=pod'")
    expect(rows(page)).to_have_count(5)
    count = page.locator("#workloads .count")
    expect(count).to_have_text("at least 5 pods, 6.25 GPUs booked; 1 with 2 GPUs idle for 30 min or more")
    sleeps, rests, share, claim, gated = rows(page).all()
    expect(sleeps.locator("strong.poor")).to_have_text("2 h")
    expect(rests).to_contain_text("5 min")
    expect(rests.locator("strong.poor")).to_have_count(0)
    expect(share).to_contain_text("0.25, 8 GiB")
    expect(share.get_by_role("link", name="gang a/ring")).to_have_attribute("href", "#workloads?by=pod&gang=a/ring")
    expect(claim.get_by_role("rowheader").get_by_role("link", name="a/claim", exact=True)).to_have_count(0)
    expect(gated).to_contain_text("2 GPU replicas")
    expect(page.get_by_role("group", name="State of workloads").get_by_role("button", name="held")).to_have_text(
        "held 1"
    )
    page.unroute("**/workloads?*")
    page.route("**/workloads?*", lambda route: route.abort())
    expect(count).to_have_text("Kerf does not answer")
    expect(rows(page)).to_have_count(5)  # what was known stays


@pytest.mark.parametrize("panel", ["cluster", "waiting", "workloads", "decisions", "what-if"])
@pytest.mark.parametrize("width", [390, 1280])
def test_each_panel_has_an_address_that_leads_to_it(at: At, panel: str, width: int) -> None:
    page = at(f"#{panel}", viewport={"width": width, "height": 600})
    page.wait_for_function(
        """(id) => {
          const { top } = document.getElementById(id).getBoundingClientRect();
          const bottom = Math.abs(scrollY + innerHeight - document.documentElement.scrollHeight) < 2;
          return Math.abs(top) < 5 || (bottom && top > 0 && top < innerHeight);
        }""",
        arg=panel,
    )


def test_search_goes_by_keyboard_from_a_slash_to_a_result(at: At) -> None:
    page = at("")
    page.keyboard.press("/")
    field = page.get_by_role("searchbox", name=FIELD)
    expect(field).to_be_focused()
    page.keyboard.type("h100-1")
    found = page.locator("#found")
    expect(found.get_by_role("link", name="h100-1", exact=True)).to_be_visible()
    page.keyboard.press("ArrowDown")
    expect(found.get_by_role("link").first).to_be_focused()
    page.keyboard.press("Escape")
    expect(found).to_be_hidden()
    expect(field).to_be_focused()
    page.keyboard.press("Enter")  # it is called exactly so
    expect(page.get_by_role("dialog", name="h100-1")).to_contain_text("GPUs booked")
    page.keyboard.press("Escape")
    expect(page).not_to_have_url(re.compile("#"))


def test_results_are_links_by_kind(at: At) -> None:
    page = at("")
    field, found = page.get_by_role("searchbox", name=FIELD), page.locator("#found")
    field.fill("train")
    expect(found.get_by_role("link", name="default/train-0")).to_have_attribute("href", "#pod/default/train-0")
    owner = found.get_by_role("link", name="default/Pod/train")
    expect(owner).to_have_attribute("href", "#workloads?by=pod&namespace=default&owner=Pod/train")
    field.fill("def")
    expect(found.get_by_role("link", name="default", exact=True)).to_have_attribute(
        "href", "#workloads?namespace=default"
    )
    field.fill("v100-sxm2")
    model = found.get_by_role("link", name="v100-sxm2-32gb", exact=True)
    expect(model).to_have_attribute("href", "#workloads?by=pod&q=v100-sxm2-32gb")
    model.click()
    expect(found).to_be_hidden()
    expect(rows(page).first).to_contain_text("v100-sxm2-32gb")
    expect(page.locator("#workloads .count")).to_contain_text("14 GPUs booked")
    field.fill("no-such-thing")
    expect(found).to_contain_text("No name contains this text.")
    field.press("Enter")
    expect(page.locator("#workloads")).to_contain_text("No matching pod has or requests GPUs.")


def test_a_slash_that_is_typed_stays_where_it_is_typed(at: At) -> None:
    page = at("")
    field = page.get_by_role("textbox", name="Pod, as namespace/name")
    field.click()
    page.keyboard.type("a/b")
    expect(field).to_have_value("a/b")


def test_what_authors_write_is_text_here_too(at: At, server: Server) -> None:
    evil = pod("evil", 1, gpu_model=WITH_MARKUP)
    evil["metadata"]["ownerReferences"] = [{"kind": "Job", "name": WITH_MARKUP, "controller": True}]
    post(server, "filter", bodies.args(evil, ["a100-0"]))
    page = at("#workloads?by=pod&q=onerror")
    expect(rows(page).first).to_contain_text(f"1 GPU of model {WITH_MARKUP}, Job/{WITH_MARKUP}")
    page.get_by_role("searchbox", name=FIELD).fill("onerror")
    expect(page.locator("#found")).to_contain_text(WITH_MARKUP)
    assert page.locator("img[src=x]").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility_rules_hold(at: At, scheme: str) -> None:
    page = at("#workloads", color_scheme=scheme, reduced_motion="reduce")
    rows(page).get_by_role("button").first.click()
    expect(page.locator("#workloads tr.inner").first).to_be_visible()
    check(page)
    page.goto(page.url.partition("#")[0] + "#workloads?by=pod&gang=a/b&node=h100-0")
    expect(page.get_by_role("button", name="Without node h100-0")).to_be_visible()
    page.get_by_role("searchbox", name=FIELD).fill("train")
    expect(page.locator("#found").get_by_role("link").first).to_be_visible()
    check(page)


@pytest.mark.parametrize("width", [320, 390, 768])
def test_no_window_scrolls_sideways(at: At, width: int) -> None:
    page = at("#workloads?by=pod", viewport={"width": width, "height": 800})
    expect(rows(page)).to_have_count(50)
    page.get_by_role("searchbox", name=FIELD).fill("train")
    expect(page.locator("#found")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.parametrize("by", ["owner", "pod", "namespace"])
def test_a_narrow_window_shows_every_column_of_a_row(at: At, by: str) -> None:
    """Each row is a card, and what orders them stays in sight."""
    page = at(f"#workloads?by={by}", viewport={"width": 390, "height": 844})
    expect(rows(page).first).to_be_visible()
    for cell in rows(page).first.locator("th, td").all():
        box = cell.bounding_box()
        assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390
    first = rows(page).first.locator("td")
    headings = [cell.get_attribute("data-heading") for cell in first.all()]
    node = ["Node"] if by == "pod" else []
    assert headings == ["State", *node, "GPUs", "Load", "Idle", "Age"]
    page.locator("#workloads thead").get_by_role("button", name="Age").click()
    expect(page).to_have_url(re.compile("sort=age"))


def test_what_an_address_can_not_ask_for_is_told(at: At) -> None:
    page = at("#workloads?by=pod&state=foo")
    count = page.locator("#workloads .count.fault")
    expect(count).to_have_text(
        'state: "foo" is not one of running, starting, ending, held, placing, pending, gated; it is ignored'
    )
    expect(rows(page)).to_have_count(50)
    page.get_by_role("group", name="State of workloads").get_by_role("button", name="pending").click()
    expect(count).to_have_count(0)
    expect(rows(page).filter(has_text="running")).to_have_count(0)
    expect(rows(page).first).to_contain_text("pending")
