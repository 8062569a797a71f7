"""What would make claims fit: each change by itself, with all else as it was asked; and who lacks least."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from extender.core.dra.asks import ClaimAsk, Constraint, DeviceAsk, DevicesAsked, RequestAsk
from extender.core.dra.devices import Capacity, NodeDevices
from extender.core.fit.relaxations import Relaxation, device_relaxations, device_shortfalls
from extender.core.resources.requests import AskedUnit, GpuRequest
from tests.core.builders import all_rows
from tests.core.dra.cases import selector
from tests.core.fit.claims import OF_A100, OF_H200, OF_TYPE, ask, asked, claim, device, gpus, having, owned

COLOUR, MODEL = "d/colour", "d/model"
RED, T4 = selector(COLOUR, "red"), selector(MODEL, "T4")
PRODUCT = "gpu.nvidia.com/productName"


def painted(*colours_and_models: tuple[str, str], memory: int = 40, cores: int = 20) -> NodeDevices:
    """A node of devices of some colours and models."""
    capacity = {"memory": Capacity(memory), "cores": Capacity(cores)}
    return having(
        *(
            device(f"{colour}-{model}", attributes={COLOUR: colour, MODEL: model}, capacity=capacity)
            for colour, model in colours_and_models
        )
    )


def relaxed(wanted: DevicesAsked, *nodes: NodeDevices | None) -> list[Relaxation]:
    """What would make claims fit, all nodes looked at in the opposite order."""
    cluster = owned({f"n{number}": one for number, one in enumerate(nodes)}).snapshot()
    request = GpuRequest(wanted.num_devices, AskedUnit.CLAIM, devices=wanted)
    return device_relaxations(cluster, request, wanted, all_rows(cluster)[::-1])


def told(
    wanted: DevicesAsked, *nodes: NodeDevices | None
) -> list[tuple[str, str, float, DevicesAsked | None, list[int]]]:
    found = relaxed(wanted, *nodes)
    for one in found:
        assert one.request.devices is not None
        assert one.request.count == one.request.devices.num_devices
        assert one.request.unit is AskedUnit.CLAIM
    return [(one.change, one.text, one.size, one.request.devices, one.rows.tolist()) for one in found]


def test_a_condition_that_no_device_meets_is_given_up_alone() -> None:
    wanted = asked(ask(OF_TYPE, OF_H200, OF_A100, count=2))
    assert told(wanted, gpus(2), gpus(1), gpus(3)) == [
        (
            "condition",
            f"without the condition {PRODUCT} == 'H200' for request gpu",
            1.0,
            asked(ask(OF_TYPE, OF_A100, count=2)),
            [2, 0],
        )
    ]


def test_each_of_two_conditions_that_are_met_one_by_one_is_told() -> None:
    assert told(asked(ask(RED, T4)), painted(("red", "H100"), ("blue", "T4"))) == [
        ("condition", "without the condition d/colour == 'red' for request gpu", 1.0, asked(ask(T4)), [0]),
        ("condition", "without the condition d/model == 'T4' for request gpu", 1.0, asked(ask(RED)), [0]),
    ]


def test_of_several_capacities_the_one_that_is_too_large_is_given_up() -> None:
    wanted = asked(ask(RED, capacity=(("cores", 20), ("memory", 80))))
    assert told(wanted, painted(("red", "T4"))) == [
        (
            "capacity",
            "without a capacity of memory for request gpu",
            1.0,
            asked(ask(RED, capacity=(("cores", 20),))),
            [0],
        )
    ]


def test_each_of_two_capacities_that_are_had_one_by_one_is_told() -> None:
    wanted = asked(ask(capacity=(("cores", 80), ("memory", 80))))
    little, much = Capacity(40), Capacity(80)
    node = having(
        device("x", capacity={"cores": much, "memory": little}), device("y", capacity={"cores": little, "memory": much})
    )
    assert [(one.change, one.text) for one in relaxed(wanted, node)] == [
        ("capacity", "without a capacity of cores for request gpu"),
        ("capacity", "without a capacity of memory for request gpu"),
    ]


def test_of_several_constraints_the_one_in_the_way_is_given_up_and_a_smaller_number_is_told_first() -> None:
    alike, apart = Constraint(COLOUR), Constraint(MODEL, distinct=True)
    wanted = asked(ask(count=3), constraints=(apart, alike))
    assert told(wanted, painted(("red", "T4"), ("red", "A100"), ("blue", "H100"))) == [
        (
            "count",
            "2 devices instead of 3 for request gpu",
            1 / 3,
            asked(ask(count=2), constraints=(apart, alike)),
            [0],
        ),
        ("constraint", "without the constraint on d/colour", 1.0, asked(ask(count=3), constraints=(apart,)), [0]),
    ]
    both = painted(("red", "T4"), ("red", "A100"), ("red", "A100"), ("blue", "H100"))
    assert [one[:2] for one in told(wanted, both)] == [
        ("count", "2 devices instead of 3 for request gpu"),
        ("constraint", "without the constraint on d/model"),
        ("constraint", "without the constraint on d/colour"),
    ]


@pytest.mark.parametrize(
    ("count", "here", "text"),
    [(2, 1, "1 device instead of 2"), (4, 3, "3 devices instead of 4"), (9, 3, "3 devices instead of 9")],
)
def test_of_several_smaller_numbers_the_largest_that_fits_is_told(count: int, here: int, text: str) -> None:
    assert told(asked(ask(count=count)), gpus(here), None, gpus(1, 0)) == [
        ("count", f"{text} for request gpu", (count - here) / count, asked(ask(count=here)), [0])
    ]


def test_a_request_of_any_claim_may_be_the_one_that_asks_less_and_all_others_ask_the_same() -> None:
    first, second = claim(ask(count=1, name="a"), ask(count=3, name="b")), claim(ask(count=3, name="c"))
    constrained = replace(first, constraints=(Constraint(PRODUCT),))
    assert told(DevicesAsked((constrained, second)), gpus(6)) == [
        (
            "count",
            "2 devices instead of 3 for request b",
            1 / 3,
            DevicesAsked(
                (replace(constrained, requests=claim(ask(name="a"), ask(count=2, name="b")).requests), second)
            ),
            [0],
        ),
        (
            "count",
            "2 devices instead of 3 for request c",
            1 / 3,
            DevicesAsked((constrained, claim(ask(count=2, name="c")))),
            [0],
        ),
    ]


def test_of_alternatives_the_first_asks_less_and_the_others_stay() -> None:
    def choice(*first: DeviceAsk) -> DevicesAsked:
        others = ask(OF_H200, name="gpu/small", count=2)
        return DevicesAsked((ClaimAsk((RequestAsk("gpu", (*first, others)),)),))

    wanted = choice(ask(OF_A100, OF_H200, name="gpu/big"))
    assert told(wanted, gpus(2)) == [
        (
            "condition",
            f"without the condition {PRODUCT} == 'H200' for request gpu",
            1.0,
            choice(ask(OF_A100, name="gpu/big")),
            [0],
        )
    ]


def test_two_dozen_changes_are_tried_and_no_more() -> None:
    assert [one.text for one in relaxed(asked(ask(count=26)), gpus(2))] == ["2 devices instead of 26 for request gpu"]
    assert relaxed(asked(ask(count=27)), gpus(2)) == []


def test_what_authors_write_is_told_on_one_line() -> None:
    odd = replace(RED, expression="device.x ==\n  'red'")
    (one,) = relaxed(asked(ask(odd, name="a\nb")), painted(("blue", "T4")))
    assert one.text == "without the condition device.x ==\\n 'red' for request a\\nb"


def test_nothing_helps_where_two_conditions_are_in_the_way() -> None:
    assert relaxed(asked(ask(OF_H200, T4)), gpus(2), None) == []
    assert relaxed(asked(ask(OF_A100)), gpus(2, 0, 1)) == []


def lacking(wanted: DevicesAsked, nodes: Mapping[str, NodeDevices | None], **most: int) -> list[tuple[str, int, str]]:
    cluster = owned(nodes).snapshot()
    found = device_shortfalls(cluster, wanted, all_rows(cluster), **most)
    return [(cluster.node_names[one.row], one.missing, one.text) for one in found]


def test_nodes_where_others_hold_devices_lack_those_and_the_least_are_told_first() -> None:
    nodes = {
        "none": None,
        "never": gpus(1),
        "e": gpus(4, 0, 1),
        "d": gpus(4, 1, 2),
        "c": gpus(4, 0, 1, 2),
        "b": gpus(4, 2),
    }
    assert lacking(asked(ask(OF_A100, count=4)), nodes) == [
        ("b", 1, "1 more device free"),
        ("d", 2, "2 more devices free"),
        ("e", 2, "2 more devices free"),
    ]
    assert lacking(asked(ask(OF_A100, count=4)), nodes, most=1) == [("b", 1, "1 more device free")]
    assert len(lacking(asked(ask(OF_A100, count=4)), nodes, most=5)) == 4


def test_what_no_number_of_free_devices_would_help_is_not_told_as_lacking() -> None:
    assert lacking(asked(ask(name="a"), ask(name="b")), {"n": gpus(2, 0)}) == []
    overdrawn = NodeDevices.of(replace(gpus(1).inventory, counters=(1,)), elsewhere=((0, 2),))
    assert lacking(asked(ask()), {"n": overdrawn}) == []


def test_of_many_nodes_those_of_which_most_is_free_are_asked() -> None:
    nodes: dict[str, NodeDevices | None] = {f"n{number:03}": gpus(4, 0, 1) for number in range(500)}
    nodes["last"] = gpus(4, 0)
    assert lacking(asked(ask(OF_A100, count=4)), nodes, most=1) == [("last", 1, "1 more device free")]


def test_one_row_alone_is_asked_where_one_is_given() -> None:
    cluster = owned({"a": gpus(2, 0), "b": gpus(2, 0, 1)}).snapshot()
    (one,) = device_shortfalls(cluster, asked(ask(count=2)), np.array([1]))
    assert (one.row, one.missing) == (1, 2)
