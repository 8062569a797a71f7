"""The report of a replay in a browser: legible on a phone and in the dark, and with nothing that axe-core finds."""

from pathlib import Path
from typing import Any, Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser

from model.evaluation.history_pages import page
from tests.changes import PAGE
from tests.model.evaluation.test_history_pages import past_of, report_of

pytestmark = [pytest.mark.slow, pytest.mark.nightly(of=PAGE)]


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page with all there is."""
    from model.pasts.usages import Price

    path = tmp_path_factory.mktemp("report") / "report.html"
    path.write_text(page(report_of(past_of(10.0), fewer=True, price=Price(2.5, "EUR"))), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [390, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_legible(browser: Browser, written: Path, width: int, scheme: Literal["light", "dark"]) -> None:
    said: list[Any] = []
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, bypass_csp=True)
    try:
        opened = context.new_page()
        opened.on("console", lambda message: said.append(message.text))
        opened.on("request", lambda request: said.append(request.url))
        opened.goto(written.as_uri())
        assert said == [written.as_uri()]
        assert opened.evaluate("document.documentElement.scrollWidth") == width
        violations = Axe().run(opened).response["violations"]
        assert [(found["id"], [node["html"] for node in found["nodes"]]) for found in violations] == []
    finally:
        context.close()
