"""Folding what was read into the cluster's arrays: bit by bit, with pauses in which requests are answered.

Which GPU of which node a series is of.

A node is found, in this order, by a label that names it (`Hostname`, `hostname`, then what relabelling writes); by the
exporter's pod, whose name `Hostname` often is, or whose address was scraped; by the node's internal IP or name in the
scraped address; by a name that differs in its domain alone. A GPU is found by its UUID where the node's UUIDs are
known, and by its index where they are not.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import numpy as np

from extender.core.clusters import Floats, Mask, Rows, num_true
from extender.core.gauges import Gauge
from extender.core.observations import Gauges
from extender.core.texts import printable
from extender.kube import objects
from extender.ledger.arrays import ObservedArrays
from extender.ledger.ledger import Ledger
from extender.telemetry.readings import Inventory, Reading
from extender.telemetry.series import Host
from extender.telemetry.sources.source import PodUsage
from extender.telemetry.status import Status

logger = logging.getLogger(__name__)

_NO_ROW: Final = -1
_NO_SLOT: Final = -1
_FOREIGN: Final = -2


@dataclass
class _Directory:
    """Other names of nodes. Changed by the event loop only."""

    node_of_ip: dict[str, str] = field(default_factory=dict)
    """Nodes by internal IP."""
    node_of_exporter: dict[str, str] = field(default_factory=dict)
    """Nodes by name, and by IP, of the exporter's pod on them."""
    version: int = 0
    """Grows with every change."""

    def node_of(self, host: Host, rows: Mapping[str, int]) -> str:
        """Name of the node that a host is, "" when none is found."""
        address = host.instance.rpartition(":")[0].strip("[]") or host.instance
        candidates = chain(
            (spelling for name in host.names for spelling in (name, name.lower())),
            (self.node_of_exporter.get(name, "") for name in (*host.names, address)),
            (self.node_of_ip.get(address, ""), address),
        )
        return next((node for node in candidates if node in rows), "")


@dataclass(frozen=True, slots=True)
class Match:
    """Where the samples of an inventory belong in arrays of N rows and G slots."""

    row_of_host: Rows
    """(H,) row, NO_ROW for hosts that are no node."""
    host_idx: Rows
    """(D,) index into hosts."""
    slot: Rows
    """(D,) GPU slot, NO_SLOT for GPUs that have none, FOREIGN for those of which the node is known to have none."""
    by_index: Mask
    """(D,) whether it is its index alone that tells the slot."""
    code: Rows
    """(D,) a number for each UUID, 0 for none."""


def _match_rows(
    inventory: Inventory, rows: Mapping[str, int], directory: _Directory, start: int, end: int
) -> list[int]:
    """Rows of some hosts, so that thousands can be matched bit by bit."""
    return [rows.get(directory.node_of(host, rows), _NO_ROW) for host in inventory.hosts[start:end]]


def _match_first_parts(hosts: Sequence[Host], found: list[int], rows: Mapping[str, int]) -> None:
    """Put rows in for hosts that have none: by a name that is a node's but for the domain behind it, on either side,
    where that leaves no doubt. `found` is (H,) rows so far."""
    missing = [index for index, row in enumerate(found) if row == _NO_ROW and any(hosts[index].names)]
    if not missing:
        return
    nodes_of: dict[str, list[str]] = {}
    for node in rows:
        nodes_of.setdefault(node.partition(".")[0], []).append(node)
    named: dict[int, dict[str, list[int]]] = {}
    for index in missing:
        for name in map(str.lower, hosts[index].names):
            nodes = [node for node in nodes_of.get(name.partition(".")[0], ()) if _differ_by_domain(node, name)]
            if len(nodes) == 1 and not name.replace(".", "").isdecimal():
                named.setdefault(rows[nodes[0]], {}).setdefault(name, []).append(index)
                break
    told = set(found)
    for row, names in named.items():
        if row not in told and len(names) == 1:
            for index in next(iter(names.values())):
                found[index] = row


