"""Devices of ResourceClaims on a node, for people: whose they are, who has them, and what is still to be had."""

from dataclasses import asdict, dataclass, field
from typing import Any, Final

from extender.core.dra.devices import NodeDevices
from extender.core.dra.explained.free_room import free_of, in_words, total
from extender.dra.uses import DeviceUse
from extender.ledger.ledger import Ledger

_BOUND: Final = 20_000


@dataclass(frozen=True)
class DeviceViews:
    """Reads what the ledger knows of devices when somebody looks."""

    ledger: Ledger
    _free: dict[str, tuple[NodeDevices, str]] = field(default_factory=dict, init=False)
    """By node: what is free of its devices as they were then."""

    def summary(self, node: str) -> dict[str, Any] | None:
        """A node's pools, how many devices Kerf allocates there, and what is free; None where it reads no pools."""
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
        """What of a node's devices can be had, in words; "" where Kerf allocates none."""
        owned = self.ledger.rows.owned
        devices = None if owned is None else owned.devices_on(node)
        if devices is None:
            self._free.pop(node, None)
            return ""
        known = self._free.get(node)
        if known is None or known[0] is not devices:
            if len(self._free) >= _BOUND:
                self._free.clear()
            known = self._free[node] = devices, in_words(total(free_of(devices).values()))
        return known[1]

    def faults(self, node: str) -> tuple[str, ...]:
        """Why devices of a node that Kerf owns are not given."""
        return () if self.ledger.rows.owned is None else self.ledger.rows.owned.faults_on(node)

    def uses(self, node: str) -> list[dict[str, Any]]:
        """Who has which devices, as JSON data."""
        return [_told(use) for use in self.ledger.device_uses(node)]

    def by_gpu(self, node: str) -> dict[int, dict[str, Any]]:
        """Of each GPU of which claims have something, or Kerf allocates devices: who has what, and what is free."""
        owned = self.ledger.rows.owned
        devices = None if owned is None else owned.devices_on(node)
        free = {} if devices is None else free_of(devices)
        uses: dict[int, list[dict[str, Any]]] = {}
        for use in self.ledger.device_uses(node):
            uses.setdefault(use.gpu, []).append(_told(use))
        known = {device.gpu for device in devices.inventory.devices} if devices is not None else set[int]()
        return {
            gpu: {
                "uses": uses.get(gpu, []),
                "freeDevices": in_words(free.get(gpu, {})) if gpu in known else None,
            }
            for gpu in sorted((known | uses.keys()) - {-1})
        }


def _told(use: DeviceUse) -> dict[str, Any]:
    return asdict(use) | {"gpu": use.gpu if use.gpu >= 0 else None, "kind": use.kind or None, "pods": list(use.pods)}
