"""ResourceClaims that change while pods that name them wait."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec import structs
from msgspec.json import decode

from extender.dra.objects import ResourceClaim
from extender.dra.pod_claims import NO_CLAIMS, PodClaims
from extender.kube.decoding import convert
from extender.kube.objects import Pod, PodStatus
from extender.planning.wait_reasons import Code
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.objects import decode_pod


class Queue:
    """A backlog of pods that all name one claim, and how often each was read."""

    def __init__(self, num_pods: int) -> None:
        self.read: list[str] = []
        self.claims = NO_CLAIMS
        self.meanwhile: Callable[[Pod], None] = lambda pod: None
        """What happens as a pod is read."""
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
        self.meanwhile(pod)
        return self.claims

    def read_again(self, *, all_: bool = True) -> Entry:
        """What the first pod is taken for after a round."""
        asyncio.run(self.backlog.read_claims_again(all_=all_))
        return self.backlog.entries["u-p-0"]


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


CLAIM = decode(b'{"metadata": {"name": "shared", "namespace": "default", "uid": "u-shared"}}', type=ResourceClaim)


def test_a_pod_whose_claim_is_not_there_says_which() -> None:
    queue = Queue(1)
    queue.claims = PodClaims(missing="shared")
    entry = queue.read_again()
    assert entry.planned is None
    assert entry.fault is not None
    assert entry.fault.code is Code.CLAIM_MISSING
    assert "shared" in str(entry.fault)


def test_a_pod_of_whose_claims_more_is_to_be_found_out_is_read_in_each_round_until_it_is() -> None:
    queue = Queue(1)
    queue.claims = PodClaims(undecided="shared")
    entry = queue.read_again()
    assert entry.fault is not None
    assert entry.fault.code is Code.CLAIM_UNDECIDED
    assert "shared" in str(entry.fault)
    queue.claims = NO_CLAIMS
    assert queue.read_again(all_=False).fault is None
    queue.read.clear()
    queue.read_again(all_=False)
    assert queue.read == [], "there is nothing more to find out"


def test_a_pod_that_lacks_something_else_is_read_again_once_that_has_changed() -> None:
    queue = Queue(1)
    queue.claims = PodClaims(missing="shared")
    queue.read_again()
    queue.read.clear()
    queue.read_again(all_=False)
    assert queue.read == []


def test_a_pod_whose_devices_are_kube_schedulers_to_allocate_is_left_to_it() -> None:
    queue = Queue(1)
    queue.claims = PodClaims(left=(CLAIM,))
    entry = queue.read_again()
    assert (entry.planned, entry.fault) == (None, None)
    assert entry.left == "kube-scheduler allocates the devices of its ResourceClaims"


def test_a_pod_that_is_gone_as_others_are_read_is_not_read() -> None:
    queue = Queue(3)
    queue.meanwhile = lambda pod: queue.backlog.remove(_gated("p-1"))
    queue.read_again()
    assert queue.read == ["p-0", "p-2"]


def test_after_a_new_list_claims_are_those_of_its_pods() -> None:
    queue = Queue(2)
    queue.backlog.clear()
    queue.backlog.upsert(_gated("p-0"))
    queue.read.clear()
    queue.backlog.claim_changed("default/shared")
    queue.read_again(all_=False)
    assert queue.read == ["p-0"]


def _opened(queue: Queue, node: str, *, claims: tuple[str, ...] = ()) -> Entry:
    """The first pod, let go for a node or none at 100 s, and refused since."""
    entry = queue.backlog.entries["u-p-0"]
    if node:
        entry.reserve(node)
    entry.open(100.0)
    entry.was_opened()
    assert entry.planned is not None
    entry.planned = replace(entry.planned, claims=claims)
    refusal = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no"}
    status = convert({"phase": "Pending", "conditions": [refusal]}, PodStatus)
    spec = structs.replace(entry.pod.spec, scheduling_gates=None)
    entry.pod = structs.replace(entry.pod, spec=spec, status=status)
    return entry


def test_what_is_on_its_way_to_a_node_is_not_read_for_what_claims_may_be_given() -> None:
    queue = Queue(2)
    _opened(queue, "n")
    queue.read_again()
    assert queue.read == ["p-1"]


def test_a_pod_that_has_its_devices_is_tried_for_a_while_before_it_is_refused() -> None:
    queue = Queue(1)
    entry = _opened(queue, "n")
    assert queue.backlog.refused(102.0) == []
    assert queue.backlog.refused(106.0) == [entry]
    queue = Queue(1)
    entry = _opened(queue, "n", claims=("u-shared",))
    assert queue.backlog.refused(102.0) == [entry], "kube-scheduler has none to take away"


def test_a_pod_that_was_let_go_for_no_node_has_lost_none() -> None:
    queue = Queue(1)
    _opened(queue, "")
    assert queue.backlog.refused(106.0) == []


def test_others_go_on_while_thousands_are_read() -> None:
    many = Queue(1000)

    async def run() -> int:
        reading = asyncio.create_task(many.backlog.read_claims_again(all_=True))
        ticks = -1
        while not reading.done():
            ticks += 1
            await asyncio.sleep(0)
        return ticks

    assert 10 <= asyncio.run(run()) <= 500
