"""Why claims can be met on no node, in one sentence for all of them, and on one."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from extender.core.dra.asks import Constraint, DevicesAsked
from extender.core.dra.devices import NodeDevices
from extender.core.fit.device_fits import why_not, why_not_on
from extender.core.fit.fits import fit_devices
from tests.core.builders import all_rows
from tests.core.fit.claims import OF_A100, OF_H200, OF_TYPE, ROOT, ask, asked, gpus, having, owned, unheard_of

NO_DEVICES = "no devices that Kerf allocates on any node it may run on"
FOUR = asked(ask(OF_A100, count=4))


def why(
    nodes: Mapping[str, NodeDevices | None],
    wanted: DevicesAsked,
    closed: str = "",
    aside: Mapping[str, int] | None = None,
) -> str:
    """What is said of all nodes; `closed` are those that are kept for a move, `aside` those where pods have failed."""
    arrays = owned(nodes)
    for row, name in enumerate(nodes):
        arrays.set_closed(row, closed=name in closed)
    cluster = arrays.snapshot()
    cluster = replace(cluster, set_aside=np.array([(aside or {}).get(name, 0) for name in nodes]))
    rows = all_rows(cluster)[::-1]
    return why_not(cluster, wanted, rows, fit_devices(cluster, wanted, rows).reason)


NEEDS_4 = "request gpu: needs 4 devices of one node"


@pytest.mark.parametrize(
    ("nodes", "options", "told"),
    [
        pytest.param({}, {}, NO_DEVICES, id="no nodes"),
        pytest.param({"a": None, "b": None}, {}, NO_DEVICES, id="no devices"),
        pytest.param({"a": None, "b": gpus(3)}, {}, f"{NEEDS_4}, 3 would do (node b)", id="one node with devices"),
        pytest.param(
            {"a": gpus(3), "b": gpus(4, 0, 1), "c": gpus(4, 0), "d": gpus(5, 0, 1, 2)},
            {},
            f"{NEEDS_4}; 4 would do, 3 free (node c)",
            id="nearest is where most are free of those that would do",
        ),
        pytest.param(
            {"a": gpus(4), "b": gpus(4)},
            {"closed": "ab"},
            "every node with devices that Kerf allocates is reserved for a move",
            id="all are kept for a move",
        ),
        pytest.param(
            {"a": gpus(4), "b": gpus(4, 0)},
            {"closed": "a"},
            f"{NEEDS_4}; 4 would do, 3 free (node b)",
            id="one is kept for a move",
        ),
        pytest.param(
            {"a": gpus(4), "b": None},
            {"aside": {"a": 3}},
            "every node with devices that Kerf allocates is quarantined: pods failed there soon after starting",
            id="all that have some are set aside",
        ),
        pytest.param(
            {"a": gpus(4), "b": gpus(4)},
            {"closed": "b", "aside": {"a": 3}},
            "every node with devices that Kerf allocates is quarantined: pods failed there soon after starting",
            id="one is kept for a move and the other set aside",
        ),
        pytest.param(
            {"a": gpus(4), "b": gpus(3), "c": None},
            {"aside": {"a": 3}},
            f"{NEEDS_4}, 3 would do (node b)",
            id="one is set aside",
        ),
    ],
)
def test_why_claims_are_met_nowhere(
    nodes: Mapping[str, NodeDevices | None], options: Mapping[str, object], told: str
) -> None:
    assert why(nodes, FOUR, **options) == told  # type: ignore[arg-type]


def test_nodes_alike_are_looked_at_once_and_of_those_that_differ_32() -> None:
    """Whatever is taken of nodes that have too little."""
    differing = {f"n{number:02}": gpus(number + 1, *range(number + 1)) for number in range(33)}
    one = asked(ask(OF_A100))
    few, many = dict(list(differing.items())[:32]), differing
    assert why(few, one) == "request gpu: needs 1 device of one node; 32 would do, 0 free (node n31)"
    assert why(many, one).endswith("(node n31) (of 32 nodes looked at)")
    alike = {f"n{number:02}": gpus(4, 0, name=f"n{number:02}") for number in range(40)}
    assert why(alike, FOUR) == f"{NEEDS_4}; 4 would do, 3 free (node n00)"
    taken = {f"n{number:02}": gpus(3, *range(number % 4)) for number in range(40)}
    five = asked(ask(OF_A100, count=5))
    assert why(taken | {f"m{number:02}": gpus(2) for number in range(31)}, five) == (
        "request gpu: needs 5 devices of one node, 3 would do (node n00)"
    )


def test_of_many_nodes_those_of_which_most_is_free_are_looked_at() -> None:
    nodes = {f"n{number:02}": gpus(number + 4, *range(number + 2)) for number in range(40)}
    nodes["z"] = gpus(4, 0)
    assert why(nodes, FOUR) == f"{NEEDS_4}; 4 would do, 3 free (node z) (of 32 nodes looked at)"


def test_what_no_device_of_any_node_meets_is_said_of_all() -> None:
    nodes = {"a": gpus(1), "b": gpus(2, 0)}
    assert why(nodes, asked(ask(OF_TYPE, OF_H200))) == (
        "request gpu: no device meets gpu.nvidia.com/productName == 'H200'; "
        "nearest: gpu-0 of node a, which meets 1 of 2 conditions"
    )


def test_of_one_node_it_is_said_without_its_name() -> None:
    assert why_not_on(None, FOUR) == "no devices here that Kerf allocates"
    assert why_not_on(gpus(3), FOUR) == f"{NEEDS_4}, 3 would do"
    assert why_not_on(having(), FOUR) == "request gpu: no device meets gpu.nvidia.com/productName == 'A100'"


def test_what_nobody_has_asked_before_is_worked_out_and_then_remembered() -> None:
    name = unheard_of()
    unheard = asked(ask(OF_A100, count=4, name=name), ask(OF_A100, name="b"))
    for _ in range(2):
        assert why_not_on(gpus(5, 0, 1), unheard) == f"request {name}: needs 4 devices of one node; 5 would do, 3 free"
        assert why_not_on(gpus(4), unheard) == (
            "the devices that are free can't all be had at once: 5 devices of one node needed"
        )
    alike = asked(ask(OF_A100, count=3, name=name), constraints=(Constraint(ROOT),))
    assert why_not_on(gpus(4), alike) == f"no devices that would do are alike in {ROOT}, as a constraint wants"


def test_the_same_node_is_told_by_what_is_taken_now() -> None:
    assert why_not_on(gpus(4, 0), FOUR) == f"{NEEDS_4}; 4 would do, 3 free"
    assert why_not_on(gpus(4, 0, 1), FOUR) == f"{NEEDS_4}; 4 would do, 2 free"
    assert why_not_on(gpus(4, 0), FOUR) == f"{NEEDS_4}; 4 would do, 3 free"
    assert why_not_on(gpus(4, 0), asked(ask(OF_H200))).startswith("request gpu: no device meets")
