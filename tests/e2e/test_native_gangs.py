"""Kubernetes' own gangs, kube-scheduler's gate on: what a pod-group cycle asks and takes back keeps nobody waiting.

kube-scheduler counts whole GPUs itself, and no pod is deleted here: a pod that it offers a node to fits there. So each
one that Kerf turns away met a reservation of a pod that kube-scheduler had given up.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from tests.controlplane import podgroups
from tests.controlplane.kerf import RBAC, SCHEDULER_CONFIG, SERVICE_ACCOUNT
from tests.controlplane.objects import gpu_node
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import KerfCluster, KerfProcess
from tests.tools.chaos import checker

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane, podgroups.NEEDED]

WITHIN_S = 60.0
NEVER_ENDS = "--set=decisions.reservation_ttl_s=3600"
"""A reservation that is left behind shows."""


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """A control plane that serves PodGroups."""
    directory = tmp_path_factory.mktemp("native-gangs")
    with ControlPlane(directory, users={"kerf": SERVICE_ACCOUNT}, flags=podgroups.SERVER_FLAGS) as running:
        running.apply(RBAC)
        yield running


class Gangs:
    """A cluster whose kube-scheduler forms gangs; with topologies it tries one rack after another for each."""

    def __init__(self, cluster: KerfCluster, name: str, *, in_racks: bool) -> None:
        self.cluster = cluster
        self.in_racks = in_racks
        self._name = name

    def submit(self, name: str, size: int, gpus: int = 0, **options: Any) -> None:
        """A gang, or a single pod where the size is 1."""
        if size > 1:
            group = f"{self._name}-{name}"  # a group that was deleted stays for a while
            limits = {"schedulingConstraints": {"topology": [{"key": "rack"}]}} if self.in_racks else {}
            made = podgroups.pod_group(group, {"gang": {"minCount": size}}, **limits)
            self.cluster.plane.request("POST", podgroups.path(), made)
            options["schedulingGroup"] = {"podGroupName": group}
        for index in range(size):
            self.cluster.submit(f"{name}-{index}", gpus, **options)

    def settled(self, sizes: Mapping[str, int], racks: Mapping[str, str]) -> bool:
        """All that fits is placed: what waits, waits as a whole, and needs more nodes than are free. A pod a node."""
        used, counts = set(), dict.fromkeys(sizes, 0)
        for pod in self.cluster.pods():
            if node := pod["spec"].get("nodeName"):
                used.add(node)
                counts[pod["metadata"]["name"].rpartition("-")[0]] += 1
        free = Counter(rack if self.in_racks else "" for node, rack in racks.items() if node not in used)
        return all(
            count == sizes[unit] or (count == 0 and sizes[unit] > max(free.values(), default=0))
            for unit, count in counts.items()
        )


@pytest.fixture(params=[False, True], ids=["gangs", "topologies"])
def gangs(plane: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Gangs]:
    """decisive.yaml as it is shipped."""
    name = re.sub("[^a-z]+", "-", request.node.name).strip("-")
    kerf = KerfProcess(plane, f"kerf-{name}", NEVER_ENDS)
    gates = (*podgroups.GATES, *(["TopologyAwareWorkloadScheduling"] if request.param else []))
    config = SCHEDULER_CONFIG / "decisive.yaml"
    scheduler = plane.start_scheduler(config, name=name, extender_url=kerf.url, gates=gates)
    cluster = KerfCluster(plane, kerf)
    yield Gangs(cluster, name, in_racks=request.param)
    scheduler.stop()
    cluster.clean()
    kerf.stop()


def judge(cluster: KerfCluster) -> None:
    """No GPU twice, and nobody was told of a node in vain."""
    nodes, pods = (cluster.plane.request("GET", f"/api/v1/{plural}")["items"] for plural in ("nodes", "pods"))
    assert not checker.overbooked(nodes, pods)
    assert cluster.kerf.metric("kerf_failed_binds_total") == 0


def test_competing_gangs_leave_nothing_behind(gangs: Gangs) -> None:
    cluster = gangs.cluster
    racks = {f"n{index:02}": f"r{index % 2}" for index in range(16)}
    cluster.add_nodes(*(gpu_node(name, gpus=2, labels={"rack": rack}) for name, rack in racks.items()))
    sizes = {f"unit{index}": size for index, size in enumerate((5, 7, 6, 1, 8, 4, 9, 1, 3, 6, 5, 1, 2, 7, 1, 1))}
    for name, size in sizes.items():
        gangs.submit(name, size, gpus=2)
    wait_until(lambda: gangs.settled(sizes, racks), WITHIN_S, "all that fits is placed")
    assert 'kerf_decisions_total{verdict="rejected"} 0.0' in cluster.kerf.get("/metrics")
    judge(cluster)


def test_shares_of_a_gang_that_was_given_up_are_free_at_once(gangs: Gangs) -> None:
    cluster = gangs.cluster
    cluster.add_nodes(gpu_node("a", gpus=1, labels={"rack": "r0"}))
    half = {"kerf.dev/gpu-share": "500"}
    gangs.submit("three", 3, annotations=half)
    cluster.pending("three-2")
    gangs.submit("pair", 2, annotations=half)
    assert cluster.node_of("pair-0") == cluster.node_of("pair-1") == "a"
    judge(cluster)
