"""What is bound stays what it was, whatever its author writes on it later; and what a fresh process believes."""

import json

import msgspec
import pytest

from extender.core.annotations import COUNT, MEMORY_EACH, SHARE
from extender.kube import objects
from extender.ledger.ledger import _WITHIN_S, MIRROR, ClaimState, Ledger
from extender.plugins.holdings import Holding, Part, either, whole_gpus
from extender.plugins.kerf import _GIVEN, ASSIGNED_GPUS, ASSIGNED_MEMORY, ASSIGNED_SHARE, GPUS
from extender.plugins.nvidia import gpushare, hami
from tests.ledger.builders import node_manifest, node_object, pod_object
from tests.plugins.rigs import A, B, asking, gpushare_node, hami_node, sharing

Annotations = dict[str, str]
TWO: Annotations = {COUNT: "2", ASSIGNED_GPUS: "0,1"}
HALF: Annotations = {
    SHARE: "500",
    MEMORY_EACH: "4Gi",
    ASSIGNED_GPUS: "0",
    ASSIGNED_SHARE: "500",
    ASSIGNED_MEMORY: "4096",
}


def ledger_with(*nodes: objects.Node) -> Ledger:
    ledger = Ledger(reservation_ttl_s=30.0)
    for node in nodes:
        ledger.upsert_node(node)
    return ledger


def decoded(manifest: dict[str, object]) -> objects.Node:
    return msgspec.convert(manifest, objects.Node)


def state(ledger: Ledger, node: str = "n", now: float = 0.0) -> tuple[list[int], list[int], int]:
    """Compute and memory free of each GPU, and GPUs of unknown index that are taken."""
    cluster = ledger.snapshot(now)
    row = cluster.row_of[node]
    mib: list[int] = cluster.gpu_free_mib[row].tolist()
    milli: list[int] = cluster.gpu_free_milli[row].tolist()
    return milli, mib, int(cluster.untracked_units[row])


def bound(gpus: int, annotations: Annotations, uid: str = "u", node: str = "n") -> objects.Pod:
    return pod_object("p", gpus, uid=uid, node=node, annotations=annotations)


# While the process lives.


@pytest.mark.parametrize(
    ("gpus", "before", "after"),
    [
        pytest.param(0, TWO, {}, id="all annotations dropped"),
        pytest.param(0, TWO, {COUNT: "1", ASSIGNED_GPUS: "0"}, id="fewer"),
        pytest.param(0, TWO, {COUNT: "4", ASSIGNED_GPUS: "0,1,2,3"}, id="more"),
        pytest.param(0, HALF, {**HALF, ASSIGNED_GPUS: "1"}, id="a share moves"),
        pytest.param(0, HALF, {**HALF, SHARE: "1", ASSIGNED_SHARE: "1", ASSIGNED_MEMORY: "1"}, id="a share shrinks"),
        pytest.param(2, {ASSIGNED_GPUS: "0,1"}, {ASSIGNED_GPUS: "2,3"}, id="whole GPUs move"),
        pytest.param(2, {ASSIGNED_GPUS: "0,1"}, {**HALF, ASSIGNED_GPUS: "0,1"}, id="whole GPUs become shares"),
        pytest.param(
            2, {ASSIGNED_GPUS: "0,1"}, {gpushare.INDEX: "0", gpushare.POD_MEMORY: "1"}, id="another plugin's keys"
        ),
        pytest.param(0, {}, {COUNT: "4", ASSIGNED_GPUS: "0,1,2,3"}, id="a pod without GPUs takes all"),
        pytest.param(0, {**HALF}, {**HALF, SHARE: "half"}, id="a request that can't be read any more"),
    ],
)
def test_an_edit_of_a_bound_pod_changes_nothing_and_is_told_once(
    gpus: int, before: Annotations, after: Annotations
) -> None:
    ledger = ledger_with(node_object("n", 4))
    assert ledger.upsert_pod(bound(gpus, before), 0.0) == ()
    first = state(ledger)
    assert ledger.upsert_pod(bound(gpus, after), 1.0) != ()
    assert ledger.upsert_pod(bound(gpus, after), 2.0) == ()
    assert (state(ledger), ledger.num_edits_ignored) == (first, 1)
    ledger.keep_pods({"u"}, 3.0)  # a list tells nothing else than a watch
    ledger.upsert_pod(bound(gpus, before), 4.0)
    assert (state(ledger), ledger.num_edits_ignored) == (first, 1)
    ledger.remove_pod("u")
    assert state(ledger)[0] == [1000] * 4


