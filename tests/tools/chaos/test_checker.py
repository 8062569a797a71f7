"""The checker finds planted violations of every kind, and none where there are none."""

from collections.abc import Mapping
from typing import Any

import pytest

from tests.controlplane.objects import gpu_node, pod
from tests.tools.chaos import checker
from tests.tools.chaos.refusals.manifests import WORDS_BEHIND
from tests.tools.chaos.witnesses import Seen

Manifest = dict[str, Any]
SCHEDULERS = ("default-scheduler",)
NODE = gpu_node("n", gpus=2, memory_mib=40960)


def bound(name: str, gpus: str = "", count: int = 1, node: str = "n", **annotations: str) -> Manifest:
    """A pod on a node with what was written on it."""
    written = {f"kerf.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    if gpus:
        written["kerf.dev/assigned-gpus"] = gpus
    found = pod(name, count, annotations=written, nodeName=node)
    found["metadata"]["uid"] = f"uid of {name}"
    return found | {"status": {"phase": "Running"}}


def by_word(name: str, gpu: str) -> Manifest:
    """A pod that asked for a GPU by annotation alone."""
    return bound(name, gpu, 0, gpu_count="1")


def share(name: str, gpu: str, milli: int, mib: int) -> Manifest:
    """A pod that shares a GPU."""
    asked = {"gpu_share": str(milli), "gpu_memory_each": f"{mib}Mi"}
    return bound(name, gpu, 0, **asked, assigned_share=str(milli), assigned_memory_mib=str(mib))


def pending(name: str, count: int = 1, reason: str = "no room", **annotations: str) -> Manifest:
    """A pod without a node."""
    written = {f"kerf.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": reason}
    return pod(name, count, annotations=written) | {"status": {"conditions": [condition] if reason else []}}


def leaving(found: Manifest) -> Manifest:
    return {**found, "metadata": {**found["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}


def promises(found: list[checker.Violation]) -> list[str]:
    return [violation.promise for violation in found]


@pytest.mark.parametrize(
    ("pods", "promise"),
    [
        ([bound("a", "0"), bound("b", "0")], "one exclusive holder"),
        ([bound("a", "0"), share("b", "0", 100, 10)], "one exclusive holder"),
        ([share("a", "1", 600, 10), share("b", "1", 401, 10)], "compute <= capacity"),
        ([share("a", "1", 100, 40000), share("b", "1", 100, 961)], "memory <= capacity"),
        ([bound("a", "2")], "only GPUs that exist"),
        ([bound("a", "0"), bound("b", count=2)], "GPUs held <= GPUs installed"),
        ([share("a", "0", 100, 10), share("b", "1", 100, 10), bound("c")], "GPUs held <= GPUs installed"),
    ],
)
def test_an_overbooked_gpu_is_found(pods: list[Manifest], promise: str) -> None:
    assert promises(checker.overbooked([NODE], pods)) == [promise]


def test_a_full_node_is_not_overbooked() -> None:
    full = [share("a", "0", 600, 20480), share("b", "0", 400, 20480), bound("c", "1")]
    assert checker.overbooked([NODE], full) == []
    assert checker.overbooked([NODE], [bound("a", "0,1", count=2)]) == []
    finished = bound("done", "1") | {"status": {"phase": "Succeeded"}}
    assert checker.overbooked([NODE], [finished, bound("a", "1")]) == []
    assert checker.overbooked([NODE], [bound("a", "0", node="gone"), bound("b", "0")]) == []


def test_two_kinds_of_pods_side_by_side_are_found_where_the_plugin_picks() -> None:
    kerf = "kerf/0.1.0 tightest"
    served, unserved = bound("a", "0", assigned_by=kerf), bound("b", "1", 0, gpu_count="1", assigned_by=kerf)
    assert promises(checker.overbooked([NODE], [served, unserved])) == ["kept apart where the plugin picks"]
    foreign = bound("a", "0")
    assert checker.overbooked([NODE], [foreign, unserved]) == [], "placed past Kerf"
    bare = gpu_node("n", gpus=2, memory_mib=40960)
    del bare["status"]["allocatable"]["nvidia.com/gpu"]
    assert checker.overbooked([bare], [served, unserved]) == []


def test_beside_pods_of_the_other_kind_there_is_no_room_where_the_plugin_picks() -> None:
    large = gpu_node("n", gpus=4, memory_mib=40960)
    waiting = pending("w", 0, gpu_share="500")
    assert promises(checker.stranded([large], [share("a", "0", 100, 10), waiting])) == ["placed after the faults end"]
    assert checker.stranded([large], [bound("a", "0"), waiting]) == []
    assert checker.stranded([large], [bound("a", "0", 0, gpu_count="1"), pending("w", 1)]) == []


def test_terminating_pods_still_hold() -> None:
    pods = [leaving(bound("leaving", "0")), bound("a", "0")]
    assert promises(checker.overbooked([NODE], pods)) == ["one exclusive holder"]


@pytest.mark.parametrize(
    ("placed", "promise"),
    [
        (bound("a"), "no pod is placed blind"),
        (bound("a", count=0, gpu_count="1"), "no pod is placed blind"),
        (bound("a", count=0, gpu_share="500"), "no pod is placed blind"),
        (bound("a", assigned_gpus=""), "as many GPUs as asked"),
        (bound("a", "0", count=2), "as many GPUs as asked"),
        (bound("a", "0", count=0, gpu_share="500"), "the share asked"),
        (bound("a", "0", gpu_model="v100"), "the model asked"),
        (bound("a", "0", gpu_memory_each="80Gi"), "the memory asked"),
    ],
)
def test_a_misplaced_pod_is_found(placed: Manifest, promise: str) -> None:
    assert promises(checker.misplaced([NODE], [placed], SCHEDULERS)) == [promise]


def test_what_was_asked_is_not_misplaced() -> None:
    right = bound("a", "0,1", count=2, gpu_model="a100", gpu_memory_each="40Gi")
    foreign = bound("foreign")
    foreign["spec"]["schedulerName"] = "nobody"
    assert checker.misplaced([NODE], [right, foreign, share("b", "0", 500, 100)], SCHEDULERS) == []


def test_a_pod_that_came_to_a_shrunken_node_is_found() -> None:
    shrunk = gpu_node("n", gpus=2)
    shrunk["status"]["allocatable"]["nvidia.com/gpu"] = "1"
    before = [bound("a", "0")]
    both = [*before, bound("b", "1")]
    assert promises(checker.bound_beyond(before, [shrunk], both)) == ["GPUs held <= GPUs offered"]
    assert checker.bound_beyond(both, [shrunk], both) == []
    assert checker.bound_beyond(before, [NODE], both) == []


@pytest.mark.parametrize(("num_unknown", "found"), [(2, True), (3, False)])
def test_a_share_has_no_room_beside_another_where_pods_of_unknown_gpus_are_too_many(
    num_unknown: int, found: bool
) -> None:
    shrunk = gpu_node("n", gpus=8)
    shrunk["status"]["allocatable"]["nvidia.com/gpu"] = "3"
    unknown = [by_word(f"unknown-{number}", "") for number in range(num_unknown)]
    wanted = pending("a", 0, gpu_share="700")
    assert bool(checker.stranded([shrunk], [share("sharing", "0", 200, 10), *unknown, wanted])) == found


def test_a_lost_pod_is_found() -> None:
    assert promises(checker.lost(["a", "b"], [bound("a", "0")])) == ["no pod is lost"]
    assert promises(checker.lost(["a"], [leaving(bound("a", "0"))])) == ["no pod is lost"]
    assert checker.lost(["a"], [bound("a", "0"), bound("unexpected", "1")]) == []


def test_a_pod_without_node_and_reason_is_found() -> None:
    assert promises(checker.unexplained([pending("a", reason="")])) == ["bound, or pending with a reason"]
    assert checker.unexplained([pending("a"), bound("b", "0")]) == []
    assert checker.unexplained([pending("a", reason="", nomination_lost="2. n: no room")]) == []  # it is tried again


@pytest.mark.parametrize(
    ("waiting", "holding", "found"),
    [
        (pending("a"), [bound("b", "0")], True),
        (pending("a", 2), [bound("b", "0")], False),
        (pending("a"), [bound("b", count=2)], False),
        (pending("a", gpu_memory_each="80Gi"), [], False),
        (pending("a", gpu_model="v100"), [], False),
        (pending("a", 0, gpu_share="400", gpu_memory_each="1Gi"), [share("b", "0", 600, 10), by_word("c", "1")], True),
        (pending("a", 0, gpu_share="401", gpu_memory_each="1Gi"), [share("b", "0", 600, 10), by_word("c", "1")], False),
        (pending("a", 0, gpu_share="400", gpu_memory_each="40Gi"), [share("b", "0", 600, 1), by_word("c", "1")], False),
        (pending("a", 0, gpu_share="900"), [by_word("b", "0")], True),
        (pending("a", 0), [], False),
    ],
)
def test_a_pending_pod_that_fits_is_found(waiting: Manifest, holding: list[Mapping[str, Any]], found: bool) -> None:
    expected = ["placed after the faults end"] if found else []
    assert promises(checker.stranded([NODE], [waiting, *holding])) == expected


def test_deleted_and_cordoned_nodes_and_leaving_pods_offer_and_want_nothing() -> None:
    cordoned = gpu_node("n", gpus=2) | {"spec": {"unschedulable": True}}
    assert checker.stranded([cordoned], [pending("a")]) == []
    assert checker.stranded([NODE], [leaving(pending("a"))]) == []


def gated(name: str, count: int = 1, skipped: str = "no room", **annotations: str) -> Manifest:
    """A pod behind the gate; the API server has its own words for why it is pending."""
    found = pending(name, count, reason="Scheduling is blocked due to non-empty scheduling gates", **annotations)
    found["spec"]["schedulingGates"] = [{"name": "kerf.dev/queue"}]
    if skipped:
        found["metadata"]["annotations"]["kerf.dev/skipped"] = skipped
    return found


def test_a_gated_pod_needs_a_reason_of_kerf_and_is_stranded_as_any_other() -> None:
    assert promises(checker.unexplained([gated("a", skipped="")])) == ["bound, or pending with a reason"]
    assert checker.unexplained([gated("a")]) == []
    assert promises(checker.stranded([NODE], [gated("a")])) == ["placed after the faults end"]


def paired(found: Manifest) -> Manifest:
    """A member of a gang of two."""
    found["metadata"]["annotations"] |= {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}
    return found


@pytest.mark.parametrize(
    ("pods", "found"),
    [
        ([paired(gated("a")), paired(gated("b"))], True),
        ([paired(gated("a"))], False),  # its other member is not there
        ([paired(gated("a")), paired(gated("b")), bound("c", "0")], False),  # one alone has room
        ([paired(gated("a", 2)), paired(gated("b", 2))], False),
        ([paired(bound("a", "0")), paired(gated("b"))], True),  # it may join
        ([paired(pending("a")), paired(gated("b", 2))], True),  # let go, and fits by itself
    ],
)
def test_a_gang_is_stranded_when_all_that_wait_fit(pods: list[Manifest], found: bool) -> None:
    assert bool(checker.stranded([NODE], pods)) == found


def test_a_nomination_left_behind_the_gate_is_found() -> None:
    nominated = gated("a") | {"status": {"phase": "Pending", "nominatedNodeName": "n"}}
    assert promises(checker.kept_by_words([nominated, gated("b")])) == ["no node is kept by a nomination alone"]
    opened = pending("c") | {"status": {"phase": "Pending", "nominatedNodeName": "n"}}
    assert checker.kept_by_words([opened]) == []


def test_a_gang_that_runs_in_part_is_found() -> None:
    assert promises(checker.in_part([paired(bound("a", "0")), paired(gated("b"))])) == ["gangs run whole"]
    assert promises(checker.in_part([paired(bound("a", "0"))])) == ["gangs run whole"]
    assert checker.in_part([paired(bound("a", "0")), paired(bound("b", "1"))]) == []
    assert checker.in_part([paired(gated("a")), paired(gated("b")), bound("c", "0")]) == []


def test_a_pod_without_gpus_that_waits_for_kerf_is_found() -> None:
    waiting, placed = pending("a", 0), bound("b", count=0)
    assert promises(checker.unscheduled(["a", "b", "c"], [waiting, placed])) == ["placed without Kerf"] * 2
    assert checker.unscheduled(["b"], [waiting, placed]) == []
    refused = {"type": "PodScheduled", "status": "False", "message": f"0/9 nodes are available: 9 {WORDS_BEHIND}."}
    waiting["status"]["conditions"] = [refused]
    assert checker.unscheduled(["a"], [waiting]) == []  # by another extender, and for that alone


def test_members_of_kubernetes_own_gangs_wait_for_each_other() -> None:
    member = pending("a")
    member["spec"]["schedulingGroup"] = {"podGroupName": "g"}
    assert checker.stranded([NODE], [member]) == []
    assert checker.unexplained([member | {"status": {}}]) == []


def edited(found: Manifest, **annotations: str | None) -> Manifest:
    """The same pod after its author has written on it."""
    written = dict(found["metadata"]["annotations"])
    for key, value in annotations.items():
        name = f"kerf.dev/{key.replace('_', '-')}"
        if value is None:
            del written[name]
        else:
            written[name] = value
    return {**found, "metadata": {**found["metadata"], "annotations": written}}


ASKED = bound("a", "0", 0, gpu_count="1")
TWO = bound("a", "0,1", 2)
SHARE = share("a", "0", 800, 10)
NEXT = bound("next", "0")


@pytest.mark.parametrize(
    ("first", "later", "planted", "promise"),
    [
        (ASKED, edited(ASKED, assigned_gpus=None, gpu_count=None), NEXT, "one exclusive holder"),
        (ASKED, edited(ASKED, assigned_gpus="1"), NEXT, "one exclusive holder"),
        (SHARE, edited(SHARE, gpu_share="1", assigned_share="1"), share("next", "0", 201, 10), "compute <= capacity"),
        (TWO, edited(TWO, gpu_share="1", assigned_share="1"), share("next", "1", 500, 10), "one exclusive holder"),
        (TWO, edited(TWO, assigned_gpus=None), NEXT, "one exclusive holder"),
    ],
)
def test_what_was_given_to_the_next_after_an_edit_is_found(
    first: Manifest, later: Manifest, planted: Manifest, promise: str
) -> None:
    seen = Seen()
    seen.node(NODE)
    seen.pod(first)
    seen.pod(later)
    assert not seen.violations
    seen.pod(planted)
    assert promises(list(seen.violations)) == [promise]
    assert promises(checker.overbooked([NODE], seen.holding())) == [promise]


def test_a_moment_with_two_holders_is_found_when_it_is_over() -> None:
    seen = Seen()
    seen.node(NODE)
    for found in (bound("a", "0"), bound("b", "0")):
        seen.pod(found)
    seen.pod_gone("uid of b")
    assert promises(list(seen.violations)) == ["one exclusive holder"]
    assert checker.overbooked([NODE], seen.holding()) == []


def test_the_witness_counts_nothing_that_is_gone_or_has_ended_and_all_that_is_ending() -> None:
    seen = Seen()
    seen.node(NODE)
    ending = bound("a", "0")
    seen.pod(ending)
    seen.pod(bound("b", "1"))
    seen.pod(bound("b", "1") | {"status": {"phase": "Failed"}})
    seen.pod(bound("c", "1"))
    assert not seen.violations
    seen.pod({**ending, "metadata": {**ending["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}})
    seen.pod(bound("d", "0"))
    assert promises(list(seen.violations)) == ["one exclusive holder"]
    assert [held["metadata"].get("deletionTimestamp") is not None for held in seen.holding()] == [True] + [False] * 3


def test_a_mirror_that_comes_back_to_gpus_that_were_given_away_is_found() -> None:
    seen = Seen()
    seen.node(NODE)
    mirror = bound("mirror", count=1)
    seen.pod(mirror)
    seen.pod_gone("uid of mirror")
    seen.pod(bound("next", "0,1", 2))
    assert not seen.violations
    seen.pod({**mirror, "metadata": {**mirror["metadata"], "uid": "another"}})
    assert promises(list(seen.violations)) == ["GPUs held <= GPUs installed"]


# What is no GPU.


def asking(found: Manifest, **more: Any) -> Manifest:
    """The same pod, its container asking for something besides."""
    (container,) = found["spec"]["containers"]
    resources = {key: container["resources"].get(key, {}) | more.pop(key, {}) for key in ("requests", "limits")}
    return found | {"spec": {**found["spec"], "containers": [container | {"resources": resources} | more]}}


PORT = {"ports": [{"containerPort": 80, "hostPort": 9400}]}
GUARD = asking(bound("guard", count=0), **PORT)
GUARD["metadata"]["labels"] = {"role": "guard"}
APART = {"labelSelector": {"matchLabels": {"role": "guard"}}, "topologyKey": "kubernetes.io/hostname"}


def apart(found: Manifest) -> Manifest:
    rules = {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [APART]}}
    return found | {"spec": found["spec"] | {"affinity": rules}}


def with_volume(found: Manifest) -> Manifest:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "c"}}
    return found | {"spec": found["spec"] | {"volumes": [volume]}}


def labelled(found: Manifest, **labels: str) -> Manifest:
    labels = {f"chaos.example.com/{key}": value for key, value in labels.items()}
    return found | {"metadata": found["metadata"] | {"labels": labels}}


def with_cpu(found: Manifest, cpu: str, has: str = "") -> Manifest:
    """A pod that asks for so much CPU, and has another amount."""
    found = asking(found, requests={"cpu": cpu})
    if not has:
        return found
    container = {"name": "main", "resources": {"requests": {"cpu": has}}, "allocatedResources": {"cpu": has}}
    return found | {"status": {"phase": "Running", "containerStatuses": [container]}}


@pytest.mark.parametrize(
    ("waiting", "there", "found"),
    [
        (asking(pending("a"), limits={"example.com/rdma": "1"}), [], False),
        (asking(pending("a"), **PORT), [], True),
        (asking(pending("a"), **PORT), [GUARD], False),
        (apart(pending("a")), [], True),
        (apart(pending("a")), [GUARD], False),
        (pending("a"), [GUARD], True),
        (with_volume(pending("a")), [], False),
        (labelled(pending("a"), refused="true"), [], False),
        (with_cpu(pending("a"), "2"), [with_cpu(bound("b", count=0), "94")], True),
        (with_cpu(pending("a"), "2100m"), [with_cpu(bound("b", count=0), "94")], False),
        (with_cpu(pending("a"), "2100m"), [with_cpu(bound("b", count=0), "1", has="94")], False),
        (with_cpu(pending("a"), "2100m"), [with_cpu(bound("b", count=0), "1", has="1")], True),
        (with_cpu(pending("a"), "2100m"), [with_cpu(bound("b", count=0), "94", has="1")], False),
    ],
)
def test_a_pod_is_stranded_where_it_has_room_for_all_that_it_asks(
    waiting: Manifest, there: list[Manifest], found: bool
) -> None:
    assert bool(checker.stranded([NODE], [waiting, *there])) == found


def test_a_gang_is_stranded_where_there_is_cpu_for_all_that_wait() -> None:
    pods = [with_cpu(paired(gated(name)), "40") for name in ("a", "b")]
    assert checker.stranded([NODE], pods) != []
    assert checker.stranded([NODE], [*pods, with_cpu(bound("c", count=0), "20")]) == []


def test_what_was_resized_since_it_came_counts_as_it_is() -> None:
    seen = Seen()
    seen.node(NODE)
    large = with_cpu(bound("a", count=0), "94")
    seen.pod(large)
    seen.pod(with_cpu(large, "1", has="1"))
    assert checker.stranded([NODE], [*seen.holding(), with_cpu(pending("b"), "90")]) != []


def nominated(found: Manifest) -> Manifest:
    status = {**found["status"], "nominatedNodeName": "n"}
    status["conditions"] = [{**of, "reason": "Unschedulable"} for of in status["conditions"]]
    return found | {"status": status}


LARGE = gpu_node("n", gpus=40)


@pytest.mark.parametrize(
    ("pods", "reserved", "found"),
    [
        ([with_volume(nominated(pending("a", 8)))], 8.0, []),  # one pod, whatever it asks for
        ([with_volume(nominated(pending(name))) for name in "ab"], 2.0, []),  # 5 %
        ([with_volume(nominated(pending(name))) for name in "abc"], 0.0, ["nominations"]),
        ([with_volume(nominated(paired(pending(name, 4)))) for name in "ab"], 8.0, []),  # one gang
        ([with_volume(paired(pending(name, 4, reason=""))) for name in "ab"], 8.0, []),  # one that is tried again
        ([with_volume(pending(name, 4, reason="")) for name in "ab"], 8.0, ["reservations"]),
        ([with_volume(nominated(pending(name, 4))) for name in "ab"], 8.0, ["nominations", "reservations"]),
        ([with_volume(pending(name, 4)) for name in "ab"], 8.0, ["reservations"]),
        ([with_volume(nominated(pending("a", 4))), with_volume(pending("b", 4))], 4.0, []),
        ([nominated(pending(name, 4)) for name in "ab"], 2.0, []),  # they fit
        ([with_volume(pending(name, 4, "", nomination_lost="1. n: no CPU")) for name in "ab"], 10.0, []),
        ([with_volume(pending(name, 4, "", nomination_lost="2. n: no disk")) for name in "ab"], 8.0, ["reservations"]),
        ([with_volume(pending(name, 4, nomination_lost="1. n: no CPU")) for name in "ab"], 8.0, ["reservations"]),
        ([with_volume(pending(name, 4, "", nomination_lost="forged")) for name in "ab"], 8.0, ["reservations"]),
        (
            [
                with_volume(paired(pending(name, 8, "", nomination_lost=f"{at}. n: a")))
                for at, name in enumerate("ab", 1)
            ],
            17.0,
            ["reservations"],  # one of its gang is known to be refused
        ),
    ],
)
def test_what_is_kept_for_pods_that_no_node_takes_is_bounded(
    pods: list[Manifest], reserved: float, found: list[str]
) -> None:
    told = checker.kept_for_refused([LARGE], pods, reserved=reserved)
    assert [violation.subject for violation in told] == found


def test_what_is_kept_for_them_is_a_part_of_all_gpus_whether_or_not_they_are_offered_now() -> None:
    unhealthy = LARGE | {
        "status": {**LARGE["status"], "allocatable": {**LARGE["status"]["allocatable"], "nvidia.com/gpu": "38"}}
    }
    pods = [with_volume(pending(name)) for name in "ab"]
    assert checker.kept_for_refused([unhealthy], pods, reserved=2.0) == []
    assert len(checker.kept_for_refused([unhealthy], pods, reserved=2.1)) == 1


def test_a_pod_was_refused_when_kube_scheduler_has_found_no_node_for_it() -> None:
    assert checker.refused(pending("a"))
    assert not checker.refused(pending("a", reason=""))
    blocked = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
    assert not checker.refused(pending("a") | {"status": {"conditions": [blocked]}})
