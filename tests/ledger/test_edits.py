"""What is bound stays what it was, whatever its author writes on it later; and what a fresh process believes."""

import pytest

from extender.core.annotations import COUNT, MEMORY_EACH, SHARE
from extender.kube import objects
from extender.ledger.ledger import AllocationState, Ledger
from extender.plugins.holdings import Holding, Part, either, whole_gpus
from extender.plugins.kerf import ASSIGNED_GPUS, ASSIGNED_MEMORY, ASSIGNED_SHARE
from extender.plugins.nvidia import gpushare, hami
from extender.queueing.pods.objects import decode_node, decode_pod
from tests.ledger.builders import T4_MIB, free, ledger_of, node_object, pod_object, taken, untracked
from tests.plugins.rigs import A, B, asking, gpushare_node, hami_node, sharing

Annotations = dict[str, str]
TWO: Annotations = {COUNT: "2", ASSIGNED_GPUS: "0,1"}
HALF: Annotations = {
    **{SHARE: "500", MEMORY_EACH: "4Gi"},
    **{ASSIGNED_GPUS: "0", ASSIGNED_SHARE: "500", ASSIGNED_MEMORY: "4096"},
}
ONE_MIB: Annotations = {SHARE: "1", ASSIGNED_SHARE: "1", ASSIGNED_MEMORY: "1"}
OF_GPUSHARE: Annotations = {gpushare.INDEX: "0", gpushare.POD_MEMORY: "1"}
OF_HAMI: Annotations = {hami.ALLOCATED: f"{A},NVIDIA,1,1:;"}
HAMI_NODE = hami_node("n", (A, T4_MIB), (B, T4_MIB))


def bound(gpus: int, annotations: Annotations) -> objects.Pod:
    return pod_object("p", gpus, uid="u", node="n", annotations=annotations)


# While the process lives.


def test_an_edit_of_a_bound_pod_changes_nothing_and_is_warned_of_once() -> None:
    edits: tuple[tuple[int, Annotations, Annotations], ...] = (
        (0, TWO, {}),
        (0, TWO, {COUNT: "4", ASSIGNED_GPUS: "0,1,2,3"}),
        (0, HALF, {**HALF, ASSIGNED_GPUS: "1"}),
        (0, HALF, {**HALF, **ONE_MIB}),
        (0, HALF, {**HALF, SHARE: "half"}),
        (2, {ASSIGNED_GPUS: "0,1"}, {ASSIGNED_GPUS: "2,3"}),
        (2, {ASSIGNED_GPUS: "0,1"}, {**HALF, ASSIGNED_GPUS: "0,1"}),
        (2, {ASSIGNED_GPUS: "0,1"}, OF_GPUSHARE),
        (0, {}, {COUNT: "4", ASSIGNED_GPUS: "0,1,2,3"}),
    )
    for gpus, before, after in edits:
        ledger = ledger_of(n=4)
        assert ledger.upsert_pod(bound(gpus, before), 0.0) == ()
        first = free(ledger), untracked(ledger)
        assert ledger.upsert_pod(bound(gpus, after), 1.0) != ()
        assert ledger.upsert_pod(bound(gpus, after), 2.0) == ()
        ledger.keep_pods({"u"}, 3.0)
        ledger.upsert_pod(bound(gpus, before), 4.0)
        assert ((free(ledger), untracked(ledger)), ledger.num_edits_ignored) == (first, 1), after
        ledger.remove_pod("u")
        assert taken(ledger) == set()


def test_every_edit_is_reported_once_until_it_is_taken_back() -> None:
    ledger = ledger_of(n=4)
    pods = (pod_object("p", 1, uid="u", node="n", assigned=gpu) for gpu in "0112022")
    assert [len(ledger.upsert_pod(pod, 0.0)) for pod in pods] == [0, 1, 0, 1, 0, 1, 0]
    assert (ledger.num_edits_ignored, taken(ledger)) == (3, {0})


@pytest.mark.parametrize("told", [{}, {COUNT: "2", ASSIGNED_GPUS: "2,3"}, {COUNT: "1", ASSIGNED_GPUS: "1"}])
@pytest.mark.parametrize("outcome", [AllocationState.BOUND, None, AllocationState.UNDECIDED])
def test_while_a_binding_is_under_way_nothing_of_either_is_given_away(
    outcome: AllocationState | None, told: Annotations
) -> None:
    ledger = ledger_of(n=4)
    claim = ledger.begin_binding("u", "n", whole_gpus(2, (0, 1)), 0.0)
    ledger.upsert_pod(bound(0, told), 1.0)
    theirs = {int(gpu) for gpu in told.get(ASSIGNED_GPUS, "").split(",") if gpu}
    assert taken(ledger) == {0, 1} | theirs
    ledger.end_binding(claim, outcome, 2.0)
    expected = {AllocationState.BOUND: {0, 1}, None: theirs, AllocationState.UNDECIDED: {0, 1} | theirs}[outcome]
    assert taken(ledger) == expected
    if outcome is AllocationState.UNDECIDED:
        ledger.end_binding(claim, AllocationState.BOUND, 3.0)  # it has that node, by whichever Binding
        assert taken(ledger) == expected
    ledger.upsert_pod(bound(0, {COUNT: "1", ASSIGNED_GPUS: "3"}), 4.0)
    assert taken(ledger) == expected
    ledger.remove_pod("u")
    assert taken(ledger) == set()


