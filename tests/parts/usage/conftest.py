"""A browser on the demo's page, and Prometheus asked without a process."""

import pytest

from tests.page.conftest import browser, open_page, server
from tests.parts.usage.prometheuses import Asking

__all__ = ["browser", "open_page", "server"]


@pytest.fixture
def asks_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What asks Prometheus is no process of its own."""
    monkeypatch.setattr("extender.parts.usage.past.Child", Asking)
