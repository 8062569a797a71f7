"""What the claims on one node come to, GPU by GPU."""

from collections.abc import Collection

from extender.core.clusters import WHOLE_MILLI
from extender.core.resources.nodes import SLICES, GpuUnit, NodeOffer
from extender.ledger.arrays import Held
from extender.plugins.holdings import Holding, Part


class Occupancy:
    """What the claims on one node come to."""

    def __init__(self, offer: NodeOffer) -> None:
        self._offer = offer
        self._index_of = {gpu.uuid: index for index, gpu in enumerate(offer.gpus) if gpu.uuid}
        self._sliced = offer.unit in SLICES
        self.held: dict[int, tuple[int, int]] = {}
        """(milli, MiB) by index, more than the GPU has where it is booked over its capacity."""
        self._slices: dict[int, int] = {}  # of each GPU that is known to have some
        self._holders: dict[int, int] = {}  # shares of each GPU
        self.untracked = offer.withheld_units
        self.mig: list[tuple[str, int]] = []
        self.num_served = self.num_unserved = 0
        self.crowded = False
        """Whether the claims don't all have room, or GPUs of their own."""

    @property
    def left(self) -> Held:
        """Who holds what, as the arrays take it."""
        return Held(self.held, self.untracked, self.mig, self.num_served, self.num_unserved, self._slices)

    @property
    def nothing_left(self) -> Held:
        """The same where all that is free counts as somebody's."""
        offer = self._offer
        held = {index: (WHOLE_MILLI, gpu.memory_mib) for index, gpu in enumerate(offer.gpus)}
        untracked = len(offer.gpus) * offer.units_per_gpu if self._sliced else self.untracked
        return Held(held, max(untracked, self.untracked), offer.mig, self.num_served, self.num_unserved, self._slices)

    def as_given(self, holding: Holding, uuids: tuple[str, ...]) -> Holding | None:
        """A pod's whole GPUs, or time slices, as the kubelet really gave them; None where that can't be true."""
        apart = self._sliced or (self._offer.unit is GpuUnit.WHOLE and len(set(uuids)) == len(uuids))
        plain = apart and all(part.whole for part in holding.parts)
        as_many = len(uuids) == holding.units and all(uuid in self._index_of for uuid in uuids)
        if not (plain and as_many) or holding.unserved:
            return None
        return Holding(holding.units, tuple(Part(self._index_of[uuid], uuid=uuid) for uuid in uuids))

    def book(self, holdings: Collection[Holding]) -> None:
        """Book all that is held, once. Shares come first: a share is on the GPU that it names."""
        for holding in holdings:
            self._add_shares(holding)
        for holding in holdings:
            self._add_whole(holding)
        self._settle()

    def _add_shares(self, holding: Holding) -> None:
        """Book the parts of GPUs, and count what is of unknown index."""
        self.mig += holding.mig
        self.num_unserved += holding.unserved
        self.num_served += holding.units > 0 and not holding.unserved
        if self._sliced:
            self._add_slices(holding)
            return
        self.untracked += holding.units - len(holding.parts)
        for part in holding.parts:
            if self.is_whole(part):
                continue
            gpu = self.find(part.gpu, part.uuid)
            if gpu is None:
                self.untracked += 1
                self.crowded = True
                continue
            milli, mib = self.held.get(gpu, (0, 0))
            self.held[gpu] = milli + part.milli, mib + part.mib
            self._holders[gpu] = self._holders.get(gpu, 0) + 1

    def _add_whole(self, holding: Holding) -> None:
        """Book whole GPUs; one that is not there, or that somebody has something of, counts by number."""
        for part in holding.parts:
            if self._sliced or not self.is_whole(part):
                continue
            gpu = self.find(part.gpu, part.uuid)
            if gpu is None or gpu in self.held:
                self.untracked += 1
                self.crowded = True
            else:
                self.held[gpu] = WHOLE_MILLI, self._offer.gpus[gpu].memory_mib

    def _add_slices(self, holding: Holding) -> None:
        """All count by number; of which GPUs some are, is known besides."""
        self.untracked += holding.units
        for part in holding.parts:
            gpu = self.find(part.gpu, part.uuid)
            if gpu is not None:
                self._slices[gpu] = self._slices.get(gpu, 0) + 1

    def _settle(self) -> None:
        """See whether all have room; where they have not, the rest of the shared GPUs may be somebody's."""
        gpus = self._offer.gpus
        self.crowded = self.crowded or (self._offer.plugin_picks and self.num_served > 0 < self.num_unserved)
        idle = sum(gpu.healthy and index not in self.held for index, gpu in enumerate(gpus))
        if self.untracked > idle * self._offer.units_per_gpu:
            self.crowded = True
            self.held = {gpu: (WHOLE_MILLI, gpus[gpu].memory_mib) for gpu in self.held}
        self.crowded = self.crowded or any(count > self._offer.units_per_gpu for count in self._slices.values())
        for gpu, (milli, mib) in self.held.items():
            self.crowded = self.crowded or milli > WHOLE_MILLI or mib > gpus[gpu].memory_mib
        for gpu, num_holders in self._holders.items():
            if 0 < gpus[gpu].max_holders <= num_holders:
                self.crowded = self.crowded or num_holders > gpus[gpu].max_holders
                milli, mib = self.held[gpu]
                self.held[gpu] = max(milli, WHOLE_MILLI), max(mib, gpus[gpu].memory_mib)  # its plugin has no more
        installed = dict(self._offer.mig)
        used: dict[str, int] = {}
        for profile, count in self.mig:
            used[profile] = used.get(profile, 0) + count
        self.crowded = self.crowded or any(count > installed.get(profile, 0) for profile, count in used.items())

    def is_whole(self, part: Part) -> bool:
        """Whether nobody else may have anything of its GPU. A share of memory alone is one only where a plugin sees to
        it: elsewhere a request by memory is given a whole GPU."""
        return part.whole or (part.milli == 0 and self._offer.unit is not GpuUnit.PART)

    def find(self, gpu: int, uuid: str) -> int | None:
        """Which GPU of the node it is, None when that can't be told."""
        if uuid and self._index_of:
            return self._index_of.get(uuid)
        return gpu if 0 <= gpu < len(self._offer.gpus) else None
