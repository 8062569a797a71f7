"""Decides whether Kerf or kube-scheduler allocates a claim: Kerf if devices that it owns could satisfy it.

Kerf also allocates claims that no devices could satisfy. Drivers disappear and come back, as with each kubelet restart,
and a pod left to kube-scheduler meanwhile would wait there forever.

The decision examines the devices of all nodes, at a cost that the claim's author controls. So it is made in small
batches in a worker thread, round robin over namespaces.
"""

import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from extender.core.dra.asks import DeviceClaims
from extender.core.dra.devices import Inventory
from extender.core.fit.device_fits import could_serve, possible_on
from extender.dra.owned import OwnedDevices

_PORTION: Final = 16
"""Most nodes examined for one request before the next request's turn."""
_ROUND_S: Final = 0.01
_MAX_KNOWN: Final = 10_000


@dataclass(eq=False)
class AllocatorChoice:
    """Caches decisions until the published devices change."""

    owned: OwnedDevices
    _known: dict[DeviceClaims, tuple[bool, int]] = field(default_factory=dict, init=False)
    """Decisions with the version of the devices; an outdated one is used until it is replaced."""
    _looking: OrderedDict[str, OrderedDict[DeviceClaims, tuple[Iterator[tuple[Inventory, bool]], int]]] = field(
        default_factory=OrderedDict, init=False
    )
    """Requests under examination, by namespace."""
    news: bool = field(default=False, init=False)
    """Whether a decision has changed; reset by the caller."""
    _others: set[DeviceClaims] = field(default_factory=set, init=False)  # requests that others' devices could serve

    def is_kerfs(self, asked: DeviceClaims, namespace: str) -> bool | None:
        """Whether Kerf allocates a request; None while undecided."""
        if self.owned.slices.all_owned():
            return True
        known = self._known.get(asked)
        if known is None or known[1] != self.owned.version:
            due = self._looking.setdefault(namespace, OrderedDict())
            due.setdefault(asked, (iter(self.owned.slices.inventories()), self.owned.version))
        return None if known is None else known[0]

    @property
    def looking(self) -> bool:
        """Whether requests are under examination."""
        return bool(self._looking)

    def look_further(self, within_s: float = _ROUND_S) -> bool:
        """Examine nodes for `within_s` seconds, at least one node; return whether there is more to do.

        May run in any thread, but only in one at a time.
        """
        until = time.perf_counter() + within_s
        while self._looking:
            namespace = next(iter(self._looking))
            due = self._looking.pop(namespace)
            asked = next(iter(due))
            inventories, version = due.pop(asked)
            kerfs = self._look(asked, inventories, until)
            if kerfs is None:
                due[asked] = inventories, version
            else:
                self._decide(asked, version, kerfs=kerfs)
            # The event loop may have added requests meanwhile.
            due |= self._looking.pop(namespace, OrderedDict())
            if due:
                self._looking[namespace] = due
            if time.perf_counter() >= until:
                break
        return self.looking

    def _look(self, asked: DeviceClaims, inventories: Iterator[tuple[Inventory, bool]], until: float) -> bool | None:
        """Examine some more nodes; return whether Kerf allocates the request, None while undecided."""
        for _ in range(_PORTION):
            node = next(inventories, None)
            if node is None:
                return asked not in self._others
            inventory, others = node
            if inventory.devices and possible_on(inventory, asked):
                return True
            if others and asked not in self._others and could_serve(inventory, asked):
                self._others.add(asked)
            if time.perf_counter() >= until:
                return None
        return None

    def _decide(self, asked: DeviceClaims, version: int, *, kerfs: bool) -> None:
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        before = self._known.get(asked)
        self.news |= before is not None and before[0] is not kerfs
        self._known[asked] = kerfs, version
        self._others.discard(asked)
