"""Folding what was read into the cluster's arrays: bit by bit, with pauses in which requests are answered."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

import numpy as np

from extender.core.clusters import Floats, Rows
from extender.core.observations import Gauge, Gauges
from extender.kube import objects
from extender.ledger.ledger import Ledger
from extender.ledger.observed import ObservedArrays
from extender.telemetry.matching import NO_ROW, Directory, Match, match_rows, slots
from extender.telemetry.readings import Inventory, Reading
from extender.telemetry.status import Status

logger = logging.getLogger(__name__)

MAX_SKEW_S: Final = 5.0
_HOSTS_AT_ONCE: Final = 200
_DEVICES_AT_ONCE: Final = 2000
_MAX_TRIES: Final = 3
_LOOK_EVERY_S: Final = 60.0
_MAX_TOLD: Final = 50


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
        self._directory = Directory()
        self._match: tuple[object, ...] = ()
        self._matched = Match(np.empty(0, np.intp), np.empty(0, np.intp), np.empty(0, np.intp))
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
            rows += match_rows(inventory, arrays.row_of, self._directory, start, start + _HOSTS_AT_ONCE)
            await asyncio.sleep(0)
        row_of_host = np.array(rows, np.intp)
        gpu_at = self._ledger.snapshot(self._clock()).gpu_at
        slot: list[Rows] = []
        host_idx: list[Rows] = []
        for start in range(0, len(inventory.host_idx), _DEVICES_AT_ONCE):
            end = start + _DEVICES_AT_ONCE
            slot.append(np.array(slots(inventory, gpu_at, row_of_host, start, end), np.intp))
            host_idx.append(np.array(inventory.host_idx[start:end], np.intp))
            await asyncio.sleep(0)
        none = np.empty(0, np.intp)
        self._matched = Match(row_of_host, np.concatenate([none, *host_idx]), np.concatenate([none, *slot]))
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
        unmatched = np.flatnonzero(match.row_of_host == NO_ROW)
        status.num_hosts, status.num_gpus = len(inventory.hosts), len(inventory.host_idx)
        matched = match.row_of_host[match.host_idx] != NO_ROW if len(match.host_idx) else np.empty(0, np.bool_)
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
        which = np.flatnonzero(counts[match.host_idx] & (match.slot >= 0) & (match.slot < num_slots))
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
            plane[told] = np.nan
            values = reading.values.get(gauge)
            if values is not None:
                flat = plane.reshape(-1)
                flat[target] = values[which]
            await asyncio.sleep(0)
        return raw, sampled_at


def _words(inventory: Inventory, index: int) -> str:
    host = inventory.hosts[index]
    names = "/".join(host.names) or "no name"
    return f"{names} at {host.instance}" if host.instance else names
