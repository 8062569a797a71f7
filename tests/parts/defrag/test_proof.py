"""Whether a plan still holds: whoever comes finds room where the plan says, in its order, as all are by then."""

import asyncio
from typing import Any

import pytest

from extender.kube.watches import NODES
from extender.parts.defrag.places import stand_in_of
from extender.parts.defrag.proof import Around, Arrival, why_not
from extender.plugins.holdings import whole_gpus
from extender.queueing.pods.objects import decode_node
from tests.parts.defrag.rigs import Defrag


class Ground(Defrag):
    """Pods that run, and others that are to come."""

    def __init__(self) -> None:
        super().__init__()
        rig = self.rig
        self.around = Around(
            *(rig.ledger, rig.queue.nodes, self.running.values, lambda: {"mine": rig.placer.policies["tightest"]}),
            *("mine", lambda: rig.now),
        )

    def offers(self, name: str, gpus: int = 8, allocatable: dict[str, str] | None = None, **labels: str) -> None:
        """A node that offers so much."""
        offered = {"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": str(gpus), **(allocatable or {})}
        metadata = {"name": name, "uid": name, "labels": labels}
        node = decode_node({"metadata": metadata, "status": {"allocatable": offered}})
        self.rig.ledger.upsert_node(node)
        self.rig.hub.cache(NODES).upsert(node)

    def comes(self, name: str, node: str, step: int = 0, **fields: Any) -> Arrival:
        """A pod that waits is to come to a node."""
        self.waits(name, **fields)
        return Arrival(self.rig.queue.backlog.entries[name].pod, node, step)

    def moves(self, name: str, node: str, step: int = 0) -> Arrival:
        """A pod that runs is to move."""
        pod = self.running[name]
        return Arrival(pod, node, step, pod.spec.node_name or "")

    def why_not(self, *arrivals: Arrival) -> str:
        return asyncio.run(why_not(self.around, arrivals))


def asks(gpus: int, requests: dict[str, str]) -> dict[str, Any]:
    """The spec of a pod that asks for so much."""
    limits = {"nvidia.com/gpu": str(gpus), "cpu": "1", **requests}
    return {"containers": [{"resources": {"limits": limits}}], "schedulingGates": [{"name": "kerf.dev/queue"}]}


def test_nobody_who_comes_is_no_hindrance() -> None:
    assert Ground().why_not() == ""


@pytest.mark.parametrize(("step", "fits"), [(0, True), (1, True), (2, False)])
def test_what_one_leaves_is_free_from_its_step_on(step: int, fits: bool) -> None:
    ground = Ground()
    ground.offers("a", 2)
    ground.offers("b", 1)
    ground.runs("v", "a")
    arrivals = [ground.moves("v", "b", step), ground.comes("big", "a", 1, gpus=2)]
    why = "pod ns/big has no room on node a: "
    assert ground.why_not(*arrivals).startswith(why) != fits
    assert (ground.why_not(*arrivals) == "") == fits
    assert ground.why_not(*arrivals[::-1]) == ground.why_not(*arrivals)


def test_who_finds_no_room_is_told_with_the_words_of_a_decision() -> None:
    ground = Ground()
    ground.offers("a", 2)
    ground.runs("v", "a")
    assert ground.why_not(ground.comes("big", "a", gpus=2)) == (
        "pod ns/big has no room on node a: needs 2 GPUs, best node: 1 free"
    )


@pytest.mark.parametrize("late_first", [False, True])
def test_who_comes_before_takes_its_room_and_who_comes_later_none(late_first: bool) -> None:
    ground = Ground()
    ground.offers("a", 2)
    ground.offers("b", 2)
    ground.runs("v", "a")
    early, late = ground.comes("early", "a", 0), ground.comes("late", "a", 1)
    arrivals = [late, early] if late_first else [early, late]
    assert ground.why_not(*arrivals).startswith("pod ns/")
    assert ground.why_not(early) == ground.why_not(late) == ""
    assert ground.why_not(ground.moves("v", "b", 1), *arrivals) == ""
    assert ground.why_not(ground.moves("v", "b", 2), *arrivals).startswith("pod ns/")


def test_a_later_step_gives_nothing_to_those_who_come_before_it() -> None:
    ground = Ground()
    ground.offers("a", 2)
    ground.offers("b", 2)
    ground.runs("v", "a")
    late, early = ground.comes("late", "a", 1, gpus=0), ground.comes("early", "a", 0, gpus=2)
    for arrivals in ([late, early], [early, late]):
        assert ground.why_not(ground.moves("v", "b", 1), *arrivals).startswith("pod ns/early has no room on node a: ")
        assert ground.why_not(ground.moves("v", "b", 0), *arrivals) == ""


