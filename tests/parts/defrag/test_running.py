"""All that runs as the planner sees it: what a restart loses, and who stays where they are, and why."""

from typing import Any

import msgspec
import pytest

from extender.kube.objects import unix_time
from extender.parts.defrag.facts import Costs
from extender.parts.defrag.movable import (
    _MAX_CONDITIONS,
    _MAX_VALUES,
    Budget,
    Budgets,
    Job,
    Jobs,
    Resident,
    _cost_of,
    _priority_at_least,
    _stays,
    priority_at_most,
    residents,
)
from extender.plugins.holdings import Holding, Part, whole_gpus
from tests.parts.defrag.clusters import STARTED, budget, running

NOW = unix_time(STARTED) + 1000.0


def resident(**changes: Any) -> Resident:
    """A pod of a ReplicaSet on two GPUs; `changes` as of `running`, or `spec__...`, `metadata__...`, `status__...`."""
    parts = {key: changes.pop(key) for key in list(changes) if "__" in key}
    manifest = running("a", "n-0", 2, **changes)
    for key, value in parts.items():
        part, _, name = key.partition("__")
        manifest[part][name] = value
    [found] = residents(msgspec.json.encode({"items": [manifest]}))
    return found


@pytest.mark.parametrize(
    ("holding", "annotations", "expected"),
    [
        # GPUs x (1000 s since the start + 60 s until it works again)
        pytest.param(whole_gpus(2), {}, 2 * 1060, id="since its start"),
        pytest.param(whole_gpus(0), {}, 0, id="without GPUs"),
        pytest.param(Holding(1, (Part(0, 250, 4096),)), {}, 265, id="a share"),
        pytest.param(whole_gpus(2), {"kerf.dev/last-checkpoint": "2026-11-21T06:15:00Z"}, 2 * 160, id="checkpoint"),
        pytest.param(whole_gpus(1), {"kerf.dev/last-checkpoint": "2026-11-21T07:15:00+01:00"}, 160, id="zone"),
        pytest.param(whole_gpus(1), {"kerf.dev/last-checkpoint": "2036-01-01T00:00:00Z"}, 1060, id="in the future"),
        pytest.param(whole_gpus(1), {"kerf.dev/last-checkpoint": "2026-11-21T06:17:10Z"}, 60, id="by another clock"),
        pytest.param(whole_gpus(1), {"kerf.dev/last-checkpoint": "2020-01-01T00:00:00Z"}, 1060, id="before its start"),
        pytest.param(whole_gpus(1), {"kerf.dev/last-checkpoint": "yesterday"}, 1060, id="unreadable"),
        pytest.param(whole_gpus(1), {"kerf.dev/last-checkpoint": "9" * 5000}, 1060, id="long"),
    ],
)
def test_cost_of_a_restart(holding: Holding, annotations: dict[str, str], expected: float) -> None:
    assert _cost_of(resident(annotations=annotations).pod, holding, Costs(), NOW) == expected


def test_restarts_of_an_owner_take_as_long_as_they_are_known_to() -> None:
    costs = Costs(60.0, {"default/ReplicaSet/of-a": 600.0})
    assert _cost_of(resident().pod, whole_gpus(1), costs, NOW) == 1600


PVC = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
PORT = [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]
APART = {
    "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname"}]}
}
MOVABLE = {"annotations": {"kerf.dev/movable": "true"}}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        pytest.param({}, "", id="nothing holds it"),
        pytest.param({"owner": ""}, "no controller", id="nobody would replace it"),
        pytest.param({"owner": "StatefulSet"}, "", id="another controller"),
        pytest.param({"owner": "ConfigMap"}, "ConfigMap does not recreate pods", id="what makes nothing"),
        pytest.param({"owner": "ControllerRevision"}, "does not recreate pods", id="nothing of a group that does"),
        pytest.param({"annotations": {"kerf.dev/movable": "false"}}, "kerf.dev/movable is 'false'", id="its own word"),
        pytest.param({"annotations": {"kerf.dev/movable": "nope"}}, "kerf.dev/movable is 'nope'", id="a word unknown"),
        pytest.param({"metadata__deletionTimestamp": STARTED}, "is terminating", id="leaving"),
        pytest.param({"status__phase": "Pending"}, "does not run yet", id="pulls its image"),
        pytest.param({"metadata__namespace": "kube-system"}, "namespace kube-system is exempt", id="exempt"),
        pytest.param({"spec__resourceClaims": [{"name": "gpu"}]}, "ResourceClaims", id="claims"),
        pytest.param({"spec__priority": 2_000_001_000}, "critical", id="critical"),
        pytest.param({"spec__priority": 2_000_001_000, **MOVABLE}, "", id="critical, and movable"),
        pytest.param({"spec__volumes": PVC}, "its volumes", id="a volume"),
        pytest.param({"spec__volumes": [{"name": "v", "ephemeral": {}}]}, "its volumes", id="an ephemeral claim"),
        pytest.param({"spec__volumes": [{"name": "v", "emptyDir": {}}]}, "", id="scratch"),
        pytest.param({"spec__volumes": PVC, **MOVABLE}, "", id="a volume, and movable"),
        pytest.param({"spec__containers": PORT}, "host ports", id="a port of the host"),
        pytest.param({"spec__affinity": APART}, "rules about other pods", id="apart from others"),
        pytest.param({"spec__volumes": 3}, "can't be read", id="unreadable"),
        pytest.param({"labels": {"app": "kept"}}, "more than one disruption budget", id="two budgets"),
    ],
)
def test_who_stays(changes: dict[str, Any], why: str) -> None:
    both = [budget("one", 1, {"app": "kept"}), budget("two", 1, {"app": "kept"})]
    found = resident(**changes)
    costs = Costs(exempt=frozenset({"kube-system"}))
    told = found.fault or _stays(found.pod, found.demands, Budgets(_decoded(both)), costs, None)
    assert (why in told) if why else not told, told


