"""Why claims get no devices: the request and condition that fails, and the device that comes nearest."""

from dataclasses import replace
from random import Random

import pytest

from extender.core.dra.allocator import Allocation, Allocations
from extender.core.dra.asks import (
    ClaimAsk,
    Constraint,
    DeviceAsk,
    DevicesAsked,
    Fault,
    RequestAsk,
    Selector,
    Toleration,
)
from extender.core.dra.devices import Capacity, Device, DeviceId, Inventory, NodeDevices, Taint, Taking
from extender.core.dra.explained import Lack, Obstacle, in_words, obstacle_of
from tests.core.dra.cases import random_case, selector
from tests.core.dra.machines import DRIVER, a100_node

ROOT = "resource.kubernetes.io/pcieRoot"
GPU, H200, A100 = (
    selector(f"{DRIVER}/{name}", value)
    for name, value in (("type", "gpu"), ("productName", "H200"), ("productName", "A100"))
)


def asking(*asks: DeviceAsk, constraints: tuple[Constraint, ...] = ()) -> DevicesAsked:
    return DevicesAsked((ClaimAsk(tuple(RequestAsk(ask.name, (ask,)) for ask in asks), constraints),))


def gpu(*selectors: Selector, count: int = 1, name: str = "gpu", **options: object) -> DeviceAsk:
    return DeviceAsk(name, selectors, count, **options)  # type: ignore[arg-type]


def found(devices: NodeDevices, asked: DevicesAsked) -> Obstacle:
    allocations = Allocations()
    assert not isinstance(allocations.best(devices, asked), Allocation)
    return obstacle_of(devices, asked, allocations.matcher, allocations.best)


def why(asked: DevicesAsked, *nodes: NodeDevices) -> str:
    return in_words([(chr(ord("a") + number), found(node, asked), node) for number, node in enumerate(nodes)])


def whole(num_gpus: int, *taken: int, node: str = "a") -> NodeDevices:
    return NodeDevices.of(a100_node(node, num_gpus, mig=False), [Taking(index) for index in taken])


def test_a_condition_that_no_device_meets_is_named_with_the_device_that_meets_most() -> None:
    assert why(asking(gpu(GPU, H200)), whole(2)) == (
        f"request gpu: no device meets {DRIVER}/productName == 'H200'; "
        "nearest: gpu-0 of node a, which meets 1 of 2 conditions"
    )


def test_of_conditions_that_are_met_only_one_by_one_the_nearest_devices_is_named() -> None:
    red = selector("d/colour", "red")
    devices = [
        Device(DeviceId("d", "p", name), {"d/colour": colour, f"{DRIVER}/productName": model, f"{DRIVER}/type": "gpu"})
        for name, colour, model in (("x", "blue", "A100"), ("y", "red", "H100"))
    ]
    node = NodeDevices.of(Inventory(tuple(devices)))
    assert why(asking(gpu(A100, red)), node) == (
        "request gpu: no device meets all conditions at once; nearest: x of node a, which meets 1 of 2 conditions, "
        "all but d/colour == 'red'"
    )


def test_what_a_device_of_another_node_meets_is_not_said_to_be_met_by_none() -> None:
    devices = Device(DeviceId("d", "p", "x"), {f"{DRIVER}/productName": "H200", f"{DRIVER}/type": "mig"})
    other = NodeDevices.of(Inventory((devices,)))
    assert why(asking(gpu(GPU, H200)), whole(1), other).startswith(
        "request gpu: no device meets all conditions at once; nearest: gpu-0 of node a"
    )


def test_a_selector_that_joins_conditions_is_told_condition_by_condition() -> None:
    both = Selector(
        "type == gpu && model == H200",
        lambda device: GPU.matches(device) and H200.matches(device),
        parts=lambda: (GPU, H200),
    )
    assert why(asking(gpu(both)), whole(1)) == (
        f"request gpu: no device meets {DRIVER}/productName == 'H200'; "
        "nearest: gpu-0 of node a, which meets 1 of 2 conditions"
    )


def test_a_capacity_that_no_device_has_is_a_condition() -> None:
    device = Device(DeviceId("d", "p", "x"), {}, {"memory": Capacity(40 << 30)})
    asked = asking(gpu(capacity=(("memory", 80 << 30),)))
    assert why(asked, NodeDevices.of(Inventory((device,)))) == (
        "request gpu: no device meets memory of 80Gi; nearest: x of node a, which does not"
    )


def test_devices_that_are_taken_are_counted_where_most_are_free() -> None:
    assert why(asking(gpu(A100, count=2)), whole(3, 0, 1, 2), whole(3, 0, 2)) == (
        "request gpu: needs 2 devices of one node; 3 would do, 1 free (node b)"
    )


def test_too_few_devices_are_told_by_the_node_that_has_most() -> None:
    assert why(asking(gpu(count=4)), whole(1), whole(3), whole(3)) == (
        "request gpu: needs 4 devices of one node, 3 would do (node b)"
    )


