"""Writes samples into the cluster's arrays, in small steps so that requests can run in between.

A series' node is found, in this order, by a label that names it (`Hostname`, `hostname`, then labels that relabelling
adds); by the exporter's pod, whose name `Hostname` often is, or whose address was scraped; by the node's internal IP or
name in the scraped address; by a name that differs only in its domain. A GPU is found by UUID if the node's UUIDs are
known, else by index.
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
    """Other names of nodes. Changed only in the event loop."""

    node_of_ip: dict[str, str] = field(default_factory=dict)
    """Nodes by internal IP."""
    node_of_exporter: dict[str, str] = field(default_factory=dict)
    """Nodes by the name, and by the IP, of their exporter's pod."""
    version: int = 0
    """Increases with every change."""

    def node_of(self, host: Host, rows: Mapping[str, int]) -> str:
        """The name of a host's node; "" if none matches."""
        address = host.instance.rpartition(":")[0].strip("[]") or host.instance
        candidates = chain(
            (spelling for name in host.names for spelling in (name, name.lower())),
            (self.node_of_exporter.get(name, "") for name in (*host.names, address)),
            (self.node_of_ip.get(address, ""), address),
        )
        return next((node for node in candidates if node in rows), "")


@dataclass(frozen=True, slots=True)
class Match:
    """Positions of an inventory's GPUs in arrays of N rows and G slots."""

    row_of_host: Rows
    """(H,) row; _NO_ROW for hosts that match no node."""
    host_idx: Rows
    """(D,) index into hosts."""
    slot: Rows
    """(D,) GPU slot; _NO_SLOT for GPUs without one, _FOREIGN for GPUs that the node is known not to have."""
    by_index: Mask
    """(D,) whether the slot is only known by index."""
    code: Rows
    """(D,) a number for each UUID; 0 for none."""


def _match_rows(
    inventory: Inventory, rows: Mapping[str, int], directory: _Directory, start: int, end: int
) -> list[int]:
    """Rows of the hosts from `start` to `end`."""
    return [rows.get(directory.node_of(host, rows), _NO_ROW) for host in inventory.hosts[start:end]]


def _match_first_parts(hosts: Sequence[Host], row_of_host: list[int], rows: Mapping[str, int]) -> None:
    """Match unmatched hosts by names that differ from a node's only by a domain suffix, if that is unambiguous.

    Updates `row_of_host` (H,) in place.
    """
    missing = [index for index, row in enumerate(row_of_host) if row == _NO_ROW and any(hosts[index].names)]
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
    matched = set(row_of_host)
    for row, names in named.items():
        if row not in matched and len(names) == 1:
            for index in next(iter(names.values())):
                row_of_host[index] = row


def _differ_by_domain(one: str, other: str) -> bool:
    return one.startswith(f"{other}.") or other.startswith(f"{one}.")


@dataclass(frozen=True, slots=True)
class _Known:
    """Known UUIDs of the cluster's GPUs."""

    at: Mapping[str, tuple[int, int]]
    """Row and slot by UUID."""
    of_row: Sequence[Sequence[str]]
    """(N,) UUIDs by slot; "" if unknown."""
    has_mig: Mask
    """(N,) whether a node may have GPUs in MIG mode, which have no slot."""

    def slot(self, row: int, uuid: str, number: int) -> tuple[int, bool]:
        """The slot of a node's GPU, and whether it is only known by index."""
        at_row, slot = self.at.get(uuid, (_NO_ROW, _NO_SLOT))
        if row == _NO_ROW:
            return _NO_SLOT, False
        if at_row != _NO_ROW:
            return (slot, False) if at_row == row else (_FOREIGN, False)
        known = self.of_row[row]
        is_unknown = 0 <= number < len(known) and not known[number]
        if uuid and any(known) and not is_unknown:
            return (_NO_SLOT if self.has_mig[row] else _FOREIGN), False
        return number, True


def _slots(inventory: Inventory, known: _Known, row_of_host: Rows, start: int, end: int) -> list[tuple[int, bool]]:
    """Slots of the GPUs from `start` to `end`, as of `_Known.slot`."""
    rows = row_of_host[inventory.host_idx[start:end]].tolist()
    gpus = zip(rows, inventory.uuids[start:end], inventory.numbers[start:end], strict=True)
    return [known.slot(row, uuid, number) for row, uuid, number in gpus]