def test_what_this_process_has_bound_counts_whatever_the_watch_tells_first() -> None:
    ledger = ledger_with(node_object("n", 4))
    claim = ledger.begin_binding("u", "n", whole_gpus(2, (0, 1)), 0.0)
    ledger.end_binding(claim, ClaimState.BOUND, 1.0)
    ledger.upsert_pod(bound(0, {}), 2.0)  # faster than the watch
    assert state(ledger)[0] == [0, 0, 1000, 1000]


@pytest.mark.parametrize("told", [{}, {COUNT: "2", ASSIGNED_GPUS: "2,3"}, {COUNT: "1", ASSIGNED_GPUS: "1"}])
@pytest.mark.parametrize(
    "outcome",
    [
        pytest.param(ClaimState.BOUND, id="our Binding"),
        pytest.param(None, id="somebody else's"),
        pytest.param(ClaimState.UNDECIDED, id="nobody can tell"),
    ],
)
def test_while_a_binding_is_under_way_nothing_of_either_is_given_away(
    outcome: ClaimState | None, told: Annotations
) -> None:
    ledger = ledger_with(node_object("n", 4))
    claim = ledger.begin_binding("u", "n", whole_gpus(2, (0, 1)), 0.0)
    ledger.upsert_pod(bound(0, told), 1.0)
    theirs = {int(gpu) for gpu in told.get(ASSIGNED_GPUS, "").split(",") if gpu}
    assert taken(ledger) == {0, 1} | theirs
    ledger.end_binding(claim, outcome, 2.0)
    expected = {ClaimState.BOUND: {0, 1}, None: theirs, ClaimState.UNDECIDED: {0, 1} | theirs}[outcome]
    assert taken(ledger) == expected
    if outcome is ClaimState.UNDECIDED:
        ledger.end_binding(claim, ClaimState.BOUND, 3.0)  # it has that node: not whose Binding gave it
        assert taken(ledger) == expected
    ledger.upsert_pod(bound(0, {COUNT: "1", ASSIGNED_GPUS: "3"}), 4.0)
    assert taken(ledger) == expected
    ledger.remove_pod("u")
    assert taken(ledger) == set()


def taken(ledger: Ledger) -> set[int]:
    return {index for index, milli in enumerate(state(ledger)[0]) if not milli}


def test_the_answer_that_was_lost_and_a_pod_that_was_edited_meanwhile() -> None:
    """The watch is late: the second look tells the node, then the watch tells other annotations."""
    ledger = ledger_with(node_object("n", 4))
    claim = ledger.begin_binding("u", "n", whole_gpus(1, (0,)), 0.0)
    ledger.end_binding(claim, ClaimState.UNDECIDED, 1.0)
    ledger.end_binding(claim, ClaimState.BOUND, 2.0)
    ledger.upsert_pod(bound(0, {COUNT: "1", ASSIGNED_GPUS: "2"}), 3.0)
    assert taken(ledger) == {0, 2}


def test_what_was_read_of_a_pod_does_not_take_the_place_of_its_own_binding() -> None:
    ledger = ledger_with(node_object("n", 4))
    claim = ledger.begin_binding("u", "n", whole_gpus(1, (0,)), 0.0)
    read = ledger.hold_as_read(bound(0, {COUNT: "1", ASSIGNED_GPUS: "2"}), 1.0)
    ledger.end_binding(claim, None, 1.0)
    assert taken(ledger) == {0, 2}, "edited as fast as it was bound, perhaps"
    assert read is not None
    ledger.end_binding(read, ClaimState.BOUND, 2.0)
    assert taken(ledger) == {0, 2}


def test_a_pod_that_had_ended_when_it_was_read_leaks_nothing() -> None:
    """The watch tells of it no more: it names pods that have not ended."""
    ledger = ledger_with(node_object("n", 4))
    claim = ledger.begin_binding("u", "n", whole_gpus(1, (0,)), 0.0)
    assert ledger.hold_as_read(pod_object("p", 1, uid="u", node="n", phase="Succeeded"), 1.0) is None
    ledger.end_binding(claim, None, 1.0)
    assert taken(ledger) == set()
    assert ledger.claim("u") is None


def test_cpu_reserved_on_a_node_that_changes_is_given_back() -> None:
    manifest = node_manifest("n", 4)
    manifest["status"]["allocatable"]["cpu"] = "8"
    ledger = ledger_with(decoded(manifest))
    ledger.reserve("u", "n", whole_gpus(1, (0,)), 0.0, cpu_milli=3000)
    manifest["status"]["allocatable"]["nvidia.com/gpu"] = "3"
    ledger.upsert_node(decoded(manifest))
    assert ledger.snapshot(1.0).cpu_free_milli.tolist() == [8000]


