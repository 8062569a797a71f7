from typing import Any

import msgspec
import pytest

from extender.core.dra.allocator import Given
from extender.core.dra.devices import WHOLE, NodeDevices, Taking
from extender.dra.objects import ResourceClaim
from extender.dra.results import allocation_of, takings_of
from tests.dra.builders import (
    DRIVER,
    claim,
    consuming,
    counters,
    device,
    device_class,
    exactly,
    inventory_of,
    pools_of,
    resource_slice,
)

INVENTORY = inventory_of(
    device("whole"),
    device("other"),
    device("shared", allowMultipleAllocations=True, capacity={"memory": {"value": "40Gi"}}),
)


def opaque(number: int) -> dict[str, Any]:
    return {"opaque": {"driver": DRIVER, "parameters": {"number": number}}}


def allocated(found: ResourceClaim, *given: Given, **classes: Any) -> Any:
    """The allocation that is written to a claim."""
    known = {name: device_class(name, **spec) for name, spec in {"gpu": {}, "nic": {}, **classes}.items()}
    ids = iter("xyz")
    made = allocation_of(found, given, INVENTORY, known, "n1", 86_400.9, lambda: next(ids))
    return msgspec.json.decode(msgspec.json.encode(made))


RESULT = {"request": "r", "driver": DRIVER, "pool": "p", "device": "whole"}


def test_the_allocation_of_a_device() -> None:
    assert allocated(claim(exactly()), Given("r", Taking(0))) == {
        "devices": {"results": [RESULT]},
        "nodeSelector": {
            "nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n1"]}]}]
        },
        "allocationTimestamp": "1970-01-02T00:00:00Z",
    }


def test_tolerations_and_administrators() -> None:
    toleration = {"key": "a", "operator": "Exists", "tolerationSeconds": 0}
    found = claim(exactly(adminAccess=True, tolerations=[toleration]))
    (result,) = allocated(found, Given("r", Taking(0), admin=True))["devices"]["results"]
    assert result == {**RESULT, "adminAccess": True, "tolerations": [toleration]}


def test_parts_of_a_shareable_device_have_ids() -> None:
    found = claim(exactly(capacity={"requests": {"memory": "10240Mi"}}, count=2))
    given = [Given("r", Taking(2, (("memory", amount * 2**30),))) for amount in (10, 20)]
    results = allocated(found, *given)["devices"]["results"]
    assert [(item["shareID"], item["consumedCapacity"]) for item in results] == [
        ("x", {"memory": "10240Mi"}),  # in the author's words
        ("y", {"memory": "20Gi"}),
    ]


def test_config_of_a_class_names_all_its_requests() -> None:
    found = claim(exactly("a"), exactly("b", device_class="nic"), exactly("c"))
    given = [Given("a", Taking(0)), Given("b", Taking(1)), Given("c", Taking(1))]
    config = allocated(found, *given, gpu={"config": [opaque(1), opaque(2)]}, nic={"config": [opaque(3)]})
    assert config["devices"]["config"] == [
        {"source": "FromClass", "requests": ["a", "c"], **opaque(1)},
        {"source": "FromClass", "requests": ["a", "c"], **opaque(2)},
        {"source": "FromClass", "requests": ["b"], **opaque(3)},
    ]


def test_config_for_all_requests_names_none() -> None:
    found = claim(exactly("a"), exactly("b"), config=[opaque(1), {"requests": ["b", "a"], **opaque(2)}])
    config = allocated(found, Given("a", Taking(0)), Given("b", Taking(1)), gpu={"config": [opaque(3)]})
    assert config["devices"]["config"] == [
        {"source": "FromClass", **opaque(3)},
        {"source": "FromClaim", **opaque(1)},
        {"source": "FromClaim", **opaque(2)},
    ]


def test_config_of_alternatives_that_are_not_taken_is_left_out() -> None:
    alternatives = [{"name": "x", "deviceClassName": "gpu"}, {"name": "y", "deviceClassName": "nic"}]
    configs = [{"requests": [name], **opaque(number)} for number, name in enumerate(("r/x", "r/y", "r", "s"))]
    found = claim({"name": "r", "firstAvailable": alternatives}, exactly("s"), config=configs)
    given = [Given("r/y", Taking(0)), Given("s", Taking(1))]
    config = allocated(found, *given, gpu={"config": [opaque(8)]}, nic={"config": [opaque(9)]})["devices"]["config"]
    assert config == [
        {"source": "FromClass", "requests": ["r/y"], **opaque(9)},
        {"source": "FromClass", "requests": ["s"], **opaque(8)},
        {"source": "FromClaim", "requests": ["r/y"], **opaque(1)},
        {"source": "FromClaim", "requests": ["r"], **opaque(2)},
        {"source": "FromClaim", "requests": ["s"], **opaque(3)},
    ]


def test_opaque_parameters_are_passed_on_byte_by_byte() -> None:
    config = b'[{"opaque":{"driver":"d","parameters":{"b":1.50,"a":1e400}}}]'
    request = b'{"name":"r","exactly":{"deviceClassName":"gpu"}}'
    text = b'{"spec":{"devices":{"requests":[' + request + b'],"config":' + config + b"}}}"
    found = msgspec.json.decode(text, type=ResourceClaim)
    made = allocation_of(found, [Given("r", Taking(0))], INVENTORY, {"gpu": device_class()}, "n1", 0.0)
    assert b'"parameters":{"b":1.50,"a":1e400}' in msgspec.json.encode(made)


def test_only_requests_of_the_claim_are_written() -> None:
    with pytest.raises(KeyError):
        allocated(claim(exactly()), Given("other", Taking(0)))


def takings(*results: Any) -> Any:
    """The devices of an allocated claim."""
    status = {"allocation": {"devices": {"results": [{**RESULT, **result} for result in results]}}}
    return takings_of(claim(exactly(), status=status), INVENTORY)


def test_the_devices_that_a_claim_takes() -> None:
    shared = {"device": "shared", "shareID": "x", "consumedCapacity": {"memory": "10Gi"}}
    found = takings({"device": "other"}, {"device": "whole", "adminAccess": True}, shared, {"device": "gone"})
    assert found == (Taking(1), Taking(2, (("memory", 10 * 2**30),)))
    assert takings_of(claim(exactly()), INVENTORY) == ()
    assert takings({"device": "whole", "pool": "q"}) == ()


def test_a_share_that_is_not_understood_takes_the_whole_device() -> None:
    plain = {"device": "shared"}  # allocated before the device could be shared
    for result in (plain, {**plain, "shareID": "x", "consumedCapacity": {"memory": "much"}}):
        ((index, capacity),) = takings(result)
        assert index == 2
        assert capacity == WHOLE  # nobody gets any more of it, not even nothing


def test_an_allocation_takes_what_it_was_written_for() -> None:
    inventory = pools_of(
        counters(("g", {"m": "2"}), count=2),
        resource_slice(
            device("a", **consuming("g", m="1"), allowMultipleAllocations=True, capacity={"memory": {"value": "8Gi"}}),
            count=2,
        ),
    ).inventory
    found = claim(exactly(count=2))
    given = [Given("r", Taking(0, (("memory", 3 * 2**30),))), Given("r", Taking(0, (("memory", 2**30),)))]
    made = allocation_of(found, given, inventory, {"gpu": device_class()}, "n1", 0.0)
    written = claim(exactly(count=2), status={"allocation": made})
    assert takings_of(written, inventory) == tuple(item.taking for item in given)
    assert NodeDevices.of(inventory, takings_of(written, inventory)).left == (1,)
    assert written.status.allocation is not None
    assert written.status.allocation.node == "n1"
