"""An example of each body in the OpenAPI description; tests hold each to its schema."""

from typing import Any, Final

from extender.core.vendors.registry import DEFAULT

_POD: Final[dict[str, Any]] = {
    "metadata": {"name": "train-1", "namespace": "research", "uid": "5f6c2f5e-6f0c-4e37-8c0e-1f6f3f3c9d11"},
    "spec": {"containers": [{"name": "main", "resources": {"limits": {DEFAULT.resource: "2"}}}]},
}
_JOB: Final = {
    **{"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "namespace": "research"}},
    "spec": {"parallelism": 2, "completions": 2, "template": {"spec": _POD["spec"]}},
}
_UID: Final = _POD["metadata"]["uid"]
_CANDIDATES: Final = {"Pod": _POD, "NodeNames": ["a100-0", "t4-1"]}
_FILTERED: Final = {
    "Nodes": None,
    "NodeNames": ["a100-0"],
    "FailedNodes": {"t4-1": "needs 2 GPUs, best here: 1 free"},
    "FailedAndUnresolvableNodes": {},
    "Error": "",
}
_SCORES: Final = [{"Host": "a100-0", "Score": 10}, {"Host": "t4-1", "Score": 0}]
_REVIEW: Final = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "request": {"uid": "0d8ab0d8", "operation": "CREATE", "kind": {"group": "", "kind": "Pod"}, "object": _POD},
}
_ALLOWED: Final = {
    "apiVersion": "admission.k8s.io/v1",
    "kind": "AdmissionReview",
    "response": {"uid": "0d8ab0d8", "allowed": True},
}

ASKED: Final[dict[str, Any]] = {
    "/filter": _CANDIDATES,
    "/prioritize": _CANDIDATES,
    "/others/filter": _CANDIDATES,
    "/others/prioritize": _CANDIDATES,
    "/preempt": {
        "Pod": _POD,
        "NodeNameToMetaVictims": {"a100-0": {"Pods": [{"UID": "77c1"}], "NumPDBViolations": 0}},
    },
    "/bind": {"PodName": "train-1", "PodNamespace": "research", "PodUID": _UID, "Node": "a100-0"},
    "/mutate": _REVIEW,
    "/gate": _REVIEW,
    "/what-if": {"objects": [_JOB], "drain": ["t4-1"]},
    "/defrag": {"for": "research/train-1", "maxMoves": 10},
    "/defrag/apply": {"id": "3f9a"},
    "/defrag/stop": {"why": "maintenance begins"},
}
"""Of each POST, what it takes."""

_NODE: Final = {
    **{"node": "a100-0", "unit": "WHOLE", "models": ["a100-sxm4-80gb"], "gpus": 8, "gpusBooked": 4.0, "units": 8},
    **{"unitsFree": 4, "fragments": 4, "gpusStranded": 0.7, "unhealthy": 0, "memoryMiB": 655360},
    **{
        "memoryFreeMiB": 327680,
        "load": 0.3626,
        "pods": 3,
        "reservations": 0,
        "gpusReserved": 0.0,
        "devices": None,
        "setAside": None,
    },
}
_HOURS: Final = {"bookedGpuHours": 80.0, "usedGpuHours": 60.0, "idleGpuHours": 12.5, "measuredGpuHours": 78.0}

_STATES: Final = {"running": 1, "starting": 0, "ending": 0, "held": 0, "placing": 0, "pending": 0, "gated": 0}
_WORKLOADS: Final = {
    "by": "pod",
    "pods": [
        {
            **{"pod": "research/train-1-x7z9k", "namespace": "research", "owner": "Job/train-1", "gang": None},
            **{"state": "running", "node": "a100-0", "model": "a100-sxm4-80gb", "gpus": 2.0, "indices": [0, 1]},
            **{"memoryMiB": 163840, "request": None, "load": 0.012, "idleSeconds": 5400.0, "priority": 0},
            **{"since": 1795707645.0, "explain": "kerf explain research/train-1-x7z9k"},
        }
    ],
    **{"groups": [], "total": 1, "more": 0, "atLeast": False, "idleAfterSeconds": 1800.0, "found": None},
    "totals": {
        **{"pods": 1, "states": _STATES, "gpusBooked": 2.0, "gpusAsked": 0.0, "load": 0.012},
        **{"idlePods": 1, "idleGpus": 2.0},
    },
    "states": _STATES | {"idle": 1},
}

