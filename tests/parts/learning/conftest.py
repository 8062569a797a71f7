"""A Kerf whose released model spreads, and models to hand in."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.parts.learning.rigs import PACKS, SPREADS, Contents, Rig, rig, written


@pytest.fixture(name="at")
def at_fixture(tmp_path: Path) -> Iterator[Rig]:
    with rig(tmp_path, SPREADS) as at:
        yield at


@pytest.fixture(name="one")
def one_fixture(tmp_path: Path) -> Contents:
    return written(tmp_path / "one", PACKS)


@pytest.fixture(name="other")
def other_fixture(tmp_path: Path) -> Contents:
    return written(tmp_path / "other", {"node_idle": 2.0})
