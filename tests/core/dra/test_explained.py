"""Why claims get no devices, the nearest device, and what is free on a node."""

from collections.abc import Iterator
from dataclasses import replace
from random import Random

import pytest

from extender.core.dra.allocator import Allocation, Allocations
from extender.core.dra.asks import ClaimSpec, Constraint, DeviceClaims, Fault, RequestSpec, Selector, Toleration
from extender.core.dra.devices import Capacity, Device, DeviceId, NodeDevices, Taint, Taking
from extender.core.dra.explained import Lack, Obstacle, free_in_words, free_of, in_words, obstacle_of, total
from tests.core.dra.cases import random_case, selector
from tests.core.dra.machines import DRIVER, a100_node
from tests.core.fit.claims import OF_A100, OF_H200, OF_TYPE, ROOT, ask, asked, claim, device, gpus, having
from tests.golden import Golden

HOSTILE = Selector("a\x1b[31m\n" + "x" * 10_000, lambda device: False)


def obstacle(devices: NodeDevices, wanted: DeviceClaims) -> Obstacle:
    allocations = Allocations()
    assert not isinstance(allocations.best(devices, wanted), Allocation)
    return obstacle_of(devices, wanted, allocations.matcher, allocations.best)


def why(wanted: DeviceClaims, *nodes: NodeDevices) -> str:
    """The sentence about nodes a, b, ..."""
    return in_words([(name, obstacle(node, wanted), node) for name, node in zip("abc", nodes, strict=False)])


def sentences() -> Iterator[str]:
    typed = ask(OF_TYPE, OF_H200)
    x, y, z = (
        device(name, attributes={"d/colour": colour, f"{DRIVER}/productName": model, f"{DRIVER}/type": kind})
        for name, colour, model, kind in map(str.split, ("x blue A100 gpu", "y red H100 gpu", "z green H200 mig"))
    )
    yield why(asked(typed), gpus(2))
    yield "one by one: " + why(asked(ask(OF_A100, selector("d/colour", "red"))), having(x, y))
    yield "on another node: " + why(asked(typed), gpus(1), having(z))

    def both(device: Device) -> bool:
        return OF_TYPE.matches(device) and OF_H200.matches(device)

    yield "joined: " + why(asked(ask(Selector("x && y", both, parts=lambda: (OF_TYPE, OF_H200)))), gpus(1))
    memory = device("x", capacity={"memory": Capacity(40 << 30)})
    yield "capacity: " + why(asked(ask(capacity=(("memory", 80 << 30),))), having(memory))
    yield "taken: " + why(asked(ask(OF_A100, count=2)), gpus(3, 0, 1, 2), gpus(3, 0, 2))
    yield "too few: " + why(asked(ask(count=4)), gpus(1), gpus(3), gpus(3))
    inventory, profile = a100_node("a", 1), f"{DRIVER}/profile"
    small = Selector("small", lambda device: device.attributes.get(profile) == "1g.5gb")
    yield "partitions of a taken GPU: " + why(asked(ask(small)), NodeDevices.of(inventory, [Taking(0)]))
    yield "taint: " + why(asked(ask()), having(device("x", taints=(Taint("broken", "yes", "NoSchedule"),))))
    yield "selector fails: " + why(asked(ask(selector("d/none", "x"))), gpus(1))
    for count, taken in ((3, ()), (2, (0, 2))):
        yield "constraint: " + why(asked(ask(count=count), constraints=(Constraint(ROOT),)), gpus(4, *taken))
    yield "not at once: " + why(asked(ask(name="one"), ask(name="other")), gpus(2, 0))
    yield "all, one taken: " + why(asked(ask(count=0)), gpus(3, 1))
    inventory = a100_node("a", 2, mig=False)
    others = replace(inventory, devices=inventory.devices[:1], unavailable=inventory.devices[1:])
    yield "all, one of others: " + why(asked(ask(count=0)), NodeDevices.of(others))
    yield "all, incomplete: " + why(asked(ask(count=0)), NodeDevices.of(replace(inventory, complete=False)))
    alternatives = RequestSpec("gpu", (ask(OF_H200, name="gpu/big"), ask(OF_A100, name="gpu/small", count=2)))
    yield why(DeviceClaims((claim(ask(name="net")), ClaimSpec((alternatives,)))), gpus(1))
    yield "hostile: " + why(asked(ask(HOSTILE)), gpus(1))