_EXPLANATION: Final = {
    **{"pod": "research/train-1", "uid": _UID, "decidedAt": "2026-11-26T15:40:45+00:00", "policy": "tightest"},
    **{"request": "8 GPUs", "required": {"count": 8, "unit": "GPU"}, "verdict": "rejected", "node": None, "gpus": []},
    **{"reasons": {"needs 8 GPUs, best here: 4 free": 1}, "lacks": None, "nodes": [], "offered": True, "queue": None},
    "now": {"nodesThatFit": 0, "bestNode": None, "held": None, "changed": [], "numChanged": 0, "gone": []},
    "wouldFit": [{"change": "count", "text": "4 GPUs instead of 8", "nodes": ["a100-0"], "numNodes": 1}],
    "sentence": "needs 8 GPUs; a100-0 has 4 free, research/job-1 and research/job-2 hold 4",
    "remedies": [
        {"kind": "wait", "text": "wait for research/job-1 and research/job-2 on a100-0 to end", "command": None}
    ],
    **{"ahead": None, "scoreTerms": {}},
}

OF_READS: Final[dict[str, Any]] = {
    "/healthz": {"status": "ok"},
    "/readyz": {"status": "ok", "degraded": ["telemetry: no answer for 90 s"]},
    "/syncz": {"status": "ok"},
    "/version": {"version": "0.1.0", "mode": "decisive", "policy": "tightest"},
    "/telemetry": {"state": "ok", "fault": "", "ageSeconds": 4.2, "hosts": 38, "gpus": 176, "gpusMatched": 176},
    "/model": {
        **{"mode": "off", "path": None, "served": "tightest", "reason": "no model is loaded", "fault": None},
        **{"auto": "tightest", "evidence": None, "learning": None, "model": None},
        "weights": {"value": 1.0, "live": 2.0},
        "looks": {"number": 0, "ageSeconds": None},
        "prices": {"of": "plain", "fault": None, "workedOut": 0, "seconds": 0.0, "ageSeconds": None},
        "mix": {"pods": 71.1, "seen": 62, "drift": 1.0},
    },
    "/explain/pod/{namespace}/{name}": _EXPLANATION,
    "/pending": {
        "pods": [
            {
                **{"pod": "research/train-2", "request": "8 GPUs of model h100", "where": "kerf", "priority": 0},
                **{"why": "3 x needs 8 GPUs of model h100, best here: 6 free", "gang": None, "since": 1795707645.4},
                "nearest": "needs 8 GPUs of model h100; h100-1 has 6 free",
                "explain": "kerf explain research/train-2",
                "sentence": "needs 8 GPUs of model h100; h100-1 has 6 free, research/job-3 holds 2",
                "remedy": {"kind": "wait", "text": "wait for research/job-3 on h100-1 to end", "command": None},
                "movesHelp": False,
            }
        ],
        **{"total": 1, "more": 0, "atLeast": False},
    },
    "/workloads": _WORKLOADS,
    "/defrag": {
        **{"id": "", "target": "", "phase": "none", "step": -1, "num_steps": 0, "moves": [], "kept": [], "why": ""},
        **{"begun": 0.0, "ended": 0.0, "evicted": 0, "fault": "", "policy": None, "culprit": ""},
    },
    "/nodes": {
        "version": 261,
        "totals": {
            **{"nodes": 38, "gpuNodes": 34, "gpus": 176, "gpusBooked": 84.0, "units": 188, "unitsFree": 104},
            **{"fragments": 48, "gpusStranded": 5.0, "strandedPart": 0.0284, "unhealthy": 0, "load": 0.27},
            **{"nodesSetAside": 0, "nodesFailing": 0},
            **{"reservations": 0, "gpusReserved": 0.0, "bindings": 0, "waitingPods": 1, "pendingPods": 4},
        },
        "items": [_NODE],
        "next": "a100-0",
    },
    "/nodes/{node}": _NODE | {"gpuDetails": [{"index": 0, "free": True}], "deviceUses": [], "holders": []},
    "/usage": {
        **{"source": "prometheus", "since": 1795102845.0, "until": 1795707645.0, "by": "namespace"},
        "rows": [{"namespace": "research", **_HOURS}],
        "totals": _HOURS
        | {"capacityGpuHours": 168.0, "freeGpuHours": 80.0, "strandedGpuHours": 8.0, "sickGpuHours": 0.0},
        "budgets": {"research": {"gpuHours": 500.0, "spentGpuHours": 80.0}},
        "idle": {"afterSeconds": 1800.0, "pods": 0, "gpus": 0, "items": []},
        "note": None,
    },
    "/usage/over-time": {
        **{"source": "kerf", "since": 1795704000.0, "until": 1795707645.0, "stepSeconds": 3600},
        **{"knownSince": 1795102845.0, "namespaces": ["research", "(other)"], "note": None},
        "steps": [
            {"at": 1795704000, "seconds": 3600.0, "bookedByNamespace": [64.0, 16.0]}
            | _HOURS
            | {"capacityGpuHours": 168.0, "freeGpuHours": 80.0, "strandedGpuHours": 8.0, "sickGpuHours": 0.0}
        ],
    },
    "/metrics": 'kerf_cluster_nodes{kind="gpu"} 34.0\n',
    "/live": 'event: tick\ndata: {"waiting": {"total": 1}}\n\n',
}
"""Of each GET, what it answers."""