MAX_SKEW_S: Final = 5.0
_HOSTS_AT_ONCE: Final = 200
_DEVICES_AT_ONCE: Final = 2000
_MAX_TRIES: Final = 3
_FIND_EXPORTERS_EVERY_S: Final = 60.0
_MAX_REPORTED: Final = 50
_REMEDY: Final = "if they are another cluster's, set telemetry.matchers"


class Folder:
    """Matches samples to nodes and GPUs, and writes them into the arrays."""

    def __init__(
        self,
        ledger: Ledger,
        status: Status,
        find_exporters: Callable[[], Awaitable[dict[str, str]]],
        clock: Callable[[], float],
    ) -> None:
        """`status` is updated in place."""
        self._ledger = ledger
        self._status = status
        self._find_exporters = find_exporters
        self._clock = clock
        self._directory = _Directory()
        self._match: tuple[object, ...] = ()
        none = np.empty(0, np.intp)
        self._matched = Match(none, none, none, none > 0, none)
        self._believed: Mask = none > 0
        self._found_exporters_at = float("-inf")

    def learn_addresses(self, node: objects.Node) -> None:
        """Add a node's internal IPs to the directory."""
        for address in node.status.addresses or ():
            if address.type == "InternalIP" and self._directory.node_of_ip.get(address.address) != node.metadata.name:
                self._directory.node_of_ip[address.address] = node.metadata.name
                self._directory.version += 1

    def age(self) -> None:
        """Update the states of samples by their ages."""
        observed = self._ledger.arrays.observed
        if observed is not None:
            self._ledger.arrays.touch(observed.age(self._clock()))

    def pods_of(self, reading: Reading) -> PodUsage:
        """The pods of the last refresh that only have samples of this cluster's GPUs."""
        foreign, gpus_of = set(np.flatnonzero(~self._believed).tolist()), reading.pod_devices
        if not foreign:
            return reading.pods
        return {pod: usage for pod, usage in reading.pods.items() if foreign.isdisjoint(gpus_of.get(pod, ()))}

    async def fold(self, reading: Reading) -> bool:
        """Write a refresh into the arrays; False if the set of nodes changed during every attempt."""
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
        logger.info("nodes changed while samples were folded; the next refresh is folded instead")
        return False

    async def _match_inventory(self, inventory: Inventory) -> Match:
        """Match an inventory to the arrays; cached until hosts, GPUs or nodes change."""
        await self._update_exporters(inventory)
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
        columns: list[Rows] = [np.empty((0, 4), np.intp)]
        codes = {"": 0}
        for start in range(0, len(inventory.host_idx), _DEVICES_AT_ONCE):
            end = start + _DEVICES_AT_ONCE
            code = [codes.setdefault(uuid, len(codes)) for uuid in inventory.uuids[start:end]]
            slot, by_index = zip(*_slots(inventory, known, row_of_host, start, end), strict=True)
            columns.append(np.array([inventory.host_idx[start:end], slot, by_index, code], np.intp).T)
            await asyncio.sleep(0)
        host_idx, slots, is_by_index, uuid_codes = np.concatenate(columns).T
        self._matched = Match(row_of_host, host_idx, slots, is_by_index > 0, uuid_codes)
        self._match = key
        self._describe(inventory, self._matched)
        return self._matched

    async def _update_exporters(self, inventory: Inventory) -> None:
        """List the exporters' pods if some hosts match no node, at most once a minute."""
        arrays = self._ledger.arrays
        now = self._clock()
        if now - self._found_exporters_at < _FIND_EXPORTERS_EVERY_S:
            return
        directory = self._directory
        if all(directory.node_of(host, arrays.row_of) for host in inventory.hosts[:_HOSTS_AT_ONCE]):
            return
        self._found_exporters_at = now
        exporters = await self._find_exporters()
        if exporters != directory.node_of_exporter:
            directory.node_of_exporter = exporters
            directory.version += 1

    def _describe(self, inventory: Inventory, match: Match) -> None:
        status = self._status
        unmatched = np.flatnonzero(match.row_of_host == _NO_ROW)
        status.num_hosts, status.num_gpus = len(inventory.hosts), len(inventory.host_idx)
        matched = match.row_of_host[match.host_idx] != _NO_ROW if len(match.host_idx) else np.empty(0, np.bool_)
        status.num_gpus_matched = int((matched & (match.slot >= 0)).sum())
        status.unmatched = tuple(_host_label(inventory, index) for index in unmatched[:_MAX_REPORTED].tolist())

    async def _fill(self, observed: ObservedArrays, reading: Reading, match: Match) -> tuple[Gauges, Floats]:
        """All samples with the refresh written into them, and (N,) the sample time of each row."""
        raw = observed.begin()
        num_rows, num_slots = raw.shape[1:]
        sampled_at = observed.current.sampled_at.copy()
        host_at = np.where(np.isnan(reading.age_s), -np.inf, reading.read_at - reading.age_s)
        host_at = np.minimum(host_at, reading.read_at)  # samples from the future count as current
        host_at[reading.age_s < -MAX_SKEW_S] = -np.inf  # unless they are too far ahead
        counts = (match.row_of_host >= 0) & (match.row_of_host < num_rows) & np.isfinite(host_at)
        rows = match.row_of_host[counts]
        counts[counts] = host_at[counts] >= sampled_at[rows]  # older samples don't replace newer ones
        rows = match.row_of_host[counts]
        has_samples = np.zeros(len(match.host_idx), np.bool_)
        for plane in reading.values.values():
            has_samples |= ~np.isnan(plane)
        await asyncio.sleep(0)
        row_of = match.row_of_host[match.host_idx]
        is_node = (row_of != _NO_ROW) & (row_of < num_rows)
        disputed = self._disputed(reading.inventory, match, has_samples & is_node, (num_rows, num_slots))
        of_disputed = np.zeros(len(row_of), np.bool_)
        of_disputed[is_node] = disputed[row_of[is_node]]
        of_disputed &= match.by_index
        self._believed = is_node & (match.slot != _FOREIGN) & ~of_disputed
        has_slot = self._believed & (match.slot >= 0) & (match.slot < num_slots)
        used = np.flatnonzero(counts[match.host_idx] & has_slot)
        await asyncio.sleep(0)
        if np.bincount(rows, minlength=1).max() > 1:
            # Two hosts match one node: write the newer samples last.
            used = used[np.argsort(host_at[match.host_idx[used]], kind="stable")]
            await asyncio.sleep(0)
        row = match.row_of_host[match.host_idx[used]]
        target = row * num_slots + match.slot[used]
        updated = np.zeros(num_rows, np.bool_)
        updated[row] = True
        newest = np.full(num_rows, -np.inf)
        np.maximum.at(newest, rows, host_at[counts])
        sampled_at[updated] = newest[updated]
        await asyncio.sleep(0)
        for gauge in Gauge:
            plane = raw[gauge]
            plane[updated | disputed] = np.nan
            values = reading.values.get(gauge)
            if values is not None:
                flat, samples = plane.reshape(-1), values[used]
                has_value = ~np.isnan(samples)  # another exporter of the node may have the missing values
                flat[target[has_value]] = samples[has_value]
            await asyncio.sleep(0)
        return raw, sampled_at

    def _disputed(self, inventory: Inventory, match: Match, has_samples: Mask, shape: tuple[int, int]) -> Mask:
        """(N,) nodes with a GPU that has samples under two UUIDs, one of which must be another cluster's.

        Adds doubts to the status about them, and about GPUs that their nodes are known not to have.
        """
        num_rows, num_slots = shape
        row = match.row_of_host[match.host_idx]
        checked = has_samples & match.by_index & (match.code > 0) & (match.slot >= 0) & (match.slot < num_slots)
        target, code = row[checked] * num_slots + match.slot[checked], match.code[checked]
        written = np.zeros(num_rows * num_slots, np.intp)
        written[target] = code
        differs = written[target] != code
        disputed = np.zeros(num_rows, np.bool_)
        disputed[row[checked][differs]] = True
        foreign = np.flatnonzero(has_samples & (match.slot == _FOREIGN))
        names = self._ledger.snapshot(self._clock()).node_names
        of_disputed = (
            f"node {names[row[device]]}: GPU {inventory.numbers[device]} has samples under several UUIDs, such as "
            f"{printable(inventory.uuids[device])}; the node's samples by index are not used: {_REMEDY}"
            for device in np.flatnonzero(checked)[differs][:_MAX_REPORTED].tolist()
        )
        of_foreign = (
            f"node {names[row[device]]}: samples of {printable(inventory.uuids[device])} are not used, since the node "
            f"has no such GPU: {_REMEDY}"
            for device in foreign[:_MAX_REPORTED].tolist()
        )
        self._status.doubts = tuple(dict.fromkeys([*of_disputed, *of_foreign]))
        return disputed


def _host_label(inventory: Inventory, index: int) -> str:
    host = inventory.hosts[index]
    names = "/".join(host.names) or "no name"
    return printable(f"{names} at {host.instance}" if host.instance else names)
