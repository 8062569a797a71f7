"""What commits require of any API server: it refuses writes to an older version."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from extender.kube.client import ApiError, Transport
from extender.kube.memory import Manifest, MemoryCluster
from tests.dra.claim_api import ClaimApi
from tests.ledger.builders import node_manifest, pod_manifest

CONFLICT = 409


class Server(MemoryCluster):
    """A pod to be bound or evicted, a claim to be allocated, and the holder of the lease."""

    def __init__(self) -> None:
        super().__init__([node_manifest("n", 2), node_manifest("m", 2), pod_manifest("p", 1)])
        self.claims = ClaimApi()
        self.claims.add("a")
        self.leader = "a"
        self.keep_config_map("default", "plan")

    async def get(self, path: str, query: Any = None) -> bytes:
        return await (self.claims.get(path, query) if "resourceclaims" in path else super().get(path, query))

    async def patch(self, path: str, body: bytes) -> bytes:
        return await (self.claims.patch(path, body) if "resourceclaims" in path else super().patch(path, body))

    async def post(self, path: str, body: bytes) -> bytes:
        if not path.endswith("/eviction"):
            return await super().post(path, body)
        found = self.pod("default", "p")
        asked = msgspec.json.decode(body, type=Manifest)["deleteOptions"]["preconditions"]
        if any(found["metadata"][key] != value for key, value in asked.items()):
            raise ApiError(409, "Conflict", "the precondition failed")
        self.delete(found)
        return b"{}"

    async def lead(self, name: str) -> bytes:
        """The lease is taken."""
        self.leader = name
        return b""

    async def asked_who_leads(self) -> bytes:
        return self.leader.encode()


class Stand:
    """A pod `p` without a node, a ConfigMap `plan` and a ResourceClaim `a` in one namespace, by name; node `n`."""

    def __init__(self, transport: Transport, namespace: str) -> None:
        self.transport = transport
        self.pod = f"/api/v1/namespaces/{namespace}/pods/p"
        self.plan = f"/api/v1/namespaces/{namespace}/configmaps/plan"
        self.claim = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/a"
        self.namespace = namespace

    async def get(self, path: str) -> Manifest:
        return msgspec.json.decode(await self.transport.get(path), type=Manifest)

    async def metadata(self, path: str) -> Manifest:
        """The preconditions of a write: an object's UID and version."""
        found = (await self.get(path))["metadata"]
        return {"uid": found["uid"], "resourceVersion": found["resourceVersion"]}

    async def patch(self, path: str, body: Manifest) -> Manifest:
        return msgspec.json.decode(await self.transport.patch(path, msgspec.json.encode(body)), type=Manifest)

    async def seal(self) -> None:
        """Change the pod, so that earlier writes to it fail."""
        uid = (await self.metadata(self.pod))["uid"]
        await self.patch(f"{self.pod}/status", {"metadata": {"uid": uid, "annotations": {"kerf.dev/sealed": "1"}}})

    async def bind(self, **known: str) -> None:
        metadata = {"name": "p", "namespace": self.namespace, "annotations": {"kerf.dev/node": "n"}, **known}
        target = {"apiVersion": "v1", "kind": "Node", "name": "n"}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        await self.transport.post(f"{self.pod}/binding", msgspec.json.encode(body))

    async def evict(self, **known: str) -> None:
        metadata = {"name": "p", "namespace": self.namespace}
        options = {"preconditions": known}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options}
        await self.transport.post(f"{self.pod}/eviction", msgspec.json.encode(body))


async def refused(write: Awaitable[object]) -> None:
    with pytest.raises(ApiError) as raised:
        await write
    assert raised.value.status == CONFLICT


async def a_binding_on_an_older_version_or_of_another_pod(stand: Stand) -> None:
    known = await stand.metadata(stand.pod)
    await refused(stand.bind(**{**known, "uid": "another"}))
    await stand.seal()
    await refused(stand.bind(**known))
    assert not (await stand.get(stand.pod))["spec"].get("nodeName")


async def a_binding_that_is_repeated(stand: Stand) -> None:
    known = await stand.metadata(stand.pod)
    await stand.bind(**known)
    found = await stand.get(stand.pod)
    assert (found["spec"]["nodeName"], found["metadata"]["annotations"]["kerf.dev/node"]) == ("n", "n")
    await refused(stand.bind(**known))


async def a_pod_that_is_changed_and_answers_with_its_version(stand: Stand) -> None:
    known = await stand.metadata(stand.pod)
    await stand.seal()
    assert (await stand.metadata(stand.pod))["resourceVersion"] != known["resourceVersion"]
    await refused(stand.patch(f"{stand.pod}/status", {"metadata": {**known, "annotations": {"a": "b"}}}))


async def an_eviction_on_an_older_version(stand: Stand) -> None:
    known = await stand.metadata(stand.pod)
    await stand.seal()
    await refused(stand.evict(**known))
    await stand.evict(**await stand.metadata(stand.pod))
    with pytest.raises(ApiError) as raised:
        await stand.get(stand.pod)
    assert raised.value.status == 404


async def a_record_on_an_older_version(stand: Stand) -> None:
    version = (await stand.get(stand.plan))["metadata"]["resourceVersion"]
    body = {"metadata": {"resourceVersion": version}, "data": {"plan.json": "{}"}}
    assert (await stand.patch(stand.plan, body))["data"] == {"plan.json": "{}"}
    await refused(stand.patch(stand.plan, body))


async def a_claim_on_an_older_version(stand: Stand) -> None:
    known = await stand.metadata(stand.claim)
    await stand.patch(stand.claim, {"metadata": {**known, "annotations": {"kerf.dev/touched": "1"}}})
    reserved = {"reservedFor": [{"resource": "pods", "name": "p", "uid": (await stand.metadata(stand.pod))["uid"]}]}
    await refused(stand.patch(f"{stand.claim}/status", {"metadata": known, "status": reserved}))


CONTRACT: list[Callable[[Stand], Awaitable[None]]] = [
    a_binding_on_an_older_version_or_of_another_pod,
    a_binding_that_is_repeated,
    a_pod_that_is_changed_and_answers_with_its_version,
    an_eviction_on_an_older_version,
    a_record_on_an_older_version,
    a_claim_on_an_older_version,
]


def hold(
    transport: Transport, namespace: str, rule: Callable[[Stand], Awaitable[None]], *, closing_s: float = 0.0
) -> None:
    """Check one rule of an API server."""

    async def run() -> None:
        await transport.start()
        try:
            await rule(Stand(transport, namespace))
        finally:
            await transport.close()
            await asyncio.sleep(closing_s)

    asyncio.run(run())
