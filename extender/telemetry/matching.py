"""Which GPU of which node a series is of.

A node is found, in this order, by a label that names it (`Hostname`, `hostname`, then what relabelling writes); by the
exporter's pod, whose name `Hostname` often is, or whose address was scraped; by the node's internal IP or name in the
scraped address; by a name that differs in its domain alone. A GPU is found by its UUID where the node's UUIDs are
known, and by its index where they are not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from extender.core.clusters import Mask, Rows
from extender.telemetry.readings import Inventory
from extender.telemetry.series import Host

NO_ROW: Final = -1
_NO_SLOT: Final = -1
FOREIGN: Final = -2


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
    """(D,) GPU slot, NO_SLOT for GPUs that have none, FOREIGN for those of which the node is known to have none."""
    by_index: Mask
    """(D,) whether it is its index alone that tells the slot."""
    code: Rows
    """(D,) a number for each UUID, 0 for none."""


def match_rows(inventory: Inventory, rows: Mapping[str, int], directory: Directory, start: int, end: int) -> list[int]:
    """Rows of some hosts, so that thousands can be matched bit by bit."""
    return [rows.get(directory.node_of(host, rows), NO_ROW) for host in inventory.hosts[start:end]]


def match_first_parts(hosts: Sequence[Host], found: list[int], rows: Mapping[str, int]) -> None:
    """Put rows in for hosts that have none: by a name that is a node's but for the domain behind it, on either side,
    where that leaves no doubt. `found` is (H,) rows so far."""
    missing = [index for index, row in enumerate(found) if row == NO_ROW and any(hosts[index].names)]
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
class Known:
    """GPUs whose UUIDs are known."""

    at: Mapping[str, tuple[int, int]]
    """Row and slot, by UUID."""
    of_row: Sequence[Sequence[str]]
    """(N,) by slot, "" where it is not known."""
    has_mig: Mask
    """(N,) nodes whose other GPUs may be cut, and are not among these."""

    def slot(self, row: int, uuid: str, number: int) -> tuple[int, bool]:
        """Slot of a GPU of a row, and whether its index alone tells it."""
        at_row, slot = self.at.get(uuid, (NO_ROW, _NO_SLOT))
        if row == NO_ROW:
            return _NO_SLOT, False
        if at_row != NO_ROW:
            return (slot, False) if at_row == row else (FOREIGN, False)
        known = self.of_row[row]
        is_told = 0 <= number < len(known) and not known[number]
        if uuid and any(known) and not is_told:
            return (_NO_SLOT if self.has_mig[row] else FOREIGN), False
        return number, True


def slots(inventory: Inventory, known: Known, row_of_host: Rows, start: int, end: int) -> list[tuple[int, bool]]:
    """Slots of some GPUs, likewise."""
    rows = row_of_host[inventory.host_idx[start:end]].tolist()
    found = zip(rows, inventory.uuids[start:end], inventory.numbers[start:end], strict=True)
    return [known.slot(row, uuid, number) for row, uuid, number in found]
