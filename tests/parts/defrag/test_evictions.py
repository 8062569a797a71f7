"""Evicting a pod: it takes effect once or never, by the leader who decided it, and it is said which."""

import asyncio
import logging
from typing import cast

import msgspec
import pytest

from extender.kube.client import ApiError, ClusterError, Transport, UnreachableError
from extender.kube.commit import FencedError, Resolver
from extender.parts.defrag.evictions import BudgetError, EvictionError, Evictor
from extender.parts.defrag.plan import PlannedMove
from extender.scheduling.fence import Fence
from tests.parts.defrag.rigs import MoverApi, move
from tests.queueing.direct.rigs import Sure
from tests.queueing.rigs import Manifest

MOVE = move("v", "a", "b")
NO_RIGHT = 'User "kerf" cannot patch resource "pods" in API group ""'


class Kubelet(MoverApi):
    """An API server that has one pod, and says what it was asked."""

    def __init__(self) -> None:
        super().__init__()
        metadata = {"name": "v", "namespace": "ns", "uid": "v", "resourceVersion": "7", "annotations": {}}
        self.pods["v"] = {"metadata": metadata, "spec": {"nodeName": "a"}, "status": {"phase": "Running"}}
        self.posted: list[tuple[str, Manifest]] = []
        self.refuse_read: ClusterError | None = None

    async def get(self, path: str, query: object = None) -> bytes:
        if self.refuse_read is not None:
            raise self.refuse_read
        return await super().get(path, query)

    async def post(self, path: str, body: bytes) -> bytes:
        self.posted.append((path, msgspec.json.decode(body, type=Manifest)))
        return await super().post(path, body)


class Rig:
    """Who evicts, in a term."""

    def __init__(self) -> None:
        self.now = 0.0
        self.api, self.election = Kubelet(), Sure()
        self.fence = Fence(lambda: self.now, self.election)
        self.fence.take_over("", lambda: float("inf"), lambda: "")
        self.fence.open("term")
        self.resolver = Resolver(self.fence, lambda: self.now)
        self.evictor = Evictor(cast(Transport, self.api), self.fence, self.resolver)

    def evict(self, epoch: str = "term", of: PlannedMove = MOVE) -> None:
        asyncio.run(self.evictor.evict(of, epoch))

    def seal(self, of: PlannedMove = MOVE) -> bool:
        return asyncio.run(self.evictor.seal(of))

    @property
    def version(self) -> str:
        return str(self.api.pods["v"]["metadata"]["resourceVersion"])


def test_a_pod_is_evicted_as_it_is_known() -> None:
    rig = Rig()
    rig.evict()
    assert rig.api.evicted == ["v"]
    same = {"uid": "v", "resourceVersion": "7"}
    assert rig.api.posted == [
        (
            "/api/v1/namespaces/ns/pods/v/eviction",
            {
                "apiVersion": "policy/v1",
                "kind": "Eviction",
                "metadata": {"name": "v", "namespace": "ns"},
                "deleteOptions": {"preconditions": same},
            },
        )
    ]


@pytest.mark.parametrize(
    ("error", "kind", "why"),
    [
        (ApiError(429, "TooManyRequests", "the budget says no"), BudgetError, "now: the budget says no"),
        (ApiError(403, "Forbidden", "no right"), EvictionError, None),
        (ApiError(422, "Invalid", "a webhook"), EvictionError, None),
    ],
)
def test_an_eviction_that_is_refused_says_why(error: ApiError, kind: type[EvictionError], why: str | None) -> None:
    rig = Rig()
    rig.api.refuse = lambda name: error
    with pytest.raises(EvictionError) as raised:
        rig.evict()
    assert (type(raised.value), str(raised.value)) == (
        kind,
        f"pod ns/v can't be evicted{f' {why}' if why else f': {error}'}",
    )
    assert (rig.version, len(rig.api.posted)) == ("7", 1)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ApiError(403, "Forbidden", "no right"), "can't be"),
        (ApiError(499, "", "odd"), "can't be"),
        (ApiError(500, "", "broken"), "was not"),
        (UnreachableError("cut"), "was not"),
    ],
)
def test_a_pod_that_can_not_be_looked_at_is_not_evicted(error: ClusterError, words: str) -> None:
    rig = Rig()
    rig.api.refuse_read = error
    with pytest.raises(EvictionError) as raised:
        rig.evict()
    assert str(raised.value) == f"pod ns/v {words} evicted: {error}"
    assert rig.api.posted == []


