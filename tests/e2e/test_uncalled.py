"""A kube-scheduler that has lost its entries for Kerf, as after `kubeadm upgrade`: the pods that wait say so."""

from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.controlplane.kerf import RBAC, SCHEDULER_CONFIG
from tests.controlplane.objects import gpu_node, pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster, KerfProcess

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]


def test_a_scheduler_without_the_entries_is_told_of(tmp_path: Path) -> None:
    users = {"kerf": "system:serviceaccount:kube-system:kerf"}
    with ExitStack() as running:
        plane = running.enter_context(ControlPlane(tmp_path, users=users))
        plane.apply(RBAC)
        kerf = KerfProcess(plane, "kerf", "--host=127.0.0.1")
        running.callback(kerf.stop)
        config = yaml.safe_load((SCHEDULER_CONFIG / "decisive.yaml").read_text())
        del config["extenders"]
        scheduler = plane.start_scheduler(yaml.safe_dump(config))
        cluster = KerfCluster(plane, kerf)
        cluster.add_nodes(gpu_node("node", gpus=2))
        cluster.create(pod("share", annotations={"kerf.dev/gpu-share": "500"}))
        cluster.pending("share", "Insufficient kerf.dev/gpu")
        says = "there is room now on node, but its scheduler default-scheduler does not call Kerf"

        def told() -> str:
            return str([item["sentence"] for item in kerf.get("/pending")["pods"]])

        wait_until(lambda: says in told(), WITHIN_S, f"the list of pending pods says so: {told()}")
        assert kerf.get("/pending")["pods"][0]["remedy"]["command"] == "kerf install check"
        explained = kerf.get("/explain/pod/default/share")
        assert says in explained["sentence"]
        assert kerf.metric("kerf_pods_unasked") == 0  # not yet: five minutes have to pass
        # With the entries back the pod is placed, and nothing is said any more.
        scheduler.stop()
        running.callback(plane.start_scheduler(SCHEDULER_CONFIG / "decisive.yaml", extender_url=kerf.url).stop)
        cluster.bound("share")
        assert kerf.get("/pending")["pods"] == []
