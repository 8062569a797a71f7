"""Who has which devices of a node: ResourceClaims, and the pods that they are reserved for. For people."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from extender.core.dra.devices import DeviceId, Inventory
from extender.core.dra.explained import kind_of
from extender.dra.objects import ResourceClaim
from extender.dra.pod_claims import Hold

_ALLOCATED = "allocated"
HELD = "being allocated"
"""Kerf has decided it, and the claim does not say so yet."""
_GONE = "allocated to a claim that is gone"


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A device of a node that a claim has, or a part of one."""

    device: str
    driver: str
    pool: str
    gpu: int
    """Index of the GPU that it is, or is a part of; -1 where it is none or that is not known."""
    kind: str
    """What it is called among its like; "" where Kerf does not own it."""
    claim: str
    """`namespace/name`."""
    pods: tuple[str, ...]
    """`namespace/name` of those that may use it."""
    state: str
    admin: bool = False
    """Whether the claim only looks at it."""


def uses_of(
    claims: Sequence[ResourceClaim],
    holds: Mapping[str, Hold],
    inventory: Inventory,
    gpu_of: Mapping[DeviceId, int],
    pools: frozenset[tuple[str, str]],
    gone: frozenset[str] = frozenset(),
) -> list[DeviceUse]:
    """All uses of one node's devices, by GPU and name.

    `gpu_of` is the GPU of each device of the driver of the node's GPUs; `pools` are the node's, by driver and
    name; `gone` are uids of claims that are deleted.
    """
    found = list(_of_claims(claims, inventory, gpu_of, pools, gone))
    told = {claim.metadata.uid for claim in claims}
    for uid, hold in holds.items():
        if uid not in told:
            pods = (hold.pod.key,)
            found += [_use(device, inventory, gpu_of, hold.claim.key, pods, HELD) for device, _ in hold.devices]
    return sorted(found, key=lambda use: (use.gpu < 0, use.gpu, use.driver, use.pool, use.device, use.claim))


def _of_claims(
    claims: Sequence[ResourceClaim],
    inventory: Inventory,
    gpu_of: Mapping[DeviceId, int],
    pools: frozenset[tuple[str, str]],
    gone: frozenset[str],
) -> Iterator[DeviceUse]:
    for claim in claims:
        pods = tuple(f"{claim.metadata.namespace}/{one.name}" for one in claim.status.reserved_for or () if one.name)
        state = _GONE if claim.metadata.uid in gone else _ALLOCATED
        for result in claim.results:
            if (result.driver, result.pool) in pools:
                device = DeviceId(result.driver, result.pool, result.device)
                yield _use(device, inventory, gpu_of, claim.key, pods, state, admin=bool(result.admin_access))


def _use(
    device: DeviceId,
    inventory: Inventory,
    gpu_of: Mapping[DeviceId, int],
    claim: str,
    pods: tuple[str, ...],
    state: str,
    *,
    admin: bool = False,
) -> DeviceUse:
    index = inventory.index_of.get(device)
    kind = "" if index is None else kind_of(inventory.devices[index])
    gpu = gpu_of.get(device, -1) if index is None else inventory.devices[index].gpu
    return DeviceUse(device.device, device.driver, device.pool, gpu, kind, claim, pods, state, admin)
