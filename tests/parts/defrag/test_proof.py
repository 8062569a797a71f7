"""Whether a plan still fits: each pod finds room on its planned node, step by step."""

import asyncio
from typing import Any

from extender.kube.watches import NODES
from extender.parts.defrag.places import stand_in_of
from extender.parts.defrag.proof import Arrival, ProofInputs, why_not
from extender.plugins.holdings import whole_gpus
from extender.queueing.pods.objects import decode_node
from tests.parts.defrag.rigs import Defrag, gang


class ProofCluster(Defrag):
    """Running pods, and others that are to arrive."""

    def __init__(self) -> None:
        super().__init__()
        rig = self.rig
        self.around = ProofInputs(
            *(rig.ledger, rig.queue.nodes, self.running.values, lambda: {"mine": rig.placer.policies["tightest"]}),
            *("mine", lambda: rig.now),
        )

    def offers(self, name: str, gpus: int = 8, allocatable: dict[str, str] | None = None, **labels: str) -> None:
        """Create a node."""
        offered = {"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": str(gpus), **(allocatable or {})}
        metadata = {"name": name, "uid": name, "labels": labels}
        node = decode_node({"metadata": metadata, "status": {"allocatable": offered}})
        self.rig.ledger.upsert_node(node)
        self.rig.hub.cache(NODES).upsert(node)

    def arrival(self, name: str, node: str, step: int = 0, **fields: Any) -> Arrival:
        """The arrival of a waiting pod."""
        self.waits(name, **fields)
        return Arrival(self.rig.queue.backlog.entries[name].pod, node, step)

    def move(self, name: str, node: str, step: int = 0) -> Arrival:
        """The move of a running pod."""
        pod = self.running[name]
        return Arrival(pod, node, step, pod.spec.node_name or "")

    def why_not(self, *arrivals: Arrival) -> str:
        return asyncio.run(why_not(self.around, arrivals))


def asks(gpus: int, requests: dict[str, str]) -> dict[str, Any]:
    """A pod's spec with these limits."""
    limits = {"nvidia.com/gpu": str(gpus), "cpu": "1", **requests}
    return {"containers": [{"resources": {"limits": limits}}], "schedulingGates": [{"name": "kerf.dev/queue"}]}


def test_what_a_pod_leaves_is_free_from_its_step_on() -> None:
    assert ProofCluster().why_not() == ""
    for step, fits in ((0, True), (1, True), (2, False)):
        cluster = ProofCluster()
        cluster.offers("a", 2)
        cluster.offers("b", 1)
        cluster.runs("v", "a")
        arrivals = [cluster.move("v", "b", step), cluster.arrival("big", "a", 1, gpus=2)]
        why = "" if fits else "pod ns/big has no room on node a: needs 2 GPUs, best node: 1 free"
        assert cluster.why_not(*arrivals) == cluster.why_not(*arrivals[::-1]) == why


def test_arrivals_of_earlier_steps_take_room_and_those_of_later_steps_do_not() -> None:
    for late_gpus, early_gpus, fits_from in ((1, 1, 1), (0, 2, 0)):
        cluster = ProofCluster()
        for name in "ab":
            cluster.offers(name, 2)
        cluster.runs("v", "a")
        early, late = cluster.arrival("early", "a", 0, gpus=early_gpus), cluster.arrival("late", "a", 1, gpus=late_gpus)
        for arrivals in ([late, early], [early, late]):
            assert cluster.why_not(cluster.move("v", "b", fits_from), *arrivals) == ""
            assert cluster.why_not(cluster.move("v", "b", fits_from + 1), *arrivals).startswith("pod ns/")
        assert cluster.why_not(late) == ""
        assert (cluster.why_not(early) == "") == (early_gpus == 1)


def test_other_demands_of_a_pod_count() -> None:
    cluster = ProofCluster()
    cluster.offers("a")
    cluster.offers("b", allocatable={"example.com/nic": "1"})
    spec = asks(1, {"example.com/nic": "1"})
    assert cluster.why_not(cluster.arrival("p", "b", spec=dict(spec))) == ""
    assert cluster.why_not(cluster.arrival("q", "a", spec=dict(spec))).startswith("pod ns/q has no room on node a: ")


