"""With an extender: nominations that are withdrawn, and which pods got their node."""

import asyncio
from typing import Any

import pytest

from extender.kube.client import ApiError, ClusterError, UnreachableError
from extender.ledger.allocations import AllocationState
from extender.plugins.holdings import Holding
from extender.queueing.extender_mode import ExtenderMode
from extender.queueing.options import Counts
from extender.queueing.pods.entries import Entry, Stage
from extender.queueing.pods.objects import decode_pod
from tests.queueing.rigs import Rig


class Releases:
    """The mode on a rig's cluster, and what it reported."""

    def __init__(self) -> None:
        self.rig = Rig()
        self.rig.api.told = lambda pod: None
        self.changes = 0
        self.taken: list[tuple[str, str]] = []
        assert isinstance(self.rig.queue.mode, ExtenderMode)
        self.mode = self.rig.queue.mode
        self.mode.changed = self._changed
        self.mode.taken = lambda entry, node: self.taken.append((entry.uid, node))

    def _changed(self) -> None:
        self.changes += 1

    def pod(self, name: str, stage: Stage = Stage.GATED, gpus: int = 1, nominated: str = "", node: str = "") -> Entry:
        self.rig.pod(name, gpus)
        if nominated:
            self.rig.api.pods[name]["status"]["nominatedNodeName"] = nominated
            self.rig.api.pods[name]["metadata"]["annotations"]["kerf.dev/planned-node"] = nominated
            self.rig.told(name)
        entry = self.rig.entry(name)
        entry.stage, entry.node = stage, node
        return entry

    def nomination(self, name: str) -> Any:
        return self.rig.api.pods[name]["status"].get("nominatedNodeName")

    def fail(self, error: ClusterError | None, only: str = "") -> None:
        """Let writes fail, or only those to one pod."""
        self.rig.api.fail = lambda name, part: error if name == (only or name) else None

    def open(self, name: str) -> None:
        """Another client opens a gate, as the watch reports."""
        self.rig.api.pods[name]["spec"]["schedulingGates"] = []
        self.rig.told(name)

    def settle(self) -> None:
        self.rig.now += 100.0
        self.rig.settle()

    def withdrawn(self, error: ClusterError | None = None) -> Entry:
        """A nominated pod whose nomination was withdrawn, or could not be."""
        entry = self.pod("p", nominated="n", node="n")
        self.fail(error)
        self.mode.withdraw([entry])
        self.settle()
        return entry


def test_the_nomination_of_a_pod_that_stays_gated_is_withdrawn() -> None:
    releases = Releases()
    entry, plain = releases.pod("p", nominated="n", node="n"), releases.pod("plain")
    written = releases.pod("written", Stage.NOMINATING, nominated="n", node="n")
    releases.mode.withdraw([entry, plain, written])
    assert [one.stage for one in (entry, plain, written)] == [Stage.WITHDRAWING, Stage.GATED, Stage.NOMINATING]
    releases.settle()
    assert (releases.nomination("p"), releases.nomination("written")) == (None, "n")
    assert (entry.stage, entry.node, entry.pod.status.nominated_node_name, releases.changes) == (Stage.GATED, "", "", 1)


def test_a_withdrawal_that_failed_is_tried_again_and_once_at_a_time() -> None:
    releases = Releases()
    entry = releases.withdrawn(UnreachableError("cut"))
    tries = list[str]()

    def fail(name: str, part: str) -> ClusterError:
        tries.append(name)
        return UnreachableError("cut")

    releases.rig.api.fail = fail
    for number in range(1, 4):
        releases.mode.withdraw([entry])
        releases.settle()
        assert (entry.stage, releases.changes, releases.nomination("p")) == (Stage.WITHDRAWING, 0, "n")
        assert len(tries) == number
    releases.fail(None)
    releases.settle()
    assert (entry.stage, releases.changes, releases.nomination("p")) == (Stage.GATED, 1, None)
    releases.rig.api.pods["p"]["status"]["nominatedNodeName"] = "m"
    releases.rig.told("p")
    releases.mode.withdraw([entry])
    releases.settle()
    assert releases.nomination("p") is None, "another one later"


def test_a_withdrawal_from_a_pod_that_is_gone_or_that_is_forbidden_ends() -> None:
    for error in (ApiError(404, "NotFound", "p"), ApiError(403, "Forbidden", "p")):
        releases = Releases()
        entry = releases.withdrawn(error)
        assert (releases.nomination("p"), entry.stage, releases.changes) == ("n", Stage.GATED, 1)


def test_a_lost_nomination_is_withdrawn_once_however_often_it_is_looked_at() -> None:
    releases = Releases()
    writes: list[str] = []
    releases.rig.api.fail = lambda name, part: writes.append(name)
    for name in "pq":
        releases.pod(name, Stage.LOST, nominated="n")
        releases.mode.take_stock(releases.rig.now)
    releases.settle()
    assert writes == ["p", "q"]


def test_a_pod_that_another_client_opens_meanwhile_is_on_its_way_from_then() -> None:
    releases = Releases()
    entry = releases.pod("p", nominated="n")
    releases.mode.withdraw([entry])
    releases.open("p")
    releases.settle()
    assert (entry.stage, entry.opened) == (Stage.OPENED, releases.rig.now)


def test_a_standby_withdraws_nothing() -> None:
    releases = Releases()
    releases.rig.standby = "another one leads"
    entry = releases.withdrawn()
    assert (releases.nomination("p"), entry.pod.status.nominated_node_name) == ("n", "n")


