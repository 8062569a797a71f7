"""Pods that were given other GPUs than were chosen are told so, by who leads."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from extender.kube import objects
from extender.kube.client import ApiError, ClusterError, UnreachableError
from extender.kube.events import EventRecorder
from extender.ledger.ledger import Ledger
from extender.plugins.kerf import ASSIGNED_GPUS, ASSIGNED_UUIDS, EXPLANATION
from extender.scheduling.corrections import Corrections
from extender.scheduling.fence import Fence
from tests.ledger.builders import Fault, FaultyTransport, open_fence, pod_manifest
from tests.ledger.test_reports import reporting


@dataclass
class Rig:
    """A node "n" of four GPUs with a pod that was to have GPUs 0 and 1 and was given 3 and 1."""

    fence: Fence = field(default_factory=open_fence)

    def __post_init__(self) -> None:
        self.transport = FaultyTransport()
        self.ledger = Ledger(reservation_ttl_s=30.0)
        self.ledger.upsert_node(reporting({"uid-p": ["GPU-3", "GPU-1"]}))
        self.transport.inner.apply(pod_manifest("p", 2, node="n", assigned="0,1"))
        self.sync()
        self.corrections = Corrections(self.transport, self.ledger, EventRecorder(self.transport), self.fence)

    def sync(self) -> None:
        """What the watch would tell."""
        self.ledger.upsert_pod(msgspec.convert(self.pod(), objects.Pod), 0.0)

    def pod(self) -> dict[str, Any]:
        return self.transport.inner.pod("default", "p")

    def correct(self) -> int:
        """How many calls a round makes."""
        self.transport.calls.clear()
        asyncio.run(self.corrections.correct())
        return len(self.transport.calls)


def test_the_pod_says_what_it_has_and_why() -> None:
    rig = Rig()
    assert rig.correct() == 1
    ((verb, path, body),) = rig.transport.calls
    assert (verb, path) == ("PATCH", "/api/v1/namespaces/default/pods/p/status")
    assert msgspec.json.decode(body)["metadata"]["uid"] == "uid-p"
    annotations = rig.pod()["metadata"]["annotations"]
    assert annotations[ASSIGNED_GPUS] == "1,3"
    assert annotations[ASSIGNED_UUIDS] == "GPU-1,GPU-3"
    assert annotations[EXPLANATION] == "placed: GPUs 1,3 of node n by its device plugin; GPUs 0,1 had been chosen"
    rig.sync()
    assert (rig.correct(), rig.corrections.num_corrected, rig.ledger.num_edits_ignored) == (0, 1, 0)


def test_who_does_not_lead_writes_nothing() -> None:
    assert Rig(fence=Fence(lambda: 0.0)).correct() == 0


@pytest.mark.parametrize("error", [UnreachableError("reset"), ApiError(429, "", "busy"), ApiError(500, "", "etcd")])
def test_without_an_answer_it_is_tried_again(error: ClusterError) -> None:
    rig = Rig()
    rig.transport.patches.append(Fault(error))
    assert (rig.correct(), rig.corrections.num_corrected) == (1, 0)
    assert (rig.correct(), rig.corrections.num_corrected) == (1, 1)


@pytest.mark.parametrize("status", [403, 422])
def test_a_pod_that_takes_no_change_is_asked_once_for_each_report(status: int) -> None:
    rig = Rig()
    rig.transport.patches.append(Fault(ApiError(status, "", "no")))
    assert [rig.correct(), rig.correct()] == [1, 0]
    rig.ledger.upsert_node(reporting({"uid-p": ["GPU-2", "GPU-3"]}))
    assert (rig.correct(), rig.corrections.num_corrected) == (1, 1)


def test_another_pod_of_that_name_is_nobody_to_tell() -> None:
    rig = Rig()
    rig.transport.patches.append(Fault(ApiError(409, "Conflict", "another UID")))
    assert (rig.correct(), rig.corrections.num_corrected) == (1, 0)
