"""pytest: a control plane with a real node, for tests that share it one after another."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controlplane.kerf import RBAC, SCHEDULER_CONFIG, SERVICE_ACCOUNT
from tests.controlplane.objects import gpu_node
from tests.controlplane.plane import ControlPlane
from tests.e2e.clusters import KerfCluster, KerfProcess
from tests.realnode.claims import Claims
from tests.realnode.dra import Slices, dra_driver
from tests.realnode.driven import Drive, Driven
from tests.realnode.machine import lacking
from tests.realnode.node import SERVER_FLAGS, Node


@pytest.fixture(scope="session")
def node_machine() -> None:
    """A machine on which nodes can run; a test that starts one itself asks for this."""
    if lacking():
        pytest.skip(lacking())


@pytest.fixture(scope="session")
def node_plane(tmp_path_factory: pytest.TempPathFactory, node_machine: None) -> Iterator[ControlPlane]:
    """A control plane that real nodes can join, on which Kerf has the rights of manifests/rbac.yaml."""
    users = {"kerf": SERVICE_ACCOUNT}
    with ControlPlane(tmp_path_factory.mktemp("realnode"), users=users, flags=SERVER_FLAGS) as plane:
        plane.apply(RBAC)
        yield plane


@pytest.fixture(scope="session")
def session_node(node_plane: ControlPlane) -> Iterator[Node]:
    """One node of the whole session, with the labels of GPU feature discovery."""
    labels = gpu_node("")["metadata"]["labels"]
    with Node(
        node_plane, labels={key: value for key, value in labels.items() if key.startswith("nvidia.com/")}
    ) as node:
        yield node


@pytest.fixture
def node(session_node: Node) -> Iterator[Node]:
    """A real node without a pod, on `node_plane`; it is left so, its kubelet running."""
    yield session_node
    session_node.clean()


@pytest.fixture
def drive(node_plane: ControlPlane, node: Node) -> Iterator[Drive]:
    """Starts a driver; all claims and pods go before it."""
    claims = Claims(node_plane)
    with contextlib.ExitStack() as open_until_the_end:

        def start(slices: Slices) -> Driven:
            driver = open_until_the_end.enter_context(dra_driver(node_plane, node, slices))
            open_until_the_end.callback(claims.clean)
            return Driven(node, driver, claims)

        yield start


@contextlib.contextmanager
def kerf_places(
    plane: ControlPlane, *arguments: str, config: Path | str = SCHEDULER_CONFIG / "decisive.yaml"
) -> Iterator[KerfCluster]:
    """Kerf behind a kube-scheduler, for the nodes that there are; its pods and nodes are the test's to clean up."""
    kerf = KerfProcess(plane, "kerf-realnode", *arguments)
    scheduler = plane.start_scheduler(config, name="scheduler-realnode", extender_url=kerf.url)
    try:
        yield KerfCluster(plane, kerf)
    finally:
        scheduler.stop()
        kerf.stop()
