"""The controller's rounds against an API server of a test's own: what fails is tried again, and nothing is stuck."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.cluster.holdings import Holding
from extender.cluster.ledger import Ledger
from extender.cluster.placements import Placer, PodIdentity
from extender.cluster.transports import ApiError, ClusterError, UnreachableError
from extender.core.orders import Order
from extender.core.requests import AskedUnit, GpuRequest
from extender.queueing.boards import free_units
from extender.queueing.controllers import QueueController
from extender.queueing.manifests import Node, Pod, decode_node, decode_pod
from extender.queueing.options import Options
from extender.queueing.quotas import Quotas
from tests.cluster.contracts.test_dra import resource_claim

Manifest = dict[str, Any]
GATES = [{"name": "kerf.dev/queue"}]


class Api:
    """Pods as an API server has them; writes are told at once to the controller, unless `deaf`."""

    def __init__(self) -> None:
        self.pods: dict[str, Manifest] = {}
        self.told: Callable[[Pod], None] = lambda pod: None
        self.deaf = False
        self.fail: Callable[[str, str], ClusterError | None] = lambda name, part: None
        self.order: list[str] = []
        """Pods in the order in which their gates were opened."""

    async def get(self, path: str, query: object = None) -> bytes:
        if path.endswith("/pods"):
            return msgspec.json.encode({"items": list(self.pods.values())})
        if (pod := self.pods.get(path.rpartition("/pods/")[2])) is not None:
            return msgspec.json.encode(pod)
        raise ApiError(404, "NotFound", path)

    async def patch(self, path: str, body: bytes) -> bytes:
        name, _, part = path.partition("/pods/")[2].partition("/")
        error = self.fail(name, part)
        if error is not None:
            raise error
        pod, asked = self.pods[name], msgspec.json.decode(body, type=Manifest)
        for key, value in asked["metadata"].get("annotations", {}).items():
            pod["metadata"]["annotations"][key] = value
            if value is None:
                del pod["metadata"]["annotations"][key]
        if part == "status":
            changed = pod["status"] | asked.get("status", {})
            pod["status"] = {key: value for key, value in changed.items() if value is not None}
        elif "spec" in asked:
            pod["spec"] |= asked["spec"]
            self.order.append(name)
        if not self.deaf:
            self.told(decode_pod(pod))
        return b"{}"


class Rig:
    """A controller without its reflectors: the test tells it what the watch would."""

    def __init__(self, api: Api | None = None, **options: Any) -> None:
        self.now = 1000.0
        self.api = api or Api()
        self.ledger = Ledger(reservation_ttl_s=30.0)
        clock = lambda: self.now  # noqa: E731 - a clock
        placer = Placer(self.ledger, default_policy="bestfit", clock=clock, wall_clock=clock)
        self.standby = ""
        self.queue = QueueController(
            self.api,  # type: ignore[arg-type]
            self.ledger,
            placer,
            Options(**options),
            clock=clock,
            wall_clock=clock,
            standby=lambda: self.standby,
            mirror_fault=lambda: "",
        )
        for reflector in self.queue._reflectors.values():
            reflector.num_lists = 1
        self.api.told = self.queue.backlog.upsert

    def node(self, name: str, gpus: int, **labels: str) -> None:
        allocatable = {"cpu": "64", "memory": "256Gi", "nvidia.com/gpu": str(gpus)}
        metadata = {"name": name, "uid": name, "labels": labels}
        node: Node = decode_node({"metadata": metadata, "status": {"allocatable": allocatable}})
        self.ledger.upsert_node(node)
        self.queue._nodes.upsert(node)

    def pod(self, name: str, gpus: int, created: str = "", **annotations: str) -> None:
        found = {f"kerf.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
        manifest = {
            "metadata": {
                **{"name": name, "namespace": "ns", "uid": name, "annotations": found},
                "creationTimestamp": created,
            },
            "spec": {
                "schedulingGates": GATES,
                "containers": [{"resources": {"limits": {"nvidia.com/gpu": gpus, "cpu": 1}}}],
            },
            "status": {"phase": "Pending"},
        }
        self.api.pods[name] = manifest
        self.queue.backlog.upsert(decode_pod(manifest))

    def bind(self, name: str) -> None:
        """kube-scheduler follows the nomination."""
        pod = self.api.pods[name]
        pod["spec"]["nodeName"] = pod["status"]["nominatedNodeName"]
        self.ledger.upsert_pod(decode_pod(pod), self.now)
        self.queue.backlog.remove(decode_pod(pod))

    def round(self, later_s: float = 0.1) -> None:
        self.now += later_s
        asyncio.run(self.queue.run_round())

    def refuse(self, name: str, message: str = "0/1 nodes are available") -> None:
        """kube-scheduler finds no node for a pod; Kerf's filter, asked about it, gives back what it held."""
        refusal = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        self.api.pods[name]["status"] = {"phase": "Pending", "conditions": [refusal]}
        self.ledger.release(name)
        self.queue.backlog.upsert(decode_pod(self.api.pods[name]))

    def remove_node(self, name: str) -> None:
        self.ledger.remove_node(name)
        self.queue._nodes.remove(decode_node({"metadata": {"name": name, "uid": name}}))

    def node_of(self, name: str) -> str:
        """Where a pod is nominated, "" while its gate is closed."""
        pod = self.api.pods[name]
        return "" if pod["spec"]["schedulingGates"] else str(pod["status"].get("nominatedNodeName", ""))

    def note(self, name: str, key: str = "skipped") -> str:
        return str(self.api.pods[name]["metadata"]["annotations"].get(f"kerf.dev/{key}", ""))


