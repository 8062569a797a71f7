"""pytest: the package of docs/examples/kerf-amd."""

from pathlib import Path

import pytest

from tests.docs.example import install_example


@pytest.fixture(scope="session")
def amd_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the package is installed."""
    folder = tmp_path_factory.mktemp("amd")
    install_example(folder, "kerf-amd")
    return folder
