"""Planned nodes and pods as the API server takes them."""

from typing import Any

from tests.controlplane.objects import cpu_node, gpu_node, pod
from tests.tools.chaos.clusters import SCHEDULERS
from tests.tools.chaos.holdings import Manifest
from tests.tools.chaos.plans import NodePlan, PodPlan
from tests.tools.chaos.refusals.manifests import hinder

_MARKER = "kerf.dev/gpu"
"""A resource that no node has: by it kube-scheduler tells pods that ask by annotation alone from those without GPUs."""


def node_manifest(planned: NodePlan) -> Manifest:
    """A node as its plan says."""
    if not planned.gpus:
        return cpu_node(planned.name)
    return gpu_node(planned.name, planned.gpus, planned.product, planned.memory_mib)


def pod_manifest(planned: PodPlan, *, grouped: bool) -> Manifest:
    """A pod as its plan says; a member of its PodGroup where pods may be `grouped`."""
    annotations = {}
    if planned.milli:
        annotations["kerf.dev/gpu-share"] = str(planned.milli)
    elif planned.gpus and not planned.by_resource:
        annotations["kerf.dev/gpu-count"] = str(planned.gpus)
    if planned.memory_mib:
        annotations["kerf.dev/gpu-memory-each"] = f"{planned.memory_mib}Mi"
    if planned.model:
        annotations["kerf.dev/gpu-model"] = planned.model
    if planned.gang:
        annotations |= {"kerf.dev/gang": planned.gang, "kerf.dev/gang-size": str(planned.gang_size)}
    where: dict[str, Any] = {"nodeName": planned.node} if planned.mirror else {}
    if planned.mirror:
        annotations |= {"kubernetes.io/config.mirror": "static", "kubernetes.io/config.source": "file"}
    if planned.group and grouped:
        where["schedulingGroup"] = {"podGroupName": planned.group}
    if planned.gated:
        where["schedulingGates"] = [{"name": "kerf.dev/queue"}]
    made = pod(
        planned.name,
        gpus=planned.gpus if planned.by_resource else 0,
        annotations=annotations,
        scheduler_name="nobody" if planned.node else SCHEDULERS[planned.scheduler],
        cpu=planned.cpu,
        **where,
    )
    if planned.gpus and not planned.by_resource:
        made["spec"]["containers"][0]["resources"]["limits"] = {_MARKER: "1"}
    hinder(made, planned)
    return made
