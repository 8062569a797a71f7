"""The smallest thing that Kerf does with each of its rights, on a real API server.

FLOWS is the table from a rule, one verb on one resource, to what needs it: who adds a rule to the chart adds a line.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple

from extender.cluster.transports import ApiServer
from extender.service.app import create_app
from extender.service.settings import load_settings
from tests.controlplane.objects import cpu_node, gpu_node, pod
from tests.controlplane.plane import ControlPlane
from tests.service.services import call

WITHIN_S = 20.0
MERGE_PATCH = "application/merge-patch+json"
DRA = "/apis/resource.k8s.io/v1"
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
            if self.refused or asyncio.get_running_loop().time() > deadline:
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
        cluster = settings.cluster
        transport = ApiServer(
            kubeconfig=str(self.plane.kubeconfig("kerf")), service_account_dir=cluster.service_account_dir
        )
        app = create_app(settings, transport)
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


Flow = Callable[[Stage], Coroutine[Any, Any, bool]]


async def mirrors_nodes_and_pods(stage: Stage) -> bool:
    """A node and a pod that come while Kerf runs are known at once."""
    async with stage.kerf() as kerf:
        if not await stage.ready(kerf):
            return False
        stage.plane.apply(gpu_node("node", gpus=2))
        held = pod("holder", gpus=1, nodeName="node")

        async def free() -> float:
            return await kerf.metric("kerf_gpu_units_free")

        async def both_free() -> bool:
            return await free() == 2

        async def one_free() -> bool:
            return await free() == 1

        if not await stage.until(both_free):
            return False
        stage.create(held)
        return await stage.until(one_free)


async def mirrors_devices(stage: Stage) -> bool:
    """GPUs of DRA drivers and those allocated to claims: what there is at the start, and what comes later."""
    stage.publish("first")
    stage.allocate("first")
    async with stage.kerf() as kerf:

        async def one_free_of_each_node() -> bool:
            return await kerf.metric("kerf_gpu_units_free") == len(nodes)

        nodes = ["first"]
        if not (await stage.ready(kerf) and await stage.until(one_free_of_each_node)):
            return False
        nodes.append("second")
        stage.publish("second")
        stage.allocate("second")
        return await stage.until(one_free_of_each_node)


async def binds(stage: Stage) -> bool:
    """A pod is bound with its GPUs."""
    stage.plane.apply(gpu_node("node", gpus=1))
    async with stage.kerf() as kerf:
        return await stage.ready(kerf) and await stage.placed(kerf, pod("binds", gpus=1), "node")


async def binds_a_pod_that_has_changed(stage: Stage) -> bool:
    """A pod whose status was changed meanwhile is read again, then bound."""
    stage.plane.apply(gpu_node("node", gpus=1))
    async with stage.kerf() as kerf:
        return await stage.ready(kerf) and await stage.placed(kerf, pod("changes", gpus=1), "node", change=True)


async def records_events(stage: Stage) -> bool:
    """What was assigned is an event."""
    async with stage.kerf() as kerf:
        stage.plane.apply(gpu_node("node", gpus=1))

        async def known() -> bool:
            return await kerf.metric("kerf_nodes") == 1

        async def written() -> bool:
            events = stage.plane.request("GET", "/api/v1/namespaces/default/events")["items"]
            return any(event["involvedObject"].get("uid") == uid for event in events)

        if not (await stage.ready(kerf) and await stage.until(known)):
            return False
        if not await stage.placed(kerf, pod("told", gpus=1), "node"):
            return False
        uid = stage.pod("told")["metadata"]["uid"]
        return await stage.until(written)


async def fences_off_its_predecessor(stage: Stage) -> bool:
    """Pods that one before it may be about to bind are marked before the first decision."""
    made = stage.create(pod("waiting", gpus=1))
    async with stage.kerf() as kerf:
        if not await stage.ready(kerf):
            return False
        return bool(stage.pod("waiting")["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"])


async def locks_a_node_of_hami(stage: Stage) -> bool:
    """A pod that asks for a part of a GPU is bound under the node's lock, with HAMi's annotations."""
    gpu = {"id": "GPU-0", "index": 0, "count": 10, "devmem": 15360, "devcore": 100, "type": "NVIDIA-Tesla T4"}
    node = cpu_node("node", allocatable={"nvidia.com/gpu": "10"})
    register = json.dumps([gpu | {"numa": 0, "mode": "hami-core", "health": True}])
    node["metadata"]["annotations"] = {"hami.io/node-nvidia-register": register}
    stage.plane.apply(node)
    part = pod("part")
    part["spec"]["containers"][0]["resources"]["limits"] = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}
    async with stage.kerf() as kerf:
        if not (await stage.ready(kerf) and await stage.placed(kerf, part, "node")):
            return False
        return "hami.io/mutex.lock" in stage.plane.request("GET", "/api/v1/nodes/node")["metadata"]["annotations"]


async def finds_prometheus(stage: Stage) -> bool:
    """Services are looked through for one."""
    async with stage.kerf(telemetry__source="auto", telemetry__interval_s=0.1) as kerf:

        async def looked() -> bool:
            told = stage.say(await kerf.ask("/telemetry"))
            return bool(told["state"] == "absent" and not told["fault"])

        return await stage.until(looked)


async def leads_by_a_lease_of_its_own(stage: Stage) -> bool:
    """Creates the Lease, leads, and gives it back."""
    async with stage.kerf(leader_election__mode="own") as kerf:
        if not await stage.ready(kerf):
            return False
    return not stage.plane.request("GET", f"{LEASES}/kerf")["spec"].get("holderIdentity")


async def follows_the_lease_of_kube_scheduler(stage: Stage) -> bool:
    """Leads while its kube-scheduler renews that."""
    head = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "kube-scheduler"}}
    spec = {"holderIdentity": "host_1", "leaseDurationSeconds": 15}
    stage.plane.request("POST", LEASES, {**head, "spec": spec})
    async with stage.kerf(leader_election__mode="scheduler", leader_election__identity="host") as kerf:

        async def leads() -> bool:
            renewed = {"spec": {"renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}}
            stage.plane.request("PATCH", f"{LEASES}/kube-scheduler", renewed, MERGE_PATCH)
            return bool(stage.say(await kerf.ask("/readyz"))["status"] == "ok")

        return await stage.until(leads)


_DEVICES, _LEASES = "resource.k8s.io", "coordination.k8s.io"

FLOWS: dict[Rule, Flow] = {
    Rule("", "nodes", "list"): mirrors_nodes_and_pods,
    Rule("", "nodes", "watch"): mirrors_nodes_and_pods,
    Rule("", "nodes", "get"): locks_a_node_of_hami,
    Rule("", "nodes/status", "patch"): locks_a_node_of_hami,
    Rule("", "pods", "list"): mirrors_nodes_and_pods,
    Rule("", "pods", "watch"): mirrors_nodes_and_pods,
    Rule("", "pods", "get"): binds_a_pod_that_has_changed,
    Rule("", "pods/binding", "create"): binds,
    Rule("", "pods/status", "patch"): fences_off_its_predecessor,
    Rule("", "events", "create"): records_events,
    Rule("", "services", "list"): finds_prometheus,
    Rule(_DEVICES, "resourceslices", "list"): mirrors_devices,
    Rule(_DEVICES, "resourceslices", "watch"): mirrors_devices,
    Rule(_DEVICES, "resourceclaims", "list"): mirrors_devices,
    Rule(_DEVICES, "resourceclaims", "watch"): mirrors_devices,
    Rule(_LEASES, "leases", "create"): leads_by_a_lease_of_its_own,
    Rule(_LEASES, "leases", "get", "kerf"): leads_by_a_lease_of_its_own,
    Rule(_LEASES, "leases", "patch", "kerf"): leads_by_a_lease_of_its_own,
    Rule(_LEASES, "leases", "get", "kube-scheduler"): follows_the_lease_of_kube_scheduler,
}
"""What needs each rule of manifests/rbac.yaml."""