@pytest.mark.parametrize(
    ("version", "kind", "moves"),
    [
        ("v1", "ReplicationController", True),
        ("batch/v1", "Job", True),
        ("jobset.x-k8s.io/v1alpha2", "JobSet", True),
        ("kubeflow.org/v1", "PyTorchJob", True),
        ("batch.volcano.sh/v1alpha1", "Job", True),
        ("sparkoperator.k8s.io/v1beta2", "SparkApplication", True),
        ("v1", "Pod", False),
        ("coordination.k8s.io/v1", "Lease", False),
        ("", "", False),
    ],
)
def test_only_what_makes_pods_anew_is_a_controller(version: str, kind: str, moves: bool) -> None:
    owner = {"apiVersion": version, "kind": kind, "name": "o", "uid": "o", "controller": True}
    found = resident(metadata__ownerReferences=[owner])
    assert (not _stays(found.pod, found.demands, Budgets([]), Costs(), None)) is moves


@pytest.mark.parametrize(
    ("costs", "why"),
    [
        (Costs(crowded=frozenset({("default", "owner-of-a")})), "more than 64 pods wait"),
        (Costs(crowded=frozenset({("other", "owner-of-a")})), ""),
        (Costs(resting=frozenset({"owner-of-a"})), "left alone for a while"),
        (Costs(resting=frozenset({"owner-of-b"})), ""),
    ],
)
def test_whom_the_mover_would_refuse_or_has_lost_stays(costs: Costs, why: str) -> None:
    found = resident()
    told = _stays(found.pod, found.demands, Budgets([]), costs, None)
    assert (why in told) if why else not told


def _decoded(manifests: list[dict[str, Any]]) -> list[Budget]:
    return msgspec.convert(manifests, list[Budget])


@pytest.mark.parametrize(
    ("labels", "enabled", "moves"),
    [({}, (), False), ({"kerf.dev/queue": "enabled"}, (), True), ({}, ("default",), True),
     ({"kerf.dev/queue": "disabled"}, ("default",), False), ({"genius/priority": "3"}, (), True)],
)  # fmt: skip
def test_who_would_not_wait_in_the_queue_again_stays_where_pods_are_moved(
    labels: dict[str, str], enabled: tuple[str, ...], moves: bool
) -> None:
    found = resident(labels=labels)
    told = _stays(found.pod, found.demands, Budgets([]), Costs(), frozenset(enabled))
    assert (not told) is moves


@pytest.mark.parametrize(
    ("selector", "counts"),
    [
        pytest.param(None, False, id="none counts nobody"),
        pytest.param({}, True, id="an empty one everybody"),
        pytest.param({"matchLabels": {"app": "train"}}, True, id="labels"),
        pytest.param({"matchLabels": {"app": "other"}}, False, id="other labels"),
        pytest.param({"matchExpressions": [{"key": "app", "operator": "In", "values": ["train"]}]}, True, id="in"),
        pytest.param(
            {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["train"]}]}, False, id="not in"
        ),
        pytest.param({"matchExpressions": [{"key": "app", "operator": "Exists"}]}, True, id="exists"),
        pytest.param({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False, id="does not"),
        pytest.param({"matchExpressions": [{"key": "app", "operator": "Near"}]}, True, id="unknown: counted"),
    ],
)
def test_whom_a_budget_counts(selector: dict[str, Any] | None, counts: bool) -> None:
    manifest = budget("b", 1)
    manifest["spec"]["selector"] = selector
    budgets = Budgets(_decoded([manifest]))
    assert budgets.of(resident().pod.metadata) == (("default/b",) if counts else ())
    manifest["metadata"]["namespace"] = "elsewhere"
    assert budgets.of(resident(metadata__namespace="elsewhere").pod.metadata) == ()


def test_a_budget_that_was_not_worked_out_since_it_changed_allows_nothing() -> None:
    manifest = budget("b", 3)
    manifest["metadata"]["generation"] = 2
    manifest["status"]["observedGeneration"] = 1
    assert Budgets(_decoded([manifest])).allowed == {"default/b": 0}
    manifest["status"]["observedGeneration"] = 2
    assert Budgets(_decoded([manifest])).allowed == {"default/b": 3}