def test_nominated_reserved_opened_and_done() -> None:
    rig = Rig()
    rig.node("n", 2)
    rig.pod("a", 1)
    rig.pod("b", 2)
    rig.round()
    assert (rig.node_of("a"), rig.node_of("b")) == ("n", "")
    assert rig.ledger.snapshot(rig.now).gpu_idle.sum() == 1  # held for a
    rig.bind("a")
    assert rig.queue.counts.honoured == 1
    rig.round(2.0)
    assert rig.note("b") == "needs 2 GPUs, best node: 1 free"


def test_a_pod_that_asks_for_nonsense_holds_up_nobody() -> None:
    rig = Rig()
    rig.node("n", 2)
    rig.pod("odd", 1, policy="tarot")
    rig.pod("bad", 1, gang="g", gang_size="none")
    rig.pod("good", 1)
    rig.round(2.0)
    assert rig.node_of("good") == "n"
    assert "write one of" in rig.note("odd")
    assert "is no size of a gang" in rig.note("bad")


@pytest.mark.parametrize("part", ["status", ""])
@pytest.mark.parametrize(
    "error", [ApiError(500, "", "broken"), UnreachableError("cut"), ApiError(409, "Conflict", "too much at once")]
)
def test_writes_that_fail_are_done_again(part: str, error: ClusterError) -> None:
    rig = Rig()
    rig.node("n", 1)
    rig.pod("a", 1)
    rig.api.fail = lambda name, where: error if where == part else None
    rig.round()
    rig.api.fail = lambda name, where: None
    rig.round()
    assert rig.node_of("a") == "n"
    assert not rig.queue.backlog.waiting()


@pytest.mark.parametrize(
    "error", [ApiError(500, "", "broken"), UnreachableError("cut"), ApiError(409, "Conflict", "too much at once")]
)
def test_why_a_pod_waits_is_told_again_when_that_failed(error: ClusterError) -> None:
    rig = Rig()
    rig.node("n", 1)
    rig.pod("a", 2)
    rig.api.fail = lambda name, where: error
    rig.round(2.0)
    rig.api.fail = lambda name, where: None
    rig.round(31.0)
    assert rig.note("a") == "needs 2 GPUs, best node: 1 installed"


def test_a_pod_that_can_not_be_told_why_it_waits_keeps_it_from_nobody() -> None:
    rig = Rig()
    full = ApiError(422, "Invalid", "annotations: must have at most 262144 bytes")
    for name in "abc":
        rig.pod(name, 1)
    rig.api.fail = lambda name, where: full if name == "a" else None
    rig.round(2.0)
    assert [bool(rig.note(name)) for name in "abc"] == [False, True, True]


