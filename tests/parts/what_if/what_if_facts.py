"""Clusters that what-if questions are asked about, as they reach the process that answers."""

import asyncio
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from extender.core.policies.registry import POLICIES
from extender.ledger.bound_pods import BoundPodIndex
from extender.ledger.ledger import Ledger
from extender.parts.what_if.inputs import WhatIfInputs
from extender.parts.what_if.process import _answer
from extender.parts.what_if.questions import read_question
from extender.parts.what_if.waiting import PendingState
from extender.queueing.pods.objects import decode_node, decode_pod

Manifest = dict[str, Any]
H100 = "NVIDIA-H100-80GB-HBM3"
A100 = "NVIDIA-A100-SXM4-40GB"


def node(name: str, gpus: int, product: str = A100, memory: str = "256Gi", **labels: str) -> Manifest:
    found = {"kubernetes.io/hostname": name, "nvidia.com/gpu.product": product, "nvidia.com/gpu.count": str(gpus)}
    allocatable = {"cpu": "64", "memory": memory, "pods": "110", "nvidia.com/gpu": str(gpus)}
    if not gpus:
        del allocatable["nvidia.com/gpu"], found["nvidia.com/gpu.product"], found["nvidia.com/gpu.count"]
    return {
        "metadata": {"name": name, "uid": name, "labels": found | {k.replace("_", "/"): v for k, v in labels.items()}},
        "spec": {},
        "status": {"allocatable": allocatable, "capacity": allocatable},
    }


def pod(name: str, gpus: int = 0, *, on: str = "", spec: Manifest | None = None, **annotations: str) -> Manifest:
    limits = {"cpu": "1"} | ({"nvidia.com/gpu": str(gpus)} if gpus else {})
    found = {f"kerf.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return {
        "metadata": {"name": name, "namespace": "ns", "uid": name, "annotations": found},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}]}
        | ({"nodeName": on} if on else {})
        | (spec or {}),
        "status": {"phase": "Running" if on else "Pending"},
    }


def facts(
    nodes: Sequence[Manifest],
    bound: Sequence[Manifest] = (),
    pending: Sequence[Manifest] = (),
    pods_on: Mapping[str, Sequence[Manifest]] | None = None,
    **held: str,
) -> WhatIfInputs:
    """As it reaches the other process."""
    ledger, crowd = Ledger(reservation_ttl_s=0.0), BoundPodIndex()
    for manifest in nodes:
        ledger.upsert_node(decode_node(manifest))
    for manifest in bound:
        ledger.upsert_pod(decode_pod(manifest), 0.0)
        crowd.upsert(decode_pod(manifest))
    cluster = ledger.snapshot(0.0)
    policies = {name: policy for name, policy in POLICIES.items() if name == "tightest"}
    listed, waiting = msgspec.json.encode({"items": nodes}), msgspec.json.encode({"items": pending})
    on = {name: msgspec.json.encode({"items": pods}) for name, pods in (pods_on or {}).items()}
    made = WhatIfInputs(
        *(
            listed,
            on,
            cluster,
            ledger.without_holders(0.0),
            dict.fromkeys(cluster.row_of, 0),
            "tightest",
            policies,
            None,
        ),
        *(waiting, PendingState(held, []), 60.0, tuple(asyncio.run(crowd.packed(labels=True)))),
    )
    found: WhatIfInputs = pickle.loads(pickle.dumps(made))  # noqa: S301
    return found


def told(known: WhatIfInputs, **question: Any) -> Any:
    """The answer to a question."""
    return _answer(read_question(msgspec.json.encode(question)), known)


def where(answered: Any) -> dict[str, str]:
    """The node of each pod that is placed."""
    return {entry["pod"]: entry["node"] for entry in answered["assignments"]}


def offering(manifest: Manifest, **resources: str) -> Manifest:
    """A node with other amounts of resources; "" for none."""
    found = manifest["status"]["allocatable"] | resources
    manifest["status"]["allocatable"] = {name: amount for name, amount in found.items() if amount}
    return manifest


def asking(
    name: str,
    gpus: int = 0,
    resources: Mapping[str, str] | None = None,
    *,
    on: str = "",
    labels: Mapping[str, str] | None = None,
) -> Manifest:
    """A pod that asks for resources besides, and has labels."""
    made = pod(name, gpus, on=on)
    made["metadata"]["labels"] = dict(labels or {})
    made["spec"]["containers"][0]["resources"]["limits"] |= resources or {}
    return made


def waits(name: str, gpus: int, **more: Any) -> Manifest:
    """A pod that waits in the queue."""
    return pod(name, gpus, spec={"schedulingGates": [{"name": "kerf.dev/queue"}]}, **more)