def _differ_by_domain(one: str, other: str) -> bool:
    return one.startswith(f"{other}.") or other.startswith(f"{one}.")


@dataclass(frozen=True, slots=True)
class _Known:
    """GPUs whose UUIDs are known."""

    at: Mapping[str, tuple[int, int]]
    """Row and slot, by UUID."""
    of_row: Sequence[Sequence[str]]
    """(N,) by slot, "" where it is not known."""
    has_mig: Mask
    """(N,) nodes whose other GPUs may be cut, and are not among these."""

    def slot(self, row: int, uuid: str, number: int) -> tuple[int, bool]:
        """Slot of a GPU of a row, and whether its index alone tells it."""
        at_row, slot = self.at.get(uuid, (_NO_ROW, _NO_SLOT))
        if row == _NO_ROW:
            return _NO_SLOT, False
        if at_row != _NO_ROW:
            return (slot, False) if at_row == row else (_FOREIGN, False)
        known = self.of_row[row]
        is_told = 0 <= number < len(known) and not known[number]
        if uuid and any(known) and not is_told:
            return (_NO_SLOT if self.has_mig[row] else _FOREIGN), False
        return number, True


def _slots(inventory: Inventory, known: _Known, row_of_host: Rows, start: int, end: int) -> list[tuple[int, bool]]:
    """Slots of some GPUs, likewise."""
    rows = row_of_host[inventory.host_idx[start:end]].tolist()
    found = zip(rows, inventory.uuids[start:end], inventory.numbers[start:end], strict=True)
    return [known.slot(row, uuid, number) for row, uuid, number in found]


MAX_SKEW_S: Final = 5.0
_HOSTS_AT_ONCE: Final = 200
_DEVICES_AT_ONCE: Final = 2000
_MAX_TRIES: Final = 3
_LOOK_EVERY_S: Final = 60.0
_MAX_TOLD: Final = 50
_REMEDY: Final = "if they are another cluster's, set telemetry.matchers"


