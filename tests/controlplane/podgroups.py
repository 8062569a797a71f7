"""Kubernetes' own PodGroups: under which gates and which version of the API each minor has them.

Off by default, and not there at all before 1.36.
"""

from typing import Any

import pytest

from tests.controlplane import binaries

_MINOR = binaries.minor()
API = f"scheduling.k8s.io/{'v1alpha2' if _MINOR == '1.36' else 'v1beta1'}"
SERVER_FLAGS = ("--feature-gates=GenericWorkload=true", f"--runtime-config={API}=true")
"""Of kube-apiserver."""
GATES = ("GenericWorkload", "GangScheduling") if _MINOR == "1.36" else ("GenericWorkload",)
"""Of kube-scheduler."""
NEEDED = pytest.mark.skipif(_MINOR < "1.36", reason="PodGroups are an API since 1.36")


def path(name: str = "") -> str:
    """Where the API server has the groups of the namespace default, or one of them."""
    return f"/apis/{API}/namespaces/default/podgroups" + (f"/{name}" if name else "")


def pod_group(name: str, policy: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A group; `policy` is `{"basic": {}}` or `{"gang": {"minCount": 2}}`."""
    metadata = {"name": name, "namespace": "default"}
    return {"apiVersion": API, "kind": "PodGroup", "metadata": metadata, "spec": {"schedulingPolicy": policy} | spec}