@pytest.mark.parametrize("error", [ApiError(500, "", "broken"), UnreachableError("cut")])
def test_a_nomination_of_a_pod_that_stays_behind_the_gate_is_taken_back(error: ClusterError) -> None:
    """Else kube-scheduler keeps its node from all others."""
    rig = Rig()
    rig.node("n", 2)
    rig.pod("a", 2)
    rig.api.fail = lambda name, where: None if where == "status" else error
    rig.round()
    assert (rig.node_of("a"), rig.api.pods["a"]["status"]["nominatedNodeName"]) == ("", "n")
    rig.pod("other", 1)
    rig.queue.backlog.remove(decode_pod(rig.api.pods["other"]))  # it goes past the queue, and takes what a needs
    rig.api.pods["other"]["status"]["nominatedNodeName"] = "n"
    rig.bind("other")
    rig.api.fail = lambda name, where: error
    rig.round()
    rig.api.fail = lambda name, where: None
    rig.round()
    assert "nominatedNodeName" not in rig.api.pods["a"]["status"]
    rig.ledger.remove_pod("other")
    rig.round()
    assert rig.node_of("a") == "n"


def test_a_nomination_from_before_the_start_is_taken_back() -> None:
    rig = Rig()
    rig.node("n", 1)
    rig.pod("a", 2)
    rig.api.pods["a"]["status"]["nominatedNodeName"] = "n"
    rig.queue.backlog.upsert(decode_pod(rig.api.pods["a"]))
    rig.api.deaf = True
    rig.round()
    rig.api.pods["a"]["status"]["nominatedNodeName"] = "written since"
    rig.round()
    assert rig.api.pods["a"]["status"]["nominatedNodeName"] == "written since", "once is enough"


def test_a_pod_that_another_gate_holds_is_not_let_go_before_that_is_open() -> None:
    rig = Rig()
    rig.node("n", 1)
    rig.pod("a", 1)
    rig.api.pods["a"]["spec"]["schedulingGates"] = [*GATES, {"name": "example.com/quota"}]
    rig.queue.backlog.upsert(decode_pod(rig.api.pods["a"]))
    rig.round(2.0)
    assert not rig.api.pods["a"]["status"].get("nominatedNodeName")
    assert rig.note("a") == "another gate is shut: example.com/quota"
    rig.api.pods["a"]["spec"]["schedulingGates"] = GATES
    rig.queue.backlog.upsert(decode_pod(rig.api.pods["a"]))
    rig.round()
    assert rig.node_of("a") == "n"


def test_a_gate_of_which_nobody_tells_that_it_is_open_is_opened_again() -> None:
    rig = Rig()
    rig.node("n", 1)
    rig.pod("a", 1)
    rig.api.deaf = True
    rig.round()
    rig.round(1.0)
    assert rig.api.order == ["a"]
    rig.round(20.0)
    assert rig.api.order == ["a", "a"]


def test_pods_let_go_that_find_no_node_do_not_stop_the_queue() -> None:
    rig = Rig(max_open=2)
    rig.node("n", 8)
    for name in "abcd":
        rig.pod(name, 1)
    rig.round()
    assert [name for name in "abcd" if rig.node_of(name)] == ["a", "b"]
    rig.round()
    assert not rig.node_of("c")
    rig.round(31.0)  # kube-scheduler found a reason against the nodes of a and b
    assert [rig.node_of(name) for name in "cd"] == ["n", "n"]


def lost(**options: Any) -> Rig:
    """A pod was let go for a node that vanished, and the other one is taken."""
    rig = Rig(**options)
    for name, node in (("runs", "a"), ("p", "b")):
        rig.node(node, 1)
        rig.pod(name, 1)
        rig.round()
        assert rig.node_of(name) == node
        if name == "runs":
            rig.bind(name)
    rig.remove_node("b")
    rig.refuse("p")
    return rig


def test_a_pod_let_go_that_lost_its_node_is_nominated_anew_in_its_turn() -> None:
    rig = lost()
    rig.pod("next", 1, created="2026-01-01T00:00:00Z")
    rig.round(2.0)
    assert rig.note("p") == "needs 1 GPU, best node: 0 free"
    assert not rig.queue.backlog.on_their_way(rig.now)
    rig.ledger.remove_pod("runs")
    rig.round()
    assert (rig.node_of("p"), rig.node_of("next")) == ("a", "")
    assert rig.note("p", "nomination-lost") == "1. b: 0/1 nodes are available"
    assert (rig.note("p", "planned-node"), rig.note("p")) == ("a", "")
    assert rig.ledger.is_reserved("p", "a")
    rig.round(3.0)  # the refusal from before is still what the API server has
    assert rig.queue.counts.nominated_anew == 1
    rig.bind("p")
    assert (rig.queue.counts.honoured, rig.queue.counts.fallbacks) == (2, 0)


