"""Kerf in this process on a real API server, with rights of which one may be lacking."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from extender.api.app import create_app
from extender.kube.client import ApiServer
from extender.settings.load import load_settings
from tests.api.services import call
from tests.controlplane.objects import cpu_node
from tests.controlplane.plane import ControlPlane

WITHIN_S = 20.0
MERGE_PATCH = "application/merge-patch+json"
DRA = "/apis/resource.k8s.io/v1"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
CLAIMS = f"{DRA}/namespaces/default/resourceclaims"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
DRIVER = "gpu.nvidia.com"


class Rule(NamedTuple):
    """One verb on one resource, of one object where a name is given."""

    group: str
    resource: str
    verb: str
    name: str = ""

    def __str__(self) -> str:
        return " ".join(filter(None, (self.verb, f"{self.resource}.{self.group}".rstrip("."), self.name)))

    @property
    def refusal(self) -> str:
        """What the API server says to whoever lacks it."""
        return f'cannot {self.verb} resource "{self.resource}" in API group "{self.group}"'

    def manifest(self) -> dict[str, Any]:
        """The rule of a role that gives it."""
        names = {"resourceNames": [self.name]} if self.name else {}
        return {"apiGroups": [self.group], "resources": [self.resource], "verbs": [self.verb], **names}


class Kerf:
    """The service itself in this process, with the rights of its account, called as over HTTP."""

    def __init__(self, app: Any) -> None:
        self._app = app

    async def ask(self, path: str, body: object = None) -> Any:
        """GET, or POST where there is a body."""
        method, content = ("GET", b"") if body is None else ("POST", json.dumps(body).encode())
        answer = await call(self._app, method, path, (content,), {"content-length": str(len(content))})
        return answer.json() if "json" in answer.headers["content-type"] else answer.content.decode()

    async def metric(self, name: str) -> float:
        """A metric without labels."""
        lines = (await self.ask("/metrics")).splitlines()
        return next(float(line.split()[1]) for line in lines if line.startswith(f"{name} "))


class Stage(logging.Handler):
    """A control plane, and everything that Kerf has said on it."""

    def __init__(self, plane: ControlPlane) -> None:
        super().__init__()
        self.plane = plane
        self.lacking: Rule | None = None
        self._said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self._said.append(record.getMessage())

    def say(self, answer: Any) -> Any:
        """Keep what an answer says, and hand it on."""
        self._said.append(json.dumps(answer, ensure_ascii=False).replace('\\"', '"'))
        return answer

    @property
    def said(self) -> str:
        """All of it."""
        return "\n".join(self._said)

    @property
    def refused(self) -> bool:
        """Whether Kerf has told that it lacks the very right that was taken away."""
        return self.lacking is not None and self.lacking.refusal in self.said

    async def until(self, predicate: Callable[[], Awaitable[object]]) -> bool:
        """Wait for something to come true; not once Kerf has said that it may not."""
        deadline = asyncio.get_running_loop().time() + WITHIN_S
        while not await predicate():
            if self.refused:
                return False
            if asyncio.get_running_loop().time() > deadline:
                self._said.append(f"{predicate.__qualname__} is not true after {WITHIN_S:.0f} s")
                return False
            await asyncio.sleep(0.05)
        return True

    @asynccontextmanager
    async def kerf(self, **flags: Any) -> AsyncIterator[Kerf]:
        """Kerf from start to stop. Settings are given as `queue__enabled=True`."""
        self._said.clear()
        settings = load_settings(
            flags={"telemetry.source": "off"} | {k.replace("__", "."): v for k, v in flags.items()}
        )
        app = create_app(settings, ApiServer(kubeconfig=str(self.plane.kubeconfig("kerf"))))
        async with app.router.lifespan_context(app):
            yield Kerf(app)

    async def ready(self, kerf: Kerf) -> bool:
        """Wait until it is, keeping what it says meanwhile."""

        async def is_ready() -> bool:
            return bool(self.say(await kerf.ask("/readyz"))["status"] == "ok")

        return await self.until(is_ready)

    def create(self, manifest: Mapping[str, Any]) -> Any:
        """Create a pod, as a user."""
        return self.plane.request("POST", "/api/v1/namespaces/default/pods", manifest)

    def pod(self, name: str) -> Any:
        """A pod as it is."""
        return self.plane.request("GET", f"/api/v1/namespaces/default/pods/{name}")

    async def placed(self, kerf: Kerf, manifest: Mapping[str, Any], node: str, change: bool = False) -> bool:
        """Create a pod, decide and bind as kube-scheduler has it done; with a `change` of the pod in between."""
        made = self.create(manifest)
        name = made["metadata"]["name"]
        self.say(await kerf.ask("/filter", {"Pod": made, "NodeNames": [node]}))
        if change:
            path = f"/api/v1/namespaces/default/pods/{name}/status"
            self.plane.request("PATCH", path, {"metadata": {"annotations": {"seen": "yes"}}}, MERGE_PATCH)
        names = {"PodName": name, "PodNamespace": "default", "PodUID": made["metadata"]["uid"], "Node": node}
        return bool(self.say(await kerf.ask("/bind", names))["Error"] == "")

    def publish(self, node: str) -> None:
        """A node whose driver has two GPUs."""
        self.plane.apply(cpu_node(node))
        devices = [
            {
                "name": f"gpu-{minor}",
                "attributes": {"type": {"string": "gpu"}, "uuid": {"string": f"GPU-{node}-{minor}"}},
                "capacity": {"memory": {"value": "15Gi"}},
            }
            for minor in range(2)
        ]
        pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": node, "pool": pool, "devices": devices}
        head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": node}}
        self.plane.request("POST", f"{DRA}/resourceslices", {**head, "spec": spec})

    def allocate(self, node: str) -> None:
        """A claim that one of its GPUs is allocated to."""
        request = {"name": "gpu", "exactly": {"deviceClassName": DRIVER}}
        head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": node}}
        self.plane.request("POST", CLAIMS, {**head, "spec": {"devices": {"requests": [request]}}})
        given = {"request": "gpu", "driver": DRIVER, "pool": node, "device": "gpu-0"}
        status = {"status": {"allocation": {"devices": {"results": [given]}}}}
        self.plane.request("PATCH", f"{CLAIMS}/{node}/status", status, MERGE_PATCH)

    def clean(self) -> None:
        """Nothing is left of a flow."""
        request = self.plane.request
        request("DELETE", "/api/v1/namespaces/default/pods?gracePeriodSeconds=0")
        request("DELETE", "/api/v1/nodes")
        for claim in request("GET", CLAIMS)["items"]:
            request("DELETE", f"{CLAIMS}/{claim['metadata']['name']}")
        request("DELETE", f"{DRA}/resourceslices")
        request("DELETE", LEASES)
