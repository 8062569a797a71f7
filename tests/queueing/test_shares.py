"""Any number of namespaces is served in turn, and whoever lets pods go that nobody binds takes no more than a part."""

from collections import Counter

import pytest

from extender.kube.watches.feeds import PODS
from extender.queueing.pods.objects import decode_pod
from tests.queueing.rigs import GATES, Rig

MAX_OPEN = 8


class Crowd(Rig):
    """A queue on a large cluster, and pods of many namespaces."""

    def __init__(self, max_open: int = MAX_OPEN) -> None:
        super().__init__(max_open=max_open)
        for number in range(16):
            self.node(f"n{number}", 64)
        self.num_made = 0

    def make(self, namespace: str, count: int = 1, gpus: int = 1, cpu: int = 1) -> list[str]:
        """Pods of a namespace, behind the gate; their names."""
        names = []
        for _ in range(count):
            self.num_made += 1
            names.append(f"p{self.num_made:05}")
            metadata = {"name": names[-1], "namespace": namespace, "uid": names[-1], "annotations": {}}
            spec = {
                "schedulingGates": GATES,
                "containers": [{"resources": {"limits": {"nvidia.com/gpu": gpus, "cpu": cpu}}}],
            }
            self.api.pods[names[-1]] = {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
            self.hub.cache(PODS).upsert(decode_pod(self.api.pods[names[-1]]))
        return names

    def gone(self, names: list[str]) -> list[str]:
        """Those that were let go for a node."""
        return [name for name in names if self.node_of(name)]


@pytest.mark.parametrize("num_namespaces", [1, MAX_OPEN - 1, MAX_OPEN, MAX_OPEN + 1, 10 * MAX_OPEN])
def test_any_number_of_namespaces_is_served_in_turn(num_namespaces: int) -> None:
    rig = Crowd()
    for number in range(num_namespaces):
        rig.make(f"team-{number}", count=2)
    turns: list[str] = []
    while len(turns) < 2 * num_namespaces:
        rig.round()
        gone = [name for name in rig.gone(list(rig.api.pods)) if name in rig.queue.backlog.entries]
        assert len(gone) <= MAX_OPEN
        assert gone  # each round
        turns += sorted(rig.api.pods[name]["metadata"]["namespace"] for name in gone)
        for name in gone:
            rig.bind(name)
        had = Counter(turns)
        if num_namespaces > MAX_OPEN:  # nobody has the next turn before all have had theirs
            assert max(had.values()) - min(had[f"team-{number}"] for number in range(num_namespaces)) <= 1
    assert Counter(turns) == dict.fromkeys((f"team-{number}" for number in range(num_namespaces)), 2)


@pytest.mark.parametrize("num_namespaces", [MAX_OPEN - 1, MAX_OPEN, MAX_OPEN + 1, 10 * MAX_OPEN])
def test_pods_that_no_node_will_ever_fit_take_no_turns(num_namespaces: int) -> None:
    rig = Crowd()
    for number in range(num_namespaces):
        rig.make(f"evil-{number}", gpus=65)
    rig.round()
    good = rig.make("good", count=2 * MAX_OPEN)
    rig.round()
    rig.round()
    assert len(rig.gone(good)) >= MAX_OPEN // 2  # no less than where nobody else waits for its turn


@pytest.mark.parametrize("num_namespaces", [1, 4, MAX_OPEN, 10 * MAX_OPEN])
def test_namespaces_of_pods_that_nobody_binds_stop_no_round(num_namespaces: int) -> None:
    """Each has pods for a scheduler that there is not: what is let go of them never gets its node."""
    rig = Crowd()
    for number in range(num_namespaces):
        rig.make(f"evil-{number}", count=4, gpus=0)
    waited: list[float] = []
    for _ in range(5):
        for _ in range(8):
            rig.round(0.5)  # more of them is let go all the time
        (good,) = rig.make("good")
        since = rig.now
        while not rig.gone([good]):
            rig.round(0.25)
            assert rig.now - since < 60.0
        waited.append(rig.now - since)
        rig.bind(good)
    late = waited[1:] if num_namespaces > MAX_OPEN else waited  # until it is known of them all that nobody binds theirs
    assert max(late) <= 1.0


def test_those_whose_pods_stay_unbound_are_served_too() -> None:
    """Their volumes take a minute each, perhaps: alone they have all places, beside others a part."""
    rig = Crowd()
    slow = rig.make("slow", count=40)
    rig.round()
    assert len(rig.gone(slow)) == MAX_OPEN
    rig.round(31.0)
    assert len(rig.gone(slow)) == 2 * MAX_OPEN
    for name in rig.gone(slow):
        rig.bind(name)
    others = rig.make("others", count=40)
    for _ in range(3):
        rig.round(3.0)
        for name in rig.gone(others):
            if name in rig.queue.backlog.entries:
                rig.bind(name)
    assert len(rig.gone(slow)) > 2 * MAX_OPEN
    assert len(rig.gone(others)) >= MAX_OPEN


def test_no_more_are_on_their_way_than_is_allowed_while_kube_scheduler_is_away() -> None:
    rig = Crowd()
    names = [name for number in range(4) for name in rig.make(f"team-{number}", count=20)]
    for _ in range(20):
        rig.round(1.0)
        assert len(rig.gone(names)) <= MAX_OPEN
