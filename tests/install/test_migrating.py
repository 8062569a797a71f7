"""The switch from HAMi, as in docs/guides/migrating.md; HAMi's device plugin is played after its sources."""

import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.docs.pages import DOCS, sections
from tests.e2e.clusters import WITHIN_S, assigned_gpus
from tests.e2e.test_contracts import asking, hami_booked, hami_node, kubelet_on, sharing
from tests.install.helm import CHART, Helm
from tests.install.policies import HAMI_PLUGIN
from tests.install.running import start_installed

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

NAMESPACE = "kerf-system"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:kerf"
PAGE = sections((DOCS / "guides" / "migrating.md").read_text())["From HAMi"]
HAMI: dict[str, Any] = {"scheduler_name": "hami-scheduler"}
"""What HAMi's webhook writes into pods; it stays."""


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    users = {"kerf": ACCOUNT, "scheduler": ACCOUNT, "plugin": HAMI_PLUGIN}
    with ControlPlane(tmp_path / "plane", users=users) as running:
        running.grant("plugin", {"apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["*"]})
        yield running


def run(helm: Helm, start: str) -> None:
    """Run the page's command that begins so."""
    (found,) = re.findall(rf"^ *({start}.*?[^\\])$", PAGE, re.MULTILINE | re.DOTALL)
    words = shlex.split(found.replace("\\\n", ""))[1:]
    helm(*(str(CHART) if word == "manifests/helm/kerf" else word for word in words))


def test_from_hami_and_back(plane: ControlPlane, tmp_path: Path) -> None:
    helm = Helm(tmp_path, plane.kubeconfig("admin"))
    gpus = {f"GPU-{index}": 15360 for index in range(4)}
    plane.apply(hami_node("node", gpus))
    by_hami = {"hami.io/vgpu-node": "node", "hami.io/bind-phase": "success", "hami.io/bind-time": "1795241852"}
    by_hami |= {"hami.io/vgpu-devices-allocated": "GPU-0,NVIDIA,10000,40:;", "hami.io/vgpu-devices-to-allocate": ";"}
    plane.apply(sharing("runs", 10000, 40, nodeName="node", annotations=by_hami, **HAMI))
    plane.apply(sharing("waits", 5000, 30, **HAMI))  # created while nobody schedules

    run(helm, "helm install kerf")
    with ExitStack() as running:
        cluster = start_installed(plane, NAMESPACE, tmp_path, running)
        cluster.set_phase("runs", "Running")
        kubelet = running.enter_context(kubelet_on(cluster, "node"))
        assert assigned_gpus(cluster.bound("waits")) == [0]  # what HAMi's pod has left
        half = {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"}
        cluster.create(asking("by-uuid", half, annotations={"nvidia.com/use-gpuuuid": "GPU-3"}, **HAMI))
        assert assigned_gpus(cluster.bound("by-uuid")) == [3]
        cluster.create(asking("whole", {"nvidia.com/gpu": "2"}, **HAMI))
        assert assigned_gpus(cluster.bound("whole")) == [1, 2]
        cluster.create(sharing("no-t4", 1000, annotations={"nvidia.com/nouse-gputype": "T4"}, **HAMI))
        cluster.pending("no-t4", "model")
        assert cluster.event("waits", "GPUsAssigned")
        wait_until(lambda: len(kubelet.served) == 3, WITHIN_S, "HAMi's plugin has served all that are bound")
    booked = hami_booked(plane.request("GET", "/api/v1/namespaces/default/pods")["items"])
    assert booked.keys() == gpus.keys()
    assert (booked["GPU-0"], booked["GPU-3"][0]) == ((15000, 70), 7680)

    run(helm, "helm uninstall kerf")
    assert not plane.exists(f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/kerf")
    after = plane.request("GET", "/api/v1/namespaces/default/pods")["items"]
    assert hami_booked(after) == booked  # what HAMi's scheduler counts when it starts again
