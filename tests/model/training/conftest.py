"""Fixtures of the tests of training."""

from pathlib import Path

import pytest

from tests.model.builders import write_openb


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small ones, in the form of the published."""
    return write_openb(tmp_path_factory.mktemp("openb"), num_nodes=6, num_pods=60)
