"""Which GPU of which node a series is of.

A node is found, in this order, by a label that names it (`Hostname`, `hostname`, then what relabelling writes); by the
exporter's pod, whose name `Hostname` often is, or whose address was scraped; by the node's internal IP or name in the
scraped address. A GPU is found by its UUID where the node's UUIDs are known, else by its index.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from extender.core.clusters import Rows
from extender.telemetry.readings import Inventory
from extender.telemetry.series import Host

NO_ROW: Final = -1


@dataclass
class Directory:
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
    """(D,) GPU slot, -1 for GPUs that have none."""


def match_rows(inventory: Inventory, rows: Mapping[str, int], directory: Directory, start: int, end: int) -> list[int]:
    """Rows of some hosts, so that thousands can be matched bit by bit."""
    return [rows.get(directory.node_of(host, rows), NO_ROW) for host in inventory.hosts[start:end]]


def slots(
    inventory: Inventory, gpu_at: Mapping[str, tuple[int, int]], row_of_host: Rows, start: int, end: int
) -> list[int]:
    """Slots of some GPUs, likewise; `gpu_at` has the row and slot of each GPU whose UUID is known."""
    numbers = inventory.numbers[start:end]
    if not gpu_at:
        return numbers
    rows = row_of_host[inventory.host_idx[start:end]].tolist()
    found: list[int] = []
    for uuid, row, number in zip(inventory.uuids[start:end], rows, numbers, strict=True):
        at_row, slot = gpu_at.get(uuid, (NO_ROW, NO_ROW))
        found.append(slot if at_row == row else number)
    return found
