"""Nodes and pods as plain dicts, as kubectl would send them."""

import json
from collections.abc import Mapping
from typing import Any

from tests.controlplane.api import Object

_ASKING = ("kerf.dev/gpu-", "genius/gpu-")


def gpu_node(
    name: str,
    gpus: int = 8,
    product: str = "NVIDIA-A100-SXM4-80GB",
    memory_mib: int = 81920,
    cpu: str = "96",
    memory: str = "1Ti",
    labels: Mapping[str, str] | None = None,
    allocatable: Mapping[str, str] | None = None,
) -> Object:
    """A Ready node with the labels of GPU feature discovery; `labels` and `allocatable` add or replace entries."""
    discovered = {
        "nvidia.com/gpu.present": "true",
        "nvidia.com/gpu.product": product,
        "nvidia.com/gpu.count": str(gpus),
        "nvidia.com/gpu.memory": str(memory_mib),
    }
    resources = {"nvidia.com/gpu": str(gpus)} | dict(allocatable or {})
    return cpu_node(name, cpu, memory, discovered | dict(labels or {}), resources)


def steered(node: Object) -> Object:
    """A node of NVIDIA's plugin that hands out what Kerf has chosen, as the node's agent says."""
    report = json.dumps({"version": 1, "steers": ["nvidia.com/gpu"]})
    node["metadata"].setdefault("annotations", {})["kerf.dev/node-report"] = report
    return node


def cpu_node(
    name: str,
    cpu: str = "96",
    memory: str = "1Ti",
    labels: Mapping[str, str] | None = None,
    allocatable: Mapping[str, str] | None = None,
) -> Object:
    """A Ready node without GPUs; `labels` and `allocatable` add or replace entries."""
    resources = {"cpu": cpu, "memory": memory, "pods": "110"} | dict(allocatable or {})
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name} | dict(labels or {})},
        "status": {
            "capacity": resources,
            "allocatable": dict(resources),
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def pod(
    name: str,
    gpus: int = 0,
    namespace: str = "default",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    scheduler_name: str = "default-scheduler",
    cpu: str = "100m",
    memory: str = "64Mi",
    *,
    marked: bool = True,
    **spec: Any,
) -> Object:
    """A pending pod of one container; `spec` adds or replaces fields of the pod's spec.

    One that asks for GPUs by annotation or label alone has the marker, as its author or the API server's policy adds
    it, unless it is not to be `marked`.
    """
    resources: Object = {"requests": {"cpu": cpu, "memory": memory}}
    if gpus:
        resources["limits"] = {"nvidia.com/gpu": str(gpus)}
    elif marked and any(key.startswith(_ASKING) for key in (*(annotations or ()), *(labels or ()))):
        resources["limits"] = {"kerf.dev/gpu": "1"}
    container = {"name": "main", "image": "registry.k8s.io/pause:3.10", "resources": resources}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": dict(labels or {}),
            "annotations": dict(annotations or {}),
        },
        "spec": {"schedulerName": scheduler_name, "containers": [container]} | spec,
    }


POD_GROUPS: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "podgroups.scheduling.x-k8s.io",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"},
    },
    "spec": {
        "group": "scheduling.x-k8s.io",
        "names": {"kind": "PodGroup", "plural": "podgroups"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {"type": "object", "properties": {"minMember": {"type": "integer", "minimum": 1}}}
                        },
                    }
                },
            }
        ],
    },
}
"""The definition of scheduler-plugins' PodGroups, as far as Kerf reads it."""
