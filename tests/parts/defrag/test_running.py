"""Running pods as the planner sees them: what they hold, what a restart loses, which pods stay, and why."""

from typing import Any

import msgspec
import numpy as np
import pytest

from extender.core.bookings import book, writable_copy
from extender.kube import objects
from extender.kube.objects import unix_time
from extender.ledger.ledger import Ledger
from extender.parts.defrag.checks import priority_at_least, priority_at_most
from extender.parts.defrag.facts import Costs
from extender.parts.defrag.movable import (
    _MAX_CONDITIONS,
    _MAX_VALUES,
    Budget,
    Budgets,
    Job,
    Jobs,
    ListedPod,
    _booking_of,
    _cost_of,
    _gpus_held,
    _stays,
    residents,
    restart_times,
)
from extender.plugins.holdings import Holding, Part, whole_gpus
from tests.api.bodies import Manifest, node, pod
from tests.golden import Golden
from tests.parts.defrag.clusters import STARTED, budget, running

NOW = unix_time(STARTED) + 1000.0


def read(*manifests: dict[str, Any]) -> list[ListedPod]:
    return list(residents(msgspec.json.encode({"items": manifests})))


def resident(**changes: Any) -> ListedPod:
    """A pod of a ReplicaSet on two GPUs; `changes` as of `running`, or `spec__...`, `metadata__...`, `status__...`."""
    parts = {key: changes.pop(key) for key in list(changes) if "__" in key}
    manifest = running("a", "n-0", 2, **changes)
    for key, value in parts.items():
        part, _, name = key.partition("__")
        manifest[part][name] = value
    [found] = read(manifest)
    return found


def budgets_of(*manifests: dict[str, Any]) -> Budgets:
    return Budgets(msgspec.convert(manifests, list[Budget]))


def why_stays(found: ListedPod, *budgets: dict[str, Any], costs: Costs | None = None, gated: Any = None) -> str:
    return found.fault or _stays(found.pod, found.demands, budgets_of(*budgets), costs or Costs(), gated)


# Costs


def test_a_restart_loses_the_time_since_the_start_or_the_last_checkpoint_and_the_time_to_work_again() -> None:
    for holding, checkpoint, expected in (
        (whole_gpus(2), "", 2 * 1060),
        (whole_gpus(0), "", 0),
        (Holding(1, (Part(0, 250, 4096),)), "", 265),
        (whole_gpus(2), "2026-11-21T06:15:00Z", 2 * 160),
        (whole_gpus(1), "2026-11-21T07:15:00+01:00", 160),
        (whole_gpus(1), "2036-01-01T00:00:00Z", 1060),
        (whole_gpus(1), "2026-11-21T06:17:10Z", 60),  # within the clock skew
        (whole_gpus(1), "2020-01-01T00:00:00Z", 1060),
        (whole_gpus(1), "yesterday", 1060),
        (whole_gpus(1), "9" * 5000, 1060),
    ):
        annotations = {"kerf.dev/last-checkpoint": checkpoint} if checkpoint else {}
        assert _cost_of(resident(annotations=annotations).pod, holding, Costs(), NOW) == expected
    costs = Costs(60.0, {"default/ReplicaSet/of-a": 600.0})
    assert _cost_of(resident().pod, whole_gpus(1), costs, NOW) == 1600


def started(name: str, seconds: int | None, app: str = "web", **changes: Any) -> dict[str, Any]:
    """A pod of a ReplicaSet that was ready this long after it had its node; None: it is not."""
    made = running(name, "n-0", **changes)
    for reference in made["metadata"].get("ownerReferences", []):
        reference["name"] = app
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": STARTED}
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": STARTED}
    if seconds is not None:
        minute, second = divmod(seconds, 60)
        ready |= {"status": "True", "lastTransitionTime": f"2026-11-21T06:{minute:02d}:{second:02d}Z"}
    made["status"]["conditions"] = [ready, placed]
    return made


