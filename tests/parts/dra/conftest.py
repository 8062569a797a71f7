"""A browser on the page, and no time that only passes."""

import pytest

from tests.page.conftest import browser, open_page, server

__all__ = ["at_once", "browser", "open_page", "server"]


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a watch that tells nothing, nor for the next look in the background."""
    monkeypatch.setattr("extender.parts.dra.keeper._MAX_ECHO_S", 0.0)
    for module in ("maker", "reclaimer"):
        monkeypatch.setattr(f"extender.parts.dra.{module}._INTERVAL_S", 0.01)
