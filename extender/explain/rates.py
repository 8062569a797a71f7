"""How many GPUs are booked, used, idle, stranded and unavailable ("sick") at a moment, by holder and by node.

Follows the ledger: a node is read again only after its bookings have changed, everything else is computed on arrays.
N nodes by the ledger's rows, E entries of a node (what one holder has of one of its GPUs), U numbers of holders. GPUs
are counted in thousandths, as whole numbers; those of a node add up to its capacity.

Units are the ledger's: a whole GPU is one GPU, a time slice its fraction of one, a MIG device its compute slices. A
share is the larger of its fractions of compute and memory; if the shares of a GPU exceed what is taken of it by either
measure, they are scaled down in proportion.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from extender.core.clusters import WHOLE_MILLI, Cluster, Floats, Longs, Mask, Rows
from extender.core.gauges import Gauge
from extender.core.resources.gpu_models import describe_model
from extender.core.resources.mig import Cutting, mig_slices, read_cutting
from extender.core.resources.nodes import SLICES, NodeOffer
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.core.vendors.registry import VENDORS
from extender.explain.holders import Closed, Holders
from extender.explain.stranded import stranded_of
from extender.kube.background import give_way
from extender.ledger.allocations import Occupancy
from extender.ledger.ledger import Ledger
from extender.plugins.holdings import Holding, Part

_UNKNOWN_GPU: Final = -1
_UNCUT: Final = Cutting()


class Entry(NamedTuple):
    """A holder's part of one GPU."""

    holder: int
    gpu: int
    """Index of the GPU; `_UNKNOWN_GPU` for all GPUs of unknown index together."""
    milli: int


class NodeShares(NamedTuple):
    """A node's GPUs: `booked + sick <= capacity`; the rest is free."""

    entries: Sequence[Entry]
    capacity_milli: int
    sick_milli: int
    """Capacity that is unbooked and unavailable: unhealthy GPUs, GPUs withheld by the kubelet, and GPUs of nodes that
    are quarantined or take no pods."""

    @property
    def booked_milli(self) -> int:
        """Sum over the holders."""
        return sum(entry.milli for entry in self.entries)


_NO_SHARES: Final = NodeShares((), 0, 0)


def _mig_milli(profile: str, model: str = "", num_holders: int = 1) -> int:
    """Thousandths of a GPU per holder of a MIG device, by its profile, such as `1g.5gb`, and GPU model."""
    num, of = mig_slices(profile, model)
    return WHOLE_MILLI * num // (of * num_holders)


def asked_milli(request: GpuRequest) -> int | None:
    """Thousandths of a GPU that a request amounts to; None if it depends on the node: time slices, total memory."""
    if request.mig:
        return sum(count * _mig_milli(profile) for profile, count in request.mig)
    if request.unit is AskedUnit.SHARED or not request.count:
        return None
    return request.count * (request.milli or WHOLE_MILLI)


def _shares_of(
    offer: NodeOffer,
    held: Sequence[tuple[int, Holding]],
    model: str = "",
    cutting: Cutting = _UNCUT,
    *,
    closed: bool = False,
) -> NodeShares:
    """The shares of holders, by number, on a node with this offer, GPU model and MIG cutting.

    The rest of a closed node is unavailable.
    """
    if not offer.gpus and not offer.mig:
        return _NO_SHARES
    node = _Node(offer, _MigShares.of(offer, model, cutting), closed or offer.set_aside > 0)
    for holder, holding in held:
        node.take(holder, holding)
    return node.shares()