def test_of_pods_that_lost_their_nodes_reservations_and_nominations_that_stand_are_taken_back() -> None:
    releases = Releases()
    rig = releases.rig
    for name in ("late", "lost", "stays"):
        releases.pod(name, Stage.OPENED, node="n")
        rig.ledger.reserve(name, "n", Holding(1), rig.now)
        rig.entry(name).opened = rig.now
    rig.entry("late").opened = rig.now - 15.0  # and it is not reported as open
    releases.open("stays")
    refusal = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room"}
    rig.api.pods["lost"]["status"] = {"phase": "Pending", "conditions": [refusal], "nominatedNodeName": "n"}
    rig.api.pods["lost"]["metadata"]["annotations"]["kerf.dev/planned-node"] = "n"
    releases.open("lost")
    releases.mode.take_stock(rig.now)
    stages = {name: entry.stage for name, entry in rig.queue.backlog.entries.items()}
    assert stages == {"late": Stage.GATED, "lost": Stage.LOST, "stays": Stage.OPENED}
    assert [name for name in stages if rig.ledger.allocation(name) is not None] == ["stays"]
    releases.settle()
    lost = rig.entry("lost")
    assert (releases.nomination("lost"), lost.stage, releases.changes) == (None, Stage.LOST, 1)
    assert lost.pod.status.nominated_node_name == ""


@pytest.mark.parametrize(
    ("stage", "node", "claimed", "state", "lost", "counted", "taken"),
    [
        (Stage.OPENED, "n", "n", AllocationState.BOUND, "", (1, 0), "n"),
        (Stage.OPENED, "n", "m", AllocationState.BOUND, "", (0, 1), "m"),
        (Stage.LOST, "n", "n", AllocationState.BOUND, "n: no", (0, 1), "n"),
        (Stage.OPENED, "n", "n", AllocationState.RESERVED, "", (1, 0), ""),  # gone, or the watch is late
        (Stage.OPENED, "n", "", None, "", (1, 0), ""),
        (Stage.OPENED, "", "", None, "", (0, 0), ""),  # released without a node
        (Stage.GATED, "n", "", None, "", (0, 0), ""),
    ],
)
def test_whether_a_pod_got_the_node_it_was_released_to(
    stage: Stage,
    node: str,
    claimed: str,
    state: AllocationState | None,
    lost: str,
    counted: tuple[int, int],
    taken: str,
) -> None:
    releases = Releases()
    rig, entry = releases.rig, releases.pod("p", stage, node=node)
    entry.lost = lost
    for name in ("n", "m"):
        rig.node(name, 1)
    if state is AllocationState.RESERVED:
        rig.ledger.reserve("p", claimed, Holding(1), rig.now)
    elif state is AllocationState.BOUND:
        rig.api.pods["p"]["spec"]["nodeName"] = claimed
        rig.ledger.upsert_pod(decode_pod(rig.api.pods["p"]), rig.now)
    releases.mode.counts = Counts(honoured=3, fallbacks=5)
    releases.mode.left(entry)
    assert (releases.mode.counts.honoured - 3, releases.mode.counts.fallbacks - 5) == counted
    assert releases.taken == ([("p", taken)] if taken else [])
    assert (rig.ledger.allocation("p") is None) is (state is not AllocationState.BOUND)


def test_a_pod_without_gpus_has_taken_its_node_unless_it_was_deleted_or_had_lost_it() -> None:
    """kube-scheduler does not ask Kerf to bind it."""
    for stage, gpus, deleted, taken in (
        (Stage.OPENED, 0, "", True),
        (Stage.OPENED, 0, "2026-01-01T00:00:00Z", False),
        (Stage.LOST, 0, "", False),
        (Stage.OPENED, 1, "", False),
    ):
        releases = Releases()
        entry = releases.pod("p", stage, gpus, node="n")
        entry.pod.metadata.deletion_timestamp = deleted or None
        releases.mode.left(entry)
        assert releases.taken == ([("p", "n")] if taken else [])


def test_what_was_not_written_waits_as_before_and_holds_nothing_unless_another_client_has_opened_it() -> None:
    releases = Releases()
    nominating = releases.pod("p", Stage.NOMINATING, node="n")
    assert releases.mode.not_written(nominating)
    assert (nominating.stage, nominating.node) == (Stage.GATED, "")
    again = releases.pod("q", Stage.RENOMINATING, node="n")
    assert releases.mode.not_written(again)
    assert again.stage is Stage.LOST
    opened = releases.pod("r", Stage.NOMINATING, nominated="n", node="n")
    releases.open("r")
    assert not releases.mode.not_written(opened)
    assert (opened.stage, opened.node, opened.opened) == (Stage.OPENED, "n", releases.rig.now)


def test_a_write_on_a_pod_that_is_gone_has_no_effect() -> None:
    releases = Releases()
    mode, entry = releases.mode, releases.pod("p", Stage.NOMINATING, node="n")
    entry.planned = None

    async def run() -> list[object]:
        nominated = await mode.nominate(entry, entry.pod, None, lost="")
        opened = await mode.open(entry, entry.pod, "greedy", None)
        return [nominated, opened, await mode.open_without_node(entry.pod, "why", None)]

    assert asyncio.run(run()) == [entry.pod, True, True]
    assert "nodeSelector" not in releases.rig.api.pods["p"]["spec"]
    releases.fail(ApiError(404, "NotFound", "p"))
    assert asyncio.run(run()) == [None, False, False]
    assert (mode.works(), mode.term(), mode.hold([(entry, "n")])) == ({}, None, True)
