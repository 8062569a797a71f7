"""Which nodes can give a pod the devices of its ResourceClaims, and what of their GPUs that takes."""

from dataclasses import replace

import numpy as np
import pytest

from extender.core.dra.allocator import Allocation, Given
from extender.core.dra.asks import (
    ClaimAsk,
    Constraint,
    DeviceAsk,
    DevicesAsked,
    RequestAsk,
    Selector,
    SelectorFault,
    Toleration,
)
from extender.core.dra.devices import Capacity, Device, Inventory, NodeDevices, Taint, Taking
from extender.core.fit.checks import sentence
from extender.core.fit.device_fits import (
    DeviceFitting,
    Part,
    best_on,
    could_serve,
    given_at,
    parts_at,
    possible_on,
    steps_taken,
    whole,
)
from extender.core.fit.fits import fit, fit_devices
from extender.core.fit.reasons import Reason
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from tests.core.builders import all_rows, cluster_of, node
from tests.core.dra.cases import selector
from tests.core.dra.machines import a100_node, partition
from tests.core.fit.claims import (
    A100,
    OF_A100,
    OF_H200,
    OF_TYPE,
    ROOT,
    ask,
    asked,
    device,
    gpus,
    having,
    owned,
    unheard_of,
)

SMALL = selector("gpu.nvidia.com/profile", "1g.5gb")


def test_each_node_tells_what_becomes_of_claims_there_and_what_of_its_gpus_they_would_take() -> None:
    untyped = having(device("odd"), *gpus(2).inventory.devices)
    cluster = owned(
        {
            "fits": gpus(4, 0),
            "none": None,
            "untold": untyped,
            "never": gpus(1),
            "taken": gpus(3, 0, 2),
        }
    ).snapshot()
    wanted = asked(ask(OF_TYPE, count=2), constraints=(Constraint(ROOT),))
    rows = np.array([4, 0, 3, 2, 1])
    checked = fit_devices(cluster, wanted, rows)
    assert checked.reason.tolist() == [
        Reason.BUSY,
        Reason.FITS,
        Reason.TOO_FEW_INSTALLED,
        Reason.NOT_THIS_KIND,
        Reason.NO_GPUS,
    ]
    assert checked.available.tolist() == [0, 2, 0, 0, 0]
    assert checked.room.tolist() == [[False] * 4, [False, False, True, True], *[[False] * 4] * 3]
    assert checked.taken_units.tolist() == [0, 2, 0, 0, 0]
    assert checked.free_units.tolist() == [1, 3, 1, 2, 0]
    assert checked.idle[1].tolist() == [False, True, True, True]
    assert not checked.shares.any()
    request = GpuRequest(2, AskedUnit.CLAIM, devices=wanted)
    assert [sentence(int(code), request, 0) for code in checked.reason] == [
        "needs 2 devices by ResourceClaim, all matching devices here are taken",
        "fits",
        "needs 2 devices by ResourceClaim, the devices here do not satisfy it",
        "needs 2 devices by ResourceClaim, which can't be decided here: a selector fails, or the search takes too long",
        "needs 2 devices by ResourceClaim, no devices here that Kerf allocates",
    ]


def test_a_node_that_is_set_aside_or_kept_for_a_move_gives_no_devices() -> None:
    arrays = owned({"a": gpus(1), "b": gpus(1)})
    arrays.set_closed(1, closed=True)
    cluster = replace(arrays.snapshot(), set_aside=np.array([1, 0]))
    wanted = asked(ask())
    checked = fit_devices(cluster, wanted, all_rows(cluster))
    request = GpuRequest(1, AskedUnit.CLAIM, devices=wanted)
    assert [
        sentence(int(code), request, int(number))
        for code, number in zip(checked.reason, checked.available, strict=True)
    ] == [
        "quarantined: 1 pod failed here soon after starting",
        "needs 1 device by ResourceClaim, free capacity here is reserved for a move that makes room",
    ]


def test_what_does_not_ask_for_devices_is_not_checked_for_them() -> None:
    cluster = owned({"a": gpus(1)}).snapshot()
    assert fit(cluster, GpuRequest(1, AskedUnit.CLAIM), all_rows(cluster)).fits.tolist() == [True]
    with pytest.raises(ValueError, match=r"^the request has no devices$"):
        DeviceFitting(cluster, GpuRequest(1), all_rows(cluster))


def test_where_claims_fit_the_same_devices_are_given_and_elsewhere_it_is_a_bug_to_ask() -> None:
    cluster = owned({"full": gpus(2, 0, 1), "free": gpus(2, 0)}).snapshot()
    wanted = asked(ask(OF_A100))
    assert given_at(cluster, 1, wanted).takings == (Taking(1),)
    with pytest.raises(AssertionError, match="disagree at node full"):
        given_at(cluster, 0, wanted)
    with pytest.raises(AssertionError, match="disagree at node n"):
        given_at(cluster_of({"n": node(A100)}), 0, wanted)
    assert best_on(None, wanted) is None


def given(*takings: Taking) -> Allocation:
    return Allocation((tuple(Given("gpu", taking) for taking in takings),))


