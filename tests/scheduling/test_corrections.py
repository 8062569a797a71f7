"""The leader corrects pods that were given other GPUs than were chosen."""

import asyncio
from typing import Any

import msgspec
import pytest

from extender.kube.client import ApiError, ClusterError, UnreachableError
from extender.kube.events import EventRecorder
from extender.plugins.kerf import ASSIGNED_GPUS, ASSIGNED_UUIDS, EXPLANATION
from extender.queueing.pods.objects import decode_pod
from extender.scheduling.corrections import Corrections
from extender.scheduling.fence import Fence
from tests.ledger.builders import Fault, FaultyTransport, ledger_of, open_fence, pod_manifest
from tests.ledger.test_reports import reporting


class Rig:
    """A node "n" of four GPUs with a pod that was to have GPUs 0 and 1 and was given 3 and 1."""

    def __init__(self, fence: Fence | None = None, error: ClusterError | None = None) -> None:
        self.transport = FaultyTransport()
        self.ledger = ledger_of(reporting({"uid-p": ["GPU-3", "GPU-1"]}))
        self.transport.inner.apply(pod_manifest("p", 2, node="n", assigned="0,1"))
        self.sync()
        self.corrections = Corrections(
            self.transport, self.ledger, EventRecorder(self.transport), fence or open_fence()
        )
        if error:
            self.transport.patches.append(Fault(error))

    def sync(self) -> None:
        """Take in what the watch would report."""
        self.ledger.upsert_pod(decode_pod(self.pod()), 0.0)

    def pod(self) -> dict[str, Any]:
        return self.transport.inner.pod("default", "p")

    def correct(self) -> tuple[int, int]:
        """Number of calls in a round, and of corrected pods by then."""
        self.transport.calls.clear()
        asyncio.run(self.corrections.correct())
        return len(self.transport.calls), self.corrections.num_corrected


def test_the_pod_says_what_it_has_and_why() -> None:
    rig = Rig()
    assert rig.correct() == (1, 1)
    ((verb, path, body),) = rig.transport.calls
    assert (verb, path) == ("PATCH", "/api/v1/namespaces/default/pods/p/status")
    assert msgspec.json.decode(body)["metadata"]["uid"] == "uid-p"
    annotations = rig.pod()["metadata"]["annotations"]
    assert (annotations[ASSIGNED_GPUS], annotations[ASSIGNED_UUIDS]) == ("1,3", "GPU-1,GPU-3")
    assert annotations[EXPLANATION] == "placed: GPUs 1,3 of node n by its device plugin; GPUs 0,1 had been chosen"
    rig.sync()
    assert (rig.correct(), rig.ledger.num_edits_ignored) == ((0, 1), 0)


def test_a_standby_writes_nothing() -> None:
    assert Rig(fence=Fence(lambda: 0.0)).correct() == (0, 0)


@pytest.mark.parametrize("error", [UnreachableError("reset"), ApiError(429, "", "busy"), ApiError(500, "", "etcd")])
def test_without_an_answer_it_is_tried_again(error: ClusterError) -> None:
    rig = Rig(error=error)
    assert [rig.correct(), rig.correct()] == [(1, 0), (1, 1)]


def test_a_pod_that_takes_no_change_is_patched_once_for_each_report() -> None:
    rig = Rig(error=ApiError(403, "", "no"))
    assert [rig.correct(), rig.correct()] == [(1, 0), (0, 0)]
    rig.ledger.upsert_node(reporting({"uid-p": ["GPU-2", "GPU-3"]}))
    assert rig.correct() == (1, 1)


def test_another_pod_of_that_name_is_not_corrected() -> None:
    assert Rig(error=ApiError(409, "Conflict", "another UID")).correct() == (1, 0)
