"""G1: `kubectl apply -f manifests/install.yaml`, and nothing besides, gives `genius/priority` its queue."""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.api import ApiError
from tests.controlplane.kerf import ROOT
from tests.controlplane.objects import gpu_node, pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster, assigned_gpus
from tests.e2e.webhooks import gates_of
from tests.install.running import HOOKS, Release, lead_to, serve_webhook, start_installed

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

INSTALL = ROOT / "manifests" / "install.yaml"
NAMESPACE, NAME = "kube-system", "kerf-scheduler"
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:{NAME}"
USERS = {"kerf": ACCOUNT, "scheduler": ACCOUNT, "webhook": f"{ACCOUNT}-webhook"}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    """The file as it is, on a control plane where Kerf, its kube-scheduler and its webhook have the accounts in it."""
    with ControlPlane(tmp_path_factory.mktemp("one-file"), users=USERS) as plane:
        plane.apply(INSTALL)
        yield Release(plane, NAMESPACE, NAME)


def of_genius(name: str, scheduler: str = NAME, **labels: str) -> dict[str, Any]:
    """A pod that asks by Genius' labels for a GPU, without the marker."""
    given = {"genius/gpu-number": "1"} | {f"genius/{key}": value for key, value in labels.items()}
    return pod(name, labels=given, scheduler_name=scheduler, marked=False)


def test_of_pods_that_wait_the_one_of_higher_priority_goes_first(release: Release, tmp_path: Path) -> None:
    plane, volume = release.plane, tmp_path / "volume"
    volume.mkdir()
    with ExitStack() as running:
        running.callback(lead_to(release, serve_webhook(release, running, volume), f"{NAME}-queue"))
        cluster = start_installed(release, tmp_path, running)
        cluster.add_nodes(gpu_node("node", gpus=1))
        wait_until(lambda: waits(plane, of_genius("probe", priority="1")), WITHIN_S, "the API server asks the webhook")

        cluster.create(of_genius("holder", priority="0"))
        assert assigned_gpus(cluster.bound("holder")) == [0]
        cluster.create(of_genius("low", priority="1"))
        cluster.create(of_genius("high", priority="10"))
        for name in ("low", "high"):
            wait_until(partial(skipped, cluster, name), WITHIN_S, f"{name} waits in the queue")
        cluster.delete_pod("holder")
        assert assigned_gpus(cluster.bound("high")) == [0]
        assert gates_of(cluster.pod("low"))
        cluster.delete_pod("high")
        assert assigned_gpus(cluster.bound("low")) == [0]
        assert cluster.event("low", "GPUsAssigned")


def waits(plane: ControlPlane, manifest: dict[str, Any]) -> bool:
    """Whether a pod would be created behind the gate."""
    try:
        return bool(gates_of(plane.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", manifest)))
    except ApiError:  # the webhook is not asked yet, where it is now: the pod has no marker
        return False


def skipped(cluster: KerfCluster, name: str) -> bool:
    """Whether Kerf has looked at a pod and found no room."""
    return "kerf.dev/skipped" in cluster.pod(name)["metadata"].get("annotations", {})


def test_the_file_leaves_pods_of_others_alone(release: Release, tmp_path: Path) -> None:
    """Neither a pod of Genius' own scheduler nor one without its label waits; and without the webhook nobody does."""
    plane = release.plane
    hooks = plane.request("GET", f"{HOOKS}/{NAME}-queue")["webhooks"]
    assert {hook["name"] for hook in hooks} == {f"{who}.queue.kerf.dev" for who in ("namespaces", "pods", "genius")}
    with ExitStack() as running:
        volume = tmp_path / "volume"
        volume.mkdir()
        running.callback(lead_to(release, serve_webhook(release, running, volume), f"{NAME}-queue"))
        wait_until(lambda: waits(plane, of_genius("probe", priority="1")), WITHIN_S, "the API server asks the webhook")
        assert not waits(plane, of_genius("probe", "genius-scheduler", priority="1"))
        assert not waits(plane, pod("probe", scheduler_name=NAME))


def test_applied_again_it_takes_no_certificate_away(release: Release, tmp_path: Path) -> None:
    plane, path = release.plane, f"/api/v1/namespaces/{NAMESPACE}/secrets/{release.webhook}"
    with ExitStack() as running:
        volume = tmp_path / "volume"
        volume.mkdir()
        serve_webhook(release, running, volume)
        made = plane.request("GET", path)["data"]
        plane.apply(INSTALL)
        assert plane.request("GET", path)["data"] == made
        bundles = {
            hook["clientConfig"].get("caBundle") for hook in plane.request("GET", f"{HOOKS}/{NAME}-queue")["webhooks"]
        }
        assert bundles == {made["ca.crt"]}
