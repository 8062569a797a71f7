"""How long it takes to choose devices on 5,000 nodes: CPU time, of one process."""

import time
from collections.abc import Iterator, Sequence
from random import Random
from typing import Final

from extender.core.dra.allocator import Allocation, Allocations
from extender.core.dra.asks import ClaimSpec, DeviceClaims, DeviceSpec, RequestSpec
from extender.core.dra.devices import NodeDevices
from tests.core.dra.cases import selector
from tests.core.dra.machines import DRIVER, PROFILES, a100_node

_NUM_NODES: Final = 5_000
_NUM_STATES: Final = 200


def asking(count: int, profile: str = "") -> DeviceClaims:
    """Whole GPUs, or partitions of a profile."""
    kind = selector(f"{DRIVER}/type", "mig" if profile else "gpu")
    selectors = (kind, selector(f"{DRIVER}/profile", profile)) if profile else (kind,)
    return DeviceClaims((ClaimSpec((RequestSpec("r", (DeviceSpec("r", selectors, count),)),)),))


def lines() -> Iterator[str]:
    """The figures, as rows of a table."""
    yield from _of_machines("8 whole GPUs", False, [asking(1), asking(2), asking(8)])
    yield from _of_machines("8 A100s with all partitions", True, [asking(1), asking(1, "1g.5gb"), asking(16, "1g.5gb")])


def _of_machines(name: str, mig: bool, wishes: Sequence[DeviceClaims]) -> Iterator[str]:
    nodes = [NodeDevices.of(a100_node(f"node-{number}", 8, mig)) for number in range(_NUM_NODES)]
    memory = Allocations()
    yield f"{name}: {len(nodes[0].inventory.devices)} devices on each of {_NUM_NODES} nodes"
    yield f"| the nodes' devices for the first time | {_timed(memory, nodes, wishes[0])} |"
    for wish in wishes:
        yield f"| all nodes alike, {_named(wish)}, first | {_timed(memory, nodes, wish)} |"
        yield f"| again | {_timed(memory, nodes, wish)} |"
    rng, states = Random(1), []
    for _ in range(_NUM_STATES):
        states.append(_used(memory, nodes[0], rng, mig))
    used = [
        NodeDevices(node.inventory, state.taken, state.parts, state.left)
        for node, state in zip(nodes, states * (_NUM_NODES // _NUM_STATES), strict=True)
    ]
    wish = asking(1, "2g.10gb") if mig else asking(3)
    yield f"| {len({state.taken for state in states})} states, {_named(wish)}, first | {_timed(memory, used, wish)} |"
    yield f"| again | {_timed(memory, used, wish)} |"


def _used(memory: Allocations, node: NodeDevices, rng: Random, mig: bool) -> NodeDevices:
    for _ in range(rng.randint(0, 24)):
        found = memory.best(node, asking(1, rng.choice(list(PROFILES)) if mig else ""))
        if isinstance(found, Allocation):
            node = node.taking(found.takings)
    return node


def _named(wish: DeviceClaims) -> str:
    ask = wish.claims[0].requests[0].alternatives[0]
    return f"{ask.count} x {ask.selectors[-1].expression.rpartition(' == ')[2]}"


def _timed(memory: Allocations, nodes: Sequence[NodeDevices], wish: DeviceClaims) -> str:
    started = time.process_time()
    for node in nodes:
        memory.best(node, wish)
    seconds = time.process_time() - started
    return f"{1e3 * seconds:.0f} ms | {1e6 * seconds / len(nodes):.1f} µs a node"