def test_partitions_of_a_gpu_that_is_taken_are_not_free() -> None:
    inventory = a100_node("a", 1)
    small = gpu(selector(f"{DRIVER}/profile", "1g.5gb"))
    small = replace(small, selectors=(_sound(small.selectors[0]),))
    assert why(asking(small), NodeDevices.of(inventory, [Taking(0)])) == (
        "request gpu: needs 1 device of one node; 7 would do, 0 free (node a)"
    )


def _sound(item: Selector) -> Selector:
    return Selector(
        f"has {item.expression}", lambda device: f"{DRIVER}/profile" in device.attributes and item.matches(device)
    )


def test_a_taint_that_is_not_tolerated_is_named() -> None:
    taint = Taint("broken", "yes", "NoSchedule")
    device = Device(DeviceId("d", "p", "x"), taints=(taint,))
    node = NodeDevices.of(Inventory((device,)))
    assert why(asking(gpu()), node) == (
        "request gpu: 1 device has taints that it does not tolerate: broken=yes:NoSchedule (node a)"
    )
    tolerating = asking(gpu(tolerations=(Toleration("broken", "Exists"),)))
    assert isinstance(Allocations().best(node, tolerating), Allocation)


def test_a_selector_that_fails_is_told_with_the_device() -> None:
    assert why(asking(gpu(selector("d/none", "x"))), whole(1)) == "d/none of gpu-0 (node a)".join(("request gpu: ", ""))


def test_a_constraint_in_the_way_is_named() -> None:
    asked = asking(gpu(count=3), constraints=(Constraint(ROOT),))
    assert why(asked, whole(4)) == (f"no devices that would do are alike in {ROOT}, as a constraint wants (node a)")
    asked = asking(gpu(count=2), constraints=(Constraint(ROOT),))
    assert why(asked, whole(4, 0, 2)) == (
        f"no free devices that would do are alike in {ROOT}, as a constraint wants (node a)"
    )


def test_requests_that_fit_one_by_one_are_told_to_fit_not_all_at_once() -> None:
    asked = asking(gpu(name="one"), gpu(name="other"))
    assert why(asked, whole(2, 0)) == (
        "the devices that are free can't all be had at once: 2 devices of one node needed (node a)"
    )


def test_who_asks_for_all_hears_how_many_are_taken_or_not_kerfs() -> None:
    assert why(asking(gpu(count=0)), whole(3, 1)) == ("request gpu: needs all 3 devices that would do; 2 free (node a)")
    inventory = a100_node("a", 2, mig=False)
    others = replace(inventory, devices=inventory.devices[:1], unavailable=inventory.devices[1:])
    assert "Kerf does not allocate 1 of those" in why(asking(gpu(count=0)), NodeDevices.of(others))
    updated = NodeDevices.of(replace(inventory, complete=False))
    assert "a pool of the node can't be read now" in why(asking(gpu(count=0)), updated)


def test_alternatives_and_further_claims_are_told_apart() -> None:
    alternatives = RequestAsk("gpu", (gpu(H200, name="gpu/big"), gpu(A100, name="gpu/small", count=2)))
    asked = DevicesAsked((ClaimAsk((RequestAsk("net", (gpu(name="net"),)),)), ClaimAsk((alternatives,))))
    assert why(asked, whole(1)) == (
        "claim 2 of 2, request gpu, alternative small: needs 2 devices of one node, 1 would do (node a)"
    )


def test_what_authors_write_is_shortened_and_printable() -> None:
    hostile = Selector("a\x1b[31m\n" + "x" * 10_000, lambda device: False)
    told = why(asking(gpu(hostile)), whole(1))
    assert told.isprintable()
    assert len(told) < 400


def test_the_text_does_not_depend_on_the_order_of_nodes() -> None:
    asked = asking(gpu(A100, count=2))
    nodes = [("b", whole(2, 0)), ("a", whole(2, 1)), ("c", whole(2, 0, 1))]
    told = [(name, found(node, asked), node) for name, node in nodes]
    assert (
        in_words(told)
        == in_words(told[::-1])
        == "request gpu: needs 2 devices of one node; 2 would do, 1 free (node a)"
    )
    assert in_words(told, more=5).endswith("(of 3 nodes looked at)")


@pytest.mark.parametrize(("seed", "num_cases"), [(0, 100), pytest.param(1, 300, marks=pytest.mark.slow)])
def test_there_is_an_obstacle_wherever_nothing_is_possible(seed: int, num_cases: int) -> None:
    rng, told = Random(seed), 0
    allocations = Allocations()
    for _ in range(num_cases):
        devices, asked = random_case(rng)
        outcome = allocations.best(devices, asked)
        if isinstance(outcome, Allocation):
            continue
        obstacle = obstacle_of(devices, asked, allocations.matcher, allocations.best)
        assert in_words([("a", obstacle, devices)])
        if isinstance(outcome, Fault):
            continue
        told += 1
        if obstacle.lack in (Lack.CONDITIONS, Lack.TAINTS, Lack.NUMBER):
            assert not isinstance(allocations.best(NodeDevices.of(devices.inventory), asked), Allocation)
    assert told > num_cases / 6
