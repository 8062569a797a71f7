"""What occupies the GPUs and ResourceClaim devices of a node: pods, unknown processes and faults, and what is free."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from math import isnan
from typing import Any, Final

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster, Mask, Rows
from extender.core.dra.devices import NodeDevices
from extender.core.dra.explained import WHOLE, free_in_words, free_of, total
from extender.core.gauges import Gauge
from extender.core.occupancies import ObservedRules, faulty, unaccounted_mib, unmanaged_mib, with_observed_usage
from extender.core.resources.nodes import SLICES, GpuUnit
from extender.dra.uses import HELD, DeviceUse
from extender.ledger.ledger import AllocationState, Ledger, PodAllocation


def gpus_of(
    cluster: Cluster, rows: Rows, rules: ObservedRules, counted: ObservedRules | None
) -> list[list[dict[str, Any]]]:
    """R lists of the installed GPUs as JSON data. Works on all rows at once, since there may be thousands.

    `rules` define unexpected use, `counted` is what a policy counts of observed use.
    """
    result: list[list[dict[str, Any]]] = [[] for _ in rows]
    at, slots = np.nonzero(cluster.gpu_model[rows] >= 0)
    columns = [
        array[rows[at], slots].tolist()
        for array in (
            *(cluster.gpu_model, cluster.gpu_memory_mib, cluster.gpu_healthy, cluster.gpu_free_milli),
            *(cluster.gpu_free_mib, with_observed_usage(cluster, counted).gpu_idle, cluster.gpu_slices),
        )
    ]
    sliced = [_slices(cluster, row) for row in rows.tolist()]
    observed = _observed(cluster, rows, rules)
    names = [model.name for model in cluster.models]
    for node, slot, model, memory, healthy, milli, mib, idle, held in zip(
        at.tolist(), slots.tolist(), *columns, strict=True
    ):
        gpu = {
            "index": slot,
            "model": names[model],
            "memoryMiB": memory,
            "free": milli == WHOLE_MILLI and mib == memory,
            "idle": idle,
            "healthy": healthy,
            "freeMilli": milli,
            "freeMemoryMiB": mib,
        }
        slices = {"slices": sliced[node], "slicesHeld": held} if sliced[node] else {}
        result[node].append(gpu | slices | observed.get((node, slot), {}))
    return result


def _slices(cluster: Cluster, row: int) -> int:
    """Time slices per GPU of a node, 0 if it has none."""
    return int(cluster.units_per_gpu[row]) if GpuUnit(int(cluster.unit[row])) in SLICES else 0


def _observed(cluster: Cluster, rows: Rows, rules: ObservedRules) -> dict[tuple[int, int], dict[str, Any]]:
    """Observed use by (position in `rows`, slot), for GPUs with fresh samples or recently placed pods."""
    observed = cluster.observed
    if observed is None:
        return {}
    values = observed.value[:, rows]
    expected = observed.expected_load[rows].round(4)
    unmanaged, broken = unaccounted_mib(cluster, rows, rules), faulty(cluster, rows, rules)
    known = (expected != 0) | ~np.isnan(values).all(axis=0)
    samples = {gauge.name.lower(): values[gauge].tolist() for gauge in Gauge}
    return {
        (node, slot): {
            "observed": {
                name: round(sample, 4) for name, found in samples.items() if not isnan(sample := found[node][slot])
            },
            "expectedLoad": round(float(expected[node, slot]), 4),
            "unmanagedMiB": int(unmanaged[node, slot]),
            "faulty": bool(broken[node, slot]),
        }
        for node, slot in np.argwhere(known).tolist()
    }


_BOUND: Final = 20_000


@dataclass(frozen=True)
class DeviceViews:
    """Builds views of the devices that the ledger knows."""

    ledger: Ledger
    _free: dict[str, tuple[NodeDevices, str]] = field(default_factory=dict, init=False)
    """Cache by node: its devices, and the description of the free ones."""

    def summary(self, node: str) -> dict[str, Any] | None:
        """A node's pools, the number of devices that Kerf allocates, and what is free; None if it reads no pools."""
        owned = self.ledger.rows.owned
        pools = owned.pools_on(node) if owned is not None else ()
        if owned is None or not pools:
            return None
        devices = owned.devices_on(node)
        return {
            "owned": 0 if devices is None else len(devices.inventory.devices),
            "taken": 0 if devices is None else devices.taken.bit_count(),
            "free": self.free_words(node),
            "pools": [
                {
                    "driver": state.id.driver,
                    "pool": state.id.pool,
                    "devices": state.num_devices,
                    "owner": state.owner.value,
                    "fault": state.fault or None,
                }
                for state in pools
            ],
        }

    def free_words(self, node: str) -> str:
        """A node's free devices, in words; "" if Kerf allocates none there."""
        owned = self.ledger.rows.owned
        devices = None if owned is None else owned.devices_on(node)
        if devices is None:
            self._free.pop(node, None)
            return ""
        known = self._free.get(node)
        if known is None or known[0] is not devices:
            if len(self._free) >= _BOUND:
                self._free.clear()
            known = self._free[node] = devices, free_in_words(total(free_of(devices).values()))
        return known[1]

    def faults(self, node: str) -> tuple[str, ...]:
        """Why devices of a node that Kerf owns are not allocated."""
        return () if self.ledger.rows.owned is None else self.ledger.rows.owned.faults_on(node)

    def uses(self, node: str) -> list[dict[str, Any]]:
        """Uses of a node's devices, as JSON data."""
        return [_use_to_json(use) for use in self.ledger.device_uses(node)]

    def by_gpu(self, node: str) -> dict[int, dict[str, Any]]:
        """Uses and free devices of each GPU that claims use or from which Kerf allocates, by index."""
        owned = self.ledger.rows.owned
        devices = None if owned is None else owned.devices_on(node)
        free = {} if devices is None else free_of(devices)
        uses: dict[int, list[dict[str, Any]]] = {}
        for use in self.ledger.device_uses(node):
            uses.setdefault(use.gpu, []).append(_use_to_json(use))
        known = {device.gpu for device in devices.inventory.devices} if devices is not None else set[int]()
        return {
            gpu: {
                "uses": uses.get(gpu, []),
                "freeDevices": free_in_words(free.get(gpu, {})) if gpu in known else None,
            }
            for gpu in sorted((known | uses.keys()) - {-1})
        }


