"""The simulator beside the real kube-scheduler: Kerf's decisions one by one, kube-scheduler's own in distribution."""

import numpy as np
import pytest
import yaml

from model.simulations.baselines import baseline
from model.simulations.replays import replay
from tests.controlplane.kerf import SCHEDULER_CONFIG
from tests.controlplane.plane import ControlPlane
from tests.e2e.fixtures import Clusters
from tests.e2e.traces import NODES, Offered, gpus_of, mix_setting, nodes_of, offer, offered

pytestmark = [pytest.mark.controlplane, pytest.mark.e2e]

WITHIN_S = 300.0
PLAIN = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "percentageOfNodesToScore": 100,
    "profiles": [{"schedulerName": "default-scheduler"}],
}


def allocated(trace: Offered, nodes: list[int]) -> float:
    """GPU allocated, in percent."""
    held = trace.workload.asked_milli[np.array(nodes) >= 0].sum()
    return float(100 * held / trace.workload.gpu_milli)


def test_every_pod_gets_the_gpus_that_the_simulator_gives_it(clusters: Clusters) -> None:
    """Policy fgd, decisive, every node in view: more pods than fit, shares and whole GPUs."""
    trace = offered(12, 90, seed=1)
    cluster = clusters.open(SCHEDULER_CONFIG / "decisive.yaml", "--policy", "fgd", "--set", mix_setting())
    cluster.add_nodes(*trace.node_manifests)
    found = offer(cluster.plane, trace, WITHIN_S)
    done = replay(trace.workload, baseline("fgd"), 0)
    assert (done.placed < 0).any()
    assert nodes_of(trace, found) == done.placed.tolist()
    assert gpus_of(trace, found) == done.gpus.tolist()


def test_kube_default_allocates_as_kube_scheduler_does(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Ties are random on both sides: what kube-scheduler reaches lies within what 200 seeds do."""
    trace = offered(50, 200, seed=5, shares=False, kinds=(NODES[0], NODES[3]))
    with ControlPlane(tmp_path_factory.mktemp("plain")) as plane:
        plane.apply(*trace.node_manifests)
        plane.start_scheduler(yaml.safe_dump(PLAIN))
        nodes = nodes_of(trace, offer(plane, trace, WITHIN_S))
    simulated = [
        allocated(trace, replay(trace.workload, baseline("kube-default"), s).placed.tolist()) for s in range(200)
    ]
    assert min(simulated) <= allocated(trace, nodes) <= max(simulated)