@pytest.mark.parametrize(
    ("metadata", "status", "why"),
    [
        ({}, {"phase": "Succeeded"}, "pod ns/v is gone"),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, {"phase": "Running"}, "pod ns/v is terminating already"),
        ({"uid": "another"}, {"phase": "Running"}, "pod ns/v is gone"),
    ],
)
def test_who_goes_or_is_gone_or_another_one_is_not_evicted(metadata: Manifest, status: Manifest, why: str) -> None:
    rig = Rig()
    rig.api.pods["v"]["metadata"] |= metadata
    rig.api.pods["v"]["status"] = status
    with pytest.raises(EvictionError) as raised:
        rig.evict()
    assert (str(raised.value), rig.api.posted) == (why, [])


def test_a_pod_that_has_changed_is_evicted_as_it_is_now_and_given_up_after_five_times() -> None:
    rig = Rig()

    def changes(name: str) -> ClusterError | None:
        rig.api.touch("v")
        return ApiError(409, "Conflict", "it has changed") if len(rig.api.posted) < 5 else None

    rig.api.refuse = changes
    with pytest.raises(EvictionError, match=r"^pod ns/v changes too fast to be evicted$"):
        rig.evict()
    sent = [body["deleteOptions"]["preconditions"]["resourceVersion"] for _, body in rig.api.posted]
    assert sent == ["7", "8", "9", "10", "11"]


def test_a_budget_that_changes_meanwhile_conflicts_though_the_pod_is_as_it_was() -> None:
    rig = Rig()
    rig.api.refuse = lambda name: ApiError(409, "Conflict", "budget") if len(rig.api.posted) < 5 else None
    rig.evict()
    assert rig.api.evicted == ["v"]


def test_a_pod_that_vanishes_as_it_is_evicted_is_gone() -> None:
    rig = Rig()

    def vanishes(name: str) -> ClusterError:
        rig.api.pods.clear()
        return ApiError(409, "Conflict", "it has changed")

    rig.api.refuse = vanishes
    with pytest.raises(EvictionError, match=r"^pod ns/v is gone$"):
        rig.evict()


@pytest.mark.parametrize("unsure", [True, False])
def test_nobody_is_evicted_in_another_term_or_where_somebody_else_may_lead(unsure: bool) -> None:
    rig = Rig()
    rig.election.sure = not unsure
    with pytest.raises(FencedError):
        rig.evict("term" if unsure else "term before")
    assert rig.api.posted == []


def test_an_eviction_whose_fate_nobody_knows_is_made_late_as_soon_as_that_can_be(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "extender.kube.commit")
    rig = Rig()
    rig.api.refuse = lambda name: UnreachableError("cut")
    rig.api.fail = lambda name, part: UnreachableError("cut as well")
    with pytest.raises(UnreachableError, match=r"^cut$"):
        rig.evict()
    asyncio.run(rig.resolver.resolve_round())
    assert rig.version == "7"
    assert caplog.messages == ["evicting pod ns/v: what became of it is not known yet: cut as well"]
    rig.api.fail = lambda name, part: None
    rig.now += 60.0
    asyncio.run(rig.resolver.resolve_round())
    assert rig.version == "8"
    asyncio.run(rig.resolver.resolve_round())
    assert (rig.version, rig.api.evicted) == ("8", [])  # what became of it is known


def test_an_eviction_that_was_refused_leaves_nothing_to_be_found_out() -> None:
    rig = Rig()
    rig.api.refuse = lambda name: ApiError(403, "Forbidden", "no right")
    with pytest.raises(EvictionError):
        rig.evict()
    asyncio.run(rig.resolver.resolve_round())
    assert rig.version == "7"


# What a leader before may have sent


def test_a_pod_that_is_there_still_is_changed_so_that_a_late_eviction_is_refused() -> None:
    rig = Rig()
    assert (rig.seal(), rig.version) == (False, "8")


@pytest.mark.parametrize(
    ("metadata", "gone"),
    [({"deletionTimestamp": "2026-01-01T00:00:00Z"}, False), ({"uid": "another"}, False), ({}, True)],
    ids=["it is going", "another one of its name", "gone"],
)
def test_a_pod_that_goes_or_is_gone_counts_as_evicted(metadata: Manifest, gone: bool) -> None:
    rig = Rig()
    rig.api.pods["v"]["metadata"] |= metadata
    if gone:
        rig.api.pods.clear()
    assert rig.seal()


def test_a_pod_that_can_not_be_changed_at_all_counts_as_gone() -> None:
    rig = Rig()
    rig.api.fail = lambda name, part: ApiError(422, "Invalid", "a webhook")
    assert rig.seal()


@pytest.mark.parametrize(
    "error", [ApiError(403, "Forbidden", NO_RIGHT), ApiError(500, "", "etcd"), UnreachableError("cut")]
)
def test_a_pod_that_can_not_be_changed_now_is_waited_for(error: ClusterError) -> None:
    rig = Rig()
    rig.api.fail = lambda name, part: error
    with pytest.raises(type(error)):
        rig.seal()