# What a fresh process believes.


@pytest.mark.parametrize(
    ("pod", "free"),
    [
        pytest.param(
            bound(2, {**HALF, ASSIGNED_GPUS: "0,1", ASSIGNED_SHARE: "1", ASSIGNED_MEMORY: "1", SHARE: "1"}),
            ([0, 0, 1000, 1000], 0),
            id="whole GPUs of a kubelet with a forged share are whole",
        ),
        pytest.param(
            bound(2, {gpushare.INDEX: "0", gpushare.POD_MEMORY: "1"}),
            ([1000] * 4, 2),
            id="gpushare's keys mean nothing",
        ),
        pytest.param(bound(2, {hami.ALLOCATED: f"{A},NVIDIA,1,1:;"}), ([1000] * 4, 2), id="nor do HAMi's"),
        pytest.param(bound(0, {ASSIGNED_GPUS: "0,1"}), ([1000] * 4, 0), id="who never asked holds nothing"),
        pytest.param(bound(0, {hami.ALLOCATED: f"{A},NVIDIA,1,1:;"}), ([1000] * 4, 0), id="nor by HAMi's keys"),
        pytest.param(bound(2, {}), ([1000] * 4, 2), id="without an assignment the number counts"),
        pytest.param(bound(0, TWO), ([0, 0, 1000, 1000], 0), id="by annotation alone it is believed"),
    ],
)
def test_on_a_node_without_a_plugin_that_shares(pod: objects.Pod, free: tuple[list[int], int]) -> None:
    before, after = ledger_with(node_object("n", 4)), ledger_with()
    before.upsert_pod(pod, 0.0)
    after.upsert_pod(pod, 0.0)
    after.upsert_node(node_object("n", 4))  # told of after its pods
    assert (state(before)[0], state(before)[2]) == (state(after)[0], state(after)[2]) == free


def on_hami(annotations: Annotations, resources: Annotations) -> tuple[list[int], list[int], int]:
    pod = msgspec.convert(asking("p", resources, node="n", annotations=annotations), objects.Pod)
    ledger = ledger_with()
    ledger.upsert_pod(pod, 0.0)
    ledger.upsert_node(decoded(hami_node("n", (A, 15360), (B, 15360))))
    return state(ledger)


def test_a_plugins_keys_count_on_its_nodes_and_never_less_than_the_spec() -> None:
    asked = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000", "nvidia.com/gpucores": "30"}
    assert on_hami({hami.ALLOCATED: f"{A},NVIDIA,4000,30:;"}, asked) == ([700, 1000], [11360, 15360], 0)
    assert on_hami({hami.ALLOCATED: f"{A},NVIDIA,1,30:;"}, asked)[2] == 1
    assert on_hami({hami.ALLOCATED: f"{A},NVIDIA,4000,1:;"}, asked)[2] == 1
    assert on_hami({hami.ALLOCATED: f"{A},NVIDIA,4000,30:;"}, {**asked, "nvidia.com/gpu": "2"})[2] == 2
    assert on_hami({gpushare.INDEX: "0", gpushare.POD_MEMORY: "1"}, asked)[2] == 1
    forged = {**HALF, ASSIGNED_SHARE: "1", ASSIGNED_MEMORY: "1", SHARE: "1", MEMORY_EACH: "1"}
    assert on_hami(forged, asked) == ([700, 1000], [11360, 15360], 0)


def test_gpushares_keys_count_on_its_nodes_for_pods_that_ask_it() -> None:
    ledger = ledger_with(decoded(gpushare_node("n", 2, 15)))
    keys = {gpushare.INDEX: "1", gpushare.POD_MEMORY: "5"}
    ledger.upsert_pod(pod_object("cpu", node="n", annotations=keys), 0.0)
    assert state(ledger)[1] == [15360, 15360]
    ledger.upsert_pod(
        msgspec.convert(asking("p", {gpushare.MEMORY_RESOURCE: "8"}, node="n", annotations=keys), objects.Pod), 0.0
    )
    assert state(ledger)[1] == [15360, 15360 - 8192]


def test_a_node_that_changes_its_plugin_is_read_anew() -> None:
    ledger = ledger_with(decoded(hami_node("n", (A, 15360), (B, 15360))))
    pod = sharing("p", 4000, node="n", annotations={hami.ALLOCATED: f"{A},NVIDIA,4000,0:;"})
    ledger.upsert_pod(msgspec.convert(pod, objects.Pod), 0.0)
    assert state(ledger)[1] == [11360, 15360]
    ledger.upsert_node(node_object("n", 2))
    assert state(ledger)[2] == 1
    ledger.upsert_node(decoded(hami_node("n", (A, 15360), (B, 15360))))
    assert state(ledger)[1] == [11360, 15360]


