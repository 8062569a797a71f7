"""Objects of dynamic resource allocation."""

from typing import Any

import msgspec

from extender.dra.objects import ResourceClaim, ResourceSlice
from tests.nvidia import DRIVER


def resource_claim(
    name: str,
    *requests: Any,
    devices: tuple[str, ...] = (),
    pool: str = "n1",
    pods: tuple[str, ...] = (),
    **result: Any,
) -> ResourceClaim:
    """A claim; it is allocated when it has devices."""
    results = [{"request": "gpu", "driver": DRIVER, "pool": pool, "device": item, **result} for item in devices]
    reserved = [{"resource": "pods", "name": uid, "uid": uid} for uid in pods]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved} if devices else {}
    manifest = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": list(requests)}},
        "status": status,
    }
    return msgspec.convert(manifest, ResourceClaim)


def slice_of(node: str, num_gpus: int) -> ResourceSlice:
    """The only slice of a node; its GPUs have UUIDs only."""
    devices = [
        {"name": f"gpu-{index}", "attributes": {"type": {"string": "gpu"}, "uuid": {"string": f"GPU-{index}"}}}
        for index in range(num_gpus)
    ]
    pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
    spec: dict[str, Any] = {"driver": DRIVER, "pool": pool, "nodeName": node, "devices": devices}
    return msgspec.convert({"metadata": {"name": node, "uid": f"slice-{node}"}, "spec": spec}, ResourceSlice)
