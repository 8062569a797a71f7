"""Fixtures of the service's tests."""

import os
from collections.abc import Iterator

import pytest

from tests.api.services import Kerf, running


@pytest.fixture(autouse=True, scope="session")
def no_settings_from_outside() -> Iterator[None]:
    """Settings of the machine that the tests run on are not theirs."""
    with pytest.MonkeyPatch.context() as patch:
        for name in os.environ:
            if name.startswith("KERF_") and not name.startswith(("KERF_TEST_", "KERF_REFERENCE")):
                patch.delenv(name)
        yield


@pytest.fixture
def kerf() -> Iterator[Kerf]:
    """Kerf in its default settings on the small cluster of `bodies`."""
    with running() as service:
        yield service
