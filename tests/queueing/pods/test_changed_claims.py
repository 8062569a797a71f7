"""ResourceClaims that change while pods that name them wait."""

import asyncio

import pytest

from extender.dra.pod_claims import NO_CLAIMS, PodClaims
from extender.kube.objects import Pod
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.objects import decode_pod


class Queue:
    """A backlog of pods that all name one claim, and how often each was read."""

    def __init__(self, num_pods: int) -> None:
        self.read: list[str] = []
        self.dirty = 0
        self.backlog = Backlog(lambda: 100.0, self._changed, left=lambda entry: None, claims_of=self._claims_of)
        for number in range(num_pods):
            self.backlog.upsert(_gated(f"p-{number}"))
        self.read.clear()
        self.dirty = 0

    def _changed(self) -> None:
        self.dirty += 1

    def _claims_of(self, pod: Pod) -> PodClaims:
        self.read.append(pod.metadata.name)
        return NO_CLAIMS


def _gated(name: str) -> Pod:
    return decode_pod(
        {
            "metadata": {"name": name, "namespace": "default", "uid": f"u-{name}"},
            "spec": {
                "resourceClaims": [{"name": "a", "resourceClaimName": "shared"}],
                "schedulingGates": [{"name": "kerf.dev/queue"}],
            },
        }
    )


@pytest.fixture
def queue() -> Queue:
    return Queue(40)


def test_however_often_a_claim_changes_whoever_names_it_is_read_once_a_round(queue: Queue) -> None:
    for _ in range(1000):
        queue.backlog.claim_changed("default/shared")
    assert queue.read == []
    assert queue.dirty
    asyncio.run(queue.backlog.read_claims_again(all_=False))
    assert sorted(queue.read) == sorted(f"p-{number}" for number in range(40))
    asyncio.run(queue.backlog.read_claims_again(all_=False))
    assert len(queue.read) == 40


def test_a_claim_that_no_pod_names_makes_no_round(queue: Queue) -> None:
    queue.backlog.claim_changed("default/other")
    assert not queue.dirty


def test_who_is_decided_on_is_read_as_its_claims_are_now(queue: Queue) -> None:
    entry = queue.backlog.entries["u-p-3"]
    queue.backlog.current(entry)
    assert queue.read == []
    queue.backlog.claim_changed("default/shared")
    queue.backlog.current(entry)
    assert queue.read == ["p-3"]