def test_a_second_loss_is_counted() -> None:
    rig = lost()
    rig.ledger.remove_pod("runs")
    rig.round(3.0)
    assert rig.node_of("p") == "a"
    rig.refuse("p", "cordoned")
    rig.round(20.0)
    assert rig.queue.counts.nominated_anew == 1  # it may be the word from before
    rig.round(11.0)
    assert rig.note("p", "nomination-lost") == "2. a: cordoned"
    assert rig.queue.counts.nominated_anew == 2
    rig.bind("p")
    assert (rig.queue.counts.honoured, rig.queue.counts.fallbacks) == (2, 0)


def test_a_reservation_on_a_node_that_kube_scheduler_refused_without_asking_kerf_is_given_back() -> None:
    rig = lost()
    rig.ledger.reserve("p", "b", Holding(1), rig.now)
    rig.round(3.0)
    assert rig.ledger.claim("p") is None


@pytest.mark.parametrize("error", [ApiError(500, "", "broken"), UnreachableError("cut"), ApiError(404, "", "gone")])
def test_a_nomination_that_could_not_be_written_is_tried_again(error: ClusterError) -> None:
    rig = lost()
    rig.ledger.remove_pod("runs")
    rig.api.fail = lambda name, part: error
    rig.round(3.0)
    assert not rig.ledger.claim("p")
    rig.api.fail = lambda name, part: None
    rig.round(3.0)
    assert rig.node_of("p") == "a"


def test_what_kube_scheduler_places_meanwhile_is_left_alone() -> None:
    rig = lost()
    rig.round(3.0)
    rig.node("c", 1)
    rig.ledger.reserve("p", "c", Holding(1), rig.now)  # filter has decided
    rig.ledger.remove_pod("runs")
    rig.round(3.0)
    assert rig.ledger.is_reserved("p", "c")
    assert (rig.queue.counts.nominated_anew, rig.queue.counts.outdated) == (0, 0)
    assert not rig.queue._reserve([(rig.queue.backlog.entries["p"], "a")])
    assert rig.ledger.is_reserved("p", "c")
    rig.queue.backlog.remove(decode_pod(rig.api.pods["p"]))
    assert (rig.queue.counts.honoured, rig.queue.counts.fallbacks) == (1, 1)


def test_a_pod_that_is_deleted_after_it_lost_its_node_did_not_get_it() -> None:
    rig = lost()
    rig.round(3.0)
    rig.queue.backlog.remove(decode_pod(rig.api.pods["p"]))
    assert (rig.queue.counts.honoured, rig.queue.counts.fallbacks) == (1, 1)


def test_what_was_bound_elsewhere_says_which_node_was_lost_and_why() -> None:
    rig = lost()
    rig.ledger.remove_pod("runs")
    rig.ledger.reserve("p", "a", Holding(1), rig.now)
    assert rig.queue.notes("p") == {"kerf.dev/nomination-lost": "1. b: the node is gone"}
    rig.node("b", 1)
    assert rig.queue.notes("p") == {"kerf.dev/nomination-lost": "1. b: kube-scheduler did not take it"}
    rig.queue.why_refused = lambda pod: f"{pod.name} was refused"
    assert rig.queue.notes("p") == {"kerf.dev/nomination-lost": "1. b: p was refused"}
    rig.ledger.reserve("p", "b", Holding(1), rig.now)
    assert rig.queue.notes("p") == {}
    assert rig.queue.notes("runs") == {}


def test_behind_the_head_a_pod_that_lost_its_node_leaves_its_nodes_alone_for_a_bounded_time() -> None:
    rig = Rig(reserve_after_s=10.0, skip_s=60.0)
    rig.node("c", 4)
    for name, gpus in (("r3", 3), ("r1", 1)):
        rig.pod(name, gpus)
    rig.round()
    rig.bind("r3")
    rig.bind("r1")
    rig.pod("large", 4, created="2026-01-01T00:00:00Z")
    rig.round(11.0)
    for node, name, created in (("a", "first", "2025-01-01T00:00:00Z"), ("b", "p", "2026-01-01T00:00:01Z")):
        rig.node(node, 1)
        rig.pod(name, 1, created=created)
        rig.round()
        assert rig.node_of(name) == node
    for node, name in (("a", "first"), ("b", "p")):
        rig.remove_node(node)
        assert not rig.queue.kept_from(name)  # it may find another node by itself
        rig.refuse(name)
    rig.round(3.0)
    assert rig.queue.kept_from("p") == {"c"}
    assert not rig.queue.kept_from("first")
    assert rig.queue.will_nominate("p")
    assert not rig.queue.will_nominate("large")
    rig.ledger.remove_pod("r1")
    rig.round()
    assert (rig.node_of("first"), rig.note("first", "nomination-lost")) == ("c", "1. a: 0/1 nodes are available")
    rig.ledger.remove_pod("first")
    rig.queue.backlog.remove(decode_pod(rig.api.pods["first"]))
    rig.ledger.release("first")
    rig.round()
    assert rig.queue.backlog.entries["p"].reason == "room is kept for ns/large"
    assert rig.queue.kept_from("p") == {"c"}
    rig.now += 60.1
    assert not rig.queue.kept_from("p")
    rig.round()
    assert rig.note("p", "planned-node") == "c"


