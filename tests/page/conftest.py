"""A browser, and pages on a running demo."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from tests.api.processes import Server, ready_demo
from tests.controlplane.binaries import BuildError
from tests.page.browsers import find_chromium

Opener = Callable[..., Page]

_FLAGS = (
    "--no-sandbox",  # root has none, in containers
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, no longer than one module needs it: Playwright keeps an event loop running, and others want one."""
    try:
        chromium = find_chromium()
    except BuildError as error:
        pytest.skip(str(error))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium.executable,
            env=dict(chromium.environment),
            args=list(_FLAGS),
        )
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A demo."""
    with ready_demo(tmp_path_factory.mktemp("page") / "log") as found:
        yield found


@pytest.fixture
def open_page(browser: Browser, server: Server) -> Iterator[Opener]:
    """Opens a service's page, the demo's unless `at` is another, in a window of some kind.

    Whatever the console is told of fails the test, but for answers that say no.
    """
    said: list[str] = []
    contexts: list[BrowserContext] = []

    def note(text: str) -> None:
        if not text.startswith("Failed to load resource"):
            said.append(text)

    def open_it(at: Server = server, **options: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: note(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: note(str(error)))
        page.goto(f"http://127.0.0.1:{at.port}/")
        page.locator("#map canvas").first.wait_for()
        return page

    yield open_it
    for context in contexts:
        context.close()
    assert said == []
