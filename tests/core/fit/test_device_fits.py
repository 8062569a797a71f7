"""Which nodes can satisfy a pod's ResourceClaims, what that takes of their GPUs, and why none can."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import pytest

from extender.core.dra.allocator import Allocation, Given
from extender.core.dra.asks import ClaimSpec, Constraint, DeviceClaims, RequestSpec, Selector, SelectorFault, Toleration
from extender.core.dra.devices import Capacity, Device, Inventory, NodeDevices, Taint, Taking
from extender.core.fit.device_fits import (
    DeviceFitting,
    Part,
    allocation_at,
    best_allocation,
    could_serve,
    explain_no_fit,
    explain_no_fit_on,
    parts_at,
    possible_on,
    steps_taken,
    whole,
)
from extender.core.fit.fits import fit_devices
from extender.core.fit.reasons import Reason
from extender.core.resources.nodes import OF_CLAIMS, GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from tests.core.builders import A100_40, ONE, all_rows, cluster_of, fit_all, node
from tests.core.dra.cases import selector
from tests.core.dra.machines import a100_node, partition
from tests.core.fit.claims import OF_A100, OF_H200, OF_TYPE, ROOT, ask, asked, device, gpus, having, new_name, owned
from tests.golden import Golden

WHOLE_A100 = 1000, 40960


def test_each_node_reports_its_outcome_and_the_gpus_taken() -> None:
    untyped = having(device("odd"), *gpus(2).inventory.devices)
    nodes = {"fits": gpus(4, 0), "none": None, "undecided": untyped, "never": gpus(1), "taken": gpus(3, 0, 2)}
    cluster = owned(nodes).snapshot()
    wanted = asked(ask(OF_TYPE, count=2), constraints=(Constraint(ROOT),))
    checked = fit_devices(cluster, wanted, np.array([4, 0, 3, 2, 1]))
    assert checked.reason.tolist() == [
        *(Reason.BUSY, Reason.FITS, Reason.TOO_FEW_INSTALLED, Reason.NOT_THIS_KIND, Reason.NO_GPUS)
    ]
    assert checked.available.tolist() == checked.taken_units.tolist() == [0, 2, 0, 0, 0]
    assert checked.available.dtype == np.int64
    assert checked.room.tolist() == [[False] * 4, [False, False, True, True], *[[False] * 4] * 3]
    assert checked.free_units.tolist() == [1, 3, 1, 2, 0]
    assert checked.idle[1].tolist() == [False, True, True, True]
    assert not checked.shares.any()


def test_a_quarantined_or_reserved_node_gives_no_devices() -> None:
    arrays = owned({"a": gpus(1), "b": gpus(1)})
    arrays.set_closed(1, closed=True)
    cluster = replace(arrays.snapshot(), set_aside=np.array([1, 0]))
    checked = fit_devices(cluster, asked(ask()), all_rows(cluster))
    assert checked.reason.tolist() == [Reason.SET_ASIDE, Reason.KEPT_FOR_MOVE]
    assert checked.available.tolist() == [1, 0]


def test_requests_without_devices_are_not_checked_for_them() -> None:
    cluster = owned({"a": gpus(1)}).snapshot()
    assert fit_all(cluster, GpuRequest(1, AskedUnit.CLAIM)).fits.tolist() == [True]
    with pytest.raises(ValueError, match=r"^the request has no devices$"):
        DeviceFitting(cluster, ONE, all_rows(cluster))


def test_the_allocation_where_claims_fit_and_a_bug_elsewhere() -> None:
    cluster = owned({"full": gpus(2, 0, 1), "free": gpus(2, 0)}).snapshot()
    wanted = asked(ask(OF_A100))
    assert allocation_at(cluster, 1, wanted).takings == (Taking(1),)
    for row, elsewhere, name in ((0, cluster, "full"), (0, cluster_of({"n": node(A100_40)}), "n")):
        with pytest.raises(AssertionError, match=f"disagree at node {name}"):
            allocation_at(elsewhere, row, wanted)
    assert best_allocation(None, wanted) is None


def given(*takings: Taking) -> Allocation:
    return Allocation((tuple(Given("gpu", taking) for taking in takings),))


def test_devices_take_their_parts_of_each_gpu_in_gpu_order() -> None:
    inventory = a100_node("n", 2)
    cluster = owned({"n": NodeDevices.of(inventory)}).snapshot()
    quarter, half = partition(inventory, 1, "2g.10gb", 0), partition(inventory, 1, "3g.20gb", 4)
    parts = parts_at(cluster, 0, given(Taking(half), Taking(0), Taking(quarter)))
    assert parts == (Part(0, *WHOLE_A100), Part(1, 428 + 285, 20480 + 10240))
    assert not whole(parts)
    assert whole(parts_at(cluster, 0, given(Taking(0))))
    assert not whole(())


def test_devices_without_a_gpu_and_gpus_already_shared_take_nothing_more() -> None:
    gpu, memory = {"milli": 1000, "mib": 40960}, {"memory": Capacity(40)}
    shared = having(
        device("nic"),
        device("shared", gpu=0, shareable=True, capacity=memory, **gpu),
        device("unshared", gpu=1, shareable=True, capacity=memory, **gpu),
        device("whole", gpu=2, **gpu),
        taken=[Taking(1, (("memory", 10),)), Taking(0)],
    )
    cluster, part = owned({"n": shared}).snapshot(), (("memory", 10),)
    takings = (Taking(0), Taking(1, part), Taking(2, part), Taking(3))
    assert parts_at(cluster, 0, given(*takings)) == (Part(1, *WHOLE_A100), Part(2, *WHOLE_A100))
    assert parts_at(cluster, 0, given(Taking(0))) == ()


def test_claims_do_not_take_gpus_of_a_device_plugin() -> None:
    for unit in GpuUnit:
        cluster = cluster_of({"n": node(A100_40, unit=unit)})
        with_devices = replace(cluster, devices=np.array([gpus(1)], np.object_))
        assert parts_at(with_devices, 0, given(Taking(0))) == ((Part(0, *WHOLE_A100),) if unit in OF_CLAIMS else ())
        for none in (cluster, replace(cluster, devices=None)):
            assert parts_at(none, 0, given(Taking(0))) == ()


def test_claims_are_possible_where_an_empty_node_satisfies_them() -> None:
    inventory = a100_node("n", 2, mig=False)
    assert possible_on(inventory, asked(ask(OF_A100, count=2)))
    assert not possible_on(inventory, asked(ask(OF_A100, count=3)))
    assert not possible_on(inventory, asked(ask(selector("d/none", 1))))


def test_search_steps_are_counted_by_claims() -> None:
    wanted = asked(ask(OF_A100, name=new_name()))
    assert steps_taken(wanted) == 0
    assert best_allocation(gpus(2), wanted) is not None
    assert steps_taken(wanted) > 0


def test_devices_of_others_could_serve_claims_if_one_matches_or_that_is_undecided() -> None:
    def fails(found: Device) -> bool:
        raise SelectorFault(f"no such attribute of {found.id.device}")

    odd = replace(OF_H200, reads=None)  # reads all of a device, so that each is matched by itself
    h200 = RequestSpec("first", (ask(OF_H200),))
    inventory = a100_node("n", 2, mig=False)
    for wanted, could in (
        (asked(ask(OF_A100)), True),
        (asked(ask(OF_A100, count=9)), True),
        (asked(ask(OF_H200)), False),
        (asked(ask(OF_H200), ask(OF_A100)), True),
        (DeviceClaims((ClaimSpec((h200, RequestSpec("second", (ask(OF_H200), ask(OF_A100))))),)), True),
        (DeviceClaims((ClaimSpec((h200, RequestSpec("second", (ask(OF_H200),)))),)), False),
        (asked(ask(Selector("fails", fails))), True),
        (asked(ask(replace(odd, cost=9_980))), False),  # twice: all the steps allowed
        (asked(ask(replace(odd, cost=9_981))), True),
    ):
        assert could_serve(Inventory(unavailable=inventory.devices), wanted) is could
        assert not could_serve(Inventory(inventory.devices), wanted)
        assert could_serve(Inventory(inventory.devices, complete=False), wanted)
    tainted = device("x", capacity={"memory": Capacity(40)}, taints=(Taint("k", "", "NoSchedule"),))
    others = Inventory(unavailable=(tainted,))
    assert could_serve(others, asked(ask(capacity=(("memory", 40),))))
    assert not could_serve(others, asked(ask(capacity=(("memory", 41),))))
    assert could_serve(others, asked(ask(tolerations=(Toleration("k", "Exists"),))))


FOUR = asked(ask(OF_A100, count=4))


def why(
    nodes: Mapping[str, NodeDevices | None], wanted: DeviceClaims = FOUR, closed: str = "", quarantined: str = ""
) -> str:
    """The sentence about all nodes; `closed` and `quarantined` name nodes."""
    arrays = owned(nodes)
    for row, name in enumerate(nodes):
        arrays.set_closed(row, closed=name in closed)
    cluster = replace(arrays.snapshot(), set_aside=np.array([3 * (name in quarantined) for name in nodes]))
    rows = all_rows(cluster)[::-1]
    return explain_no_fit(cluster, wanted, rows, fit_devices(cluster, wanted, rows).reason)


def test_why_claims_fit_nowhere(golden: Golden) -> None:
    near = {"a": gpus(3), "b": gpus(4, 0, 1), "c": gpus(4, 0), "d": gpus(5, 0, 1, 2)}
    two, quarantined = {"a": gpus(4), "b": gpus(4)}, {"a": gpus(4), "b": gpus(3), "c": None}
    golden(
        "core/claims.txt",
        [
            "no nodes: " + why({}),
            "no devices: " + why({"a": None, "b": None}),
            "too few: " + why({"a": None, "b": gpus(3)}),
            "most free: " + why(near),
            "all reserved: " + why(two, closed="ab"),
            "a reserved: " + why({"a": gpus(4), "b": gpus(4, 0)}, closed="a"),
            "all quarantined: " + why({"a": gpus(4), "b": None}, quarantined="a"),
            "b reserved, a quarantined: " + why(two, closed="b", quarantined="a"),
            "a quarantined: " + why(quarantined, quarantined="a"),
            "no match anywhere: " + why({"a": gpus(1), "b": gpus(2, 0)}, asked(ask(OF_TYPE, OF_H200))),
            "one node, no devices: " + explain_no_fit_on(None, FOUR),
            "one node, too few: " + explain_no_fit_on(gpus(3), FOUR),
            "one node, no match: " + explain_no_fit_on(having(), FOUR),
        ],
    )


def test_equal_nodes_are_examined_once_and_32_different_ones_those_with_most_free_first() -> None:
    differing = {f"n{number:02}": gpus(number + 1, *range(number + 1)) for number in range(33)}
    assert why(dict(list(differing.items())[:32]), asked(ask(OF_A100))).endswith("32 matching, 0 free (node n31)")
    assert why(differing, asked(ask(OF_A100))).endswith("(node n31) (of 32 nodes examined)")
    alike = {f"n{number:02}": gpus(4, 0, name=f"n{number:02}") for number in range(40)}
    assert why(alike).endswith("4 matching, 3 free (node n00)")
    # What is taken does not matter on nodes that are too small.
    taken = {f"n{number:02}": gpus(3, *range(number % 4)) for number in range(40)}
    assert why(taken | {f"m{number:02}": gpus(2) for number in range(31)}, asked(ask(OF_A100, count=5))).endswith(
        "3 matching (node n00)"
    )
    nodes = {f"n{number:02}": gpus(number + 4, *range(number + 2)) for number in range(40)} | {"z": gpus(4, 0)}
    assert why(nodes).endswith("4 matching, 3 free (node z) (of 32 nodes examined)")


def test_cached_sentences_depend_on_the_claims_and_what_is_taken_now() -> None:
    name = new_name()
    two_requests = asked(ask(OF_A100, count=4, name=name), ask(OF_A100, name="b"))
    together = asked(ask(OF_A100, count=3, name=name), constraints=(Constraint(ROOT),))
    for _ in range(2):
        assert explain_no_fit_on(gpus(5, 0, 1), two_requests).startswith(f"request {name}: needs 4 devices")
        assert "all be allocated at once: 5 devices" in explain_no_fit_on(gpus(4), two_requests)
        assert ROOT in explain_no_fit_on(gpus(4), together)
        assert explain_no_fit_on(gpus(4, 0), FOUR).endswith("4 matching, 3 free")
        assert explain_no_fit_on(gpus(4, 0, 1), FOUR).endswith("4 matching, 2 free")