class _MigShares(NamedTuple):
    """Sizes of a node's MIG devices."""

    milli_of: Mapping[str, int]
    """Milli per holder of a device, by profile."""
    installed: int
    """Milli of all devices."""
    whole: int
    """Milli of what the node advertises as a GPU."""

    @classmethod
    def of(cls, offer: NodeOffer, model: str, cutting: Cutting) -> "_MigShares":
        """Sizes that add up to at most the GPUs that the devices are cut from, if their number is known."""
        milli_of = {profile: _mig_milli(profile, model, cutting.num_holders(profile)) for profile, _ in offer.mig}
        installed = sum(count * milli_of[profile] for profile, count in offer.mig)
        num_cut = offer.withheld_units // max(offer.units_per_gpu, 1) if offer.gpus else cutting.num_gpus
        if 0 < num_cut * WHOLE_MILLI < installed:
            milli_of = {name: milli * num_cut * WHOLE_MILLI // installed for name, milli in milli_of.items()}
            installed = sum(count * milli_of[profile] for profile, count in offer.mig)
        return cls(milli_of, installed, _mig_milli(cutting.profile, model) if cutting.profile else WHOLE_MILLI)


@dataclass(slots=True)
class _OnGpu:
    """What is taken of a GPU of known index, by compute and memory; weights are in thousandths times the slices."""

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
        """Add a holder's GPUs."""
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
        """Weights of a part by compute and by memory."""
        if self._sliced or self._occupancy.is_whole(part):
            return self._unit, self._unit
        installed = self._offer.gpus[gpu].memory_mib
        if not installed:
            return (self._unit, self._unit) if part.mib else (part.milli * self._per_gpu, 0)
        return part.milli * self._per_gpu, min(part.mib, installed) * self._unit // installed

    def shares(self) -> NodeShares:
        """The shares, limited to the node's capacity."""
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
        entries += [Entry(holder, _UNKNOWN_GPU, milli) for holder, milli in _dealt(wanted, self._unknown)]
        withheld = a_gpu * offer.withheld_units // self._per_gpu
        unhealthy, healthy = _taken(unhealthy, room - unhealthy, wanted)
        of_mig = min(sum(self._mig.values()), installed_mig)
        entries += [Entry(holder, _UNKNOWN_GPU, milli) for holder, milli in _dealt(of_mig, self._mig)]
        capacity = a_gpu * len(offer.gpus) + installed_mig
        sick = unhealthy + min(withheld, healthy)
        if offer.mig:  # GPUs cut into MIG devices are withheld: the devices count instead
            capacity, sick = capacity - min(withheld, healthy), unhealthy
        if self._closed:
            sick = capacity - named - wanted - of_mig
        return NodeShares(entries, capacity, sick)


def _taken(unhealthy: int, healthy: int, wanted: int) -> tuple[int, int]:
    """What is left of unhealthy and healthy GPUs without a known holder after taking `wanted`, healthy ones first."""
    return unhealthy - max(wanted - healthy, 0), max(healthy - wanted, 0)


def _dealt(total: int, weights: dict[int, int]) -> list[tuple[int, int]]:
    """A total split by weights into whole numbers that sum to it, each within one of its exact share."""
    weight = sum(weights.values())
    dealt: list[tuple[int, int]] = []
    before = so_far = 0
    for holder, part in weights.items():
        so_far += part
        upto = total * so_far // weight if weight else 0
        dealt.append((holder, upto - before))
        before = upto
    return dealt


NUM_OF_HOLDERS: Final = 4
"""Rows of `Rates.of_groups`: booked; booked weighted by load; booked with known load; booked with load below idle."""
CAPACITY, FREE, STRANDED, SICK = range(4)
NUM_OF_NODES: Final = 4
"""Rows of `Rates.of_nodes`: `capacity = booked + free + stranded + sick`."""
_UNKNOWN_MODEL: Final = "unknown"
_NOBODY: Final = -1
_NODES_AT_ONCE: Final = 50
_IntegerT = TypeVar("_IntegerT", bound=np.integer)


class Rates(NamedTuple):
    """GPU milli at a moment. Holders are summed by group: those that count on the same lines."""

    of_groups: Longs
    """(4, P) by group."""
    of_nodes: Longs
    """(4, N)."""
    booked: Longs
    """(U,) by holder."""
    idles: Mask
    """(U,) holders with a known load below the threshold on all their GPUs."""


class _Entries(NamedTuple):
    """X entries of N nodes, flattened, with sums over them."""

    row: Rows
    holder: Rows
    milli: Floats
    """Whole numbers."""
    slot: Rows
    """(X,) flat index of its GPU in (N, G); -1 if unknown."""
    of_nodes: Longs
    """(N,) milli booked."""
    of_holders: Longs
    """(U,) milli booked."""


class OfHolders(NamedTuple):
    """GPUs and load of each holder now."""

    booked: Longs
    """(U,) GPU milli."""
    load: Floats
    """(U,) load of these GPUs; NaN if that of any is unknown, or if there are none."""


class Occupants:
    """The entries of all nodes as arrays. Not thread-safe."""

    def __init__(self, ledger: Ledger, holders: Holders) -> None:
        self._ledger, self.holders = ledger, holders
        self._holder: npt.NDArray[np.int32] = np.full((0, 1), _NOBODY, np.int32)
        """(N, E) holder of each entry."""
        self._gpu: npt.NDArray[np.int16] = np.full((0, 1), _UNKNOWN_GPU, np.int16)
        self._milli: Longs = np.zeros((0, 1), np.int64)
        self.capacity: Longs = np.zeros(0, np.int64)
        """(N,) GPU milli."""
        self.sick: Longs = np.zeros(0, np.int64)
        """(N,) GPU milli."""
        self.model: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        """(N,) index into `models`."""
        self.models: list[str] = []
        """Names of GPU models. A node with several counts as its first."""
        self.renamed: list[int] = []
        """Holders whose GPUs turned out to be of another model, since the consumer last cleared this."""
        self._row_of: dict[str, int] = {}
        self._node_at: dict[int, str] = {}
        self.version = 0
        """Increases with every change."""
        self._made: tuple[tuple[int, int, int], _Entries] | None = None

    async def catch_up(self) -> None:
        """Read all changed nodes, yielding to the event loop in between. Concurrent calls share the work: a cancelled
        one leaves the rest to the next."""
        changed = self.holders.changed
        for done, node in enumerate(sorted(changed), 1):
            if node in changed:
                changed.discard(node)
                self.look_at(node)
            if done % _NODES_AT_ONCE == 0:
                await give_way()

    def look_at(self, node: str) -> None:
        """Update the entries of a node."""
        model = self.model_of(node)
        row, before = self._ledger.rows.arrays.row_of.get(node), self._row_of.pop(node, None)
        if before is not None and self._node_at[before] == node:  # else the row is reused by another node
            self._write(before, _NO_SHARES)
        held = list(self.holders.on(node))
        if row is None:
            self.holders.forget_node(node)
            return
        self._row_of[node], self._node_at[row] = row, node
        offer = self._ledger.rows.offer_of(node)
        index = self._model(node, offer)
        closed = self.holders.closed(node) is not Closed.NOT
        manifest = self._ledger.rows.manifest(node)
        cutting = read_cutting((manifest.metadata.labels if manifest else None) or {}, offer.mig, VENDORS[offer.vendor])
        self._write(row, _shares_of(offer, held, self.models[index], cutting, closed=closed))
        self.model[row] = index
        if self.model_of(node) != model:  # the label arrived after the pods
            self.renamed += [number for number, _ in held]

    def names(self) -> list[tuple[str, int]]:
        """Nodes with GPUs and their rows, by name."""
        return sorted((name, row) for name, row in self._row_of.items() if self.capacity[row])

    def model_of(self, node: str) -> str:
        """The GPU model of a node."""
        row = self._row_of.get(node)
        if row is None or self._node_at[row] != node:
            return _UNKNOWN_MODEL
        return self.models[int(self.model[row])]

    def _model(self, node: str, offer: NodeOffer) -> int:
        name = offer.gpus[0].model.name if offer.gpus else ""
        manifest = self._ledger.rows.manifest(node)
        if offer.mig and not name and manifest is not None:  # with MIG, only a label has the model
            label = VENDORS[offer.vendor].product_label
            name = describe_model((manifest.metadata.labels or {}).get(label, ""), {}).name
        name = name or _UNKNOWN_MODEL
        if name not in self.models:
            self.models.append(name)
        return self.models.index(name)

    def _write(self, row: int, shares: NodeShares) -> None:
        self._grow(row + 1, len(shares.entries))
        self._holder[row] = _NOBODY
        for position, (holder, gpu, milli) in enumerate(shares.entries):
            self._holder[row, position] = holder
            self._gpu[row, position] = gpu
            self._milli[row, position] = milli
        self.capacity[row], self.sick[row] = shares.capacity_milli, shares.sick_milli
        self.version += 1

    def _grow(self, num_rows: int, num_entries: int) -> None:
        rows, entries = self._holder.shape
        if num_rows <= rows and num_entries <= entries:
            return
        more = (max(num_rows, 2 * rows if num_rows > rows else rows), max(num_entries, entries))
        self._holder = _padded(self._holder, more, _NOBODY)
        self._gpu = _padded(self._gpu, more, _UNKNOWN_GPU)
        self._milli = _padded(self._milli, more, 0)
        self.capacity = np.append(self.capacity, np.zeros(more[0] - rows, np.int64))
        self.sick = np.append(self.sick, np.zeros(more[0] - rows, np.int64))
        self.model = np.append(self.model, np.zeros(more[0] - rows, np.int32))

    def rates(
        self, cluster: Cluster, idle_below: float, unusable: Longs, group: npt.NDArray[np.integer], num_groups: int
    ) -> Rates:
        """The rates in a cluster; `unusable` is (N,) milli that no pod is expected to use, `group` (U,) by holder.

        A GPU with a load below `idle_below` is idle. Nodes that were not read since they changed count as before.
        """
        entries = self._flat(min(cluster.num_nodes, len(self.capacity)), cluster.gpu_model.shape[1])
        num_rows, milli = len(entries.of_nodes), entries.milli
        load = _loads(cluster, entries)
        known = np.isfinite(load)
        used = np.floor(milli * np.where(known, np.clip(load, 0, 1), 0))
        idle = load < idle_below  # False for NaN
        groups = group[entries.holder]
        of_groups = [np.bincount(groups, column, num_groups) for column in (milli, used, milli * known, milli * idle)]
        num_busy = np.bincount(entries.holder[~idle], minlength=len(entries.of_holders))
        capacity, sick = self.capacity[:num_rows], self.sick[:num_rows]
        left = capacity - entries.of_nodes - sick
        stranded = stranded_of(unusable, left)
        return Rates(
            np.stack(of_groups).astype(np.int64),
            np.stack([capacity, left - stranded, stranded, sick]),
            entries.of_holders,
            (num_busy == 0) & (entries.of_holders > 0),
        )

    def of_holders(self, cluster: Cluster) -> OfHolders:
        """GPUs and load of each holder in a cluster. Nodes count as in `rates`."""
        entries = self._flat(min(cluster.num_nodes, len(self.capacity)), cluster.gpu_model.shape[1])
        used = np.bincount(entries.holder, entries.milli * _loads(cluster, entries), len(entries.of_holders))
        load = np.where(entries.of_holders > 0, used / np.maximum(entries.of_holders, 1), np.nan)
        return OfHolders(entries.of_holders, load)

    def _flat(self, num_rows: int, num_slots: int) -> _Entries:
        """The entries, computed once per change."""
        made_of = self.version, num_rows, num_slots
        if self._made is not None and self._made[0] == made_of:
            return self._made[1]
        row, place = np.nonzero(self._holder[:num_rows] != _NOBODY)
        holder = self._holder[row, place].astype(np.intp)
        gpu, milli = self._gpu[row, place].astype(np.intp), self._milli[row, place].astype(np.float64)
        slot = np.where((gpu >= 0) & (gpu < num_slots), row * num_slots + gpu, -1)
        num_holders = self.holders.num_numbers
        entries = _Entries(
            row=row,
            holder=holder,
            milli=milli,
            slot=slot,
            of_nodes=np.bincount(row, milli, num_rows).astype(np.int64),
            of_holders=np.bincount(holder, milli, num_holders).astype(np.int64),
        )
        self._made = made_of, entries
        return entries


def _loads(cluster: Cluster, entries: _Entries) -> Floats:
    """(X,) the load of each entry, NaN if unknown.

    Entries on GPUs of unknown index share the load of the GPUs that no entry names.
    """
    if cluster.observed is None:
        return np.full(len(entries.row), np.nan)
    num_rows = len(entries.of_nodes)
    load = cluster.observed.gauge(Gauge.LOAD)[:num_rows]  # (N, G)
    found = load.reshape(-1).take(entries.slot, mode="clip").astype(np.float64)
    if (others := entries.slot < 0).any():
        named = np.zeros(load.size, np.bool_)
        named[entries.slot[~others]] = True
        nameless = (cluster.gpu_model[:num_rows] >= 0) & ~named.reshape(load.shape)
        load_of_rest = np.where(nameless, load, 0).sum(axis=1)  # NaN where one of them is
        milli_of_rest = np.bincount(entries.row[others], entries.milli[others], num_rows)
        mean = np.where(nameless.any(axis=1), load_of_rest * WHOLE_MILLI / np.maximum(milli_of_rest, 1), np.nan)
        found[others] = np.minimum(mean, 1)[entries.row[others]]
    return found


def _padded(array: npt.NDArray[_IntegerT], shape: tuple[int, int], fill: int) -> npt.NDArray[_IntegerT]:
    wider = np.full(shape, fill, array.dtype)
    wider[: array.shape[0], : array.shape[1]] = array
    return wider
