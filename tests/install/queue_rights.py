"""What needs the rights of the queue and of pipelines: `rights.FLOWS` for manifests/queue."""

import secrets
from typing import Any

from tests.controlplane import podgroups
from tests.controlplane.objects import gpu_node, pod
from tests.install.rights import Flow
from tests.install.stages import JOBS, MERGE_PATCH, Rule, Stage

GATED: dict[str, Any] = {"schedulingGates": [{"name": "kerf.dev/queue"}]}
DEFAULT = "/api/v1/namespaces/default"
PIPELINES = "/apis/kerf.dev/v1alpha1/namespaces/default/pipelines"
MLFLOWS = "/apis/kopf.dev/v1/namespaces/default/mlflows"
DONE = "2036-01-01T00:00:00Z"


async def opens_a_gate(stage: Stage) -> bool:
    """A pod in the queue is let go."""
    stage.plane.apply(gpu_node("node", gpus=1))
    stage.create(pod("queued", gpus=1, **GATED))
    async with stage.kerf(queue__enabled=True):
        return await _opened(stage, "queued")


async def follows_a_namespace_that_opts_out(stage: Stage) -> bool:
    """A pod that waits since its namespace has opted in is let go when that has opted out."""
    stage.plane.apply(gpu_node("node", gpus=1))
    _label_namespace(stage, "enabled")
    waiting = pod("waits", gpus=2, annotations={"kerf.dev/queued-by": "namespace"}, **GATED)
    stage.create(waiting)
    async with stage.kerf(queue__enabled=True) as kerf:

        async def waits() -> bool:
            return bool(_annotation(stage, "waits", "kerf.dev/skipped"))

        if not (await stage.ready(kerf) and await stage.until(waits)):
            return False
        _label_namespace(stage, None)
        return await _opened(stage, "waits")


async def asks_for_a_pod_group_of_scheduler_plugins(stage: Stage) -> bool:
    """How many pods start together says a PodGroup: one."""
    return await _gang(stage, "scheduling.x-k8s.io/v1alpha1", {"minMember": 1}, plugins=True)


async def asks_for_a_pod_group_of_kubernetes(stage: Stage) -> bool:
    """The same of Kubernetes' own."""
    policy = {"schedulingPolicy": {"gang": {"minCount": 1}}}
    return await _gang(stage, podgroups.API, policy, plugins=False)


async def _gang(stage: Stage, api: str, spec: dict[str, Any], *, plugins: bool) -> bool:
    stage.plane.apply(gpu_node("node", gpus=1))
    name = f"group-{secrets.token_hex(4)}"  # one that was deleted stays until its finalizer has gone
    path = f"/apis/{api}/namespaces/default/podgroups"
    stage.plane.request("POST", path, {"apiVersion": api, "kind": "PodGroup", "metadata": {"name": name}, "spec": spec})
    try:
        if plugins:
            stage.create(pod("member", gpus=1, labels={"scheduling.x-k8s.io/pod-group": name}, **GATED))
        else:
            stage.create(pod("member", gpus=1, schedulingGroup={"podGroupName": name}, **GATED))
        async with stage.kerf(queue__enabled=True):
            return await _opened(stage, "member")
    finally:
        stage.plane.request("DELETE", f"{path}/{name}")


async def gives_up_a_gang_that_is_not_whole(stage: Stage) -> bool:
    """What is left of it is evicted."""
    stage.plane.apply(gpu_node("node", gpus=1))
    gang = {"kerf.dev/gang": "pair", "kerf.dev/gang-size": "2"}
    stage.create(pod("left", gpus=1, annotations=gang, nodeName="node"))
    async with stage.kerf(queue__enabled=True, queue__gang_timeout_s=0.2):

        async def evicted() -> bool:
            pods = stage.plane.request("GET", f"{DEFAULT}/pods")["items"]
            return all("deletionTimestamp" in found["metadata"] for found in pods)

        return await stage.until(evicted)


async def runs_a_pipeline(stage: Stage) -> bool:
    """One that is there at the start and one that comes: Jobs are created, their end is seen, one is suspended."""
    _create_pipeline(stage, "first")
    try:
        async with _pipelines(stage) as kerf:
            if not (await stage.ready(kerf) and await _is_in(stage, "first", "Running")):
                return False
            _create_pipeline(stage, "second")
            if not await _is_in(stage, "second", "Running"):
                return False
            _succeed(stage, "first-only-step-1")
            stage.plane.request("PATCH", f"{PIPELINES}/second", {"spec": {"cancel": True}}, MERGE_PATCH)
            if not await _is_in(stage, "first", "Succeeded"):
                return False

            async def suspended() -> bool:
                return bool(stage.plane.request("GET", f"{JOBS}/second-only-step-1")["spec"].get("suspend"))

            return await stage.until(suspended)
    finally:
        _delete_pipelines(stage)


async def runs_a_flow(stage: Stage) -> bool:
    """One that is there at the start and one that comes become pipelines; that of one that goes is cancelled."""
    _create_flow(stage, "first")
    try:
        async with stage.kerf(queue__enabled=True, pipelines__enabled=True, pipelines__mlflows=True) as kerf:
            if not (await stage.ready(kerf) and await stage.until(lambda: _runs(stage, "first"))):
                return False
            _create_flow(stage, "second")
            if not await stage.until(lambda: _runs(stage, "second")):
                return False
            pipeline = stage.plane.request("GET", f"{MLFLOWS}/first")["status"]["pipeline"].partition("/")[2]
            stage.plane.request("DELETE", f"{MLFLOWS}/first")

            async def cancelled() -> bool:
                return bool(stage.plane.request("GET", f"{PIPELINES}/{pipeline}")["spec"].get("cancel"))

            return await stage.until(cancelled)
    finally:
        stage.plane.request("DELETE", MLFLOWS)
        _delete_pipelines(stage)