def test_restart_times_are_the_median_of_an_owners_starts_within_bounds() -> None:
    cases: list[tuple[list[int | None], float | None]] = [
        ([30, 90, 600], 90),
        ([30, 90], 60),
        ([90, None], 90),
        ([0], 15),  # at least a quarter of the default
        ([960], 960),
        ([961], None),  # above 16 times the default: it was unready since
        ([90, 961], 90),
        ([None], None),
    ]
    for seconds, expected in cases:
        pods = read(*(started(f"p{number}", each) for number, each in enumerate(seconds)))
        assert restart_times(pods, 60.0) == ({} if expected is None else {"default/ReplicaSet/web": expected})
    assert restart_times(read(started("a", 100), started("b", 0, "db")), 0.0) == {"default/ReplicaSet/db": 0.0}


def test_restart_times_are_by_namespace_kind_and_name_of_the_owner() -> None:
    elsewhere = started("a", 400)
    elsewhere["metadata"]["namespace"] = "elsewhere"
    pods = read(elsewhere, started("b", 100), started("c", 200, "db"), started("d", 300, owner=""))
    assert restart_times(pods, 60.0) == {
        "elsewhere/ReplicaSet/web": 400,
        "default/ReplicaSet/web": 100,
        "default/ReplicaSet/db": 200,
    }


def test_impossible_times_are_ignored_or_within_bounds() -> None:
    for kind in ("PodScheduled", "Ready"):
        for time in (None, "", "soon", "9" * 400, "0001-01-01T00:00:00+23:59", "2026-11-21T05:00:00Z"):
            made = started("a", 90)
            for condition in made["status"]["conditions"]:
                if condition["type"] == kind:
                    condition["lastTransitionTime"] = time
            assert restart_times(read(made), 60.0) in ({}, {"default/ReplicaSet/web": 15.0})


# Which pods stay


def test_why_a_running_pod_stays(golden: Golden) -> None:
    volume = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    host_port = [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]
    rule = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname"}]}
    movable = {"annotations": {"kerf.dev/movable": "true"}}
    pods: list[tuple[str, dict[str, Any]]] = [
        ("running", {}),
        ("no controller", {"owner": ""}),
        ("pending", {"status__phase": "Pending"}),
        ("critical", {"spec__priority": 2_000_000_000}),
        ("almost critical", {"spec__priority": 1_999_999_999}),
        ("critical, movable", {"spec__priority": 2_000_000_000, **movable}),
        ("volume", {"spec__volumes": volume}),
        ("ephemeral volume", {"spec__volumes": [{"name": "v", "ephemeral": {}}]}),
        ("emptyDir", {"spec__volumes": [{"name": "v", "emptyDir": {}}]}),
        ("volume, movable", {"spec__volumes": volume, **movable}),
        ("host port", {"spec__containers": host_port}),
        ("anti-affinity", {"spec__affinity": {"podAntiAffinity": rule}}),
        ("unreadable", {"spec__volumes": 3}),
        ("two budgets", {"labels": {"app": "kept"}}),
    ]
    both = [budget("one", 1, {"app": "kept"}), budget("two", 1, {"app": "kept"})]
    said = [(what, why_stays(resident(**changes), *both)) for what, changes in pods]
    of_a, of_b = ("default", "owner-of-a"), ("other", "owner-of-a")
    for what, costs in (
        ("exempt", Costs(exempt=frozenset({"default"}))),
        ("crowded controller", Costs(crowded=frozenset({of_a}))),
        ("crowded controller elsewhere", Costs(crowded=frozenset({of_b}))),
        ("resting controller", Costs(backing_off=frozenset({"owner-of-a"}))),
        ("another resting controller", Costs(backing_off=frozenset({"owner-of-b"}))),
    ):
        said.append((what, why_stays(resident(), costs=costs)))
    said += [(f"gated in {names}", why_stays(resident(), gated=frozenset(names))) for names in ([], ["default"])]
    golden("defrag/staying_pods.txt", [f"{what}: {why or '-'}" for what, why in said])


