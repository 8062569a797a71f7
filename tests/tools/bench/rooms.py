"""The same room asked of a service: POST /defrag on a cluster in memory, answered by the process that it starts.

What that costs beside the plan is the objects: all pods and nodes are encoded, handed on and decoded. The process'
own time is told by the system, once it has ended.
"""

import json
import resource
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from extender.kube.memory import Manifest, MemoryCluster
from extender.planning.moves.problems import Problem, RunningPod
from tests.api.services import running as kerf_on
from tests.controlplane.objects import gpu_node, pod
from tests.tools.bench import reports

_NAMESPACE = "bench"
_GANG = "gang"


def ask(problem: Problem) -> reports.Report:
    """How long a service takes for a plan for the problem's gang, and what for."""
    with kerf_on(MemoryCluster(_objects(problem))) as kerf:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu_began, began = time.process_time(), time.perf_counter()
        answer = kerf.post("/defrag", json.dumps({"for": f"{_NAMESPACE}/{_GANG}"}).encode())
        wall_s, loop_s = time.perf_counter() - began, time.process_time() - cpu_began
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if answer.status != 200:
        raise RuntimeError(f"no plan: {answer.content.decode()}")
    told = answer.json()
    child_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {
        **{"fits": told["fits"], "moves": len(told["moves"]), "wall_s": round(wall_s, 2)},
        **{"cpu_s": round(child_s, 2), "service_cpu_s": round(loop_s, 2), "peak_mib": after.ru_maxrss // 1024},
    }


def _objects(problem: Problem) -> Iterator[Manifest]:
    names, now = problem.view.cluster.node_names, time.time()
    for name in names:
        yield gpu_node(name, 8, "NVIDIA-H100-80GB-HBM3", 81_920, cpu="128")
    for one in problem.running:
        yield _running(one, names[one.row], now)
    annotations = {"kerf.dev/gang": _GANG, "kerf.dev/gang-size": str(len(problem.target.pods))}
    for planned in problem.target.pods:
        name = planned.key.partition("/")[2]
        made = pod(name, 8, _NAMESPACE, annotations, cpu="64", memory="64Gi")
        made["metadata"]["uid"] = name
        made["status"] = {"phase": "Pending"}
        yield made


def _running(one: RunningPod, node: str, now: float) -> Manifest:
    """A pod of a controller that has run for as long as its cost says."""
    name, gpus = one.key.partition("/")[2], one.pod.num_gpus
    annotations = {"kerf.dev/assigned-gpus": ",".join(map(str, one.booked.all_gpus))} if gpus else {}
    cpu, memory = f"{one.pod.cpu_milli}m", f"{one.pod.memory_mib}Mi"
    made = pod(name, int(gpus), _NAMESPACE, annotations, cpu=cpu, memory=memory, nodeName=node)
    owner = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "name": f"of-{name}",
        "uid": f"of-{name}",
        "controller": True,
    }
    made["metadata"] |= {"uid": name, "ownerReferences": [owner]}
    started = datetime.fromtimestamp(now - one.cost_gpu_s / max(gpus, 1), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    made["status"] = {"phase": "Running", "startTime": started}
    return made
