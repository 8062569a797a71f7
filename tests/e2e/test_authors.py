"""Authors who may do all to their pods, on the real control plane: nothing that is bound changes by their hand."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.controlplane.api import Api, ApiError
from tests.controlplane.kerf import SCHEDULER_CONFIG
from tests.controlplane.objects import gpu_node, pod, steered
from tests.controlplane.processes import wait_until
from tests.e2e.clusters import WITHIN_S, KerfCluster, Manifest, assigned_gpus
from tests.e2e.fixtures import Clusters
from tests.install.policies import policy_for_tests

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane]

MERGE_PATCH = "application/merge-patch+json"
PODS = "/api/v1/namespaces/default/pods"
BINDING = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings/kerf-assignments"
TWO = {"kerf.dev/gpu-count": "2"}
FORGED_SHARE = {"kerf.dev/gpu-share": "1", "kerf.dev/assigned-share": "1", "kerf.dev/assigned-memory-mib": "1"}


@pytest.fixture
def author(clusters: Clusters) -> Iterator[Api]:
    """Somebody with all rights on pods."""
    api = clusters.plane.api("author")
    yield api
    api.close()


@pytest.fixture
def without_policy(clusters: Clusters, author: Api) -> Iterator[None]:
    """A cluster that has no admission policy, until the end of the test."""
    clusters.plane.request("DELETE", BINDING)
    probe = pod("probe", annotations={"kerf.dev/assigned-gpus": "0"})

    def let_through() -> bool:
        try:
            author.request("POST", f"{PODS}?dryRun=All", probe)
        except ApiError:
            return False
        return True

    wait_until(let_through, WITHIN_S, "nothing is refused")
    yield
    clusters.plane.apply(policy_for_tests())
    wait_until(lambda: not let_through(), WITHIN_S, "the policy is back")


def edit(author: Api, name: str, annotations: dict[str, Any], part: str = "") -> str:
    """What the API server says to an edit, "" when it does it."""
    try:
        author.request("PATCH", f"{PODS}/{name}{part}", {"metadata": {"annotations": annotations}}, MERGE_PATCH)
    except ApiError as error:
        return error.message
    return ""


def fill(cluster: KerfCluster) -> dict[str, list[int]]:
    """Three nodes of two GPUs, all held: by annotation, by resources, by shares; and a pod without GPUs on each."""
    for number in range(3):
        cluster.add_nodes(steered(gpu_node(f"n{number}", gpus=2)))
    cluster.submit("annotated", annotations=TWO)
    cluster.bound("annotated")
    cluster.submit("native", gpus=2)
    cluster.bound("native")
    half = {"kerf.dev/gpu-share": "600", "kerf.dev/gpu-memory-each": "50Gi"}
    for name in ("half", "other-half"):
        cluster.submit(name, annotations=half)
        cluster.bound(name)
    cluster.submit("cpu")
    cluster.bound("cpu")
    return {name: assigned_gpus(cluster.pod(name)) for name in ("annotated", "native", "half", "other-half")}


def refused_room(cluster: KerfCluster, name: str) -> None:
    """A pod comes for which there is no room, whatever authors have written."""
    cluster.submit(name, annotations={"kerf.dev/gpu-count": "1"})
    cluster.pending(name)


def attacks(found: Manifest) -> dict[str, Any]:
    """Edits that would free, move, shrink or add to what a pod holds."""
    kept = found["metadata"].get("annotations", {})
    dropped = {key: None for key in kept if key.startswith("kerf.dev/")}
    match found["metadata"]["name"]:
        case "annotated":
            return dropped
        case "native":
            return FORGED_SHARE
        case "half":
            return {"kerf.dev/assigned-gpus": "1" if kept["kerf.dev/assigned-gpus"] == "0" else "0"}
        case "other-half":
            return {"ALIYUN_COM_GPU_MEM_IDX": "0", "ALIYUN_COM_GPU_MEM_POD": "1", **FORGED_SHARE}
    return {"kerf.dev/assigned-gpus": "0,1"}


@pytest.mark.usefixtures("judged")
def test_with_the_policy_no_edit_gets_through_and_a_restart_knows_all(clusters: Clusters, author: Api) -> None:
    cluster = clusters.open(SCHEDULER_CONFIG / "decisive.yaml")
    held = fill(cluster)
    for name in (*held, "cpu"):
        for part in ("", "/status"):
            said = edit(author, name, attacks(cluster.pod(name)), part)
            assert "is written by Kerf" in said or "once it is bound" in said, name
    refused_room(cluster, "late")
    cluster.kerf.stop()
    clusters.restart_kerf()
    cluster.pending("late")
    assert {name: assigned_gpus(cluster.pod(name)) for name in held} == held
    assert cluster.kerf.metric("kerf_edits_ignored_total") == 0


@pytest.mark.usefixtures("judged")
def test_other_schedulers_bind_as_ever(clusters: Clusters, author: Api) -> None:
    cluster = clusters.open(SCHEDULER_CONFIG / "decisive.yaml")
    cluster.add_nodes(gpu_node("a", gpus=1))
    for name, gpus in (("theirs", 1), ("without-gpus", 0)):
        author.request("POST", PODS, pod(name, gpus=gpus, scheduler_name="theirs"))
        target = {"apiVersion": "v1", "kind": "Node", "name": "a"}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name}, "target": target}
        author.request("POST", f"{PODS}/{name}/binding", binding)
        assert cluster.pod(name)["spec"]["nodeName"] == "a"


@pytest.mark.usefixtures("without_policy")
def test_without_it_edits_change_nothing_while_kerf_runs_and_no_resource_after_a_restart(
    clusters: Clusters, author: Api
) -> None:
    cluster = clusters.open(SCHEDULER_CONFIG / "decisive.yaml")
    held = fill(cluster)
    for name in (*held, "cpu"):
        assert edit(author, name, attacks(cluster.pod(name))) == ""
    wait_until(lambda: cluster.kerf.metric("kerf_edits_ignored_total") >= 4, WITHIN_S, "Kerf has seen them")
    refused_room(cluster, "late")
    assert cluster.kerf.metric("kerf_nodes_overbooked") == 0

    # What a fresh process is told: the share has moved, and who asked by annotation alone is gone. The spec stands.
    cluster.delete_pod("late")
    cluster.kerf.stop()
    clusters.restart_kerf()
    cluster.submit("wants-two", gpus=2)
    assert cluster.node_of("wants-two") == cluster.node_of("annotated"), "docs/reference/guarantees.md"
    cluster.submit("wants-one", gpus=1)
    assert cluster.node_of("wants-one") == cluster.node_of("half"), "and where a share was moved from"
    cluster.submit("wants-more", gpus=1)
    cluster.pending("wants-more")


def test_to_delete_the_mirror_of_a_static_pod_frees_nothing(clusters: Clusters, author: Api) -> None:
    """Its containers run on, and the kubelet, played here, shows it again."""
    cluster = clusters.open(SCHEDULER_CONFIG / "decisive.yaml")
    cluster.add_nodes(gpu_node("node", gpus=1))
    static = pod("static-node", gpus=1, annotations={"kubernetes.io/config.mirror": "hash"}, nodeName="node")
    cluster.create(static)
    wait_until(lambda: cluster.kerf.metric("kerf_gpu_units_free") == 0, WITHIN_S, "Kerf knows the static pod")
    author.request("DELETE", f"{PODS}/static-node?gracePeriodSeconds=0")
    wait_until(lambda: not cluster.plane.exists(f"{PODS}/static-node"), WITHIN_S, "its mirror is gone")
    refused_room(cluster, "late")
    cluster.create(static)
    cluster.submit("later", gpus=1)
    cluster.pending("later")
    assert cluster.kerf.metric("kerf_gpu_units_free") == 0
    assert cluster.kerf.metric("kerf_nodes_overbooked") == 0
