from typing import Any

import pytest

from extender.core.dra.asks import ClaimSpec, Constraint, DeviceSpec, RequestSpec, Selector, Toleration
from extender.dra.asks import KINDS, UnhandledError, read_asks
from extender.dra.objects import ResourceClaim
from tests.dra.builders import claim, device_class, exactly
from tests.golden import Golden

CLASSES = {
    "gpu": device_class("gpu", selectors=[{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]),
    "any": device_class("any"),
}


def asked(*claims: ResourceClaim) -> tuple[ClaimSpec, ...]:
    return read_asks(claims, CLASSES).claims


def only(request: Any) -> DeviceSpec:
    (found,) = asked(claim(request))
    ((ask,),) = (item.alternatives for item in found.requests)
    return ask


def selectors(*expressions: str) -> tuple[Selector, ...]:
    return tuple(Selector(expression, lambda _: True) for expression in expressions)


def test_a_request_in_full() -> None:
    first = {"key": "a", "value": "b", "effect": "NoExecute", "tolerationSeconds": 3}
    ask = only(
        exactly(
            "r",
            selectors=[{"cel": {"expression": "device.allowMultipleAllocations"}}],
            count=3,
            adminAccess=True,
            tolerations=[first, {"operator": "Exists"}],
            capacity={"requests": {"b": "500m", "a": "1Gi"}},
        )
    )
    assert ask == DeviceSpec(
        "r",
        selectors("device.driver == 'gpu.nvidia.com'", "device.allowMultipleAllocations"),
        3,
        True,
        (Toleration("a", "Equal", "b", "NoExecute"), Toleration("", "Exists")),
        ask.capacity,
    )
    assert [(name, amount * 2) for name, amount in ask.capacity] == [("a", 2**31), ("b", 1)]


def test_counts() -> None:
    for request, count in (
        (exactly(), 1),  # as the API server defaults it
        (exactly(count=2), 2),
        (exactly(allocationMode="ExactCount", count=1), 1),
        (exactly(allocationMode="All"), 0),
    ):
        assert only(request).count == count


def test_alternatives_have_names_of_two_parts() -> None:
    alternatives = [{"name": "big", "deviceClassName": "gpu", "count": 2}, {"name": "small", "deviceClassName": "any"}]
    (found,) = asked(claim({"name": "r", "firstAvailable": alternatives}))
    gpu = selectors("device.driver == 'gpu.nvidia.com'")
    assert found.requests == (RequestSpec("r", (DeviceSpec("r/big", gpu, 2), DeviceSpec("r/small"))),)


def test_constraints() -> None:
    (found,) = asked(
        claim(
            exactly("a", device_class="any"),
            constraints=[{"matchAttribute": "x.com/a"}, {"distinctAttribute": "x.com/b", "requests": ["a"]}],
        )
    )
    assert found.constraints == (Constraint("x.com/a"), Constraint("x.com/b", ("a",), distinct=True))


def test_equal_requests_are_equal_and_claims_keep_their_order() -> None:
    one, other = (read_asks([claim(exactly(count=2), name=name)], CLASSES) for name in "ab")
    assert one == other
    assert hash(one) == hash(other)
    two_and_one = read_asks([claim(exactly(count=2)), claim(exactly(count=1))], CLASSES)
    assert one != two_and_one
    assert [item.requests[0].alternatives[0].count for item in two_and_one.claims] == [2, 1]


def unhandled(*claims: ResourceClaim) -> UnhandledError:
    with pytest.raises(UnhandledError) as error:
        asked(*claims)
    assert "\n" not in str(error.value)
    assert error.value.kind.partition(":")[0] in KINDS
    return error.value


def test_what_is_not_handled_is_refused_by_kind(golden: Golden) -> None:
    sentences = []
    derived = [{"name": "x", "deviceClassName": "any", "derivedAttributes": [{}]}]
    for found, kind in (
        (claim(exactly(device_class="gone")), "missing class"),
        (claim(exactly(device_class="a\nb")), "missing class"),
        (claim(exactly(device_class="")), "request"),
        (claim({"name": "r"}), "request"),
        (claim(exactly(allocationMode="Some")), "allocation mode"),
        (claim(exactly(count=-1)), "allocation mode"),
        (claim(exactly(count=33)), "too many devices"),
        (claim(exactly("a", count=20), exactly("b", count=13)), "too many devices"),
        (claim(exactly(derivedAttributes=[{"name": "a/b"}])), "derived attributes"),
        (claim({"name": "r", "firstAvailable": derived}), "derived attributes"),
        (claim(exactly(selectors=[{}])), "selector"),
        (claim(exactly(), constraints=[{}]), "constraint"),
        (claim(exactly(capacity={"requests": {"a": "much"}})), "capacity"),
        (claim(exactly(capacity={"requests": {"a": "-1"}})), "capacity"),
        (claim(exactly(selectors=[{"cel": {"expression": "1u == 1u"}}])), "CEL: uint"),
    ):
        error = unhandled(found)
        assert error.kind == kind
        sentences.append(f"{kind}: {error}")
    golden("unhandled_claims.txt", sentences)


def test_32_devices_are_not_too_many() -> None:
    asked(claim(exactly("a", count=31), exactly("b", allocationMode="All"), exactly("c")))
    small = [{"name": "a", "deviceClassName": "any", "count": 30}, {"name": "b", "deviceClassName": "any", "count": 2}]
    asked(claim({"name": "r", "firstAvailable": small}, exactly("c", count=30)))  # the smaller alternative has room


def test_a_pod_has_a_bounded_number_of_selectors() -> None:
    def long(count: int) -> list[Any]:
        """Different selectors of 8 KiB."""
        return [{"cel": {"expression": f"true // {index} {'x' * 8184}"}} for index in range(count)]

    asked(claim(exactly(selectors=long(7))), claim(exactly(selectors=long(7))))  # equal ones count once
    assert (
        unhandled(claim(exactly(selectors=long(4))), claim(exactly("r", selectors=long(9)[4:]))).kind == "CEL: length"
    )
    loop = "[1, 2, 3, 4, 5, 6, 7, 8].all(a, "
    loops = [{"cel": {"expression": f"{index} == {index} && {loop * 3}true)))"}} for index in range(20)]
    asked(claim(exactly(selectors=loops[:2])))
    assert unhandled(claim(exactly(selectors=loops))).kind == "CEL: cost"