def test_either_covers_both() -> None:
    share, larger = Holding(1, (Part(0, 300, 4096),)), Holding(1, (Part(0, 200, 8192),))
    assert either(share, larger) == Holding(1, (Part(0, 300, 8192),))
    assert either(share, whole_gpus(2, (0, 1))) == whole_gpus(2, (0, 1))
    assert either(whole_gpus(3, (0,)), whole_gpus(2)) == whole_gpus(3, (0,))
    assert either(whole_gpus(2, (0, 1)), whole_gpus(1)) == whole_gpus(2, (0, 1))
    assert either(share, whole_gpus(1)) == Holding(2, (Part(0, 300, 4096),)), "a share is no whole GPU"
    assert either(Holding(0, mig=(("1g", 2),)), Holding(0, mig=(("1g", 1), ("2g", 1)))).mig == (("1g", 2), ("2g", 1))


# What a fresh process believes.


def test_on_a_node_whose_plugin_does_not_share_whole_gpus_count_and_other_plugins_keys_do_not() -> None:
    for gpus, annotations, held, unknown in (
        (2, {**HALF, **ONE_MIB, ASSIGNED_GPUS: "0,1"}, {0, 1}, 0),
        (2, OF_GPUSHARE, set(), 2),
        (2, OF_HAMI, set(), 2),
        (0, {ASSIGNED_GPUS: "0,1"}, set(), 0),
        (0, OF_HAMI, set(), 0),
        (2, {}, set(), 2),
        (0, TWO, {0, 1}, 0),
    ):
        before, after = ledger_of(n=4), ledger_of()
        for ledger in (before, after):
            ledger.upsert_pod(bound(gpus, annotations), 0.0)
        after.upsert_node(node_object("n", 4))  # reported after its pods
        for ledger in (before, after):
            assert (taken(ledger), untracked(ledger)) == (held, unknown), annotations


def test_a_plugins_keys_count_on_its_nodes_and_never_less_than_the_spec() -> None:
    def on_hami(annotations: Annotations, **resources: str) -> Ledger:
        asked = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000", "nvidia.com/gpucores": "30"}
        pod = decode_pod(asking("p", {**asked, **resources}, node="n", annotations=annotations))
        ledger = ledger_of()
        ledger.upsert_pod(pod, 0.0)
        ledger.upsert_node(decode_node(HAMI_NODE))
        return ledger

    def allocated(mib: int, cores: int) -> Annotations:
        return {hami.ALLOCATED: f"{A},NVIDIA,{mib},{cores}:;"}

    for annotations in (allocated(4000, 30), {**HALF, **ONE_MIB, MEMORY_EACH: "1"}):
        ledger = on_hami(annotations)
        assert (free(ledger), untracked(ledger)) == ([(700, 11360), (1000, T4_MIB)], 0)
    for forged in (allocated(1, 30), allocated(4000, 1), OF_GPUSHARE):
        assert untracked(on_hami(forged)) == 1
    assert untracked(on_hami(allocated(4000, 30), **{"nvidia.com/gpu": "2"})) == 2


def test_gpushares_keys_count_on_its_nodes_for_pods_that_ask_it() -> None:
    ledger = ledger_of(decode_node(gpushare_node("n", 2, 15)))
    keys = {gpushare.INDEX: "1", gpushare.POD_MEMORY: "5"}
    ledger.upsert_pod(pod_object("cpu", node="n", annotations=keys), 0.0)
    assert [mib for _, mib in free(ledger)] == [T4_MIB, T4_MIB]
    ledger.upsert_pod(decode_pod(asking("p", {gpushare.MEMORY_RESOURCE: "8"}, node="n", annotations=keys)), 0.0)
    assert [mib for _, mib in free(ledger)] == [T4_MIB, T4_MIB - 8192]


def test_a_node_that_changes_its_plugin_is_read_again() -> None:
    ledger = ledger_of()
    annotations = {hami.ALLOCATED: f"{A},NVIDIA,4000,0:;"}
    ledger.upsert_pod(decode_pod(sharing("p", 4000, node="n", annotations=annotations)), 0.0)
    for node, free_mib, unknown in (
        (decode_node(HAMI_NODE), 11360, 0),
        (node_object("n", 2), T4_MIB, 1),
        (decode_node(HAMI_NODE), 11360, 0),
    ):
        ledger.upsert_node(node)
        assert (free(ledger)[0][1], untracked(ledger)) == (free_mib, unknown)
