"""Evicting a pod: only by the leader that decided it, with a known outcome, or sealed against late effects."""

import asyncio
from collections.abc import Callable
from typing import cast

import msgspec
import pytest

from extender.kube.client import ApiError, ClusterError, Transport, UnreachableError
from extender.kube.commit import Resolver
from extender.parts.defrag.evictions import BudgetError, EvictionError, Evictor
from extender.scheduling.fence import Fence
from tests.parts.defrag.rigs import MoverApi, move
from tests.queueing.direct.rigs import Sure
from tests.queueing.rigs import Manifest

MOVE = move("v", "a", "b")
NO_RIGHT = 'User "kerf" cannot patch resource "pods" in API group ""'


class Kubelet(MoverApi):
    """An API server with one pod, which records evictions."""

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
    """An evictor in a term."""

    def __init__(self) -> None:
        self.now = 0.0
        self.api = Kubelet()
        fence = Fence(lambda: self.now, Sure())
        fence.take_over("", lambda: float("inf"), lambda: "")
        fence.open("term")
        self.resolver = Resolver(fence, lambda: self.now)
        self.evictor = Evictor(cast(Transport, self.api), fence, self.resolver)

    def evict(self) -> None:
        asyncio.run(self.evictor.evict(MOVE, "term"))

    def seal(self) -> bool:
        return asyncio.run(self.evictor.seal(MOVE))

    @property
    def version(self) -> str:
        return str(self.api.pods["v"]["metadata"]["resourceVersion"])


def fails(error: ClusterError) -> Callable[..., ClusterError]:
    return lambda *_: error


def why_not(rig: Rig, kind: type[Exception] = EvictionError) -> str:
    """Why the pod is not evicted."""
    with pytest.raises(kind) as raised:
        rig.evict()
    assert type(raised.value) is kind
    return str(raised.value)


def test_an_eviction_has_the_pods_uid_and_version_as_preconditions() -> None:
    rig = Rig()
    rig.evict()
    assert rig.api.evicted == ["v"]
    body = {
        **{"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "v", "namespace": "ns"}},
        "deleteOptions": {"preconditions": {"uid": "v", "resourceVersion": "7"}},
    }
    assert rig.api.posted == [("/api/v1/namespaces/ns/pods/v/eviction", body)]


def test_a_refused_eviction_is_not_retried_and_the_pod_not_sealed() -> None:
    for error, budget, why in (
        (ApiError(429, "TooManyRequests", "the budget says no"), True, " now: the budget says no"),
        (ApiError(403, "Forbidden", "no right"), False, ": 403 Forbidden: no right"),
        (ApiError(404, "NotFound", "v"), False, ": 404 NotFound: v"),
    ):
        rig = Rig()
        rig.api.refuse = fails(error)
        assert why_not(rig, BudgetError if budget else EvictionError) == f"pod ns/v can't be evicted{why}"
        asyncio.run(rig.resolver.resolve_round())
        assert (rig.version, len(rig.api.posted)) == ("7", 1)


def test_a_pod_that_can_t_be_read_or_has_ended_is_not_evicted() -> None:
    deleted = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
    for error, metadata, phase, why in (
        (ApiError(499, "", "odd"), {}, "Running", "can't be evicted: 499: odd"),
        (ApiError(500, "", "broken"), {}, "Running", "was not evicted: 500: broken"),
        (UnreachableError("cut"), {}, "Running", "was not evicted: cut"),
        (None, {}, "Succeeded", "is gone"),
        (None, deleted, "Running", "is terminating already"),
        (None, {"uid": "another"}, "Running", "is gone"),
    ):
        rig = Rig()
        rig.api.refuse_read = error
        rig.api.pods["v"]["metadata"] |= metadata
        rig.api.pods["v"]["status"]["phase"] = phase
        assert (why_not(rig), rig.api.posted) == (f"pod ns/v {why}", [])


def test_a_changed_pod_is_evicted_at_its_new_version_with_up_to_five_tries() -> None:
    rig = Rig()

    def changes(name: str) -> ClusterError | None:
        rig.api.touch("v")
        return ApiError(409, "Conflict", "it has changed") if len(rig.api.posted) < 5 else None

    rig.api.refuse = changes
    assert why_not(rig) == "pod ns/v changes too fast to be evicted"
    sent = [body["deleteOptions"]["preconditions"]["resourceVersion"] for _, body in rig.api.posted]
    assert sent == ["7", "8", "9", "10", "11"]


def test_a_conflict_of_an_unchanged_pod_is_retried() -> None:
    """A conflict of its budget."""
    rig = Rig()
    rig.api.refuse = lambda name: ApiError(409, "Conflict", "budget") if len(rig.api.posted) < 5 else None
    rig.evict()
    assert rig.api.evicted == ["v"]


def test_after_an_eviction_without_an_answer_the_sealed_pod_shows_the_outcome() -> None:
    rig = Rig()
    rig.api.refuse = lambda name: UnreachableError("cut")
    assert why_not(rig) == "pod ns/v was not evicted: cut"
    assert rig.version == "8"
    rig = Rig()
    rig.api.lost = True
    rig.evict()
    assert rig.api.evicted == ["v"]


def test_a_seal_changes_a_running_pod_and_takes_one_that_ends_or_is_gone_as_evicted() -> None:
    rig = Rig()
    assert (rig.seal(), rig.version) == (False, "8")
    for metadata in ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, {"uid": "another"}, None):
        rig = Rig()
        if metadata is None:
            rig.api.pods.clear()
        else:
            rig.api.pods["v"]["metadata"] |= metadata
        assert rig.seal()


def test_a_pod_that_refuses_the_seal_counts_as_gone_but_other_errors_are_raised() -> None:
    rig = Rig()
    rig.api.fail = lambda name, part: ApiError(422, "Invalid", "a webhook")
    assert rig.seal()
    for error in (ApiError(403, "Forbidden", NO_RIGHT), ApiError(500, "", "etcd"), UnreachableError("cut")):
        rig = Rig()
        rig.api.fail = fails(error)
        with pytest.raises(type(error)):
            rig.seal()
