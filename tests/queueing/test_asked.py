"""Pods that kube-scheduler asks about: nominations that are taken back, and who got the node nominated."""

import asyncio
from typing import Any

import pytest

from extender.kube.client import ApiError, ClusterError, UnreachableError
from extender.ledger.claims import ClaimState
from extender.planning.plans import PlanPod
from extender.plugins.holdings import Holding
from extender.queueing.asked import Asked
from extender.queueing.options import Counts
from extender.queueing.pods.entries import Entry, Stage
from extender.queueing.pods.objects import decode_pod
from tests.queueing.rigs import Rig


class Letting:
    """How pods are let go on the cluster of a rig, and what was told of it."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.rig.api.told = lambda pod: None
        self.changes = 0
        self.taken: list[tuple[str, str]] = []
        self.mode = Asked(
            transport=self.rig.api,  # type: ignore[arg-type]
            ledger=self.rig.ledger,
            placer=self.rig.placer,
            backlog=self.rig.queue.backlog,
            nodes=self.rig.queue.nodes,
            counts=Counts(),
            clock=lambda: self.rig.now,
            changed=self._changed,
            taken=lambda entry, node: self.taken.append((entry.uid, node)),
            resolver=self.rig.resolver,
        )

    def _changed(self) -> None:
        self.changes += 1

    def pod(self, name: str, stage: Stage = Stage.GATED, gpus: int = 1, nominated: str = "", node: str = "") -> Entry:
        self.rig.pod(name, gpus)
        if nominated:
            self.rig.api.pods[name]["status"]["nominatedNodeName"] = nominated
            self.rig.api.pods[name]["metadata"]["annotations"]["kerf.dev/planned-node"] = nominated
            self.rig.told(name)
        entry = self.rig.queue.backlog.entries[name]
        entry.stage, entry.node = stage, node
        return entry

    def nomination(self, name: str) -> Any:
        return self.rig.api.pods[name]["status"].get("nominatedNodeName")

    def settle(self) -> None:
        self.rig.now += 100.0
        self.rig.settle()


def test_a_nomination_of_a_pod_that_stays_behind_its_gate_is_taken_back() -> None:
    letting = Letting()
    entry, plain = letting.pod("p", nominated="n", node="n"), letting.pod("plain")
    written = letting.pod("written", Stage.NOMINATING, nominated="n", node="n")
    letting.mode.withdraw([entry, plain, written])
    assert [one.stage for one in (entry, plain, written)] == [Stage.WITHDRAWING, Stage.GATED, Stage.NOMINATING]
    letting.settle()
    assert (letting.nomination("p"), letting.nomination("written")) == (None, "n")
    assert (entry.stage, entry.node, entry.pod.status.nominated_node_name, letting.changes) == (Stage.GATED, "", "", 1)


def test_what_can_not_be_taken_back_is_tried_again_and_once_at_a_time() -> None:
    letting = Letting()
    entry = letting.pod("p", nominated="n")
    tries = 0

    def fail(name: str, part: str) -> ClusterError | None:
        nonlocal tries
        tries += 1
        return UnreachableError("cut")

    letting.rig.api.fail = fail
    for number in range(1, 4):
        letting.mode.withdraw([entry])
        letting.settle()
        assert (entry.stage, letting.changes, letting.nomination("p")) == (Stage.WITHDRAWING, 0, "n")
        assert tries == number
    letting.rig.api.fail = lambda name, part: None
    letting.settle()
    assert (entry.stage, letting.changes, letting.nomination("p")) == (Stage.GATED, 1, None)
    letting.rig.api.pods["p"]["status"]["nominatedNodeName"] = "m"
    letting.rig.told("p")
    letting.mode.withdraw([entry])
    letting.settle()
    assert letting.nomination("p") is None, "another one later"


def test_the_nomination_of_a_pod_that_is_gone_by_then_is_no_matter() -> None:
    letting = Letting()
    entry = letting.pod("p", nominated="n")
    letting.rig.api.fail = lambda name, part: ApiError(404, "NotFound", name)
    letting.mode.withdraw([entry])
    letting.settle()
    assert (entry.stage, letting.changes) == (Stage.GATED, 1)


def test_a_withdrawal_that_fails_is_logged_and_keeps_no_other_from_going(caplog: pytest.LogCaptureFixture) -> None:
    letting = Letting()
    letting.rig.api.fail = lambda name, part: UnreachableError("cut") if name == "p" else None
    for name in "pq":
        letting.mode.withdraw([letting.pod(name, nominated="n")])
        letting.rig.settle()
    assert (letting.nomination("p"), letting.nomination("q")) == ("n", None)
    assert set(caplog.messages) == {"withdrawing the nomination of pod ns/p: outcome not known yet: cut"}


def test_a_withdrawal_that_is_forbidden_is_given_up() -> None:
    letting = Letting()
    entry = letting.pod("p", nominated="n")
    letting.rig.api.fail = lambda name, part: ApiError(403, "Forbidden", name)
    letting.mode.withdraw([entry])
    letting.settle()
    assert (letting.nomination("p"), entry.stage, letting.changes) == ("n", Stage.GATED, 1)


def test_a_nomination_that_is_lost_is_taken_back_once_however_often_it_is_looked_at() -> None:
    letting = Letting()
    writes: list[str] = []
    letting.rig.api.fail = lambda name, part: writes.append(name)
    for name in "pq":
        letting.pod(name, Stage.LOST, nominated="n")
        letting.mode.take_stock(letting.rig.now)
    letting.settle()
    assert writes == ["p", "q"]


def test_a_pod_that_somebody_opens_meanwhile_is_on_its_way_from_then() -> None:
    letting = Letting()
    entry = letting.pod("p", nominated="n")
    letting.mode.withdraw([entry])
    letting.rig.api.pods["p"]["spec"]["schedulingGates"] = []
    letting.rig.told("p")
    letting.settle()
    assert (entry.stage, entry.opened) == (Stage.OPENED, letting.rig.now)


def test_whoever_stands_by_takes_nothing_back() -> None:
    letting = Letting()
    entry = letting.pod("p", nominated="n")
    letting.rig.standby = "another one leads"
    letting.mode.withdraw([entry])
    letting.settle()
    assert letting.nomination("p") == "n"
    assert entry.pod.status.nominated_node_name == "n"


def test_of_pods_that_lost_their_nodes_what_was_reserved_and_a_nomination_that_stands_are_taken_back() -> None:
    letting = Letting()
    rig = letting.rig
    for name in ("late", "lost", "stays"):
        letting.pod(name, Stage.OPENED, node="n")
        rig.ledger.reserve(name, "n", Holding(1), rig.now)
    entries = rig.queue.backlog.entries
    entries["late"].opened = rig.now - 15.0  # and nobody tells that it is open
    for name in ("lost", "stays"):
        manifest = rig.api.pods[name]
        manifest["spec"]["schedulingGates"] = []
        entries[name].opened = rig.now
        rig.told(name)
    refusal = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
    rig.api.pods["lost"]["status"] = {"phase": "Pending", "conditions": [refusal], "nominatedNodeName": "n"}
    rig.api.pods["lost"]["metadata"]["annotations"]["kerf.dev/planned-node"] = "n"
    rig.told("lost")
    letting.mode.take_stock(rig.now)
    assert {name: entries[name].stage for name in entries} == {
        "late": Stage.GATED,
        "lost": Stage.LOST,
        "stays": Stage.OPENED,
    }
    assert [name for name in entries if rig.ledger.claim(name) is not None] == ["stays"]
    letting.settle()
    assert (letting.nomination("lost"), entries["lost"].stage, letting.changes) == (None, Stage.LOST, 1)
    assert entries["lost"].pod.status.nominated_node_name == ""


@pytest.mark.parametrize(
    ("stage", "node", "claimed", "state", "lost", "counted", "taken"),
    [
        pytest.param(Stage.OPENED, "n", "n", ClaimState.BOUND, "", (1, 0), "n", id="bound there"),
        pytest.param(Stage.OPENED, "n", "m", ClaimState.BOUND, "", (0, 1), "m", id="bound elsewhere"),
        pytest.param(Stage.LOST, "n", "n", ClaimState.BOUND, "n: no", (0, 1), "n", id="bound after it was lost"),
        pytest.param(Stage.OPENED, "n", "n", ClaimState.RESERVED, "", (1, 0), "", id="gone, or the watch is late"),
        pytest.param(Stage.OPENED, "n", "", None, "", (1, 0), "", id="nothing is held"),
        pytest.param(Stage.OPENED, "", "", None, "", (0, 0), "", id="let go for no node"),
        pytest.param(Stage.GATED, "n", "", None, "", (0, 0), "", id="behind its gate"),
    ],
)
def test_whether_a_pod_got_the_node_it_was_let_go_for(
    stage: Stage, node: str, claimed: str, state: ClaimState | None, lost: str, counted: tuple[int, int], taken: str
) -> None:
    letting = Letting()
    rig, entry = letting.rig, letting.pod("p", stage, node=node)
    entry.lost = lost
    for name in ("n", "m"):
        rig.node(name, 1)
    if state is ClaimState.RESERVED:
        rig.ledger.reserve("p", claimed, Holding(1), rig.now)
    elif state is ClaimState.BOUND:
        rig.api.pods["p"]["spec"]["nodeName"] = claimed
        rig.ledger.upsert_pod(decode_pod(rig.api.pods["p"]), rig.now)
    letting.mode.counts = Counts(honoured=3, fallbacks=5)
    letting.mode.left(entry)
    assert (letting.mode.counts.honoured - 3, letting.mode.counts.fallbacks - 5) == counted
    assert letting.taken == ([("p", taken)] if taken else [])
    claim = rig.ledger.claim("p")
    assert (claim is None) is (state is not ClaimState.BOUND)


@pytest.mark.parametrize(
    ("stage", "gpus", "deleted", "taken"),
    [
        pytest.param(Stage.OPENED, 0, False, True, id="bound by kube-scheduler"),
        pytest.param(Stage.OPENED, 0, True, False, id="deleted"),
        pytest.param(Stage.LOST, 0, False, False, id="had lost its node"),
        pytest.param(Stage.OPENED, 1, False, False, id="Kerf would have bound it"),
    ],
)
def test_nobody_asks_kerf_to_bind_a_pod_without_gpus(stage: Stage, gpus: int, deleted: bool, taken: bool) -> None:
    letting = Letting()
    entry = letting.pod("p", stage, gpus, node="n")
    if deleted:
        entry.pod.metadata.deletion_timestamp = "2026-01-01T00:00:00Z"
    letting.mode.left(entry)
    assert letting.taken == ([("p", "n")] if taken else [])


def test_what_was_not_written_waits_as_before_and_holds_nothing_unless_somebody_has_opened_it() -> None:
    letting = Letting()
    nominating = letting.pod("p", Stage.NOMINATING, node="n")
    assert letting.mode.not_written(nominating)
    assert (nominating.stage, nominating.node) == (Stage.GATED, "")
    anew = letting.pod("q", Stage.RENOMINATING, node="n")
    assert letting.mode.not_written(anew)
    assert anew.stage is Stage.LOST
    opened = letting.pod("r", Stage.NOMINATING, nominated="n", node="n")
    letting.rig.api.pods["r"]["spec"]["schedulingGates"] = []
    opened.pod = decode_pod(letting.rig.api.pods["r"])
    assert not letting.mode.not_written(opened)
    assert (opened.stage, opened.node, opened.opened) == (Stage.OPENED, "n", letting.rig.now)


def test_a_pod_is_nominated_then_opened_within_the_domain_of_its_gang() -> None:
    letting = Letting()
    rig, mode = letting.rig, letting.mode
    rig.node("n", 1, rack="a")
    entry = letting.pod("p", Stage.NOMINATING, node="n")
    entry.planned = PlanPod("ns/p", gang="ns/g", topology="rack")

    async def run() -> None:
        assert await mode.nominate(entry, entry.pod, None, lost="") is entry.pod
        assert (letting.nomination("p"), rig.api.pods["p"]["metadata"]["annotations"]) == ("n", {})
        assert await mode.open(entry, entry.pod, "greedy", None)
        assert rig.api.pods["p"]["spec"]["nodeSelector"] == {"rack": "a"}
        assert (rig.note("p", "planned-node"), rig.note("p", "planned-by")) == ("n", "greedy")
        assert await mode.nominate(entry, entry.pod, None, lost="1. n: no room") is entry.pod
        assert (rig.note("p", "nomination-lost"), rig.note("p", "planned-node")) == ("1. n: no room", "n")
        left = letting.pod("left", Stage.OPENING)
        assert await mode.open_without_node(left.pod, "nobody wants it", None)
        written = rig.api.pods["left"]["metadata"]["annotations"]
        assert written == {"kerf.dev/planned-node": "", "kerf.dev/planned-by": "nobody wants it"}
        other = letting.pod("other", Stage.NOMINATING, node="n")
        other.planned = None
        assert await mode.open(other, other.pod, "greedy", None)
        assert "nodeSelector" not in rig.api.pods["other"]["spec"]
        rig.api.fail = lambda name, part: ApiError(404, "NotFound", name)
        assert await mode.nominate(entry, entry.pod, None, lost="") is None
        assert not await mode.open(entry, entry.pod, "greedy", None)
        assert not await mode.open_without_node(entry.pod, "", None)

    asyncio.run(run())
    assert (mode.works(), mode.term(), mode.hold([(entry, "n")])) == ({}, None, True)
