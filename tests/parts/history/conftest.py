"""Columns made without a process."""

import pytest

from tests.parts.history.rigs import Rolling


@pytest.fixture
def rolls_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes columns of journals is no process of its own."""
    monkeypatch.setattr("extender.parts.history.recorder.Child", Rolling)
