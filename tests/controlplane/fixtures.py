"""pytest: one control plane for the whole session, started when first asked for."""

from collections.abc import Iterator

import pytest

from tests.controlplane.plane import ControlPlane


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A running ControlPlane. It is shared: use names and namespaces of your own, and stop your schedulers."""
    with ControlPlane(tmp_path_factory.mktemp("controlplane")) as plane:
        yield plane