ANSWERED: Final[dict[str, Any]] = {
    "/filter": _FILTERED,
    "/prioritize": _SCORES,
    "/others/filter": _FILTERED,
    "/others/prioritize": _SCORES,
    "/preempt": {"NodeNameToMetaVictims": {"a100-0": {"Pods": [{"UID": "77c1"}], "NumPDBViolations": 0}}},
    "/bind": {"Error": ""},
    "/mutate": _ALLOWED,
    "/gate": _ALLOWED,
    "/what-if": {
        **{"planner": "greedy", "version": 261, "pods": 2, "placed": 1, "gpus": 2, "fragments": 0.2, "moved": []},
        **{"fragmentsBefore": 0.25, "stranded": 0.0312, "strandedBefore": 0.0284, "nodes": [], "gained": []},
        **{"unreadable": 0, "skipped": [], "notChecked": {}, "noMoveHelps": []},
        "reasons": {"needs 2 GPUs, best node: 1 free": 1},
        "unassigned": [{"pod": "research/train-1", "reason": "needs 2 GPUs, best node: 1 free"}],
        "assignments": [{"pod": "research/train-0", "node": "a100-0", "gpus": [0, 1]}],
        "objects": [
            {
                **{"object": "Job research/train", "place": "objects[0]", "pods": 2, "placed": 1, "notes": []},
                "nodes": [{"node": "a100-0", "pods": ["research/train-0"]}],
                "reasons": {"needs 2 GPUs, best node: 1 free": 1},
            }
        ],
    },
    "/defrag": {
        **{"fits": False, "moves": [], "cost_gpu_s": 0.0, "target": [], "emptied": [], "impossible": ["no moves help"]},
        **{"priority": 0, "gpus": 0.0, "left": [], "open": [], "on_sick": [], "id": ""},
        "before": {"freeNodes": 1, "usableGpus": 8},
        "after": {"freeNodes": 1, "usableGpus": 8},
    },
    "/defrag/apply": {"id": "3f9a"},
    "/defrag/stop": {"stopped": True},
}
"""Of each POST, what it answers."""