def test_the_sentence_for_each_obstacle(golden: Golden) -> None:
    lines = list(sentences())
    assert all(line.isprintable() and len(line) < 400 for line in lines)
    golden("core/obstacles.txt", lines)


def test_a_tolerated_taint_is_no_obstacle() -> None:
    node = having(device("x", taints=(Taint("broken", "yes", "NoSchedule"),)))
    assert isinstance(Allocations().best(node, asked(ask(tolerations=(Toleration("broken", "Exists"),)))), Allocation)


def test_the_sentence_does_not_depend_on_the_order_of_nodes() -> None:
    wanted = asked(ask(OF_A100, count=2))
    nodes = {"b": gpus(2, 0), "a": gpus(2, 1), "c": gpus(2, 0, 1)}
    found = [(name, obstacle(node, wanted), node) for name, node in nodes.items()]
    assert in_words(found) == in_words(found[::-1])
    assert in_words(found).endswith("2 matching, 1 free (node a)")
    assert in_words(found, more=5).endswith("(of 3 nodes examined)")


@pytest.mark.parametrize(("seed", "num_cases"), [(0, 100), pytest.param(1, 300, marks=pytest.mark.slow)])
def test_there_is_an_obstacle_wherever_nothing_is_possible(seed: int, num_cases: int) -> None:
    rng, num_impossible = Random(seed), 0
    allocations = Allocations()
    for _ in range(num_cases):
        devices, wanted = random_case(rng)
        outcome = allocations.best(devices, wanted)
        if isinstance(outcome, Allocation):
            continue
        found = obstacle_of(devices, wanted, allocations.matcher, allocations.best)
        assert in_words([("a", found, devices)])
        if isinstance(outcome, Fault):
            continue
        num_impossible += 1
        if found.lack in (Lack.CONDITIONS, Lack.TAINTS, Lack.NUMBER):
            assert not isinstance(allocations.best(NodeDevices.of(devices.inventory), wanted), Allocation)
    assert num_impossible > num_cases / 6


INVENTORY = a100_node("a", 2)


def taking(*names: str) -> NodeDevices:
    return NodeDevices.of(INVENTORY, [Taking(INVENTORY.index_of[DeviceId(DRIVER, "a", name)]) for name in names])


def test_free_devices_in_words() -> None:
    broken = replace(a100_node("a", 2, mig=False).devices[0], taints=(Taint("broken", "", "NoExecute"),))
    nics = (device(f"nic-{at}", attributes={f"{DRIVER}/type": "nic"} if at else {}) for at in range(3))
    shared = device("x", capacity={"memory": Capacity(8)}, shareable=True, gpu=0, milli=1000)
    for devices, words in (
        (taking(), "2 GPUs"),  # without their partitions
        (taking("gpu-0"), "GPU"),
        (taking("gpu-0", "gpu-1"), "nothing"),
        # 98 - 14 = 84 multiprocessors are left, for 3g (42) in slices 4 to 7, 2g (28) in 2 and 3, one 1g in 1.
        (taking("gpu-1", "gpu-0-mig-1g-5gb-0"), "3g.20gb, 2g.10gb, 1g.5gb"),
        (taking("gpu-0-mig-4g-20gb-0", "gpu-1-mig-4g-20gb-0"), "2 x 3g.20gb"),
        (having(broken), "nothing"),
        (having(*nics, taken=[Taking(2)]), "device, nic"),
        (having(shared, taken=[Taking(0, (("memory", 5),))]), "part of GPU"),
        (having(shared, taken=[Taking(0, (("memory", 8),))]), "nothing"),
    ):
        assert free_in_words(total(free_of(devices).values())) == words
    assert free_of(taking("gpu-1", "gpu-0-mig-1g-5gb-0")) == {0: {"3g.20gb": 1, "2g.10gb": 1, "1g.5gb": 1}}
