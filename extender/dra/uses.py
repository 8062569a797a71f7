"""Which claims and pods use a node's devices, for display."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from extender.core.dra.devices import DeviceId, Inventory
from extender.core.dra.explained import kind_of
from extender.dra.objects import ResourceClaim
from extender.dra.pod_claims import Hold

_ALLOCATED = "allocated"
HELD = "being allocated"
"""Kerf has decided the allocation, but it is not on the claim yet."""
_DELETED = "allocated to a claim that is gone"


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """A device, or a share of one, that a claim uses."""

    device: str
    driver: str
    pool: str
    gpu: int
    """The device's GPU index on its node; -1 if none or unknown."""
    kind: str
    """The type of device, such as a partition profile; "" if Kerf does not own it."""
    claim: str
    """`namespace/name`."""
    pods: tuple[str, ...]
    """`namespace/name` of the pods in the claim's reservedFor."""
    state: str
    admin: bool = False
    """Whether the claim has admin access."""


def uses_of(
    claims: Sequence[ResourceClaim],
    holds: Mapping[str, Hold],
    inventory: Inventory,
    gpu_of: Mapping[DeviceId, int],
    pools: frozenset[tuple[str, str]],
    gone: frozenset[str] = frozenset(),
) -> list[DeviceUse]:
    """All uses of one node's devices, sorted by GPU and name.

    `gpu_of` is the GPU index by device of the GPU driver; `pools` are the node's (driver, pool) pairs; `gone` are uids
    of deleted claims.
    """
    uses = list(_of_claims(claims, inventory, gpu_of, pools, gone))
    listed = {claim.metadata.uid for claim in claims}
    for uid, hold in holds.items():
        if uid not in listed:
            pods = (hold.pod.key,)
            uses += [_use(device, inventory, gpu_of, hold.claim.key, pods, HELD) for device, _ in hold.devices]
    return sorted(uses, key=lambda use: (use.gpu < 0, use.gpu, use.driver, use.pool, use.device, use.claim))


def _of_claims(
    claims: Sequence[ResourceClaim],
    inventory: Inventory,
    gpu_of: Mapping[DeviceId, int],
    pools: frozenset[tuple[str, str]],
    gone: frozenset[str],
) -> Iterator[DeviceUse]:
    for claim in claims:
        pods = tuple(f"{claim.metadata.namespace}/{one.name}" for one in claim.status.reserved_for or () if one.name)
        state = _DELETED if claim.metadata.uid in gone else _ALLOCATED
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
