"""Pools and claims as the API server takes them."""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from tests.controlplane.api import Object
from tests.tools.chaos.devices.plans import DRIVERS, Ask, ClaimPlan, PoolKind, PoolPlan, RequestPlan

API: Final = "/apis/resource.k8s.io/v1"
CLAIMS: Final = f"{API}/namespaces/default/resourceclaims"
TEMPLATES: Final = f"{API}/namespaces/default/resourceclaimtemplates"
SLICES: Final = f"{API}/resourceslices"
FINALIZER: Final = "resource.kubernetes.io/delete-protection"

_VERSION: Final = "resource.k8s.io/v1"
_TAINT: Final = {"key": "kerf.dev/owned", "value": "kerf", "effect": "NoSchedule"}
_GBIT: Final = 100
"""Bandwidth of a network card."""
_PARTITIONS: Final = (
    (Ask.SMALL, 1, 1, tuple(range(7))),
    (Ask.MEDIUM, 2, 2, (0, 2, 4)),
    (Ask.LARGE, 3, 4, (0, 4)),
)
"""Profiles of an A100 with 40 GB: compute slices, memory slices, first memory slices of its placements."""
_NVIDIA: Final = DRIVERS[PoolKind.WHOLE]
_CLASSES: Final = {
    Ask.GPU: f"device.driver == '{_NVIDIA}' && device.attributes['{_NVIDIA}'].type == 'gpu'",
    **{
        profile: (
            f"device.driver == '{_NVIDIA}' && device.attributes['{_NVIDIA}'].type == 'mig' && "
            f"device.attributes['{_NVIDIA}'].profile == '{profile}'"
        )
        for profile, *_ in _PARTITIONS
    },
    Ask.NETWORK: f"device.driver == '{DRIVERS[PoolKind.NETWORK]}'",
    Ask.OTHER: f"device.driver == '{DRIVERS[PoolKind.OTHER]}'",
}


def classes() -> list[Object]:
    """A class for each thing that is asked for."""
    return [
        {
            "apiVersion": _VERSION,
            "kind": "DeviceClass",
            "metadata": {"name": f"{ask}.example.com"},
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        }
        for ask, expression in _CLASSES.items()
    ]


def taint_rule() -> Object:
    """What makes all network cards Kerf's; GPUs say it themselves."""
    return {
        "apiVersion": _VERSION,
        "kind": "DeviceTaintRule",
        "metadata": {"name": "kerf-owned"},
        "spec": {"deviceSelector": {"driver": DRIVERS[PoolKind.NETWORK]}, "taint": _TAINT},
    }


def slices(pool: PoolPlan, generation: int, *, without: int = 0) -> list[Object]:
    """What its driver publishes, perhaps `without` some devices."""
    devices = _devices(pool)
    parts: list[Object] = [{"devices": devices[: len(devices) - without]}]
    if pool.kind is PoolKind.PARTED:
        parts.append({"sharedCounters": [_counters(gpu) for gpu in range(pool.num_devices)]})
    spec = {
        "driver": DRIVERS[pool.kind],
        "nodeName": pool.node,
        "pool": {"name": pool.name, "generation": generation, "resourceSliceCount": len(parts)},
    }
    return [
        {
            "apiVersion": _VERSION,
            "kind": "ResourceSlice",
            "metadata": {"generateName": f"{pool.name}-"},
            "spec": {**spec, **part},
        }
        for part in parts
    ]


def claim(planned: ClaimPlan) -> tuple[str, Object]:
    """Where it, or its template, is created, and as what."""
    spec = {"devices": {"requests": [_request(index, of) for index, of in enumerate(planned.requests)]}}
    metadata = {"name": planned.name, "namespace": "default"}
    if planned.template:
        made = {"apiVersion": _VERSION, "kind": "ResourceClaimTemplate", "metadata": metadata, "spec": {"spec": spec}}
        return TEMPLATES, made
    return CLAIMS, {"apiVersion": _VERSION, "kind": "ResourceClaim", "metadata": metadata, "spec": spec}


def name_claims(made: Object, claims: Iterable[ClaimPlan]) -> None:
    """Have a pod name claims, and its container use them."""
    named = []
    for planned in claims:
        key = "resourceClaimTemplateName" if planned.template else "resourceClaimName"
        named.append({"name": planned.name, key: planned.name})
    if named:
        made["spec"]["resourceClaims"] = named
        made["spec"]["containers"][0]["resources"]["claims"] = [{"name": item["name"]} for item in named]


def _request(index: int, planned: RequestPlan) -> Object:
    found = [_asked(ask, planned) for ask in planned.alternatives]
    if len(found) == 1:
        return {"name": f"r{index}", "exactly": found[0]}
    named = zip(planned.alternatives, found, strict=True)
    return {"name": f"r{index}", "firstAvailable": [{"name": f"a{ask.replace('.', '-')}", **of} for ask, of in named]}


def _asked(ask: Ask, planned: RequestPlan) -> Object:
    asked: Object = {"deviceClassName": f"{ask}.example.com", "allocationMode": "ExactCount", "count": planned.count}
    if ask is Ask.NETWORK:
        asked["capacity"] = {"requests": {"gbit": str(planned.gbit)}}
    return asked


def _devices(pool: PoolPlan) -> list[Object]:
    match pool.kind:
        case PoolKind.NETWORK:
            cards: Sequence[Object] = [_plain(f"card-{index}", {}) for index in range(pool.num_devices)]
            shared = {"capacity": {"gbit": {"value": str(_GBIT)}}, "allowMultipleAllocations": True}
            return [{**card, **shared} for card in cards]
        case PoolKind.OTHER:
            return [_plain(f"other-{index}", {}) for index in range(pool.num_devices)]
    return [part for index in range(pool.num_devices) for part in _gpu(pool, index)]


def _gpu(pool: PoolPlan, index: int) -> list[Object]:
    """A GPU, and what could be made of it; the last device of a pool is the last that others are not part of."""
    uuid = f"GPU-{pool.node}-{index}"
    attributes = {"type": "gpu", "uuid": uuid, "productName": "NVIDIA A100-SXM4-40GB"}
    whole = {**_plain(f"gpu-{index}", attributes), "capacity": {"memory": {"value": "40Gi"}}, "taints": [_TAINT]}
    if pool.kind is PoolKind.WHOLE:
        return [whole]
    made = [{**whole, "consumesCounters": [_consumed(index, 7, range(8))]}]
    for profile, compute, slices_, places in _PARTITIONS:
        for place in places:
            part = _plain(
                f"gpu-{index}-{profile}-{place}", {"type": "mig", "profile": str(profile), "parentUUID": uuid}
            )
            consumed = _consumed(index, compute, range(place, place + slices_))
            capacity = {"memory": {"value": f"{5 * slices_}Gi"}}
            made.append({**part, "capacity": capacity, "taints": [_TAINT], "consumesCounters": [consumed]})
    return made


def _plain(name: str, attributes: dict[str, str]) -> Object:
    return {"name": name, "attributes": {key: {"string": value} for key, value in attributes.items()}}


def _counters(gpu: int) -> Object:
    full = _consumed(gpu, 7, range(8))
    return {"name": full["counterSet"], "counters": full["counters"]}


def _consumed(gpu: int, compute: int, memory: Iterable[int]) -> Object:
    counters: dict[str, Any] = {"compute": {"value": str(compute)}}
    counters |= {f"memory-{place}": {"value": "1"} for place in memory}
    return {"counterSet": f"gpu-{gpu}", "counters": counters}