def test_a_gang_that_lost_nodes_is_nominated_anew_within_its_domain() -> None:
    rig = Rig()
    for name, rack in (("a", "one"), ("b", "one"), ("c", "two")):
        rig.node(name, 1, rack=rack)
    for name in ("g0", "g1"):
        rig.pod(name, 1, gang="g", gang_size="2", gang_topology="rack")
    rig.round()
    rig.bind("g0")
    lost_node = rig.node_of("g1")
    assert {rig.node_of("g0"), lost_node} == {"a", "b"}
    rig.remove_node(lost_node)
    rig.refuse("g1")
    rig.round(6.0)
    assert rig.queue.backlog.entries["g1"].lost  # there is room, in the other rack
    rig.node("d", 1, rack="one")
    rig.round(6.0)
    assert rig.note("g1", "planned-node") == "d"


def test_a_gang_that_lost_all_its_nodes_keeps_to_the_domain_that_is_written_into_it() -> None:
    rig = Rig()
    names = ("g0", "g1")
    for node in ("a", "b"):
        rig.node(node, 1, rack="one")
    for name in names:
        rig.pod(name, 1, gang="g", gang_size="2", gang_topology="rack")
    rig.round()
    for node in ("a", "b"):
        rig.remove_node(node)
        rig.node(node, 1, rack="two")
    for name in names:
        rig.refuse(name)
    rig.round(6.0)
    assert all(rig.queue.backlog.entries[name].lost for name in names)
    for node in ("c", "d"):
        rig.node(node, 1, rack="one")
    rig.round(6.0)
    assert {rig.note(name, "planned-node") for name in names} == {"c", "d"}


def test_a_member_that_lost_its_node_counts_once() -> None:
    rig = Rig()
    rig.node("a", 3)
    for name in ("g0", "g1", "g2"):
        rig.pod(name, 1, gang="g", gang_size="3")
    rig.round()
    rig.bind("g0")
    rig.queue.backlog.remove(decode_pod(rig.api.pods.pop("g2")))
    rig.refuse("g1")
    rig.round(6.0)
    assert rig.note("g1") == "gang ns/g waits for its pods: 2 of 3 are here"


def test_after_a_restart_pods_let_go_are_known_by_what_is_written_on_them() -> None:
    before = lost()
    rig = Rig(before.api)
    rig.node("a", 1)
    rig.queue.backlog.upsert(decode_pod(before.api.pods["p"]))
    rig.pod("next", 1)
    rig.queue.backlog.entries["next"].created = 1e10
    rig.ledger.reserve("other", "a", Holding(1), rig.now)
    rig.round(3.0)
    assert rig.queue.backlog.entries["p"].lost == "b: 0/1 nodes are available"
    rig.ledger.release("other")
    rig.round()
    assert (rig.node_of("p"), rig.node_of("next")) == ("a", "")


def test_who_opts_out_after_it_was_let_go_is_kube_schedulers() -> None:
    rig = lost()
    rig.api.pods["p"]["metadata"]["labels"] = {"kerf.dev/queue": "disabled"}
    rig.refuse("p")
    rig.ledger.remove_pod("runs")
    rig.round(3.0)
    assert not rig.queue.will_nominate("p")
    assert rig.queue.counts.nominated_anew == 0


