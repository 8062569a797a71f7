"""Rights that Kerf lacks are told once, by name, until they are there."""

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any

import pytest

from extender.kube.rights import Given, MissingRights, NotingRights, _right_to
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
    """Refuses what it is told to."""

    def __init__(self) -> None:
        self.faults: dict[str, Exception] = {}

    async def start(self) -> None:
        """Nothing to prepare."""

    async def close(self) -> None:
        """Nothing to let go of."""

    def _answer(self, verb: str) -> bytes:
        if fault := self.faults.get(verb):
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
        self._answer("watch")
        yield [b"{}"]


class Rig:
    """A transport that has rights noted, before a server."""

    def __init__(self) -> None:
        self.now = 0.0
        self.server = Server()
        self.rights = MissingRights(lambda: self.now, Given())
        self.transport = NotingRights(self.server, self.rights)

    def patch(self, path: str = f"{PODS}/q1", error: Exception | None = None) -> None:
        """One patch, refused or not."""
        self.server.faults = {} if error is None else {"patch": error}
        run(self.transport.patch(path, b"{}"), error)


def run(call: Coroutine[Any, Any, Any], error: Exception | None = None) -> None:
    if error is None:
        asyncio.run(call)
        return
    with pytest.raises(type(error)):
        asyncio.run(call)


def test_a_missing_right_is_named_with_user_and_manifest_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    with caplog.at_level(logging.INFO):
        for number in range(20):
            rig.patch(f"{PODS}/q{number}", forbidden("patch", "pods"))
    whose = f"user {STATIC_POD} lacks that right, which manifests/queue/rbac.yaml gives"
    said = f"the queue may not patch pods: {whose}"
    assert [record.getMessage() for record in caplog.records] == [said]
    assert rig.rights.told() == [f"{said}, in namespace default"]


def test_it_is_over_when_the_right_is_there(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    rig.patch(error=forbidden("patch", "pods"))
    rig.patch(f"{PODS}/q1/status")
    assert rig.rights.told(), "another right"
    with caplog.at_level(logging.INFO):
        rig.patch(f"{PODS}/q2")
    assert rig.rights.told() == []
    assert caplog.messages[-1] == "the queue may not patch pods: granted now"


def test_each_namespace_counts(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    for namespace in ("a", "b"):
        rig.patch(f"/api/v1/namespaces/{namespace}/pods/p", forbidden("patch", "pods", namespace=namespace))
    assert rig.rights.told()[0].endswith(", in namespace a and 1 more")
    rig.patch("/api/v1/namespaces/a/pods/p")
    assert rig.rights.told()[0].endswith(", in namespace b")
    assert len(caplog.records) == 1


def test_what_nobody_asked_for_any_more_is_forgotten() -> None:
    rig = Rig()
    rig.patch(error=forbidden("patch", "pods"))
    rig.now = 599.0
    assert rig.rights.told()
    rig.now = 601.0
    assert rig.rights.told() == []


@pytest.mark.parametrize(
    "error",
    [
        ApiError(403, "Forbidden", 'pods "q1" is forbidden: exceeded quota: gpus'),
        ApiError(403, "Forbidden", "unable to create new content in namespace a because it is being terminated"),
        ApiError(409, "Conflict", 'User "a" cannot patch resource "pods" in API group ""'),
        UnreachableError("PATCH /x: refused"),
    ],
)
def test_other_refusals_are_no_missing_rights(error: Exception) -> None:
    rig = Rig()
    rig.patch(error=error)
    assert rig.rights.told() == []


def test_every_verb_is_noted() -> None:
    rig = Rig()
    claims = "/apis/resource.k8s.io/v1/resourceclaims"
    lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
    refused = {
        "get": (forbidden("list", "nodes", namespace=""), rig.transport.get("/api/v1/nodes", {"limit": "500"})),
        "post": (forbidden("create", "pods/binding"), rig.transport.post(f"{PODS}/q1/binding", b"{}")),
        "ensure": (
            forbidden("patch", "leases", "coordination.k8s.io", "kube-system"),
            rig.transport.ensure(f"{lease}/kerf", b"{}"),
        ),
        "watch": (forbidden("watch", "resourceclaims", "resource.k8s.io", ""), watched(rig.transport, claims)),
    }
    rig.server.faults = {verb: error for verb, (error, _) in refused.items()}
    for error, call in refused.values():
        run(call, error)
    assert [told.partition(":")[0] for told in rig.rights.told()] == [
        *("Kerf may not list nodes", "Kerf may not create pods/binding"),
        *("Kerf may not patch leases.coordination.k8s.io", "Kerf may not watch resourceclaims.resource.k8s.io"),
    ]


async def watched(transport: NotingRights, path: str) -> None:
    async for _ in transport.watch(path, {"watch": "1"}):
        pass


@pytest.mark.parametrize(
    ("method", "path", "query", "right", "namespace"),
    [
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
    ],
)
def test_which_right_a_request_takes(
    method: str, path: str, query: Mapping[str, str] | None, right: Right, namespace: str
) -> None:
    assert _right_to(method, path, query) == (right, namespace)