def test_pods_cpu_and_memory_of_a_node_are_counted_and_those_of_a_leaving_pod_freed() -> None:
    for offered, asked in (({"pods": "1"}, {}), ({"cpu": "10"}, {"cpu": "8"}), ({"memory": "10Gi"}, {"memory": "8Gi"})):
        cluster = ProofCluster()
        cluster.offers("a", allocatable=offered)
        cluster.offers("b")
        cluster.runs("v", "a", 0, spec=asks(0, asked))
        comes, more = (cluster.arrival(name, "a", 1, gpus=0, spec=asks(0, asked)) for name in ("new", "more"))
        for others in ((), (cluster.move("v", "b", 2),)):
            assert cluster.why_not(*others, comes).startswith("pod ns/new has no room on node a: ")
        assert cluster.why_not(cluster.move("v", "b", 1), comes) == ""
        assert cluster.why_not(cluster.move("v", "b", 1), comes, more).startswith("pod ns/more has no room on node a")


def test_a_missing_node_is_named_if_a_pod_arrives_there() -> None:
    cluster = ProofCluster()
    for name in "abc":
        cluster.offers(name)
    cluster.runs("v", "a", 0)
    cluster.rig.remove_node("a")
    assert cluster.why_not(cluster.move("v", "b")) == ""
    cluster.rig.ledger.remove_node("b")  # the ledger and the queue's cache may learn of it in either order
    assert cluster.why_not(cluster.move("v", "b")) == "node b is gone"
    cluster.rig.hub.cache(NODES).remove(decode_node({"metadata": {"name": "c", "uid": "c"}}))
    assert cluster.why_not(cluster.move("v", "c")) == "node c is gone"


def test_the_first_fault_is_returned() -> None:
    cluster = ProofCluster()
    for name in "abc":
        cluster.offers(name, 1)
    arrivals = [cluster.arrival("x", "a"), cluster.arrival("y", "b", gpus=2), cluster.arrival("z", "c", gpus=2)]
    assert cluster.why_not(*arrivals).startswith("pod ns/y has no room on node b")
    cluster.waits("odd", annotations={"kerf.dev/policy": "nonsense"})
    odd = Arrival(cluster.rig.queue.backlog.entries["odd"].pod, "a", 0)
    assert cluster.why_not(odd).startswith('pod ns/odd: kerf.dev/policy: "nonsense" is not a policy; use one of ')


def test_a_gang_that_moves_may_leave_its_domain() -> None:
    cluster = ProofCluster()
    cluster.offers("a", zone="1", kind="x")
    cluster.offers("b", zone="2", kind="x")
    cluster.offers("c", zone="2", kind="y")
    spec = {**asks(1, {}), "nodeSelector": {"zone": "1", "kind": "x"}}
    cluster.runs("v", "a", spec=dict(spec), annotations=gang(1) | {"kerf.dev/gang-topology": " zone "})
    assert cluster.why_not(cluster.move("v", "b")) == ""
    assert cluster.why_not(cluster.move("v", "c")).startswith("pod ns/v has no room on node c: ")
    assert (cluster.running["v"].spec.node_selector or {})["zone"] == "1"
    cluster.runs("w", "a", spec=dict(spec))
    assert cluster.why_not(cluster.move("w", "b")).startswith("pod ns/w has no room on node b: ")


def test_the_plans_own_reservations_and_expired_ones_are_ignored() -> None:
    cluster = ProofCluster()
    for name in "ab":
        cluster.offers(name, 1)
    cluster.runs("v", "a")
    moves, ledger, taken = cluster.move("v", "b"), cluster.rig.ledger, whole_gpus(1, (0,))
    ledger.rows.close({"b"})
    assert cluster.why_not(moves) == ""
    ledger.reserve(stand_in_of("v"), "b", taken, cluster.rig.now)
    assert cluster.why_not(moves) == ""
    ledger.release(stand_in_of("v"))
    ledger.reserve("another", "b", taken, cluster.rig.now)
    assert cluster.why_not(moves).startswith("pod ns/v has no room on node b: ")
    cluster.rig.now += 31.0
    assert cluster.why_not(moves) == ""
