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
    """Counts devices by driver; caches each inventory's bit masks by driver."""

    _masks: WeakKeyDictionary[Inventory, dict[str, int]] = field(default_factory=WeakKeyDictionary, init=False)

    def by_driver(self, owned: OwnedDevices) -> tuple[Counts[str], Counts[str]]:
        """Devices that Kerf allocates by driver, and those of them allocated wholly or in part."""
        owned_devices, taken = Counts[str](), Counts[str]()
        for node in owned.nodes():
            devices = owned.devices_on(node)
            if devices is not None:
                for driver, mask in self._masks_of(devices.inventory).items():
                    owned_devices[driver] += mask.bit_count()
                    taken[driver] += (devices.taken & mask).bit_count()
        return owned_devices, taken

    def _masks_of(self, inventory: Inventory) -> dict[str, int]:
        masks = self._masks.get(inventory)
        if masks is None:
            masks = self._masks[inventory] = {}
            for index, device in enumerate(inventory.devices):
                masks[device.id.driver] = masks.get(device.id.driver, 0) | 1 << index
        return masks


def device_metrics(owned: OwnedDevices, keeper: ClaimKeeper, figures: DeviceFigures) -> Iterator[Metric]:
    """Metrics of devices, pools and claims."""
    counts = keeper.counts
    yield counter("kerf_dra_claims_allocated", "ResourceClaims that Kerf allocated.", counts.allocated)
    freed = "ResourceClaims that Kerf deallocated because no pod used them."
    yield counter("kerf_dra_claims_freed", freed, counts.freed)
    yield counter("kerf_dra_errors", "Failed writes to ResourceClaims.", counts.errors)
    devices, taken = figures.by_driver(owned)
    devices_help = "Devices, partitions included, that Kerf allocates."
    yield by_label(GaugeMetricFamily, "kerf_dra_devices", devices_help, "driver", devices)
    taken_help = "Devices allocated wholly or in part to a ResourceClaim, or held for one."
    yield by_label(
        GaugeMetricFamily, "kerf_dra_devices_taken", taken_help, "driver", {name: taken[name] for name in devices}
    )
    states = [state for node in owned.nodes() for state in owned.pools_on(node)]
    owners = Counts(state.owner for state in states)
    pools_help = "Device pools by allocator, counted on each node."
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
    unhandled_help = "Waiting pods' ResourceClaims that Kerf can't evaluate exactly, by the unsupported feature."
    kinds = {kind: unhandled[kind] for kind in KINDS}
    yield by_label(GaugeMetricFamily, "kerf_dra_claims_unhandled", unhandled_help, "kind", kinds)