def test_which_pods_a_budget_covers() -> None:
    for selector, covers in (
        (None, False),
        ({}, True),
        ({"matchLabels": {"app": "train"}}, True),
        ({"matchLabels": {"app": "other"}}, False),
        ({"matchExpressions": [{"key": "app", "operator": "In", "values": ["train"]}]}, True),
        ({"matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, False),
        ({"matchExpressions": [{"key": "app", "operator": "Near"}]}, True),  # unknown operators match
    ):
        manifest = budget("b", 1)
        manifest["spec"]["selector"] = selector
        budgets = budgets_of(manifest)
        assert budgets.of(resident().pod.metadata) == (("default/b",) if covers else ())
        assert budgets.of(resident(metadata__namespace="elsewhere").pod.metadata) == ()


def test_a_budget_whose_status_is_older_than_its_spec_allows_nothing() -> None:
    manifest = budget("b", 3)
    manifest["metadata"]["generation"] = 2
    for observed, allowed in ((1, 0), (2, 3)):
        manifest["status"]["observedGeneration"] = observed
        assert budgets_of(manifest).allowed == {"default/b": allowed}


def test_an_unreadable_budget_holds_its_namespace() -> None:
    assert "can't be read" in Budgets([], ["default"]).fault(resident().pod.metadata)
    assert not Budgets([], ["elsewhere"]).fault(resident().pod.metadata)


def _not_in(name: str, *parts: int) -> dict[str, Any]:
    """A budget of conditions with these numbers of values, which hold for every pod."""
    made = budget(name, 1)
    made["spec"]["selector"] = {
        "matchExpressions": [
            {"key": "app", "operator": "NotIn", "values": [f"v{value}" for value in range(number)]} for number in parts
        ]
    }
    return made


def test_too_large_budgets_hold_their_own_namespace_only() -> None:
    for most, more in (
        ([_not_in("b", _MAX_VALUES)], [_not_in("b", _MAX_VALUES, 1)]),
        ([_not_in("b", *[0] * _MAX_CONDITIONS)], [_not_in("b", *[0] * (_MAX_CONDITIONS + 1))]),
        ([budget("b", 1)], [_not_in(f"b{n}", _MAX_VALUES // 3) for n in range(4)]),
    ):
        assert not budgets_of(*most).fault(resident().pod.metadata)
        assert budgets_of(*most).of(resident().pod.metadata) == ("default/b",)
        budgets = budgets_of(*more, budget("near", 1, namespace="elsewhere"))
        assert "are too large" in budgets.fault(resident().pod.metadata)
        near = resident(metadata__namespace="elsewhere").pod.metadata
        assert (budgets.fault(near), budgets.of(near)) == ("", ("elsewhere/near",))


def test_a_budget_is_matched_once_for_equal_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    matched: list[object] = []

    def holds(condition: object, labels: object, *, unknown: bool) -> bool:
        matched.append(labels)
        return True

    monkeypatch.setattr("extender.planning.demands.LabelRequirement.holds", holds)
    budgets = budgets_of(budget("b", 1, {"app": "x"}))
    for labels in ({"app": "x"}, {"app": "y"}) * 50:
        budgets.of(resident(labels=labels).pod.metadata)
    assert matched == [{"app": "x"}, {"app": "y"}]


def test_pods_of_jobs_that_their_evictions_would_fail_stay() -> None:
    ignore = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    other = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "False"}]}
    late = [{"action": "FailJob", "onExitCodes": {"values": [143]}}, ignore]
    for spec, failed, num_pods, moves in (
        ({}, 0, 6, True),  # the default limit
        ({}, 0, 7, False),
        ({"backoffLimit": 0}, 0, 1, False),
        ({"backoffLimit": 0, "podFailurePolicy": {"rules": [ignore]}}, 0, 1, True),
        ({"backoffLimit": 0, "podFailurePolicy": {"rules": [other]}}, 0, 1, False),
        ({"backoffLimit": 0, "podFailurePolicy": {"rules": late}}, 0, 1, False),
        ({"backoffLimit": 2}, 2, 1, False),
        ({"backoffLimit": 2}, 1, 1, True),
        ({"backoffLimit": 9, "backoffLimitPerIndex": 1}, 0, 3, True),
        ({"backoffLimit": 9, "backoffLimitPerIndex": 0}, 0, 1, False),
        ({"backoffLimit": 0, "backoffLimitPerIndex": 1}, 0, 1, False),
        ({"backoffLimitPerIndex": 1}, 9, 9, True),
    ):
        job = {"metadata": {"uid": "owner-of-a"}, "spec": spec, "status": {"failed": failed}}
        pods = [resident(owner="Job", metadata__uid=f"uid-{number}").pod.metadata for number in range(num_pods)]
        stays = Jobs(msgspec.convert([job], list[Job])).stays(pods)
        assert set(stays) == (set() if moves else {pod.uid for pod in pods}), spec


def test_nobody_gains_by_a_label() -> None:
    """A label may keep its pod from moving, but not move others for it."""
    for label, to_move, target in (("1000000", 1_000_000, 5), ("-3", 5, -3), ("much", 5, 5)):
        pod = resident(labels={"genius/priority": label}, spec__priority=5).pod
        assert (priority_at_least(pod), priority_at_most(pod)) == (to_move, target)


ARRAYS = (
    *("gpu_free_milli", "gpu_free_mib", "gpu_slices", "untracked_units", "num_served", "num_unserved"),
    *("cpu_free_milli", "memory_free_mib"),
)
SHARE = {"kerf.dev/gpu-share": "400", "kerf.dev/assigned-share": "400", "kerf.dev/assigned-memory-mib": "8192"}


def held(name: str, gpus: int | None, assigned: str | None, **annotations: str) -> Manifest:
    given = {} if assigned is None else {"kerf.dev/assigned-gpus": assigned}
    return pod(name, gpus, node_name="n", annotations={**given, **annotations})


def test_when_all_pods_leave_the_node_is_as_empty_as_before() -> None:
    shares = [held("a", None, "0", **SHARE), held("b", None, "0", **SHARE)]
    for machine, pods in (
        (node("n", 4), [held("a", 2, "0,3"), held("b", 1, "1")]),
        (node("n", 4), [held("a", 2, None), held("b", 1, "1")]),  # of unknown index
        (node("n", 4), shares),
        (node("n", 4), [shares[0], held("b", 2, "1,2")]),
        (node("n", shared=4), [pod("a", node_name="n", annotations={}), held("b", 1, None)]),
        (node("n", 4), [pod("a", node_name="n"), held("b", 4, "0,1,2,3")]),
    ):
        ledger = Ledger(reservation_ttl_s=30.0)
        ledger.upsert_node(msgspec.convert(machine, objects.Node))
        empty = ledger.snapshot(0.0)
        sizes = {}
        for manifest in pods:
            one = msgspec.convert(manifest, objects.Pod)
            ledger.upsert_pod(one, 0.0)
            sizes[one.metadata.uid] = (4000, 16 * 1024)
        found = writable_copy(ledger.snapshot(0.0))
        for claim in ledger.allocations_on("n"):
            book(found, 0, _booking_of(found, 0, claim.held, *sizes.pop(claim.uid)), 1)
        for cpu, memory in sizes.values():
            book(found, 0, _booking_of(found, 0, Holding(0), cpu, memory), 1)
        for name in ARRAYS:
            assert np.array_equal(getattr(found, name), getattr(empty, name)), name


def test_shares_are_counted_as_fractions_of_a_gpu() -> None:
    assert _gpus_held(whole_gpus(3)) == 3
    assert _gpus_held(Holding(2, (Part(0, 500, 1024), Part(1, 250, 1024)))) == 0.75
    assert _gpus_held(Holding(0, (), (("1g.10gb", 2),))) == 0
