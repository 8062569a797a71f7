"""Rollouts and drains of the installed chart, by the real controllers: somebody answers all the time."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.controlplane.api import ApiError
from tests.controlplane.objects import gpu_node, pod
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.install.helm import CHART, Helm
from tests.install.pods import CONTROLLERS, Caller, Kubelet

pytestmark = [pytest.mark.e2e, pytest.mark.controlplane, pytest.mark.slow]

NAMESPACE = "kerf-system"
WITHIN_S = 240.0
MOST_GAP_S = 6.0
"""Between two decisions: twice what it takes where all cores are busy with other tests. Each call is answered."""
SERVICE = ("kerf", str(CHART), "--namespace", NAMESPACE, "--set", "mode=service", "--set", "replicas=2")
DEPLOYMENT = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/kerf"
BODY = {"Pod": {**pod("asks", gpus=1), "metadata": {"name": "asks", "namespace": "default", "uid": "u"}}}
CALL = json.dumps({**BODY, "NodeNames": ["node"]}).encode()


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    with ControlPlane(tmp_path, users={"kerf": f"system:serviceaccount:{NAMESPACE}:kerf"}) as running:
        running.start_controller_manager(*CONTROLLERS)
        running.apply(gpu_node("node"))
        yield running


def rolled_out(plane: ControlPlane) -> bool:
    """As `kubectl rollout status` has it."""
    found: dict[str, Any] = plane.request("GET", DEPLOYMENT)
    status, replicas = found.get("status", {}), found["spec"]["replicas"]
    counts = [status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas")]
    return status.get("observedGeneration") == found["metadata"]["generation"] and counts == [replicas] * 3


def labelled(plane: ControlPlane) -> list[str]:
    """The pods that the Service selects."""
    path = f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=kerf.dev%2Fleads%3Dkerf"
    return [item["metadata"]["name"] for item in plane.request("GET", path)["items"]]


def evict(plane: ControlPlane, name: str) -> None:
    """As a drain does."""
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
    plane.request("POST", f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction", body)


def test_rollouts_and_drains_leave_no_gap(plane: ControlPlane, tmp_path: Path) -> None:
    helm = Helm(tmp_path / "helm", plane.kubeconfig("admin"))
    helm("install", *SERVICE, "--create-namespace")
    with Kubelet(plane, NAMESPACE) as kubelet:
        wait_until(lambda: rolled_out(plane), WITHIN_S, "all replicas are ready, those that stand by as well")
        wait_until(lambda: len(labelled(plane)) == 1, WITHIN_S, "one of them has the label")
        with Caller(kubelet, "kerf", CALL) as caller:
            wait_until(lambda: caller.decided, WITHIN_S, "the Service leads to the leader")
            caller.undecided.clear()

            first = set(kubelet.pods)
            helm("upgrade", *SERVICE, "--set", "config.decisions.explain_after_s=30")
            wait_until(lambda: rolled_out(plane), WITHIN_S, "others have taken their places")
            wait_until(lambda: not first & set(labelled(plane)), WITHIN_S, "one of them leads")
            check(caller, "rollout")

            (leader,) = labelled(plane)
            evict(plane, leader)  # 429 where the budget allows nobody to go
            wait_until(lambda: leader not in labelled(plane), WITHIN_S, "another leads")
            wait_until(lambda: not kubelet.pods[leader].process.running, WITHIN_S, "the one before has ended")
            wait_until(lambda: rolled_out(plane), WITHIN_S, "another one is ready")
            check(caller, "drain")

            # A version that does not start replaces nothing, and nothing is missed meanwhile.
            before = set(labelled(plane))
            helm("upgrade", *SERVICE, "--set", "config.decisions.policy=no-such-policy")
            wait_until(lambda: kubelet.num_broken, WITHIN_S, "a pod with the new settings is tried")
            wait_until(lambda: len(caller.decided) > 50, WITHIN_S, "calls go on")
            assert set(labelled(plane)) == before
            check(caller, "broken version")


def check(caller: Caller, what: str) -> None:
    """Every call was answered, and the time without a decision was short."""
    gap_s, undecided = caller.longest_gap_s, list(caller.undecided)
    print(f"{what}: {len(caller.decided)} decided, {len(undecided)} not; longest gap {gap_s:.2f} s")
    unanswered = [error for error in undecided if error.startswith(("no answer", "nobody"))]
    assert not unanswered, unanswered[:3]
    assert gap_s < MOST_GAP_S, undecided[:3]
    caller.decided[:] = caller.decided[-1:]
    caller.undecided.clear()


@pytest.mark.parametrize(
    ("values", "budgets"),
    [((), set()), (("replicas=2",), {"kerf"}), (("queue.enabled=true",), {"kerf-webhook"})],
    ids=["alone", "two", "webhook"],
)
def test_every_budget_lets_one_go(
    plane: ControlPlane, tmp_path: Path, values: tuple[str, ...], budgets: set[str]
) -> None:
    """With all pods ready, in the words of the real disruption controller."""
    helm = Helm(tmp_path / "helm", plane.kubeconfig("admin"))
    settings = [part for value in values for part in ("--set", value)]
    helm("install", "kerf", str(CHART), "--namespace", NAMESPACE, "--create-namespace", *settings)
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    deployments = plane.request("GET", f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments")["items"]
    wanted = sum(item["spec"]["replicas"] for item in deployments)
    wait_until(lambda: len(plane.request("GET", pods)["items"]) == wanted, WITHIN_S, "all pods are there")
    ready = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    for item in plane.request("GET", pods)["items"]:
        path = f"{pods}/{item['metadata']['name']}/status"
        plane.request("PATCH", path, ready, "application/merge-patch+json")

    def allowed() -> dict[str, int]:
        found = plane.request("GET", f"/apis/policy/v1/namespaces/{NAMESPACE}/poddisruptionbudgets")["items"]
        return {item["metadata"]["name"]: item.get("status", {}).get("disruptionsAllowed", 0) for item in found}

    wait_until(lambda: allowed() == dict.fromkeys(budgets, 1), WITHIN_S, "each budget lets one go")
    for item in plane.request("GET", pods)["items"][:1]:
        try:
            evict(plane, item["metadata"]["name"])
        except ApiError as error:
            pytest.fail(f"the drain is held up: {error}")