def test_a_plan_of_a_version_that_has_gone_by_is_made_again() -> None:
    rig = Rig()
    rig.node("n", 2)
    rig.pod("a", 2)
    placed = rig.queue._placer.place_on

    def taken_meanwhile(*args: Any) -> Any:
        rig.ledger.upsert_pod(
            decode_pod(
                {
                    "metadata": {"uid": "other"},
                    "spec": {"nodeName": "n", "containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]},
                }
            ),
            rig.now,
        )
        return placed(*args)

    rig.queue._placer.place_on = taken_meanwhile  # type: ignore[assignment, method-assign]
    rig.round()
    assert rig.queue.counts.outdated == 1
    assert not rig.node_of("a")
    rig.ledger.remove_pod("other")
    rig.queue._placer.place_on = placed  # type: ignore[method-assign]
    rig.round()
    assert rig.node_of("a") == "n"


@settings(deadline=None)
@given(steps=st.lists(st.floats(0.1, 40.0), min_size=1, max_size=20), num_small=st.integers(1, 4))
def test_s9_nobody_is_kept_from_the_nodes_of_the_first_for_longer_than_allowed(
    steps: list[float], num_small: int
) -> None:
    """The first never gets its room here, which is the worst for those behind it."""
    rig = Rig(reserve_after_s=0.0, skip_s=60.0)
    rig.node("n", 8)
    rig.pod("runs", 1)
    rig.round()
    rig.bind("runs")
    rig.pod("large", 8)
    rig.round()
    kept_since = rig.now + 0.1
    for number in range(num_small):
        rig.pod(f"small{number}", 1)
    rig.round()
    for step in steps:
        held = [rig.node_of(f"small{number}") for number in range(num_small)]
        assert held == (["n"] * num_small if rig.now - kept_since >= 60.0 else [""] * num_small)
        rig.round(step)
    rig.round(61.0)
    assert all(rig.node_of(f"small{number}") == "n" for number in range(num_small))
    assert not rig.node_of("large")


def test_a_gang_of_which_one_write_fails_is_completed() -> None:
    rig = Rig()
    rig.node("n", 4)
    for name in "abc":
        rig.pod(name, 1, gang="g", gang_size="3")
    rig.api.fail = lambda name, part: ApiError(500, "", "") if name == "b" and not part else None
    rig.round()
    assert [rig.node_of(name) for name in "abc"] == ["n", "", "n"]
    rig.api.fail = lambda name, part: None
    rig.round(6.0)
    assert rig.node_of("b") == "n"


def test_a_gang_may_be_called_as_a_pod_is() -> None:
    rig = Rig()
    rig.node("n", 4)
    rig.pod("g", 1)
    rig.pod("a", 1, gang="g", gang_size="1")
    rig.round()
    assert (rig.node_of("g"), rig.node_of("a")) == ("n", "n")


def test_a_standby_writes_nothing_and_fail_open_needs_no_plan() -> None:
    rig = Rig(fail_open_s=60.0)
    rig.pod("a", 1)
    rig.standby = "another one leads"
    rig.round(61.0)
    assert rig.api.pods["a"]["spec"]["schedulingGates"]
    rig.standby = ""
    rig.round()
    assert not rig.api.pods["a"]["spec"]["schedulingGates"]
    assert rig.queue.counts.failed_open == 1


def test_other_planners_are_followed_where_they_place_more() -> None:
    rig = Rig(planner="genetic")
    for name in ("m", "n"):
        rig.node(name, 4)
    for name, gpus in (("a", 1), ("b", 1), ("c", 3), ("d", 3)):
        rig.pod(name, gpus)
    rig.round()
    assert all(rig.node_of(name) for name in "abcd")  # greedy in that order leaves one out


@pytest.mark.parametrize(("num_pods", "num_rounds"), [(2000, 8), pytest.param(10_000, 40, marks=pytest.mark.slow)])
def test_many_gated_pods_at_once_are_all_let_go_in_order(num_pods: int, num_rounds: int) -> None:
    rig = Rig()
    for number in range(num_pods // 8):
        rig.node(f"n{number:04}", 8)
    for number in range(num_pods):
        rig.pod(f"p{number:05}", 1)
    rounds = 0
    while rig.queue.backlog.entries:
        before = len(rig.api.order)
        rig.round()
        for name in rig.api.order[before:]:
            rig.bind(name)
        rounds += 1
    assert rounds == num_rounds  # 256 at a time
    assert len(set(rig.api.order)) == num_pods
    assert not free_units(rig.ledger.snapshot(rig.now)).any()


class SlowApi(Api):
    """Answers about one pod when it may."""

    def __init__(self, slow: str) -> None:
        super().__init__()
        self.slow = slow
        self.may = asyncio.Event()
        self.asked: list[tuple[str, str]] = []
        """Pod and part of each write, as they came."""

    async def patch(self, path: str, body: bytes) -> bytes:
        name, _, part = path.partition("/pods/")[2].partition("/")
        self.asked.append((name, part))
        for _ in range(100):  # while others are looked at
            await asyncio.sleep(0)
        if name == self.slow:
            await self.may.wait()
        return await super().patch(path, body)


def test_the_next_round_does_not_wait_for_the_writes_of_the_last_one() -> None:
    async def story() -> None:
        api = SlowApi("slow")
        rig = Rig(api=api)
        rig.node("n", 8)
        rig.pod("slow", 2)
        await rig.queue._begin_round()
        rig.pod("next", 1)
        await rig.queue._begin_round()
        for _ in range(300):
            await asyncio.sleep(0)
        assert api.order == ["next"]
        assert len(rig.queue.backlog.on_their_way(rig.now)) == 2  # both count among those that may be
        await rig.queue._begin_round()
        for _ in range(20):
            await asyncio.sleep(0)
        assert api.asked.count(("slow", "status")) == 1  # it is not let go twice
        api.may.set()
        await rig.queue.run_round()
        assert api.order == ["next", "slow"]
        assert free_units(rig.ledger.snapshot(rig.now)).tolist() == [5]

    asyncio.run(asyncio.wait_for(story(), 10.0))


def test_a_pod_that_is_nominated_is_opened_before_all_others_are_nominated() -> None:
    api = SlowApi("")
    rig = Rig(api=api)
    rig.node("n", 100)
    for number in range(60):
        rig.pod(f"p-{number}", 1)
    rig.round()
    assert len(api.order) == 60
    first_opened = api.asked.index(("p-0", ""))
    assert sum(part == "status" for _, part in api.asked[:first_opened]) < 30


def test_gone_while_it_is_let_go_it_holds_nothing() -> None:
    async def story() -> None:
        api = SlowApi("slow")
        rig = Rig(api=api)
        rig.node("n", 1)
        rig.pod("slow", 1)
        await rig.queue._begin_round()
        for _ in range(5):
            await asyncio.sleep(0)
        assert free_units(rig.ledger.snapshot(rig.now)).tolist() == [0]
        rig.queue.backlog.remove(decode_pod(api.pods["slow"]))
        api.fail = lambda name, part: ApiError(404, "NotFound", name)
        api.may.set()
        await rig.queue.run_round()
        assert free_units(rig.ledger.snapshot(rig.now)).tolist() == [1]
        assert (rig.queue.counts.opened, rig.queue.counts.honoured) == (0, 0)

    asyncio.run(story())


@pytest.mark.parametrize("steps", range(4))
def test_it_ends_also_when_something_moves_as_it_is_told_to(steps: int) -> None:
    async def story() -> None:
        rig = Rig()
        rig.queue.start()
        await asyncio.sleep(0.01)  # until it waits
        rig.queue._dirty.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        stopped, _ = await asyncio.wait([asyncio.create_task(rig.queue.stop())], timeout=2.0)
        for worker in rig.queue.tasks._workers.values():
            worker.task.cancel()  # those that have not ended: without it a failure would never be told
        assert stopped

    asyncio.run(story())


@pytest.mark.parametrize(("order", "first"), [(Order.FIFO, "long-1"), (Order.KERF, "short-1")])
def test_a4_what_is_expected_to_be_shorter_goes_first_where_that_is_the_order(order: Order, first: str) -> None:
    rig = Rig(order=order)
    rig.node("n", 1)
    for name, seconds in (("long", 5000.0), ("short", 5.0)):
        rig.queue.durations.finished((f"ns/Pod/{name}/1 GPUs", "ns/1 GPUs", "ns"), seconds)
    rig.pod("long-1", 1)
    rig.pod("short-1", 1)
    rig.round()
    assert rig.api.order == [first]


def test_a4_nobody_is_held_back_longer_than_the_bound() -> None:
    rig = Rig(order=Order.KERF, held_most_s=100.0)
    rig.node("n", 1)
    rig.queue.durations.finished(("ns/Pod/long/1 GPUs", "ns/1 GPUs", "ns"), 1e6)
    rig.queue.durations.finished(("ns/Pod/short/1 GPUs", "ns/1 GPUs", "ns"), 0.0)
    rig.pod("long-1", 1, created="1970-01-01T00:00:10Z")
    rig.pod("short-1", 1, created="1970-01-01T00:01:51Z")  # 101 s after it
    rig.round()
    assert rig.api.order == ["long-1"]


@pytest.mark.parametrize(("later", "first"), [("1970-01-01T00:01:49Z", "large"), ("1970-01-01T00:01:51Z", "small")])
def test_s1_who_takes_more_than_his_part_gives_way_to_those_that_come_soon_after(later: str, first: str) -> None:
    rig = Rig(patience_s=100.0)
    rig.queue.takes_more = lambda request: request.count == 1
    rig.node("n", 2)
    rig.pod("small", 1, created="1970-01-01T00:00:10Z")
    rig.pod("large", 2, created=later)  # 99 or 101 s after it
    rig.round()
    assert rig.api.order == [first]
    rig.bind(first)
    rig.round()
    assert rig.api.order == [first]  # no room


def test_s1_who_gives_way_goes_where_nobody_else_can() -> None:
    rig = Rig(patience_s=100.0)
    rig.queue.takes_more = lambda request: request.count == 1
    rig.node("n", 2)
    rig.pod("small", 1)
    rig.pod("huge", 3)
    rig.round()
    assert rig.api.order == ["small"]


def other(name: str, gpus: int, namespace: str) -> Manifest:
    """A pod of another namespace, behind the gate."""
    resources = {"limits": {"nvidia.com/gpu": gpus, "cpu": 1}}
    return {
        "metadata": {"name": name, "namespace": namespace, "uid": name, "annotations": {}},
        "spec": {"schedulingGates": GATES, "containers": [{"resources": resources}]},
        "status": {"phase": "Pending"},
    }


def test_pods_that_nobody_binds_hold_up_no_other_namespace() -> None:
    rig = Rig(max_open=8)
    rig.node("n", 64)
    for number in range(20):
        rig.pod(f"stuck-{number:02}", 1, created="2026-01-01T00:00:00Z")
    rig.round()
    assert sum(bool(rig.node_of(f"stuck-{number:02}")) for number in range(20)) == 8  # nobody else waits
    rig.api.pods["good"] = other("good", 1, "good")
    rig.queue.backlog.upsert(decode_pod(rig.api.pods["good"]))
    rig.round()
    assert rig.node_of("good") == "n"


def test_devices_of_resource_claims_count_against_quotas() -> None:
    rig = Rig(quotas=Quotas({"default": 2.0}))
    rig.ledger.upsert_resource_claim(resource_claim("a", devices=("gpu-0", "gpu-1")))
    identity, asked = PodIdentity("default", "p", "p"), GpuRequest(1, AskedUnit.CLAIM)
    assert rig.queue.over_quota(identity, asked) == "quota of namespace default: 2 GPUs"
    rig.ledger.upsert_resource_claim(resource_claim("a", devices=("gpu-0",)))
    assert rig.queue.over_quota(identity, asked) == ""
    rig.ledger.keep_resource_claims(set())
    assert rig.queue.over_quota(identity, GpuRequest(2, AskedUnit.CLAIM)) == ""


def test_quotas_hold_for_those_who_opt_out_of_the_queue() -> None:
    rig = Rig(quotas=Quotas({"ns": 2.0}))
    rig.node("n", 8)

    def asks(name: str, namespace: str = "ns") -> str:
        """What filter would be told, and what it then does."""
        identity, request = PodIdentity(namespace, name, name), GpuRequest(1)
        why = rig.queue.over_quota(identity, request)
        if not why:
            rig.ledger.reserve(name, "n", Holding(1), rig.now)
        return why

    assert [asks(name) for name in ("a", "b", "b", "c", "d")] == ["", "", "", *["quota of namespace ns: 2 GPUs"] * 2]
    rig.ledger.reserve("a", "n", Holding(2), rig.now)  # it asked for memory in total: that is known only now
    rig.ledger.release("b")
    assert asks("c")
    rig.ledger.reserve("a", "n", Holding(1), rig.now)
    assert asks("b") == asks("e", "free") == ""
    rig.ledger.release("a")
    assert [asks("c"), asks("d")] == ["", "quota of namespace ns: 2 GPUs"]
    rig.pod("queued", 1)
    rig.round()
    assert rig.node_of("queued") == ""  # and what they have counts
    rig.ledger.release("c")
    rig.round()
    assert rig.node_of("queued") == "n"
    assert rig.queue.over_quota(PodIdentity("ns", "queued", "queued"), GpuRequest(1)) == ""
    assert asks("d")