def test_partitions_take_their_parts_of_each_gpu_in_the_order_of_the_gpus() -> None:
    inventory = a100_node("n", 2)
    devices = NodeDevices.of(inventory)
    cluster = owned({"n": devices}).snapshot()
    quarter, half = partition(inventory, 1, "2g.10gb", 0), partition(inventory, 1, "3g.20gb", 4)
    parts = parts_at(cluster, 0, given(Taking(half), Taking(0), Taking(quarter)))
    assert parts == (Part(0, 1000, 40960), Part(1, 428 + 285, 20480 + 10240))
    assert not whole(parts)
    assert whole(parts_at(cluster, 0, given(Taking(0))))


def test_of_what_is_no_gpu_and_of_a_gpu_that_is_shared_already_nothing_more_is_gone() -> None:
    memory = {"memory": Capacity(40)}
    shared = having(
        device("nic"),
        device("shared", gpu=0, milli=1000, mib=40960, shareable=True, capacity=memory),
        device("unshared", gpu=1, milli=1000, mib=40960, shareable=True, capacity=memory),
        device("whole", gpu=2, milli=1000, mib=40960),
        taken=[Taking(1, (("memory", 10),)), Taking(0)],
    )
    cluster = owned({"n": shared}).snapshot()
    part = (("memory", 10),)
    takings = (Taking(0), Taking(1, part), Taking(2, part), Taking(3))
    assert parts_at(cluster, 0, given(*takings)) == (Part(1, 1000, 40960), Part(2, 1000, 40960))
    assert parts_at(cluster, 0, given(Taking(0))) == ()
    assert not whole(())


@pytest.mark.parametrize("unit", list(GpuUnit))
def test_gpus_of_a_device_plugin_are_not_taken_by_claims(unit: GpuUnit) -> None:
    state = node(A100, unit=unit)
    cluster = replace(cluster_of({"n": state}), devices=np.array([gpus(1)], np.object_))
    of_claims = unit in (GpuUnit.CLAIM, GpuUnit.OWNED)
    assert parts_at(cluster, 0, given(Taking(0))) == ((Part(0, 1000, 40960),) if of_claims else ())
    for none in (cluster_of({"n": state}), replace(cluster, devices=None)):
        assert parts_at(none, 0, given(Taking(0))) == ()


def test_claims_are_possible_where_nothing_would_have_to_be_taken_from_others() -> None:
    inventory = a100_node("n", 2, mig=False)
    assert possible_on(inventory, asked(ask(OF_A100, count=2)))
    assert not possible_on(inventory, asked(ask(OF_A100, count=3)))
    assert not possible_on(inventory, asked(ask(selector("d/none", 1))))


def test_the_steps_of_searches_are_counted_for_those_who_ask_the_same() -> None:
    wanted = asked(ask(OF_A100, name=unheard_of()))
    assert steps_taken(wanted) == 0
    assert best_on(gpus(2), wanted) is not None
    assert steps_taken(wanted) > 0


def unable(found: Device) -> bool:
    raise SelectorFault(f"no such attribute of {found.id.device}")


ODD, UNABLE = replace(OF_H200, reads=None), Selector("unable", unable)
"""That look at all of a device, so that each is asked about by itself."""


def choices(*alternatives: DeviceAsk) -> DevicesAsked:
    """What two requests ask of which the second names several kinds."""
    return DevicesAsked((ClaimAsk((RequestAsk("first", (ask(OF_H200),)), RequestAsk("second", alternatives))),))


@pytest.mark.parametrize(
    ("wanted", "could"),
    [
        pytest.param(asked(ask(OF_A100)), True, id="a device that does"),
        pytest.param(asked(ask(OF_A100, count=9)), True, id="in whatever number"),
        pytest.param(asked(ask(OF_H200)), False, id="none that does"),
        pytest.param(asked(ask(OF_H200), ask(OF_A100)), True, id="one of two requests"),
        pytest.param(choices(ask(OF_H200), ask(OF_A100)), True, id="an alternative"),
        pytest.param(choices(ask(OF_H200)), False, id="no alternative"),
        pytest.param(asked(ask(UNABLE)), True, id="one that can't tell"),
        pytest.param(asked(ask(replace(ODD, cost=9_980))), False, id="two that take as long as is allowed"),
        pytest.param(asked(ask(replace(ODD, cost=9_981))), True, id="a step longer"),
    ],
)
def test_devices_of_others_could_serve_claims_where_one_does_or_that_cannot_be_told(
    wanted: DevicesAsked, could: bool
) -> None:
    found = a100_node("n", 2, mig=False).devices
    assert could_serve(Inventory(unavailable=found), wanted) is could
    assert not could_serve(Inventory(found), wanted)
    assert could_serve(Inventory(found, complete=False), wanted)


def test_devices_of_others_with_taints_or_without_capacity_are_looked_at_as_the_claims_ask() -> None:
    memory = device("x", capacity={"memory": Capacity(40)}, taints=(Taint("k", "", "NoSchedule"),))
    others = Inventory(unavailable=(memory,))
    assert could_serve(others, asked(ask(capacity=(("memory", 40),))))
    assert not could_serve(others, asked(ask(capacity=(("memory", 41),))))
    assert could_serve(others, asked(ask(tolerations=(Toleration("k", "Exists"),))))