async def finds_its_jobs_again(stage: Stage) -> bool:
    """A Job that is there from before, and finished while nobody looked, is known."""
    _create_pipeline(stage, "again")
    try:
        async with _pipelines(stage) as kerf:
            if not (await stage.ready(kerf) and await _is_in(stage, "again", "Running")):
                return False
        _succeed(stage, "again-only-step-1")
        async with _pipelines(stage):
            return await _is_in(stage, "again", "Succeeded")
    finally:
        _delete_pipelines(stage)


async def looks_whose_a_job_is(stage: Stage) -> bool:
    """A Job that has the name of a step's already belongs to someone else, and is left alone."""
    template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "example/other"}]}}
    taken = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "taken-only-step-1"}}
    stage.plane.request("POST", JOBS, {**taken, "spec": {"template": template}})
    _create_pipeline(stage, "taken")
    try:
        async with _pipelines(stage):

            async def told() -> bool:
                return "belongs to someone else" in stage.said

            return await stage.until(told)
    finally:
        _delete_pipelines(stage)


FLOWS: dict[Rule, Flow] = {
    Rule("", "pods", "patch"): opens_a_gate,
    Rule("", "pods/eviction", "create"): gives_up_a_gang_that_is_not_whole,
    Rule("", "namespaces", "list"): follows_a_namespace_that_opts_out,
    Rule("", "namespaces", "watch"): follows_a_namespace_that_opts_out,
    Rule("scheduling.x-k8s.io", "podgroups", "get"): asks_for_a_pod_group_of_scheduler_plugins,
    Rule("scheduling.k8s.io", "podgroups", "get"): asks_for_a_pod_group_of_kubernetes,
    Rule("kerf.dev", "pipelines", "list"): finds_its_jobs_again,
    Rule("kerf.dev", "pipelines", "watch"): runs_a_pipeline,
    Rule("kerf.dev", "pipelines/status", "patch"): runs_a_pipeline,
    Rule("batch", "jobs", "create"): runs_a_pipeline,
    Rule("batch", "jobs", "watch"): runs_a_pipeline,
    Rule("batch", "jobs", "patch"): runs_a_pipeline,
    Rule("batch", "jobs", "get"): looks_whose_a_job_is,
    Rule("kopf.dev", "mlflows", "list"): runs_a_flow,
    Rule("kopf.dev", "mlflows", "watch"): runs_a_flow,
    Rule("kopf.dev", "mlflows/status", "patch"): runs_a_flow,
    Rule("kerf.dev", "pipelines", "create"): runs_a_flow,
    Rule("kerf.dev", "pipelines", "patch"): runs_a_flow,
}
"""What needs each rule of manifests/queue."""


def _pipelines(stage: Stage) -> Any:
    return stage.kerf(queue__enabled=True, pipelines__enabled=True)


async def _opened(stage: Stage, name: str) -> bool:
    async def opened() -> bool:
        return "schedulingGates" not in stage.pod(name)["spec"]

    return await stage.until(opened)


async def _is_in(stage: Stage, name: str, phase: str) -> bool:
    async def reached() -> bool:
        return bool(stage.plane.request("GET", f"{PIPELINES}/{name}").get("status", {}).get("phase") == phase)

    return await stage.until(reached)


def _annotation(stage: Stage, name: str, key: str) -> str:
    return str(stage.pod(name)["metadata"].get("annotations", {}).get(key, ""))


def _label_namespace(stage: Stage, value: str | None) -> None:
    stage.plane.request("PATCH", DEFAULT, {"metadata": {"labels": {"kerf.dev/queue": value}}}, MERGE_PATCH)


def _create_pipeline(stage: Stage, name: str) -> None:
    step = {"name": "step", "template": {"spec": {"containers": [{"name": "main", "image": "example/work"}]}}}
    spec = {"stages": [{"name": "only", "steps": [step]}]}
    made = {"apiVersion": "kerf.dev/v1alpha1", "kind": "Pipeline", "metadata": {"name": name}, "spec": spec}
    stage.plane.request("POST", PIPELINES, made)


def _succeed(stage: Stage, job: str) -> None:
    """What the Job controller reports of a Job that is done."""
    conditions = [
        {"type": kind, "status": "True", "lastTransitionTime": DONE} for kind in ("SuccessCriteriaMet", "Complete")
    ]
    status = {"startTime": DONE, "completionTime": DONE, "succeeded": 1, "conditions": conditions}
    stage.plane.request("PATCH", f"{JOBS}/{job}/status", {"status": status}, MERGE_PATCH)


def _delete_pipelines(stage: Stage) -> None:
    stage.plane.request("DELETE", PIPELINES)
    stage.plane.request("DELETE", f"{JOBS}?propagationPolicy=Background")


def _create_flow(stage: Stage, name: str) -> None:
    stages = {"stage1": {"name": "only", "step": [{"name": "step", "mlfun": "example/work"}]}}
    made = {"apiVersion": "kopf.dev/v1", "kind": "MLFlow", "metadata": {"name": name}, "spec": {"pipeline": stages}}
    stage.plane.request("POST", MLFLOWS, made)


async def _runs(stage: Stage, name: str) -> bool:
    return bool(stage.plane.request("GET", f"{MLFLOWS}/{name}").get("status", {}).get("pipeline"))
