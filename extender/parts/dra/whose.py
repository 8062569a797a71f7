"""Whose it is to allocate what claims ask: Kerf's where devices that it owns could meet it, else kube-scheduler's.

It is Kerf's, too, where nobody has such devices: drivers go away and come back, as with each start of a kubelet, and a
pod that was left to kube-scheduler meanwhile would wait there for ever.

To find out means to look at the devices of all nodes, and whoever writes a claim decides how long that takes. So it is
done in small portions beside the event loop, for all who ask in turn.
"""

import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from extender.core.dra.asks import DevicesAsked
from extender.core.dra.devices import Inventory
from extender.core.fit.device_fits import could_serve, possible_on
from extender.dra.owned import OwnedDevices

_PORTION: Final = 16
"""Nodes that are looked at for one ask before it is the next one's turn, or fewer that take a while."""
_ROUND_S: Final = 0.01
_MAX_KNOWN: Final = 10_000


@dataclass(eq=False)
class Whose:
    """Remembers what was found out, until the devices that there are change."""

    owned: OwnedDevices
    _known: dict[DevicesAsked, tuple[bool, int]] = field(default_factory=dict, init=False)
    """With the version of the devices that it was found out of: it counts until another one is."""
    _looking: OrderedDict[str, OrderedDict[DevicesAsked, tuple[Iterator[tuple[Inventory, bool]], int]]] = field(
        default_factory=OrderedDict, init=False
    )
    """By the namespace that asks: each has its turn, however much it asks."""
    news: bool = field(default=False, init=False)
    """Whether something is another's than before, until somebody takes note of it."""
    _others: set[DevicesAsked] = field(default_factory=set, init=False)  # of which others have a device

    def is_kerfs(self, asked: DevicesAsked, namespace: str) -> bool | None:
        """Whether Kerf allocates that; None while it is being found out."""
        if self.owned.slices.all_owned():
            return True
        known = self._known.get(asked)
        if known is None or known[1] != self.owned.version:
            due = self._looking.setdefault(namespace, OrderedDict())
            due.setdefault(asked, (iter(self.owned.slices.inventories()), self.owned.version))
        return None if known is None else known[0]

    @property
    def looking(self) -> bool:
        """Whether there is anything to look at."""
        return bool(self._looking)

    def look_further(self, within_s: float = _ROUND_S) -> bool:
        """Look at some nodes, at one at least; whether there is more to look at. In any thread, in one at a time."""
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
            # Others may have been asked for meanwhile.
            due |= self._looking.pop(namespace, OrderedDict())
            if due:
                self._looking[namespace] = due
            if time.perf_counter() >= until:
                break
        return self.looking

    def _look(self, asked: DevicesAsked, inventories: Iterator[tuple[Inventory, bool]], until: float) -> bool | None:
        """Whose it is, by some more nodes; None where that is not known yet."""
        for _ in range(_PORTION):
            found = next(inventories, None)
            if found is None:
                return asked not in self._others
            inventory, others = found
            if inventory.devices and possible_on(inventory, asked):
                return True
            if others and asked not in self._others and could_serve(inventory, asked):
                self._others.add(asked)
            if time.perf_counter() >= until:
                return None
        return None

    def _decide(self, asked: DevicesAsked, version: int, *, kerfs: bool) -> None:
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        before = self._known.get(asked)
        self.news |= before is not None and before[0] is not kerfs
        self._known[asked] = kerfs, version
        self._others.discard(asked)
