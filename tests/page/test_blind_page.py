"""What is no more than how things were is dimmed, and the page says of when that is; by itself, and back again."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.api.processes import Server, demo
from tests.changes import PAGE
from tests.page.conftest import Opener

pytestmark = pytest.mark.nightly(of=PAGE)

expect.set_options(timeout=30_000)  # ms; a busy machine is no fault
AS_OF = r"As of \d\d:\d\d:\d\d, \d+ s ago: "


@pytest.fixture
def kerf(tmp_path: Path) -> Iterator[Server]:
    """A demo whose API server can be cut off."""
    with demo(tmp_path / "log", module="tests.page.blind") as process:
        server = Server(process, tmp_path / "log")
        server.wait_for(lambda: server.get("/readyz").status == 200)
        yield server


def is_dim(page: Page) -> bool:
    """Whether everything that tells of the cluster is dimmed."""
    faint = "(name) => Number(getComputedStyle(document.querySelector(name)).opacity) < 1"
    return all(page.evaluate(faint, name) for name in ("main", "#facts"))


def test_a_kerf_that_cannot_see_the_cluster_and_sees_it_again(open_page: Opener, kerf: Server) -> None:
    page = open_page(at=kerf)
    told = page.locator("body > .as-of")
    expect(page.get_by_role("status").first).to_have_text("ready")
    expect(told).to_be_hidden()
    assert not is_dim(page)

    kerf.process.send_signal(signal.SIGUSR1)
    why = "Kerf has heard nothing from the API server since and decides nothing: "
    expect(told).to_have_text(re.compile(f"^{AS_OF}{why}(nodes|pods) were last current"))
    assert is_dim(page)
    before = told.inner_text()
    expect(told).not_to_have_text(before)  # it counts on

    kerf.process.send_signal(signal.SIGUSR2)
    expect(told).to_be_hidden()
    assert not is_dim(page)
    expect(page.get_by_role("status").first).to_have_text("ready")


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_page_that_has_lost_kerf(open_page: Opener, kerf: Server, how: signal.Signals) -> None:
    page = open_page(at=kerf)
    expect(page.get_by_role("status").first).to_have_text("ready")
    kerf.process.send_signal(how)
    told = page.locator("body > .as-of")
    expect(told).to_have_text(re.compile(f"^{AS_OF}no connection to Kerf$"))
    expect(page.get_by_role("status").first).to_have_text("no connection to Kerf")
    assert is_dim(page)
    if how is signal.SIGSTOP:
        kerf.process.send_signal(signal.SIGCONT)
        expect(told).to_be_hidden()
        assert not is_dim(page)


def test_the_drawer_says_so_too(open_page: Opener, kerf: Server) -> None:
    page = open_page(at=kerf)
    page.goto(page.url + "#node/a100-0")
    expect(page.get_by_role("dialog").get_by_role("table").first).to_be_visible()
    kerf.process.kill()
    expect(page.get_by_role("dialog").locator(".as-of")).to_have_text(re.compile(f"^{AS_OF}no connection to Kerf$"))


def test_before_the_first_sync_nothing_is_claimed(browser: Browser, tmp_path: Path) -> None:
    with demo(tmp_path / "log", ["--unsynced"], module="tests.page.blind") as process:
        server = Server(process, tmp_path / "log")
        context = browser.new_context()
        page = context.new_page()
        page.goto(f"http://127.0.0.1:{server.port}/")
        told = page.locator("body > .as-of")
        expect(told).to_have_text(
            re.compile("^Kerf has heard nothing from the API server yet and decides nothing: .* not synced yet")
        )
        for claim in ("No GPU nodes.", "No pending pods.", "GPUs booked"):
            expect(page.get_by_text(claim, exact=True)).to_be_hidden()
        process.send_signal(signal.SIGUSR2)
        expect(told).to_be_hidden()
        expect(page.locator("#map canvas").first).to_be_visible()
        context.close()
