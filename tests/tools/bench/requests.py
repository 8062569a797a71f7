"""Bodies of filter and prioritize as kube-scheduler sends them: a pod as the API server stores it, and names."""

import json
import uuid
from collections.abc import Sequence
from typing import Any

_CREATED = "2026-01-05T05:59:22Z"


def extender_args(pod_idx: int, node_names: Sequence[str], gpus: int = 1) -> bytes:
    """The body for a pod that nobody has asked about before."""
    return json.dumps(
        {"Pod": pending_pod(f"train-{pod_idx}", gpus), "Nodes": None, "NodeNames": list(node_names)},
        separators=(",", ":"),
    ).encode()


def pending_pod(name: str, gpus: int) -> dict[str, Any]:
    """A GPU pod that `kubectl apply` created, with all that the API server defaults, as it is at its first try."""
    limits = {"nvidia.com/gpu": str(gpus)}
    requests = {"cpu": "4", "memory": "16Gi"}
    applied = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"annotations": {}, "labels": {"app": "train"}, "name": name, "namespace": "default"},
        "spec": {
            "containers": [{"image": "train", "name": "main", "resources": {"limits": limits, "requests": requests}}]
        },
    }
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": str(uuid.uuid4()),
            "resourceVersion": "229",
            "generation": 1,
            "creationTimestamp": _CREATED,
            "labels": {"app": "train"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": json.dumps(applied) + "\n"},
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "train",
                    "resources": {"limits": limits, "requests": requests | limits},
                    "terminationMessagePath": "/dev/termination-log",
                    "terminationMessagePolicy": "File",
                    "imagePullPolicy": "Always",
                }
            ],
            "restartPolicy": "Always",
            "terminationGracePeriodSeconds": 30,
            "dnsPolicy": "ClusterFirst",
            "securityContext": {},
            "schedulerName": "default-scheduler",
            "tolerations": [_toleration("not-ready"), _toleration("unreachable")],
            "enableServiceLinks": True,
        },
        "status": {"phase": "Pending", "qosClass": "Burstable"},
    }


def _toleration(condition: str) -> dict[str, Any]:
    return {
        "key": f"node.kubernetes.io/{condition}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 300,
    }