def _use_to_json(use: DeviceUse) -> dict[str, Any]:
    return asdict(use) | {"gpu": use.gpu if use.gpu >= 0 else None, "kind": use.kind or None, "pods": list(use.pods)}


_MAX_NAMES: Final = 4


@dataclass(frozen=True, slots=True)
class Unbooked:
    """Numbers of a node's GPUs that are unavailable although no pod holds them."""

    used: int
    """In use by unknown processes."""
    faulty: int
    """Healthy according to their plugin, but faulty according to their samples."""
    unhealthy: int


def unbooked(cluster: Cluster, row: int, rules: ObservedRules | None) -> Unbooked:
    """A node's GPUs that are unavailable by observed use or health, as the policy's rules count."""
    node = np.array([row])
    installed: Mask = cluster.gpu_model[row] >= 0
    unhealthy = int((installed & ~cluster.gpu_healthy[row]).sum())
    if rules is None:
        return Unbooked(0, 0, unhealthy)
    idle: Mask = cluster.gpu_idle[row]
    broken = idle & faulty(cluster, node, rules)[0] & rules.excludes_faulty
    used = idle & (unmanaged_mib(cluster, node, rules)[0] > 0) & ~broken & rules.counts_memory
    # Some of these may belong to pods that hold GPUs of unknown index.
    num_used = max(int(used.sum()) - int(cluster.untracked_units[row]), 0)
    return Unbooked(num_used, int(broken.sum()), unhealthy)


def holders(claims: Iterable[PodAllocation]) -> list[dict[str, Any]]:
    """Holders among pods as JSON data, sorted by GPU."""
    held = (
        {
            "pod": claim.pod or None,
            "units": claim.units,
            "gpus": list(claim.gpus),
            "state": claim.state.name,
            "shared": any(not part.whole for part in claim.holding.parts),
        }
        for claim in claims
    )
    return sorted(held, key=lambda entry: (entry["gpus"], entry["pod"] or ""))


def users(uses: Iterable[DeviceUse]) -> list[dict[str, Any]]:
    """Holders among ResourceClaims, in the same form, each named by a pod that may use the claim.

    Claims with admin access hold nothing.
    """
    by_claim: dict[str, list[DeviceUse]] = {}
    for use in uses:
        if not use.admin:
            by_claim.setdefault(use.claim, []).append(use)
    return [
        {
            "pod": next((pod for use in used for pod in use.pods), None),
            "units": len({use.gpu for use in used if use.gpu >= 0}) or len(used),
            "gpus": sorted({use.gpu for use in used if use.gpu >= 0}),
            "state": (AllocationState.RESERVED if used[0].state == HELD else AllocationState.BOUND).name,
            "shared": any(use.kind not in ("", WHOLE) for use in used),
            "claim": claim,
            "devices": [use.device for use in used],
        }
        for claim, used in by_claim.items()
    ]


def words(held: list[dict[str, Any]], rest: Unbooked) -> str:
    """The holders and their amounts in one sentence; "" if there are none."""
    parts = [_holder(holder) for holder in held[:_MAX_NAMES]]
    if others := held[_MAX_NAMES:]:
        units = _gpus(sum(holder["units"] for holder in others))
        parts.append(f"{len(others)} more pod{'s hold' if len(others) > 1 else ' holds'} {units}")
    counts = (
        (rest.used, "in use by unknown processes"),
        (rest.faulty, "faulty according to its samples" if rest.faulty == 1 else "faulty according to their samples"),
        (rest.unhealthy, "unhealthy"),
    )
    parts += [f"{_gpus(count)} {'is' if count == 1 else 'are'} {what}" for count, what in counts if count]
    return ", ".join(parts)


def _holder(holder: dict[str, Any]) -> str:
    what = f"{'part of ' if holder['shared'] else ''}{_gpus(holder['units'])}" if holder["units"] else "MIG devices"
    if claim := holder.get("claim"):
        what = f"{', '.join(holder['devices'][:_MAX_NAMES])}{', ...' if len(holder['devices']) > _MAX_NAMES else ''}"
        state = "is being allocated" if holder["state"] == AllocationState.RESERVED.name else "has"
        return f"claim {claim}{' of ' + holder['pod'] if holder['pod'] else ''} {state} {what}"
    if holder["state"] == AllocationState.BOUND.name:
        return f"{holder['pod'] or 'a pod'} holds {what}"
    return (
        f"{what} {'is' if holder['units'] == 1 else 'are'} reserved for {holder['pod'] or 'a pod that is being placed'}"
    )


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"