def test_what_a_pod_demands_beside_gpus_has_to_be_offered() -> None:
    ground = Ground()
    ground.offers("a")
    ground.offers("b", allocatable={"example.com/nic": "1"})
    spec = asks(1, {"example.com/nic": "1"})
    assert ground.why_not(ground.comes("p", "b", spec=dict(spec))) == ""
    assert ground.why_not(ground.comes("q", "a", spec=dict(spec))).startswith("pod ns/q has no room on node a: ")


@pytest.mark.parametrize(
    ("offered", "asked"),
    [({"pods": "1"}, {}), ({"cpu": "10"}, {"cpu": "8"}), ({"memory": "10Gi"}, {"memory": "8Gi"})],
    ids=["pods", "CPU", "memory"],
)
def test_pods_cpu_and_memory_of_a_node_are_counted_and_those_of_a_pod_that_leaves_given_back(
    offered: dict[str, str], asked: dict[str, str]
) -> None:
    ground = Ground()
    ground.offers("a", allocatable=offered)
    ground.offers("b")
    ground.runs("v", "a", 0, spec=asks(0, asked))
    comes = ground.comes("new", "a", 1, gpus=0, spec=asks(0, asked))
    assert ground.why_not(comes).startswith("pod ns/new has no room on node a: ")
    assert ground.why_not(ground.moves("v", "b", 1), comes) == ""
    assert ground.why_not(ground.moves("v", "b", 2), comes).startswith("pod ns/new has no room on node a: ")
    one_more = ground.comes("more", "a", 1, gpus=0, spec=asks(0, asked))
    assert ground.why_not(ground.moves("v", "b", 1), comes, one_more).startswith("pod ns/more has no room on node a")


def test_a_node_that_is_gone_is_named_unless_nobody_comes_to_it() -> None:
    ground = Ground()
    for name in "abc":
        ground.offers(name)
    ground.runs("v", "a", 0)
    ground.rig.remove_node("a")
    assert ground.why_not(ground.moves("v", "b")) == ""
    ground.rig.ledger.remove_node("b")  # whichever of those who hear of it hears first
    assert ground.why_not(ground.moves("v", "b")) == "node b is gone"
    ground.rig.hub.cache(NODES).remove(decode_node({"metadata": {"name": "c", "uid": "c"}}))
    assert ground.why_not(ground.moves("v", "c")) == "node c is gone"


def test_of_all_nodes_the_first_on_which_something_is_wrong_is_told() -> None:
    ground = Ground()
    for name in "abc":
        ground.offers(name, 1)
    arrivals = [ground.comes("x", "a"), ground.comes("y", "b", gpus=2), ground.comes("z", "c", gpus=2)]
    assert ground.why_not(*arrivals).startswith("pod ns/y has no room on node b")
    assert ground.why_not(arrivals[0]) == ""


def test_a_pod_whose_request_can_not_be_read_is_named() -> None:
    ground = Ground()
    ground.offers("a")
    ground.waits("odd", annotations={"kerf.dev/policy": "nonsense"})
    odd = Arrival(ground.rig.queue.backlog.entries["odd"].pod, "a", 0)
    assert ground.why_not(odd).startswith('pod ns/odd: kerf.dev/policy: "nonsense" is not a policy; use one of ')


def test_a_gang_that_moves_is_kept_to_no_domain_that_it_had() -> None:
    ground = Ground()
    ground.offers("a", zone="1", kind="x")
    ground.offers("b", zone="2", kind="x")
    ground.offers("c", zone="2", kind="y")
    notes = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "1", "kerf.dev/gang-topology": " zone "}
    spec = {**asks(1, {}), "nodeSelector": {"zone": "1", "kind": "x"}}
    ground.runs("v", "a", spec=dict(spec), annotations=notes)
    assert ground.why_not(ground.moves("v", "b")) == ""
    assert ground.why_not(ground.moves("v", "c")).startswith("pod ns/v has no room on node c: ")
    assert (ground.running["v"].spec.node_selector or {})["zone"] == "1"
    ground.runs("w", "a", spec=dict(spec))
    assert ground.why_not(ground.moves("w", "b")).startswith("pod ns/w has no room on node b: ")


def test_what_is_kept_for_the_plan_itself_is_not_in_its_way_and_what_has_run_out_in_nobody_s() -> None:
    ground = Ground()
    ground.offers("a", 1)
    ground.offers("b", 1)
    ground.runs("v", "a")
    moves = ground.moves("v", "b")
    ground.rig.ledger.rows.close({"b"})
    assert ground.why_not(moves) == ""
    ledger, taken = ground.rig.ledger, whole_gpus(1, (0,))
    ledger.reserve(stand_in_of("v"), "b", taken, ground.rig.now)
    assert ground.why_not(moves) == ""
    ledger.release(stand_in_of("v"))
    ledger.reserve("another", "b", taken, ground.rig.now)
    assert ground.why_not(moves).startswith("pod ns/v has no room on node b: ")
    ground.rig.now += 31.0
    assert ground.why_not(moves) == ""
