"""Pods that were left to kube-scheduler, whose ResourceClaims are Kerf's to allocate by now."""

import asyncio
from typing import Any

import pytest

from extender.core.dra.asks import DeviceClaims
from extender.dra.pod_claims import PodClaims
from extender.kube.objects import Pod, PodClaim
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Stage
from extender.queueing.pods.objects import decode_pod
from tests.parts.dra.rigs import ClaimRig

REFUSED = [
    {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "cannot allocate all claims"}
]


def manifest(*, conditions: Any = REFUSED, gates: Any = ()) -> Pod:
    """A pod with a claim, released without a node."""
    left = {"kerf.dev/planned-node": "", "kerf.dev/planned-by": "left"}
    metadata = {"name": "a", "namespace": "default", "uid": "p-a", "annotations": left}
    spec = {"resourceClaims": [{"name": "a", "resourceClaimName": "a"}], "schedulingGates": list(gates)}
    return decode_pod(
        {"metadata": metadata, "spec": spec, "status": {"phase": "Pending", "conditions": list(conditions)}}
    )


GATED = manifest(conditions=(), gates=[{"name": "kerf.dev/queue"}])


class Queue:
    """A backlog; the pod's claim is kube-scheduler's until `owned`."""

    def __init__(self) -> None:
        self.owned = False
        rig = ClaimRig()
        rig.add("a")
        self._claim = rig.owned.claims["u-a"]
        self._asked = rig.keeper.read(rig.pod("a").pod).asked
        self.backlog = Backlog(lambda: 100.0, lambda: None, left=lambda entry: None, claims_of=self._claims_of)

    def _claims_of(self, pod: Pod) -> PodClaims:
        asked: DeviceClaims | None = self._asked
        return PodClaims(unallocated=(self._claim,), asked=asked) if self.owned else PodClaims(left=(self._claim,))

    def stage(self, *, out: bool = False) -> Stage:
        asyncio.run(self.backlog.read_claims_again(all_=True))
        self.backlog.notice_unserved(lambda pod: out and pod.metadata.uid == "p-a")
        return self.backlog.entries["p-a"].stage


@pytest.fixture(params=["begun", "restarted"])
def queue(request: pytest.FixtureRequest) -> Queue:
    """One that has left the pod to kube-scheduler, or one that finds it after a restart."""
    queue = Queue()
    if request.param == "begun":
        queue.backlog.upsert(GATED)
    queue.backlog.upsert(manifest())
    return queue


def test_a_pod_waits_for_a_plan_once_kerf_owns_what_it_requests(queue: Queue) -> None:
    assert queue.stage() is Stage.OPENED
    queue.owned = True
    assert queue.stage(out=True) is Stage.OPENED, "it has opted out"
    assert queue.stage() is Stage.LOST
    assert queue.backlog.entries["p-a"].lost == "kube-scheduler: cannot allocate all claims"


def test_a_pod_that_was_not_refused_yet_is_left_alone() -> None:
    queue = Queue()
    queue.backlog.upsert(GATED)
    queue.backlog.upsert(manifest(conditions=()))
    queue.owned = True
    assert queue.stage() is Stage.OPENED


def test_open_pods_that_kerf_has_not_released_are_ignored() -> None:
    queue = Queue()
    pod = manifest()
    pod.metadata.annotations = {}
    queue.backlog.upsert(pod)
    assert not queue.backlog.entries


def test_a_pod_whose_claim_was_made_again_names_the_new_one_only() -> None:
    queue = Queue()
    pods = [manifest(conditions=(), gates=[{"name": "kerf.dev/queue"}]) for _ in range(2)]
    for pod, name in zip(pods, ("a-1", "a-2"), strict=True):
        pod.status.resource_claim_statuses = [PodClaim(name="a", resource_claim_name=name)]
        queue.backlog.upsert(pod)
    assert [len(queue.backlog.naming(f"default/{name}")) for name in ("a-1", "a-2")] == [0, 1]
    queue.backlog.remove(pods[1])
    assert not queue.backlog.naming("default/a-2")
