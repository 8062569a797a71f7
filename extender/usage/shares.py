"""What each holder has of a node's GPUs, in thousandths of a GPU; and what nobody can have of it.

As the ledger counts: a whole GPU is one GPU, a time slice its part of one, a MIG device its compute slices. A share is
the larger of its part of the compute and of the memory; where shares of one GPU come to more than is taken of it by
either measure, each counts less, in proportion. All numbers are whole, and those of a node add up to its capacity.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from extender.core.clusters import WHOLE_MILLI
from extender.core.resources.mig import Cutting, mig_slices
from extender.core.resources.nodes import SLICES, NodeOffer
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.ledger.occupancy import Occupancy
from extender.plugins.holdings import Holding, Part

UNKNOWN_GPU: Final = -1
_UNCUT: Final = Cutting()


class Entry(NamedTuple):
    """What a holder has of one GPU."""

    holder: int
    gpu: int
    """Index, UNKNOWN_GPU for GPUs of unknown index, all in one."""
    milli: int


class NodeShares(NamedTuple):
    """A node's GPUs: `booked + sick <= capacity`; the rest is free."""

    entries: Sequence[Entry]
    capacity_milli: int
    sick_milli: int
    """Of GPUs that nobody has and nobody is given: unhealthy, withheld by the kubelet, or of a node that is set aside
    or takes no pods."""

    @property
    def booked_milli(self) -> int:
        """What holders have."""
        return sum(entry.milli for entry in self.entries)


NO_SHARES: Final = NodeShares((), 0, 0)


def _mig_milli(profile: str, model: str = "", num_holders: int = 1) -> int:
    """Thousandths of a GPU that one of so many holders of a MIG device has, by its profile, as in `1g.5gb`, and its
    GPU's model."""
    num, of = mig_slices(profile, model)
    return WHOLE_MILLI * num // (of * num_holders)


def asked_milli(request: GpuRequest) -> int | None:
    """Thousandths of a GPU that a request comes to, by the same measure; None where that depends on the node: time
    slices, and memory in total."""
    if request.mig:
        return sum(count * _mig_milli(profile) for profile, count in request.mig)
    if request.unit is AskedUnit.SHARED or not request.count:
        return None
    return request.count * (request.milli or WHOLE_MILLI)


def shares_of(
    offer: NodeOffer,
    held: Sequence[tuple[int, Holding]],
    model: str = "",
    cutting: Cutting = _UNCUT,
    *,
    closed: bool = False,
) -> NodeShares:
    """What holders, by number, have of a node that offers this, of GPUs of a model, cut in this way; a closed one gives
    nothing of the rest to anybody."""
    if not offer.gpus and not offer.mig:
        return NO_SHARES
    node = _Node(offer, _MigShares.of(offer, model, cutting), closed or offer.set_aside > 0)
    for holder, holding in held:
        node.take(holder, holding)
    return node.shares()