def test_a_budget_that_cannot_be_read_holds_its_namespace() -> None:
    assert "can't be read" in Budgets([], ["default"]).fault(resident().pod.metadata)
    assert not Budgets([], ["elsewhere"]).fault(resident().pod.metadata)


def _not_in(name: str, *parts: int, namespace: str = "default") -> dict[str, Any]:
    """A budget of conditions of so many values each, which hold for everybody."""
    made = budget(name, 1, namespace=namespace)
    made["spec"]["selector"] = {
        "matchExpressions": [
            {"key": "app", "operator": "NotIn", "values": [f"v{value}" for value in range(number)]} for number in parts
        ]
    }
    return made


@pytest.mark.parametrize(
    ("most", "more"),
    [
        pytest.param([_not_in("b", _MAX_VALUES)], [_not_in("b", _MAX_VALUES, 1)], id="values"),
        pytest.param([_not_in("b", *[0] * _MAX_CONDITIONS)], [_not_in("b", *[0] * (_MAX_CONDITIONS + 1))], id="of one"),
        pytest.param([budget("b", 1)], [_not_in(f"b{n}", _MAX_VALUES // 3) for n in range(4)], id="of several"),
    ],
)
def test_budgets_that_say_too_much_hold_their_namespace_alone(
    most: list[dict[str, Any]], more: list[dict[str, Any]]
) -> None:
    assert not Budgets(_decoded(most)).fault(resident().pod.metadata)
    assert Budgets(_decoded(most)).of(resident().pod.metadata) == ("default/b",)
    budgets = Budgets(_decoded([*more, budget("near", 1, namespace="elsewhere")]))
    assert "are too large" in budgets.fault(resident().pod.metadata)
    near = resident(metadata__namespace="elsewhere").pod.metadata
    assert (budgets.fault(near), budgets.of(near)) == ("", ("elsewhere/near",))


def test_pods_of_equal_labels_are_held_against_a_budget_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []

    def holds(condition: object, labels: object, *, unknown: bool) -> bool:
        looks.append(labels)
        return True

    monkeypatch.setattr("extender.planning.demands.Condition.holds", holds)
    budgets = Budgets(_decoded([budget("b", 1, {"app": "x"})]))
    for labels in ({"app": "x"}, {"app": "y"}) * 50:
        budgets.of(resident(labels=labels).pod.metadata)
    assert looks == [{"app": "x"}, {"app": "y"}]


IGNORES = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]}
NOT = {"rules": [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "False"}]}]}
LATE = {"rules": [{"action": "FailJob", "onExitCodes": {"values": [143]}}, *IGNORES["rules"]]}


@pytest.mark.parametrize(
    ("spec", "failed", "num_pods", "moves"),
    [
        pytest.param({}, 0, 1, True, id="6 failures by default"),
        pytest.param({"backoffLimit": 0}, 0, 1, False, id="no failure"),
        pytest.param({"backoffLimit": 0, "podFailurePolicy": IGNORES}, 0, 1, True, id="evictions are none"),
        pytest.param({"backoffLimit": 0, "podFailurePolicy": NOT}, 0, 1, False, id="what was not evicted is none"),
        pytest.param({"backoffLimit": 0, "podFailurePolicy": LATE}, 0, 1, False, id="another rule comes first"),
        pytest.param({"backoffLimit": 2}, 2, 1, False, id="used up"),
        pytest.param({"backoffLimit": 2}, 1, 1, True, id="one left"),
        pytest.param({"backoffLimit": 2}, 0, 3, False, id="more pods than failures"),
        pytest.param({"backoffLimit": 9, "backoffLimitPerIndex": 1}, 0, 3, True, id="each index has its own"),
        pytest.param({"backoffLimit": 9, "backoffLimitPerIndex": 0}, 0, 1, False, id="none of an index"),
        pytest.param({"backoffLimit": 0, "backoffLimitPerIndex": 1}, 0, 1, False, id="one of an index, none of all"),
        pytest.param({"backoffLimitPerIndex": 1}, 9, 9, True, id="each index has its own, and nothing else is said"),
    ],
)
def test_jobs_that_would_fail_keep_their_pods(spec: dict[str, Any], failed: int, num_pods: int, moves: bool) -> None:
    job = {"metadata": {"uid": "owner-of-a"}, "spec": spec, "status": {"failed": failed}}
    pods = [resident(owner="Job", metadata__uid=f"uid-{number}").pod.metadata for number in range(num_pods)]
    told = Jobs(msgspec.convert([job], list[Job])).stays(pods)
    assert set(told) == (set() if moves else {pod.uid for pod in pods}), told


def test_nobody_gains_by_a_label() -> None:
    pod = resident(labels={"genius/priority": "1000000"}, spec__priority=5).pod
    assert (_priority_at_least(pod), priority_at_most(pod)) == (1_000_000, 5), "it stays, and moves nobody by it"
    pod = resident(labels={"genius/priority": "-3"}, spec__priority=5).pod
    assert (_priority_at_least(pod), priority_at_most(pod)) == (5, -3)
    pod = resident(labels={"genius/priority": "much"}, spec__priority=5).pod
    assert (_priority_at_least(pod), priority_at_most(pod)) == (5, 5)
