"""The smallest thing that Kerf does with each of its rights, on a real API server.

FLOWS is the table from a rule, one verb on one resource, to what needs it: who adds a rule to the chart adds a line.
"""

import json
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any

from tests.controlplane.objects import cpu_node, gpu_node, pod
from tests.install.stages import JOBS, LEASES, MERGE_PATCH, Rule, Stage

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


async def makes_room_within_budgets(stage: Stage) -> bool:
    """How room could be made is told where it is known what disruption budgets allow."""
    stage.plane.apply(gpu_node("node", gpus=1))
    async with stage.kerf() as kerf:

        async def told() -> bool:
            return bool(stage.say(await kerf.ask("/defrag", {"gpus": 1})).get("fits"))

        return await stage.ready(kerf) and await stage.until(told)


async def moves_pods_of_jobs(stage: Stage) -> bool:
    """A pod of a Job may be moved where the Job is known to outlive that."""
    stage.plane.apply(gpu_node("from", gpus=1), gpu_node("to", gpus=1))
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "example/work"}]}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "works"}, "spec": {"template": template}}
    made = stage.plane.request("POST", JOBS, job)
    try:
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "works", "uid": made["metadata"]["uid"]}
        held = pod("of-a-job", gpus=1, nodeName="from")
        held["metadata"]["ownerReferences"] = [owner | {"controller": True}]
        stage.create(held)
        path = "/api/v1/namespaces/default/pods/of-a-job/status"
        stage.plane.request("PATCH", path, {"status": {"phase": "Running"}}, MERGE_PATCH)
        async with stage.kerf() as kerf:

            async def told() -> bool:
                return bool(stage.say(await kerf.ask("/defrag", {"empty": ["from"]})).get("moves"))

            return await stage.ready(kerf) and await stage.until(told)
    finally:
        stage.plane.request("DELETE", f"{JOBS}/works?propagationPolicy=Background")


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
    Rule("policy", "poddisruptionbudgets", "list"): makes_room_within_budgets,
    Rule("batch", "jobs", "list"): moves_pods_of_jobs,
    Rule(_LEASES, "leases", "create"): leads_by_a_lease_of_its_own,
    Rule(_LEASES, "leases", "get", "kerf"): leads_by_a_lease_of_its_own,
    Rule(_LEASES, "leases", "patch", "kerf"): leads_by_a_lease_of_its_own,
    Rule(_LEASES, "leases", "get", "kube-scheduler"): follows_the_lease_of_kube_scheduler,
}
"""What needs each rule of manifests/rbac.yaml."""
