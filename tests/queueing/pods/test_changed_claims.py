"""ResourceClaims that change while pods that name them wait."""

import asyncio
from collections.abc import Callable
from dataclasses import replace

from msgspec import structs
from msgspec.json import decode

from extender.dra.objects import ResourceClaim
from extender.dra.pod_claims import NO_CLAIMS, PodClaims
from extender.kube.objects import Pod
from extender.planning.wait_reasons import Code
from extender.queueing.pods.backlog import Backlog
from extender.queueing.pods.entries import Entry
from tests.queueing.watches import GATES, pod, refused

CLAIM = decode(b'{"metadata": {"name": "shared", "namespace": "ns", "uid": "u-shared"}}', type=ResourceClaim)


def naming(name: str) -> Pod:
    return pod(name, spec=GATES | {"resourceClaims": [{"name": "a", "resourceClaimName": "shared"}]})


class Queue:
    """A backlog of pods that all name one claim, and how often each was read."""

    def __init__(self, num_pods: int = 1, claims: PodClaims = NO_CLAIMS) -> None:
        self.read: list[str] = []
        self.claims = claims
        self.meanwhile: Callable[[Pod], None] = lambda pod: None
        """What happens as a pod is read."""
        self.changes = 0
        self.backlog = Backlog(lambda: 100.0, self._changed, left=lambda entry: None, claims_of=self._claims_of)
        for number in range(num_pods):
            self.backlog.upsert(naming(f"p-{number}"))
        self.read.clear()
        self.changes = 0

    def _changed(self) -> None:
        self.changes += 1

    def _claims_of(self, pod: Pod) -> PodClaims:
        self.read.append(pod.metadata.name)
        self.meanwhile(pod)
        return self.claims

    def read_again(self, *, all_: bool = False) -> list[str]:
        """Names of the pods that are read before a round."""
        self.read.clear()
        asyncio.run(self.backlog.read_claims_again(all_=all_))
        return self.read

    @property
    def first(self) -> Entry:
        return self.backlog.entries["uid-p-0"]


def test_pods_are_read_once_a_round_however_often_their_claim_changes() -> None:
    queue = Queue(40)
    queue.backlog.claim_changed("ns/other")
    assert queue.changes == 0, "no pod names it"
    for _ in range(1000):
        queue.backlog.claim_changed("ns/shared")
    assert (queue.read, bool(queue.changes)) == ([], True)
    assert sorted(queue.read_again()) == sorted(f"p-{number}" for number in range(40))
    assert queue.read_again() == []


def test_a_pod_is_decided_on_with_its_claims_as_they_are_now() -> None:
    queue = Queue(2)
    queue.backlog.current(queue.first)
    assert queue.read == []
    queue.backlog.claim_changed("ns/shared")
    queue.backlog.current(queue.first)
    assert queue.read == ["p-0"]


def test_a_pod_whose_claim_is_missing_is_read_again_once_that_has_changed() -> None:
    queue = Queue(claims=PodClaims(missing="shared"))
    assert queue.first.planned is None
    assert queue.first.fault == Code.CLAIM_MISSING.reason(claim="shared")
    assert queue.read_again() == []


def test_a_pod_whose_claims_are_undecided_is_read_in_each_round_until_they_are() -> None:
    queue = Queue(claims=PodClaims(undecided="shared"))
    assert queue.first.fault == Code.CLAIM_UNDECIDED.reason(claim="shared")
    queue.claims = NO_CLAIMS
    assert queue.read_again() == ["p-0"]
    assert queue.first.fault is None
    assert queue.read_again() == []


def test_a_pod_whose_devices_kube_scheduler_allocates_is_left_to_it() -> None:
    entry = Queue(claims=PodClaims(left=(CLAIM,))).first
    assert (entry.planned, entry.fault) == (None, None)
    assert entry.left_to_scheduler == "kube-scheduler allocates the devices of its ResourceClaims"


def test_a_pod_that_is_gone_as_others_are_read_is_not_read() -> None:
    queue = Queue(3)
    queue.meanwhile = lambda pod: queue.backlog.remove(naming("p-1"))
    assert queue.read_again(all_=True) == ["p-0", "p-2"]


def test_after_a_new_list_claims_are_those_of_its_pods() -> None:
    queue = Queue(2)
    queue.backlog.clear()
    queue.backlog.upsert(naming("p-0"))
    queue.backlog.claim_changed("ns/shared")
    assert queue.read_again() == ["p-0"]


def opened(queue: Queue, node: str, *, claims: tuple[str, ...] = ()) -> Entry:
    """The first pod, released to a node or none at 100 s, and refused since."""
    entry = queue.first
    if node:
        entry.reserve(node)
    entry.open(100.0)
    entry.was_opened()
    assert entry.planned is not None
    entry.planned = replace(entry.planned, claims=claims)
    entry.pod = refused(structs.replace(entry.pod, spec=structs.replace(entry.pod.spec, scheduling_gates=None)))
    return entry


def test_a_pod_on_its_way_to_a_node_is_not_read_for_what_claims_may_be_given() -> None:
    queue = Queue(2)
    opened(queue, "n")
    assert queue.read_again(all_=True) == ["p-1"]


def test_a_pod_that_has_its_devices_is_tried_for_5_s_before_it_counts_as_refused() -> None:
    """kube-scheduler takes the devices away from one that can't use their nodes."""
    for node, claims, soon, later in (("n", (), 0, 1), ("n", ("u-shared",), 1, 1), ("", (), 0, 0)):
        queue = Queue()
        opened(queue, node, claims=claims)
        assert [len(queue.backlog.refused(now)) for now in (104.9, 105.0)] == [soon, later]


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
