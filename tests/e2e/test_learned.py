"""The learned rank on a real kube-scheduler: every pod gets what the simulator gives it under the same model."""

from pathlib import Path

import pytest

from extender.core.valuenet.features import Outlook
from extender.ranking import files
from extender.ranking.demands import _kind_expected, demand_of, outlook_on
from model.simulations import learned
from tests.controlplane.kerf import SCHEDULER_CONFIG
from tests.controlplane.processes import wait_until
from tests.core.builders import arrays_of, node
from tests.core.learning import only
from tests.e2e.fixtures import Clusters
from tests.e2e.traces import Offered, expected, gpus_of, mix_setting, nodes_of, offer, offered

pytestmark = [pytest.mark.controlplane, pytest.mark.e2e]

WITHIN_S = 300.0
POTENTIAL = only(
    0.2, fragment=-1.0, cpu_short=0.4, cpu_short_half=0.3, node_idle=0.1, gpu_square=0.2, hosts_many=0.5, gpus_idle=0.05
)
FIXED = ("model.mode=serve", "model.prices=plain", "model.prior_pods=1000000000")


def outlook(trace: Offered) -> Outlook:
    """What Kerf expects of the trace's nodes as long as it has not seen many pods."""
    nodes = trace.workload.nodes
    arrays = arrays_of(
        {
            name: node(*[("Tesla-T4", 15360)] * count)
            for name, count in zip(trace.workload.node_names, nodes.num_gpus.tolist(), strict=True)
        }
    )
    for row, capacity in enumerate(zip(nodes.cpu_milli.tolist(), nodes.memory_mib.tolist(), strict=True)):
        arrays.set_capacity(row, *capacity)
    counts = {_kind_expected(pod): 1e7 * pod.count for pod in expected()}
    return outlook_on(demand_of(arrays.snapshot(), counts), None, 1.0)


def test_every_pod_gets_the_gpus_that_the_simulator_gives_it(clusters: Clusters, tmp_path: Path) -> None:
    trace = offered(12, 90, seed=1)
    files.write(tmp_path / "rank", POTENTIAL, 1.0, {"mode": "by hand"}, ())
    given = [
        argument
        for setting in (f"model.path={tmp_path / 'rank'}", *FIXED, mix_setting())
        for argument in ("--set", setting)
    ]
    cluster = clusters.open(SCHEDULER_CONFIG / "decisive.yaml", *given)
    cluster.add_nodes(*trace.node_manifests)
    cluster.kerf.stop()  # the next one knows all nodes from its start
    clusters.restart_kerf()
    wait_until(lambda: cluster.kerf.get("/model")["served"] == "model", 60.0, "the model is served")

    found = offer(cluster.plane, trace, WITHIN_S)
    done = learned.replay(trace.workload, outlook(trace), POTENTIAL)
    assert (done.placed < 0).any()
    assert nodes_of(trace, found) == done.placed.tolist()
    assert gpus_of(trace, found) == done.gpus.tolist()
    by = {item["metadata"].get("annotations", {}).get("kerf.dev/assigned-by", "") for item in found.values()}
    assert {text.rpartition(" ")[2] for text in by if text} == {"kerf"}
    # Not by what best fit would have done.
    assert cluster.kerf.metric("kerf_model_serving") == 1
    assert cluster.kerf.get("/readyz") == {"status": "ok"}
