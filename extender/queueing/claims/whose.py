"""Whose it is to allocate what claims ask: Kerf's where devices that it owns could meet it, else kube-scheduler's.

It is Kerf's, too, where nobody has such devices: drivers go away and come back, as with each start of a kubelet, and a
pod that was left to kube-scheduler meanwhile would wait there for ever.

To find out means to look at the devices of all nodes, and whoever writes a claim decides how long that takes. So it is
done in small portions between rounds, for all who ask in turn.
"""

import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from extender.core.dra.asks import DevicesAsked
from extender.core.dra.devices import Inventory
from extender.core.fit.device_fits import could_serve, possible_on
from extender.dra.owned import OwnedDevices

_PORTION: Final = 16
"""Nodes that are looked at for one ask before it is the next one's turn."""
_ROUND_S: Final = 0.01
_MAX_KNOWN: Final = 10_000


@dataclass(eq=False)
class Whose:
    """Remembers what was found out, until the devices that there are change."""

    owned: OwnedDevices
    _known: dict[DevicesAsked, tuple[bool, int]] = field(default_factory=dict, init=False)
    """With the version of the devices that it was found out of: it counts until another one is."""
    _looking: OrderedDict[DevicesAsked, tuple[Iterator[tuple[Inventory, bool]], int]] = field(
        default_factory=OrderedDict, init=False
    )
    news: bool = field(default=False, init=False)
    """Whether something is another's than before, until somebody takes note of it."""
    _others: set[DevicesAsked] = field(default_factory=set, init=False)  # of which others have a device

    def is_kerfs(self, asked: DevicesAsked) -> bool | None:
        """Whether Kerf allocates that; None while it is being found out."""
        if self.owned.slices.all_owned():
            return True
        known, version = self._known.get(asked, (None, -1))
        if version != self.owned.version and asked not in self._looking:
            self._looking[asked] = iter(self.owned.slices.inventories()), self.owned.version
        return known

    def look_further(self) -> bool:
        """Look at some nodes; whether there is more to look at."""
        until = time.perf_counter() + _ROUND_S
        while self._looking and time.perf_counter() < until:
            asked, (inventories, version) = self._looking.popitem(last=False)
            portion = list(islice(inventories, _PORTION))
            if any(inventory.devices and possible_on(inventory, asked) for inventory, _ in portion):
                self._decide(asked, version, kerfs=True)
                continue
            if any(others and could_serve(inventory, asked) for inventory, others in portion):
                self._others.add(asked)
            if len(portion) < _PORTION:
                self._decide(asked, version, kerfs=asked not in self._others)
            else:
                self._looking[asked] = inventories, version
        return bool(self._looking)

    def _decide(self, asked: DevicesAsked, version: int, *, kerfs: bool) -> None:
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self.news |= self._known.get(asked, (kerfs, 0))[0] is not kerfs
        self._known[asked] = kerfs, version
        self._others.discard(asked)