class _MigShares(NamedTuple):
    """What a node's MIG devices come to."""

    milli_of: Mapping[str, int]
    """Of one holder of a device, by the name of its resource."""
    installed: int
    """Milli of all."""
    whole: int
    """Milli of what goes by the name of a GPU."""

    @classmethod
    def of(cls, offer: NodeOffer, model: str, cutting: Cutting) -> "_MigShares":
        """No more than the GPUs that they are cut from, where their number is known."""
        milli_of = {profile: _mig_milli(profile, model, cutting.num_holders(profile)) for profile, _ in offer.mig}
        installed = sum(count * milli_of[profile] for profile, count in offer.mig)
        num_cut = offer.withheld_units // max(offer.units_per_gpu, 1) if offer.gpus else cutting.num_gpus
        if 0 < num_cut * WHOLE_MILLI < installed:
            milli_of = {name: milli * num_cut * WHOLE_MILLI // installed for name, milli in milli_of.items()}
            installed = sum(count * milli_of[profile] for profile, count in offer.mig)
        return cls(milli_of, installed, _mig_milli(cutting.profile, model) if cutting.profile else WHOLE_MILLI)


@dataclass(slots=True)
class _OnGpu:
    """What is taken of a GPU of known index, by either measure; weights are in thousandths times the slices."""

    weights: dict[int, int]
    compute: int = 0
    memory: int = 0

    def add(self, holder: int, compute: int, memory: int) -> None:
        self.weights[holder] = self.weights.get(holder, 0) + max(compute, memory)
        self.compute, self.memory = self.compute + compute, self.memory + memory


class _Node:
    def __init__(self, offer: NodeOffer, cut: _MigShares, closed: bool) -> None:
        self._offer, self._cut, self._closed = offer, cut, closed
        self._occupancy = Occupancy(offer)
        self._per_gpu = max(offer.units_per_gpu, 1)
        self._sliced = offer.unit in SLICES
        self._on: dict[int, _OnGpu] = {}
        self._unknown: dict[int, int] = {}  # weights
        self._mig: dict[int, int] = {}  # milli

    def take(self, holder: int, holding: Holding) -> None:
        """Count what a holder has."""
        for profile, count in holding.mig:
            self._mig[holder] = self._mig.get(holder, 0) + count * self._cut.milli_of.get(profile, 0)
        num_unknown = holding.units - len(holding.parts)
        for part in holding.parts:
            gpu = self._occupancy.find(part.gpu, part.uuid)
            if gpu is None:
                num_unknown += 1
                continue
            compute, memory = self._measures(part, gpu)
            self._on.setdefault(gpu, _OnGpu({})).add(holder, compute, memory)
        if num_unknown > 0:
            self._unknown[holder] = self._unknown.get(holder, 0) + num_unknown * self._unit

    @property
    def _unit(self) -> int:
        """The weight of one unit."""
        return self._cut.whole if self._sliced else self._cut.whole * self._per_gpu

    def _measures(self, part: Part, gpu: int) -> tuple[int, int]:
        """Weights of a part, by compute and by memory."""
        if self._sliced or self._occupancy.is_whole(part):
            return self._unit, self._unit
        installed = self._offer.gpus[gpu].memory_mib
        if not installed:
            return (self._unit, self._unit) if part.mib else (part.milli * self._per_gpu, 0)
        return part.milli * self._per_gpu, min(part.mib, installed) * self._unit // installed

    def shares(self) -> NodeShares:
        """All of it, none of it more than there is."""
        offer, a_gpu, installed_mig = self._offer, self._cut.whole, self._cut.installed
        whole = a_gpu * self._per_gpu
        entries: list[Entry] = []
        for gpu, on in sorted(self._on.items()):
            taken = min(max(on.compute, on.memory), whole) // self._per_gpu
            entries += [Entry(holder, gpu, milli) for holder, milli in _dealt(taken, on.weights)]
        named = sum(entry.milli for entry in entries)
        room = a_gpu * len(offer.gpus) - named
        unhealthy = a_gpu * sum(not gpu.healthy and at not in self._on for at, gpu in enumerate(offer.gpus))
        wanted = min(sum(self._unknown.values()) // self._per_gpu, room)
        entries += [Entry(holder, UNKNOWN_GPU, milli) for holder, milli in _dealt(wanted, self._unknown)]
        withheld = a_gpu * offer.withheld_units // self._per_gpu
        unhealthy, healthy = _taken(unhealthy, room - unhealthy, wanted)
        of_mig = min(sum(self._mig.values()), installed_mig)
        entries += [Entry(holder, UNKNOWN_GPU, milli) for holder, milli in _dealt(of_mig, self._mig)]
        capacity = a_gpu * len(offer.gpus) + installed_mig
        sick = unhealthy + min(withheld, healthy)
        if offer.mig:  # GPUs that are cut are withheld: their devices count instead
            capacity, sick = capacity - min(withheld, healthy), unhealthy
        if self._closed:
            sick = capacity - named - wanted - of_mig
        return NodeShares(entries, capacity, sick)


def _taken(unhealthy: int, healthy: int, wanted: int) -> tuple[int, int]:
    """What is left of unhealthy and healthy GPUs that nobody is known to have, of which healthy ones go first."""
    return unhealthy - max(wanted - healthy, 0), max(healthy - wanted, 0)


def _dealt(total: int, weights: dict[int, int]) -> list[tuple[int, int]]:
    """A total by weights, in whole numbers whose sum is the total; each within one of its exact part."""
    weight = sum(weights.values())
    dealt: list[tuple[int, int]] = []
    before = so_far = 0
    for holder, part in weights.items():
        so_far += part
        upto = total * so_far // weight if weight else 0
        dealt.append((holder, upto - before))
        before = upto
    return dealt
