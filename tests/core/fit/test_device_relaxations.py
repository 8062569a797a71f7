"""Relaxed claims that fit, each with one change, and the nodes that lack least."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from extender.core.dra.asks import ClaimSpec, Constraint, DeviceClaims, DeviceSpec, RequestSpec
from extender.core.dra.devices import Capacity, NodeDevices
from extender.core.fit.relaxations import Relaxation, device_relaxations, device_shortfalls
from extender.core.resources.requests import AskedUnit, GpuRequest
from tests.core.builders import all_rows
from tests.core.dra.cases import selector
from tests.core.fit.claims import OF_A100, OF_H200, OF_TYPE, ask, asked, claim, device, gpus, having, owned
from tests.golden import Golden

COLOUR, MODEL = "d/colour", "d/model"
RED, T4 = selector(COLOUR, "red"), selector(MODEL, "T4")
PRODUCT = Constraint("gpu.nvidia.com/productName")
RED_T4 = having(
    device("red-t4", attributes={COLOUR: "red", MODEL: "T4"}, capacity={"memory": Capacity(40), "cores": Capacity(20)})
)


def painted(*colours_and_models: str) -> NodeDevices:
    """A node of devices, each "colour model"."""
    attributes = [dict(zip((COLOUR, MODEL), each.split(), strict=True)) for each in colours_and_models]
    return having(*(device(f"{number}", attributes=each) for number, each in enumerate(attributes)))


def relaxed(wanted: DeviceClaims, *nodes: NodeDevices | None) -> list[Relaxation]:
    """Relaxations on all nodes, in the opposite order."""
    cluster = owned({f"n{number}": one for number, one in enumerate(nodes)}).snapshot()
    request = GpuRequest(wanted.num_devices, AskedUnit.CLAIM, devices=wanted)
    found = device_relaxations(cluster, request, wanted, all_rows(cluster)[::-1])
    for one in found:
        assert one.request.devices is not None
        assert one.request.count == one.request.devices.num_devices
        assert one.request.unit is AskedUnit.CLAIM
    return found


def changes(wanted: DeviceClaims, *nodes: NodeDevices | None) -> list[tuple[str, float, DeviceClaims | None]]:
    """Change, size, and the relaxed claims, which fit on the first node alone."""
    found = relaxed(wanted, *nodes)
    assert all(one.rows.tolist() == [0] for one in found)
    return [(one.change, one.size, one.request.devices) for one in found]


def test_one_condition_is_dropped_and_all_else_stays() -> None:
    (found,) = relaxed(asked(ask(OF_TYPE, OF_H200, OF_A100, count=2)), gpus(2), gpus(1), gpus(3))
    assert (found.change, found.size, found.rows.tolist()) == ("condition", 1.0, [2, 0])
    assert found.request.devices == asked(ask(OF_TYPE, OF_A100, count=2))
    assert changes(asked(ask(RED, T4)), painted("red H100", "blue T4")) == [
        ("condition", 1.0, asked(ask(T4))),
        ("condition", 1.0, asked(ask(RED))),
    ]
    assert relaxed(asked(ask(OF_H200, T4)), gpus(2), None) == []  # two are in the way
    assert relaxed(asked(ask(OF_A100)), gpus(2, 0, 1)) == []


def test_one_capacity_is_dropped() -> None:
    assert changes(asked(ask(RED, capacity=(("cores", 20), ("memory", 80)))), RED_T4) == [
        ("capacity", 1.0, asked(ask(RED, capacity=(("cores", 20),))))
    ]
    little, much = Capacity(40), Capacity(80)
    node = having(
        device("x", capacity={"cores": much, "memory": little}), device("y", capacity={"cores": little, "memory": much})
    )
    assert changes(asked(ask(capacity=(("cores", 80), ("memory", 80)))), node) == [
        ("capacity", 1.0, asked(ask(capacity=(("memory", 80),)))),
        ("capacity", 1.0, asked(ask(capacity=(("cores", 80),)))),
    ]


def test_one_constraint_is_dropped_after_smaller_changes() -> None:
    alike, apart = Constraint(COLOUR), Constraint(MODEL, distinct=True)
    wanted, three = asked(ask(count=3), constraints=(apart, alike)), ask(count=3)
    fewer = ("count", 1 / 3, asked(ask(count=2), constraints=(apart, alike)))
    without_alike = ("constraint", 1.0, asked(three, constraints=(apart,)))
    without_apart = ("constraint", 1.0, asked(three, constraints=(alike,)))
    assert changes(wanted, painted("red T4", "red A100", "blue H100")) == [fewer, without_alike]
    both = painted("red T4", "red A100", "red A100", "blue H100")
    assert changes(wanted, both) == [fewer, without_apart, without_alike]


def test_the_largest_count_that_fits() -> None:
    for count, largest in ((2, 1), (4, 3), (9, 3)):
        assert changes(asked(ask(count=count)), gpus(largest), None, gpus(1, 0)) == [
            ("count", (count - largest) / count, asked(ask(count=largest)))
        ]
    # 24 variants are tried.
    assert [one.request.count for one in relaxed(asked(ask(count=26)), gpus(2))] == [2]
    assert relaxed(asked(ask(count=27)), gpus(2)) == []


def test_a_request_of_any_claim_is_relaxed_while_all_others_stay() -> None:
    a, b, c = ask(name="a"), ask(count=3, name="b"), ask(count=3, name="c")
    first, second = claim(a, b, constraints=(PRODUCT,)), claim(c)
    assert changes(DeviceClaims((first, second)), gpus(6)) == [
        ("count", 1 / 3, DeviceClaims((claim(a, replace(b, count=2), constraints=(PRODUCT,)), second))),
        ("count", 1 / 3, DeviceClaims((first, claim(replace(c, count=2))))),
    ]

    def choice(*first: DeviceSpec) -> DeviceClaims:
        return DeviceClaims((ClaimSpec((RequestSpec("gpu", (*first, ask(OF_H200, name="gpu/small", count=2))),)),))

    # Of alternatives the first is relaxed.
    assert changes(choice(ask(OF_A100, OF_H200, name="gpu/big")), gpus(2)) == [
        ("condition", 1.0, choice(ask(OF_A100, name="gpu/big")))
    ]


def test_descriptions_of_relaxed_claims(golden: Golden) -> None:
    odd = replace(RED, expression="device.x ==\n  'red'")
    claims = [
        asked(ask(odd, name="a\nb")),
        asked(ask(capacity=(("memory", 80),))),
        asked(ask(count=2)),
        asked(ask(count=3), constraints=(Constraint("d/none"),)),
    ]
    found = [one for wanted in claims for one in relaxed(wanted, painted("blue T4"))]
    together = asked(ask(count=3), constraints=(Constraint(COLOUR),))
    found += relaxed(together, painted("red T4", "red T4", "blue T4"))
    golden("core/relaxed-claims.txt", [one.text for one in found])


def lacking(wanted: DeviceClaims, nodes: Mapping[str, NodeDevices | None], **most: int) -> list[tuple[str, str]]:
    cluster = owned(nodes).snapshot()
    found = device_shortfalls(cluster, wanted, all_rows(cluster), **most)
    return [(cluster.node_names[one.row], one.text) for one in found]


def test_the_nodes_whose_pods_hold_fewest_of_the_missing_devices() -> None:
    four = asked(ask(OF_A100, count=4))
    held = {"e": gpus(4, 0, 1), "d": gpus(4, 1, 2), "c": gpus(4, 0, 1, 2), "b": gpus(4, 2)}
    nodes = {"none": None, "never": gpus(1), **held}
    least = [("b", "1 more device free"), ("d", "2 more devices free"), ("e", "2 more devices free")]
    assert lacking(four, nodes) == least
    assert lacking(four, nodes, most=1) == least[:1]
    assert len(lacking(four, nodes, most=5)) == 4
    cluster = owned({"a": gpus(2, 0), "b": gpus(2, 0, 1)}).snapshot()
    (one,) = device_shortfalls(cluster, asked(ask(count=2)), np.array([1]))
    assert (one.row, one.missing) == (1, 2)
    # Of many nodes those with most free are examined.
    many: dict[str, NodeDevices | None] = {f"n{number:03}": gpus(4, 0, 1) for number in range(500)}
    assert lacking(four, many | {"last": gpus(4, 0)}, most=1) == [("last", "1 more device free")]


def test_nothing_is_missing_where_no_number_of_devices_would_help() -> None:
    assert lacking(asked(ask(name="a"), ask(name="b")), {"n": gpus(2, 0)}) == []
    overdrawn = NodeDevices.of(replace(gpus(1).inventory, counters=(1,)), elsewhere=((0, 2),))
    assert lacking(asked(ask()), {"n": overdrawn}) == []
