"""A recorder, and columns made without a process."""

from pathlib import Path

import pytest

from tests.parts.history.rigs import Rig, Rolling


@pytest.fixture(name="rig")
def rig_fixture(tmp_path: Path) -> Rig:
    return Rig(tmp_path)


@pytest.fixture
def rolls_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes columns of journals is no process of its own."""
    monkeypatch.setattr("extender.parts.history.recorder.Child", Rolling)
