"""pytest: a control plane with Kerf's own RBAC, and one cluster at a time on it."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.controlplane.kerf import RBAC, SCHEDULER_CONFIG, SERVICE_ACCOUNT
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import Process
from tests.e2e.clusters import KerfCluster, KerfProcess
from tests.install.policies import HAMI_PLUGIN, policy_for_tests
from tests.tools.chaos import checker


class Clusters:
    """Starts Kerf with a kube-scheduler that runs a given configuration file: never two at once."""

    def __init__(self, plane: ControlPlane) -> None:
        self.plane = plane
        self._num_opened = 0
        self._running: tuple[KerfCluster, Process] | None = None
        self._options: tuple[object, ...] = ()

    def open(self, config: Path, *arguments: str, **environment: str) -> KerfCluster:
        """An empty cluster with these options; one that runs with the same ones already is used again."""
        options = (config, arguments, environment)
        if self._running is not None and self._options == options:
            self._running[0].clean()
            return self._running[0]
        self.close()
        self._num_opened += 1
        kerf = KerfProcess(self.plane, f"kerf-{self._num_opened}", *arguments, env=environment)
        scheduler = self.plane.start_scheduler(config, name=f"scheduler-{self._num_opened}", extender_url=kerf.url)
        self._running, self._options = (KerfCluster(self.plane, kerf), scheduler), options
        return self._running[0]

    @property
    def scheduler(self) -> Process:
        """The kube-scheduler that runs."""
        assert self._running is not None
        return self._running[1]

    @contextlib.contextmanager
    def without_scheduler(self) -> Iterator[KerfCluster]:
        """No kube-scheduler runs in this block; the one that begins after it knows things as they are then."""
        assert self._running is not None
        cluster, scheduler = self._running
        self.plane.kill(scheduler.name)
        try:
            yield cluster
        finally:
            self._running = cluster, self.plane.revive(scheduler.name)

    def restart_kerf(self, *arguments: str) -> None:
        """Start the Kerf that runs once more, where kube-scheduler looks for it, after it has ended."""
        assert self._running is not None
        cluster, (_, before, environment) = self._running[0], self._options
        assert isinstance(before, tuple)
        assert isinstance(environment, dict)
        name = f"kerf-{self._num_opened}"
        arguments = (*before, *arguments)
        cluster.kerf = KerfProcess(self.plane, name, *arguments, env=environment, port=cluster.kerf.port)

    def clean(self) -> None:
        """Empty the cluster that runs."""
        if self._running is not None:
            self._running[0].clean()

    def close(self) -> None:
        """Empty the cluster, then end Kerf and kube-scheduler."""
        if self._running is not None:
            cluster, scheduler = self._running
            self._running = None
            try:
                cluster.clean()
            finally:
                scheduler.stop()
                cluster.kerf.stop()


@pytest.fixture(scope="session")
def all_clusters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Clusters]:
    """A control plane on which Kerf has the rights of manifests/rbac.yaml and no others, with the admission policy."""
    users = {"kerf": SERVICE_ACCOUNT, "fit": f"{SERVICE_ACCOUNT}-fit", "plugin": HAMI_PLUGIN, "author": "alice"}
    with ControlPlane(tmp_path_factory.mktemp("e2e"), users=users) as plane:
        plane.apply(RBAC, policy_for_tests())
        for user in ("plugin", "author"):
            plane.grant(user, {"apiGroups": [""], "resources": ["pods", "pods/status", "pods/binding"], "verbs": ["*"]})
        clusters = Clusters(plane)
        yield clusters
        clusters.close()


@pytest.fixture(scope="module")
def module_clusters(plane: ControlPlane) -> Iterator[Clusters]:
    """On a control plane that a module has of its own, its fixture `plane`."""
    clusters = Clusters(plane)
    yield clusters
    clusters.close()


@pytest.fixture
def clusters(all_clusters: Clusters) -> Iterator[Clusters]:
    """For tests that say how their cluster is configured; it is left empty."""
    yield all_clusters
    all_clusters.clean()


@pytest.fixture
def judged(clusters: Clusters) -> Iterator[None]:
    """Whatever the test was about: at its end no GPU is given twice."""
    yield
    nodes, pods = (clusters.plane.request("GET", f"/api/v1/{plural}")["items"] for plural in ("nodes", "pods"))
    assert not checker.overbooked(nodes, pods)


@pytest.fixture
def cluster(clusters: Clusters) -> KerfCluster:
    """An empty cluster with scheduler-config/decisive.yaml."""
    return clusters.open(SCHEDULER_CONFIG / "decisive.yaml")
