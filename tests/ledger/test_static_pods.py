"""Static pods whose mirrors are deleted: their containers run on, so their GPUs stay held until a mirror is back."""

from extender.kube import objects
from extender.ledger.ledger import _WITHIN_S, MIRROR, Ledger
from tests.ledger.builders import described_node, free_units, ledger_of, pod_object

UUIDS = ("GPU-0", "GPU-1")


def mirror(uid: str, name: str = "static-n", *, gpus: int = 1, phase: str = "") -> objects.Pod:
    return pod_object(name, gpus, uid=uid, node="n", annotations={MIRROR: "hash"}, phase=phase)


def with_mirror(gpus: int = 1) -> Ledger:
    """A node of two GPUs, of which a static pod has some."""
    ledger = ledger_of(described_node(*UUIDS))
    ledger.upsert_pod(mirror("old", gpus=gpus), 0.0)
    return ledger


def num_free(ledger: Ledger, now: float) -> int:
    return free_units(ledger.snapshot(now), "n")


def test_a_deleted_mirror_holds_its_gpus_until_another_one_is_there() -> None:
    ledger = with_mirror()
    ledger.remove_pod("old")
    assert num_free(ledger, 100.0) == num_free(ledger, 100.0 + _WITHIN_S - 0.1) == 1
    ledger.upsert_pod(mirror("new"), 101.0)
    assert (num_free(ledger, 102.0), ledger.allocation("old")) == (1, None), "held once, not twice"
    ledger.upsert_pod(mirror("another", "other-n"), 103.0)
    assert num_free(ledger, 1000.0) == 0


def test_a_list_that_has_the_new_mirror_and_not_the_old_one_leaves_one_holder() -> None:
    ledger = with_mirror()
    ledger.upsert_pod(mirror("new"), 1.0)  # a list adds what it has before it removes what it lacks
    ledger.keep_pods({"new"}, 1.0)
    assert (num_free(ledger, 2.0), ledger.allocation("old")) == (1, None)
    ledger.keep_pods(set(), 3.0)
    assert num_free(ledger, 4.0) == 1, "the containers of the new one may run on"


def test_a_forged_mirror_frees_nothing() -> None:
    for forged in (0, 1):
        ledger = with_mirror(2)
        ledger.remove_pod("old")
        ledger.upsert_pod(mirror("forged", gpus=forged), 1.0)
        assert num_free(ledger, 2.0) == 0
        ledger.remove_pod("forged")
        ledger.upsert_pod(mirror("new", gpus=2), 3.0)
        assert (num_free(ledger, 4.0), ledger.allocation("old")) == (0, None), "held once, not twice"


def test_a_pod_of_the_same_name_that_is_not_a_mirror_frees_nothing() -> None:
    ledger = with_mirror()
    ledger.upsert_pod(pod_object("static-n", 1, uid="forged", node="n"), 1.0)
    ledger.keep_pods({"forged"}, 1.0)
    assert num_free(ledger, 2.0) == 0
    ledger.remove_pod("forged")
    assert num_free(ledger, 3.0) == 1


def test_without_a_new_mirror_its_gpus_are_free_once_a_kubelet_would_have_made_it() -> None:
    ledger = with_mirror()
    ledger.keep_pods(set(), 1.0)
    assert num_free(ledger, 10.0) == 1
    ledger.keep_pods(set(), 11.0)
    assert (num_free(ledger, 10.0 + _WITHIN_S), ledger.allocation("old")) == (2, None)


def test_a_kubelet_that_is_not_ready_makes_no_mirror() -> None:
    ledger = with_mirror()
    ledger.remove_pod("old")
    assert num_free(ledger, 100.0) == 1
    ledger.upsert_node(described_node(*UUIDS, ready=False))
    assert num_free(ledger, 10_000.0) == 1
    ledger.upsert_node(described_node(*UUIDS))
    assert num_free(ledger, 20_000.0) == num_free(ledger, 20_000.0 + _WITHIN_S - 0.1) == 1
    assert num_free(ledger, 20_000.0 + _WITHIN_S) == 2


def test_of_a_node_that_is_gone_it_is_held_no_longer_than_of_a_ready_one() -> None:
    ledger = ledger_of(described_node(*UUIDS, ready=False))
    ledger.upsert_pod(mirror("old"), 0.0)
    ledger.remove_pod("old")
    ledger.remove_node("n")
    for now, held in ((2000.0, True), (2000.0 + _WITHIN_S, False)):
        ledger.snapshot(now)
        assert (ledger.allocation("old") is not None) is held


def test_a_mirror_that_has_ended_is_free_at_once() -> None:
    ledger = with_mirror()
    ledger.upsert_pod(mirror("old", phase="Failed"), 1.0)
    ledger.remove_pod("old")
    assert num_free(ledger, 1.0) == 2