class Folder:
    """Finds the node and GPU of each sample, and writes it there."""

    def __init__(
        self,
        ledger: Ledger,
        status: Status,
        find_exporters: Callable[[], Awaitable[dict[str, str]]],
        clock: Callable[[], float],
    ) -> None:
        """`status` is kept current."""
        self._ledger = ledger
        self._status = status
        self._find_exporters = find_exporters
        self._clock = clock
        self._directory = _Directory()
        self._match: tuple[object, ...] = ()
        none = np.empty(0, np.intp)
        self._matched = Match(none, none, none, none > 0, none)
        self._believed: Mask = none > 0
        self._looked_for_exporters_at = float("-inf")

    def learn_addresses(self, node: objects.Node) -> None:
        """Learn by which addresses a node may be named."""
        for address in node.status.addresses or ():
            if address.type == "InternalIP" and self._directory.node_of_ip.get(address.address) != node.metadata.name:
                self._directory.node_of_ip[address.address] = node.metadata.name
                self._directory.version += 1

    def age(self) -> None:
        """Let what is old count as old."""
        observed = self._ledger.arrays.observed
        if observed is not None:
            self._ledger.arrays.touch(observed.age(self._clock()))

    def pods_of(self, reading: Reading) -> PodUsage:
        """The pods of the last refresh all of whose samples are of GPUs of this cluster's nodes."""
        foreign, of = set(np.flatnonzero(~self._believed).tolist()), reading.pod_devices
        if not foreign:
            return reading.pods
        return {pod: usage for pod, usage in reading.pods.items() if foreign.isdisjoint(of.get(pod, ()))}

    async def fold(self, reading: Reading) -> bool:
        """Write a refresh into the arrays, with pauses; False when nodes came and went all the while."""
        began = self._clock()
        arrays = self._ledger.arrays
        for _ in range(_MAX_TRIES):
            version = arrays.inventory_version
            observed = arrays.observed
            if observed is None:
                return False
            match = await self._match_inventory(reading.inventory)
            raw, sampled_at = await self._fill(observed, reading, match)
            if arrays.inventory_version == version and arrays.observed is observed and raw.shape[1:] == observed.shape:
                arrays.touch(observed.commit(raw, sampled_at, self._clock()))
                self._status.fold_s = self._clock() - began
                return True
        logger.info("nodes came and went while samples were folded; the next refresh has them")
        return False

    async def _match_inventory(self, inventory: Inventory) -> Match:
        """Where samples belong: worked out again only when hosts, GPUs or nodes have changed."""
        await self._look_for_exporters(inventory)
        arrays = self._ledger.arrays
        sizes = len(inventory.hosts), len(inventory.host_idx)
        key = (inventory, sizes, arrays.inventory_version, self._directory.version)
        if key == self._match:
            return self._matched
        rows: list[int] = []
        for start in range(0, len(inventory.hosts), _HOSTS_AT_ONCE):
            rows += _match_rows(inventory, arrays.row_of, self._directory, start, start + _HOSTS_AT_ONCE)
            await asyncio.sleep(0)
        _match_first_parts(inventory.hosts, rows, arrays.row_of)
        row_of_host = np.array(rows, np.intp)
        cluster = self._ledger.snapshot(self._clock())
        known = _Known(cluster.gpu_at, cluster.gpu_uuids, num_true(cluster.mig_installed > 0) > 0)
        found: list[Rows] = [np.empty((0, 4), np.intp)]
        codes = {"": 0}
        for start in range(0, len(inventory.host_idx), _DEVICES_AT_ONCE):
            end = start + _DEVICES_AT_ONCE
            code = [codes.setdefault(uuid, len(codes)) for uuid in inventory.uuids[start:end]]
            slot, by_index = zip(*_slots(inventory, known, row_of_host, start, end), strict=True)
            found.append(np.array([inventory.host_idx[start:end], slot, by_index, code], np.intp).T)
            await asyncio.sleep(0)
        host_idx, slots_found, by_index_found, code_found = np.concatenate(found).T
        self._matched = Match(row_of_host, host_idx, slots_found, by_index_found > 0, code_found)
        self._match = key
        self._describe(inventory, self._matched)
        return self._matched

    async def _look_for_exporters(self, inventory: Inventory) -> None:
        """Ask which pods the exporters are, where hosts are no nodes by their names."""
        arrays = self._ledger.arrays
        now = self._clock()
        if now - self._looked_for_exporters_at < _LOOK_EVERY_S:
            return
        known = self._directory
        if all(known.node_of(host, arrays.row_of) for host in inventory.hosts[:_HOSTS_AT_ONCE]):
            return
        self._looked_for_exporters_at = now
        found = await self._find_exporters()
        if found != known.node_of_exporter:
            known.node_of_exporter = found
            known.version += 1

    def _describe(self, inventory: Inventory, match: Match) -> None:
        status = self._status
        unmatched = np.flatnonzero(match.row_of_host == _NO_ROW)
        status.num_hosts, status.num_gpus = len(inventory.hosts), len(inventory.host_idx)
        matched = match.row_of_host[match.host_idx] != _NO_ROW if len(match.host_idx) else np.empty(0, np.bool_)
        status.num_gpus_matched = int((matched & (match.slot >= 0)).sum())
        status.unmatched = tuple(_words(inventory, index) for index in unmatched[:_MAX_TOLD].tolist())

    async def _fill(self, observed: ObservedArrays, reading: Reading, match: Match) -> tuple[Gauges, Floats]:
        """All samples with the refresh written into them, and (N,) when each row's were taken."""
        raw = observed.begin()
        num_rows, num_slots = raw.shape[1:]
        sampled_at = observed.current.sampled_at.copy()
        host_at = np.where(np.isnan(reading.age_s), -np.inf, reading.read_at - reading.age_s)
        host_at = np.minimum(host_at, reading.read_at)  # what comes from the future is no fresher than now
        host_at[reading.age_s < -MAX_SKEW_S] = -np.inf
        counts = (match.row_of_host >= 0) & (match.row_of_host < num_rows) & np.isfinite(host_at)
        rows = match.row_of_host[counts]
        counts[counts] = host_at[counts] >= sampled_at[rows]  # nothing older takes the place of what is known
        rows = match.row_of_host[counts]
        heard_of = np.zeros(len(match.host_idx), np.bool_)
        for plane in reading.values.values():
            heard_of |= ~np.isnan(plane)
        await asyncio.sleep(0)
        row_of = match.row_of_host[match.host_idx]
        is_node = (row_of != _NO_ROW) & (row_of < num_rows)
        disputed = self._disputed(reading.inventory, match, heard_of & is_node, (num_rows, num_slots))
        of_disputed = np.zeros(len(row_of), np.bool_)
        of_disputed[is_node] = disputed[row_of[is_node]]
        of_disputed &= match.by_index
        self._believed = is_node & (match.slot != _FOREIGN) & ~of_disputed
        in_place = self._believed & (match.slot >= 0) & (match.slot < num_slots)
        which = np.flatnonzero(counts[match.host_idx] & in_place)
        await asyncio.sleep(0)
        if np.bincount(rows, minlength=1).max() > 1:
            # Of two series of one GPU the newer has the last word.
            which = which[np.argsort(host_at[match.host_idx[which]], kind="stable")]
            await asyncio.sleep(0)
        row = match.row_of_host[match.host_idx[which]]
        target = row * num_slots + match.slot[which]
        told = np.zeros(num_rows, np.bool_)
        told[row] = True
        newest = np.full(num_rows, -np.inf)
        np.maximum.at(newest, rows, host_at[counts])
        sampled_at[told] = newest[told]
        await asyncio.sleep(0)
        for gauge in Gauge:
            plane = raw[gauge]
            plane[told | disputed] = np.nan
            values = reading.values.get(gauge)
            if values is not None:
                flat, told_now = plane.reshape(-1), values[which]
                is_told = ~np.isnan(told_now)  # another exporter of the node may tell what this one does not
                flat[target[is_told]] = told_now[is_told]
            await asyncio.sleep(0)
        return raw, sampled_at

    def _disputed(self, inventory: Inventory, match: Match, heard_of: Mask, shape: tuple[int, int]) -> Mask:
        """(N,) nodes of which a GPU has samples under two UUIDs at once: one of them is another cluster's, and nothing
        tells which. Tells of them, and of GPUs that their nodes are known not to have."""
        num_rows, num_slots = shape
        row = match.row_of_host[match.host_idx]
        told = heard_of & match.by_index & (match.code > 0) & (match.slot >= 0) & (match.slot < num_slots)
        target, code = row[told] * num_slots + match.slot[told], match.code[told]
        first = np.zeros(num_rows * num_slots, np.intp)
        first[target] = code
        others = first[target] != code
        disputed = np.zeros(num_rows, np.bool_)
        disputed[row[told][others]] = True
        foreign = np.flatnonzero(heard_of & (match.slot == _FOREIGN))
        names = self._ledger.snapshot(self._clock()).node_names
        of_two = (
            f"node {names[row[device]]}: GPU {inventory.numbers[device]} has samples under several UUIDs, such as "
            f"{printable(inventory.uuids[device])}, and by index none of that node's are used: {_REMEDY}"
            for device in np.flatnonzero(told)[others][:_MAX_TOLD].tolist()
        )
        of_another = (
            f"node {names[row[device]]}: samples of {printable(inventory.uuids[device])} are not used, for it has no "
            f"such GPU: {_REMEDY}"
            for device in foreign[:_MAX_TOLD].tolist()
        )
        self._status.doubts = tuple(dict.fromkeys([*of_two, *of_another]))
        return disputed


def _words(inventory: Inventory, index: int) -> str:
    host = inventory.hosts[index]
    names = "/".join(host.names) or "no name"
    return printable(f"{names} at {host.instance}" if host.instance else names)
