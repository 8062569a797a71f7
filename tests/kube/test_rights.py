"""A missing right is logged once, and reported by name until it is granted."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import pytest

from extender.kube.rights import Grants, MissingRights, RightsRecorder, _right_to
from extender.kube.transport import ApiError, Query, Right, UnreachableError

PODS = "/api/v1/namespaces/default/pods"
STATIC_POD = "system:kube-scheduler"


def forbidden(
    verb: str, resource: str, group: str = "", namespace: str = "default", user: str = STATIC_POD
) -> ApiError:
    """As an authorizer words it."""
    where = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    words = f'User "{user}" cannot {verb} resource "{resource}" in API group "{group}" {where}'
    return ApiError(403, "Forbidden", f'{resource} "q1" is forbidden: {words}')


class Server:
    """Refuses requests by `faults`, by method."""

    def __init__(self) -> None:
        self.faults: dict[str, Exception] = {}

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    def _answer(self, method: str) -> bytes:
        if fault := self.faults.get(method):
            raise fault
        return b"{}"

    async def get(self, path: str, query: Query | None = None) -> bytes:
        return self._answer("get")

    async def post(self, path: str, body: bytes) -> bytes:
        return self._answer("post")

    async def patch(self, path: str, body: bytes) -> bytes:
        return self._answer("patch")

    async def ensure(self, path: str, body: bytes) -> bytes:
        return self._answer("ensure")

    async def watch(self, path: str, query: Query) -> AsyncIterator[list[bytes]]:
        yield [self._answer("watch")]


class Rig:
    """A transport that records missing rights, before a server."""

    def __init__(self) -> None:
        self.now = 0.0
        self.server = Server()
        self.rights = MissingRights(lambda: self.now, Grants())
        self.transport = RightsRecorder(self.server, self.rights)

    def patch(self, namespace: str = "default", error: Exception | None = None, *, part: str = "") -> None:
        """One patch of a pod, refused or not."""
        self.server.faults = {} if error is None else {"patch": error}
        run(self.transport.patch(f"/api/v1/namespaces/{namespace}/pods/q1{part}", b"{}"), error)


def run(call: Coroutine[Any, Any, Any], error: Exception | None = None) -> None:
    if error is None:
        asyncio.run(call)
        return
    with pytest.raises(type(error)):
        asyncio.run(call)


def test_a_missing_right_is_reported_until_it_is_granted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    rig = Rig()
    for namespace in ("a", "b", "b"):
        rig.patch(namespace, forbidden("patch", "pods", namespace=namespace))
    said = f"the queue may not patch pods: user {STATIC_POD} lacks that right, which manifests/queue/rbac.yaml gives"
    assert caplog.messages == [said]
    assert rig.rights.sentences() == [f"{said}, in namespace a and 1 more"]
    rig.patch("a")
    rig.patch("b", part="/status")
    assert rig.rights.sentences() == [f"{said}, in namespace b"], "a status is another right"
    rig.patch("b")
    assert (rig.rights.sentences(), len(caplog.messages)) == ([], 2)
    rig.patch(error=forbidden("patch", "pods"))
    rig.now = 599.0
    assert rig.rights.sentences()
    rig.now = 601.0
    assert rig.rights.sentences() == [], "it was not requested since"


def test_other_refusals_are_not_missing_rights() -> None:
    rig = Rig()
    for error in (
        ApiError(403, "Forbidden", 'pods "q1" is forbidden: exceeded quota: gpus'),
        ApiError(403, "Forbidden", "unable to create new content in namespace a because it is being terminated"),
        ApiError(409, "Conflict", 'User "a" cannot patch resource "pods" in API group ""'),
        UnreachableError("PATCH /x: refused"),
    ):
        rig.patch(error=error)
    assert rig.rights.sentences() == []


def test_the_rights_of_every_method_are_recorded() -> None:
    async def watched() -> None:
        async for _ in rig.transport.watch("/apis/resource.k8s.io/v1/resourceclaims", {"watch": "1"}):
            pass

    rig, leases = Rig(), "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
    rows = {
        "get": (forbidden("list", "nodes", namespace=""), rig.transport.get("/api/v1/nodes", {"limit": "500"})),
        "post": (forbidden("create", "pods/binding"), rig.transport.post(f"{PODS}/q1/binding", b"{}")),
        "ensure": (
            forbidden("patch", "leases", "coordination.k8s.io", "kube-system"),
            rig.transport.ensure(f"{leases}/kerf", b"{}"),
        ),
        "watch": (forbidden("watch", "resourceclaims", "resource.k8s.io", ""), watched()),
    }
    rig.server.faults = {method: error for method, (error, _) in rows.items()}
    for error, call in rows.values():
        run(call, error)
    assert [told.partition(":")[0].partition(" may not ")[2] for told in rig.rights.sentences()] == [
        *("list nodes", "create pods/binding"),
        *("patch leases.coordination.k8s.io", "watch resourceclaims.resource.k8s.io"),
    ]


def test_which_right_a_request_needs() -> None:
    for method, path, query, right, namespace in (
        ("GET", "/api/v1/nodes", {"limit": "500"}, Right("list", "", "nodes"), ""),
        ("GET", "/api/v1/nodes", {"watch": "1"}, Right("watch", "", "nodes"), ""),
        ("GET", f"{PODS}/q1", None, Right("get", "", "pods"), "default"),
        ("PATCH", f"{PODS}/q1/status", None, Right("patch", "", "pods/status"), "default"),
        ("POST", f"{PODS}/q1/eviction", None, Right("create", "", "pods/eviction"), "default"),
        ("PATCH", "/api/v1/nodes/n/status", None, Right("patch", "", "nodes/status"), ""),
        ("GET", "/api/v1/namespaces", {"watch": "1"}, Right("watch", "", "namespaces"), ""),
        ("GET", "/api/v1/namespaces/a", None, Right("get", "", "namespaces"), ""),
        ("APPLY", "/apis/batch/v1/namespaces/a/jobs/j", None, Right("patch", "batch", "jobs"), "a"),
        ("GET", "/apis/resource.k8s.io/v1", None, Right("list", "resource.k8s.io", ""), ""),
    ):
        assert _right_to(method, path, query) == (right, namespace)
