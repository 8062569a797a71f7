"""Objects of dynamic resource allocation."""

from typing import Any

import msgspec

from extender.plugins.dra import reading as dra
from extender.plugins.dra.objects import ResourceClaim


def resource_claim(
    name: str,
    *requests: Any,
    devices: tuple[str, ...] = (),
    pool: str = "n1",
    pods: tuple[str, ...] = (),
    **result: Any,
) -> ResourceClaim:
    """A claim; it is allocated when it has devices."""
    results = [{"request": "gpu", "driver": dra.DRIVER, "pool": pool, "device": item, **result} for item in devices]
    reserved = [{"resource": "pods", "name": uid, "uid": uid} for uid in pods]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": reserved} if devices else {}
    manifest = {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"devices": {"requests": list(requests)}},
        "status": status,
    }
    return msgspec.convert(manifest, ResourceClaim)
