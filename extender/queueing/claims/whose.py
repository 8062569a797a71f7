"""Whose it is to allocate what claims ask: Kerf's where devices that it owns could meet it, else kube-scheduler's.

To find out means to look at the devices of all nodes, and whoever writes a claim decides how long that takes. So it is
done in small portions between rounds, for all who ask in turn.

A pool may have no slices for a while: a kubelet that starts removes those of its node, and drivers publish them again
half a minute later; one that is upgraded takes longer. Until then it is Kerf's as it was: a pod that was left to
kube-scheduler meanwhile would wait for ever, for that gives no device of it.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from extender.core.dra.asks import DevicesAsked
from extender.core.dra.devices import Inventory
from extender.core.fit.device_fits import possible_on
from extender.plugins.dra.inventory import Owner
from extender.plugins.dra.owned import OwnedDevices

_PORTION: Final = 16
"""Nodes that are looked at for one ask before it is the next one's turn."""
_ROUND_S: Final = 0.01
_MAX_KNOWN: Final = 10_000
_AWAY_S: Final = 600.0
"""How long devices are waited for that nobody publishes any more."""


@dataclass(eq=False)
class Whose:
    """Remembers what was found out, until the devices that there are change."""

    owned: OwnedDevices
    clock: Callable[[], float] = time.monotonic
    _last: dict[str, Inventory] = field(default_factory=dict, init=False)
    """What Kerf owned of each node when that was seen last."""
    _away_since: dict[str, float] = field(default_factory=dict, init=False)
    """Nodes of which it is not seen now."""
    _version: int = field(default=-1, init=False)
    _known: dict[DevicesAsked, bool] = field(default_factory=dict, init=False)
    _there: list[Inventory] = field(default_factory=list, init=False)
    """What is looked at, in that order."""
    _looking: OrderedDict[DevicesAsked, int] = field(default_factory=OrderedDict, init=False)
    """How many of these have been looked at."""

    def is_kerfs(self, asked: DevicesAsked) -> bool | None:
        """Whether Kerf allocates that; None while it is being found out."""
        self.look_around()
        if self.owned.all_owned():
            return True
        known = self._known.get(asked)
        if known is None and asked not in self._looking:
            self._looking[asked] = 0
        return known

    def look_around(self) -> bool:
        """Notice which devices there are; whether pods may have become kube-scheduler's by waiting alone."""
        now = self.clock()
        overdue = [node for node, since in self._away_since.items() if now - since >= _AWAY_S]
        if self._version == self.owned.version and not overdue:
            return False
        self._version = self.owned.version
        before = self._last.copy()
        for node in overdue:
            del self._away_since[node], self._last[node]
        present = {node: found for node in self.owned.nodes() if (found := self.owned.inventory_on(node)).devices}
        for node in self._last.keys() - present.keys():
            if any(pool.owner is Owner.KUBE_SCHEDULER for pool in self.owned.pools_on(node)):
                del self._last[node]  # it has been given back
            else:
                self._away_since.setdefault(node, now)
        self._last |= present
        self._away_since = {node: since for node, since in self._away_since.items() if node not in present}
        self._look_again(before)
        return bool(overdue)

    def _look_again(self, before: Mapping[str, Inventory]) -> None:
        """Find out once more what the devices that are other than before may change: slices may come all the time."""
        news = [new for node, new in self._last.items() if (old := before.get(node)) is not new and old != new]
        if len(news) != len(self._last) - len(before):  # some are gone, or others than before
            self._known.clear()
            self._there = list(self._last.values())
            self._looking = OrderedDict.fromkeys(self._looking, 0)
        elif news:
            self._looking.update((asked, len(self._there)) for asked, kerfs in self._known.items() if not kerfs)
            self._known = {asked: True for asked, kerfs in self._known.items() if kerfs}
            self._there += news

    def look_further(self) -> None:
        """Look at some nodes."""
        until = time.perf_counter() + _ROUND_S
        while self._looking and time.perf_counter() < until:
            asked, begin = self._looking.popitem(last=False)
            end = begin + _PORTION
            if any(possible_on(inventory, asked) for inventory in self._there[begin:end]):
                self._decide(asked, kerfs=True)
            elif end >= len(self._there):
                self._decide(asked, kerfs=False)
            else:
                self._looking[asked] = end

    def _decide(self, asked: DevicesAsked, *, kerfs: bool) -> None:
        if len(self._known) >= _MAX_KNOWN:
            self._known.clear()
        self._known[asked] = kerfs
