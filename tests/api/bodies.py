"""Request bodies as kube-scheduler sends them, and the objects in them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

Manifest = dict[str, Any]

GPU = "nvidia.com/gpu"
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
SHARED_GPU = "nvidia.com/gpu.shared"
_GFD = {
    "a100": ("NVIDIA-A100-SXM4-80GB", "81920"),
    "a100-40": ("NVIDIA-A100-SXM4-40GB", "40536"),
    "t4": ("Tesla-T4", "15360"),
}


def node(name: str, gpus: int | str = 0, model: str = "a100", *, shared: int = 0) -> Manifest:
    """A node with `gpus` GPUs as GPU Feature Discovery labels it; `shared` time slices instead, on one GPU."""
    labels = {"kubernetes.io/hostname": name}
    allocatable = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    if gpus or shared:
        product, memory_mib = _GFD[model]
        labels |= {"nvidia.com/gpu.product": product, "nvidia.com/gpu.memory": memory_mib}
        labels |= {"nvidia.com/gpu.count": "1" if shared else str(gpus)}
        allocatable |= {SHARED_GPU: str(shared)} if shared else {GPU: str(gpus)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-of-{name}", "labels": labels},
        "status": {"allocatable": allocatable},
    }


def pod(
    name: str = "train-0",
    gpus: int | str | None = None,
    *,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    node_name: str = "",
    **spec: Any,
) -> Manifest:
    """A pod that requests `gpus`, with the fields that kube-scheduler sends; pending without `node_name`."""
    asked = {} if gpus is None else {GPU: gpus if isinstance(gpus, str) else str(gpus)}
    container = {
        "name": "c",
        "image": "i",
        "resources": {"limits": asked, "requests": {"cpu": "4", "memory": "16Gi", **asked}},
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "Always",
    }
    if node_name:
        spec["nodeName"] = node_name
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-of-{name}",
            "resourceVersion": "229",
            "generation": 1,
            "creationTimestamp": "2026-11-21T05:59:22Z",
            "labels": {"app": "train", **(labels or {})},
            "annotations": {"example.com/note": "16Gi", **(annotations or {})},
        },
        "spec": {
            "containers": [container],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "securityContext": {},
            "schedulerName": "default-scheduler",
            "tolerations": [
                {
                    "key": "node.kubernetes.io/not-ready",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": 300,
                }
            ],
            "enableServiceLinks": True,
            **spec,
        },
        "status": {
            "phase": "Running" if node_name else "Pending",
            "conditions": [
                {"type": "PodScheduled", "status": "False", "lastProbeTime": None, "reason": "Unschedulable"}
            ],
            "qosClass": "Burstable",
        },
    }


def sent(manifest: Manifest) -> Manifest:
    """An object as kube-scheduler sends it: the informer's objects carry no kind."""
    return {key: value for key, value in manifest.items() if key not in ("apiVersion", "kind")}


def args(pod: Manifest, names: Sequence[str] | None, nodes: Sequence[Manifest] | None = None) -> bytes:
    """Body of filter and prioritize; by names (`nodeCacheCapable: true`) or by whole nodes."""
    node_list = None if nodes is None else {"metadata": {}, "items": list(map(sent, nodes))}
    return json.dumps({"Pod": sent(pod), "Nodes": node_list, "NodeNames": names}).encode()


def binding_args(pod: Manifest, node_name: str) -> bytes:
    """Body of bind."""
    metadata = pod["metadata"]
    return json.dumps(
        {
            "PodName": metadata["name"],
            "PodNamespace": metadata["namespace"],
            "PodUID": metadata["uid"],
            "Node": node_name,
        }
    ).encode()


def preemption_args(pod: Manifest, victims: Mapping[str, Sequence[str]], violations: int = 0) -> bytes:
    """Body of preempt by UIDs, as it is sent with `nodeCacheCapable: true`."""
    proposals = {
        name: {"Pods": [{"UID": uid} for uid in uids], "NumPDBViolations": violations} for name, uids in victims.items()
    }
    return json.dumps({"Pod": sent(pod), "NodeNameToVictims": None, "NodeNameToMetaVictims": proposals}).encode()


def whole_preemption_args(pod: Manifest, victims: Mapping[str, Sequence[Manifest]], violations: int = 0) -> bytes:
    """Body of preempt by whole pods, as it is sent with `nodeCacheCapable: false`."""
    proposals = {
        name: {"Pods": list(map(sent, pods)), "NumPDBViolations": violations} for name, pods in victims.items()
    }
    return json.dumps({"Pod": sent(pod), "NodeNameToVictims": proposals, "NodeNameToMetaVictims": None}).encode()


CLUSTER: Sequence[Manifest] = (
    node("a100-0", 8),
    node("a100-1", 8),
    node("a100-40-0", 4, "a100-40"),
    node("t4-0", 2, "t4"),
    node("t4-1", 2, "t4"),
    node("shared-0", model="t4", shared=4),
    node("cpu-0"),
)
"""Small, with one node of every kind and two of most."""

NAMES: Sequence[str] = tuple(item["metadata"]["name"] for item in CLUSTER)


def review(manifest: Manifest, **request: Any) -> Manifest:
    """An AdmissionReview as the API server sends it."""
    return {
        "kind": "AdmissionReview",
        "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "705ab4f5-6393-11e8-b7cc-42010a800002",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "requestResource": {"group": "", "version": "v1", "resource": "pods"},
            "namespace": "default",
            "operation": "CREATE",
            "userInfo": {"username": "admin", "groups": ["system:authenticated"]},
            "object": manifest,
            "oldObject": None,
            "dryRun": False,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
            **request,
        },
    }
