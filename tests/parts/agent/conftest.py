"""An agent that is in a hurry."""

import pytest

from extender.parts.agent import report, steering


@pytest.fixture(autouse=True)
def in_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks and writes ten times as often."""
    for module, names in ((report, ("_SETTLING_S", "_FAST_S", "_SLOW_S", "_MIN_PAUSE_S")), (steering, ("_POLL_S",))):
        for name in names:
            monkeypatch.setattr(module, name, getattr(module, name) / 10)