def test_either_covers_both() -> None:
    share, larger = Holding(1, (Part(0, 300, 4096),)), Holding(1, (Part(0, 200, 8192),))
    assert either(share, larger) == Holding(1, (Part(0, 300, 8192),))
    assert either(share, whole_gpus(2, (0, 1))) == whole_gpus(2, (0, 1))
    assert either(whole_gpus(3, (0,)), whole_gpus(2)) == whole_gpus(3, (0,))
    assert either(whole_gpus(2, (0, 1)), whole_gpus(1)) == whole_gpus(2, (0, 1))
    assert either(share, whole_gpus(1)) == Holding(2, (Part(0, 300, 4096),)), "a share is no whole GPU"
    assert either(Holding(0, mig=(("1g", 2),)), Holding(0, mig=(("1g", 1), ("2g", 1)))).mig == (("1g", 2), ("2g", 1))


# Mirrors of static pods.


def mirror(uid: str, name: str = "static-n") -> objects.Pod:
    return pod_object(name, 1, uid=uid, node="n", annotations={MIRROR: "hash"})


def with_condition(status: str) -> objects.Node:
    manifest = node_manifest("n", 2)
    manifest["status"]["conditions"] = [{"type": "Ready", "status": status}]
    return decoded(manifest)


def units_free(ledger: Ledger, now: float) -> int:
    milli, _, untracked = state(ledger, now=now)
    return sum(map(bool, milli)) - untracked


def test_a_deleted_mirror_keeps_what_its_containers_use_until_it_is_back() -> None:
    ledger = ledger_with(with_condition("True"))
    ledger.upsert_pod(mirror("old"), 0.0)
    ledger.remove_pod("old")
    assert units_free(ledger, 100.0) == 1
    assert units_free(ledger, 100.0 + _WITHIN_S - 0.1) == 1
    ledger.upsert_pod(mirror("new"), 101.0)
    assert (units_free(ledger, 102.0), ledger.claim("old")) == (1, None), "held once, not twice"
    ledger.upsert_pod(mirror("another", "other-n"), 103.0)
    assert units_free(ledger, 1000.0) == 0


def test_a_list_that_has_the_new_mirror_and_not_the_old_one_leaves_one_holder() -> None:
    """A list tells of what is there before it tells what is not: the new mirror comes before the old one is missed."""
    ledger = ledger_with(with_condition("True"))
    ledger.upsert_pod(mirror("old"), 0.0)
    ledger.upsert_pod(mirror("new"), 1.0)
    ledger.keep_pods({"new"}, 1.0)
    assert (units_free(ledger, 2.0), ledger.claim("old")) == (1, None)
    ledger.keep_pods(set(), 3.0)
    assert units_free(ledger, 4.0) == 1, "the containers of the new one may run on"


def test_a_list_with_a_pod_of_the_same_name_that_is_no_mirror_frees_nothing() -> None:
    ledger = ledger_with(with_condition("True"))
    ledger.upsert_pod(mirror("old"), 0.0)
    ledger.upsert_pod(pod_object("static-n", 1, uid="forged", node="n"), 1.0)
    ledger.keep_pods({"forged"}, 1.0)
    assert units_free(ledger, 2.0) == 0
    ledger.remove_pod("forged")
    assert units_free(ledger, 3.0) == 1


def test_who_forges_a_mirror_in_its_place_frees_nothing() -> None:
    ledger = ledger_with(with_condition("True"))
    ledger.upsert_pod(mirror("old"), 0.0)
    ledger.remove_pod("old")
    ledger.upsert_pod(pod_object("static-n", uid="forged", node="n", annotations={MIRROR: "hash"}), 1.0)
    assert units_free(ledger, 2.0) == 1
    ledger.remove_pod("forged")
    ledger.upsert_pod(mirror("new"), 3.0)
    assert (units_free(ledger, 4.0), ledger.claim("old")) == (1, None), "held once, not twice"


