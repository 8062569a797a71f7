"""Metrics of devices that Kerf allocates to ResourceClaims."""

from collections import Counter as Counts
from collections.abc import Iterator
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from prometheus_client.core import GaugeMetricFamily, Metric

from extender.core.dra.devices import Inventory
from extender.dra.asks import KINDS
from extender.dra.owned import OwnedDevices
from extender.dra.published import Owner
from extender.metrics.registry import by_label, counter, gauge
from extender.parts.dra.keeper import ClaimKeeper


@dataclass(frozen=True)
class DeviceFigures:
    """Counts devices; which of a node's are whose driver's is worked out once."""

    _masks: WeakKeyDictionary[Inventory, dict[str, int]] = field(default_factory=WeakKeyDictionary, init=False)

    def by_driver(self, owned: OwnedDevices) -> tuple[Counts[str], Counts[str]]:
        """How many devices Kerf allocates, and how many of these somebody has, wholly or in part."""
        there, taken = Counts[str](), Counts[str]()
        for node in owned.nodes():
            devices = owned.devices_on(node)
            if devices is not None:
                for driver, mask in self._masks_of(devices.inventory).items():
                    there[driver] += mask.bit_count()
                    taken[driver] += (devices.taken & mask).bit_count()
        return there, taken

    def _masks_of(self, inventory: Inventory) -> dict[str, int]:
        masks = self._masks.get(inventory)
        if masks is None:
            masks = self._masks[inventory] = {}
            for index, device in enumerate(inventory.devices):
                masks[device.id.driver] = masks.get(device.id.driver, 0) | 1 << index
        return masks


def device_metrics(owned: OwnedDevices, keeper: ClaimKeeper, figures: DeviceFigures) -> Iterator[Metric]:
    """What there is, who has it, and what became of claims."""
    counts = keeper.counts
    yield counter("kerf_dra_claims_allocated", "ResourceClaims that Kerf gave devices.", counts.allocated)
    freed = "ResourceClaims whose devices Kerf took back because no pod needed them."
    yield counter("kerf_dra_claims_freed", freed, counts.freed)
    yield counter("kerf_dra_errors", "Failed writes to ResourceClaims.", counts.errors)
    there, taken = figures.by_driver(owned)
    devices_help = "Devices, partitions included, that Kerf allocates."
    yield by_label(GaugeMetricFamily, "kerf_dra_devices", devices_help, "driver", there)
    taken_help = "Of these, devices of which a ResourceClaim has something or is about to."
    yield by_label(
        GaugeMetricFamily, "kerf_dra_devices_taken", taken_help, "driver", {name: taken[name] for name in there}
    )
    states = [state for node in owned.nodes() for state in owned.pools_on(node)]
    owners = Counts(state.owner for state in states)
    pools_help = "Pools of devices by who allocates them, counted on each node."
    yield by_label(
        GaugeMetricFamily, "kerf_dra_pools", pools_help, "owner", {owner.value: owners[owner] for owner in Owner}
    )
    faults = sum(bool(state.fault) for state in states)
    yield gauge(
        "kerf_dra_pool_faults",
        "Pools that can't be read, or that Kerf owns and can't use, counted on each node.",
        faults,
    )
    unhandled = Counts(kind.partition(":")[0] for kind in owned.unhandled.values())
    unhandled_help = "ResourceClaims of waiting pods that Kerf can't evaluate exactly, by what of them."
    kinds = {kind: unhandled[kind] for kind in KINDS}
    yield by_label(GaugeMetricFamily, "kerf_dra_claims_unhandled", unhandled_help, "kind", kinds)
