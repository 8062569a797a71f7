"""Fixtures of the tests of training."""

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small traces in the layout of openb."""
    from tests.model.builders import write_openb  # after tests/model/conftest.py has configured numba

    return write_openb(tmp_path_factory.mktemp("openb"), num_nodes=6, num_pods=60)