def test_a_static_pod_that_is_gone_is_free_once_its_kubelet_would_have_told() -> None:
    ledger = ledger_with(with_condition("True"))
    ledger.upsert_pod(mirror("old"), 0.0)
    ledger.keep_pods(set(), 1.0)  # as a list tells it
    assert units_free(ledger, 10.0) == 1
    ledger.keep_pods(set(), 11.0)
    assert units_free(ledger, 10.0 + _WITHIN_S) == 2
    assert ledger.claim("old") is None


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_kubelet_that_is_not_at_work_makes_no_mirror(status: str) -> None:
    ledger = ledger_with(with_condition("True"))
    ledger.upsert_pod(mirror("old"), 0.0)
    ledger.remove_pod("old")
    assert units_free(ledger, 100.0) == 1
    ledger.upsert_node(with_condition(status))
    assert units_free(ledger, 10_000.0) == 1
    ledger.upsert_node(with_condition("True"))
    assert units_free(ledger, 20_000.0) == 1
    assert units_free(ledger, 20_000.0 + _WITHIN_S - 0.1) == 1
    assert units_free(ledger, 20_000.0 + _WITHIN_S) == 2


def test_a_mirror_that_has_ended_and_any_other_pod_are_free_at_once() -> None:
    ledger = ledger_with(with_condition("True"))
    ledger.upsert_pod(mirror("old"), 0.0)
    ended = mirror("old")
    ended.status.phase = "Failed"
    ledger.upsert_pod(ended, 1.0)
    ledger.remove_pod("old")
    assert units_free(ledger, 1.0) == 2
    ledger.upsert_pod(pod_object("p", 1, node="n"), 2.0)
    ledger.remove_pod("uid-p")
    assert units_free(ledger, 2.0) == 2


# What the kubelet really gave.


def told_node(given: dict[str, list[str]]) -> objects.Node:
    manifest = node_manifest("n", 4)
    gpus = [{"index": index, "uuid": f"GPU-{index}", "memory_mib": 15360} for index in range(4)]
    manifest["metadata"]["annotations"] = {GPUS: json.dumps(gpus), _GIVEN: json.dumps(given)}
    return decoded(manifest)


@pytest.mark.parametrize("key", ["old", "default/p"])
def test_a_pod_made_again_under_its_name_inherits_nothing(key: str) -> None:
    ledger = ledger_with(told_node({}))
    ledger.keep_pods(set(), 0.0)  # all that was there at the start is known
    ledger.upsert_pod(pod_object("p", 1, uid="old", node="n", assigned="0"), 1.0)
    ledger.upsert_node(told_node({key: ["GPU-3"]}))
    assert taken(ledger) == {3}
    ledger.remove_pod("old")
    ledger.upsert_pod(pod_object("p", 1, uid="new", node="n", assigned="1"), 2.0)
    assert taken(ledger) == {1}
    ledger.upsert_node(told_node({key: ["GPU-3"], "other": ["GPU-0"]}))
    assert taken(ledger) == {1}, "the entry is still that of the pod before"
    ledger.upsert_node(told_node({"new": ["GPU-2"]}))
    assert taken(ledger) == {2}


@pytest.mark.parametrize("key", ["u", "default/p"])
@pytest.mark.parametrize("node_first", [True, False])
def test_what_was_given_before_the_start_is_known_whoever_is_told_of_first(key: str, node_first: bool) -> None:
    node, pod = told_node({key: ["GPU-3"]}), pod_object("p", 1, uid="u", node="n", assigned="0")
    ledger = ledger_with(*[node] * node_first)
    ledger.upsert_pod(pod, 0.0)
    ledger.upsert_node(node)
    ledger.keep_pods({"u"}, 0.0)
    assert taken(ledger) == {3}


def test_a_name_of_a_pod_that_is_bound_later_says_nothing() -> None:
    ledger = ledger_with(told_node({"default/p": ["GPU-3"]}))
    ledger.keep_pods(set(), 0.0)
    claim = ledger.begin_binding("u", "n", whole_gpus(1, (0,)), 1.0)
    ledger.end_binding(claim, ClaimState.BOUND, 1.0)
    ledger.upsert_pod(pod_object("p", 1, uid="u", node="n", assigned="0"), 2.0)
    assert taken(ledger) == {0}
    ledger.upsert_node(told_node({"u": ["GPU-3"]}))
    assert taken(ledger) == {3}


def test_claims_on_a_node_are_those_that_hold_something_there() -> None:
    ledger = ledger_with(node_object("n", 4))
    ledger.upsert_pod(bound(0, {hami.ALLOCATED: f"{A},NVIDIA,1,1:;"}), 0.0)
    assert ledger.claims_on("n") == []
    ledger.upsert_node(decoded(hami_node("n", (A, 15360), (B, 15360))))
    assert [claim.uid for claim in ledger.claims_on("n")] == ["u"]
