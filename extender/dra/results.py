"""Writes and reads a claim's `status.allocation`.

It is written like kube-scheduler's: kubernetes 1.37.2 `dynamic-resource-allocation/structured/internal/incubating`, the
end of `Allocate`, and `createNodeSelector`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from fractions import Fraction
from math import ceil
from typing import Any, Final
from uuid import uuid4

import msgspec

from extender.core.dra.allocator import Given
from extender.core.dra.devices import WHOLE, Amount, Device, DeviceId, Inventory, Taking
from extender.core.resources.quantities import parse_quantity
from extender.dra.objects import AllocatedDevice, DeviceClass, ExactRequest, Opaque, ResourceClaim

_NANO: Final = 10**9
_LARGEST: Final = 2**63 - 1


def amount_of(quantity: str | int | float) -> Amount:
    """A quantity as `ParseQuantity` of `k8s.io/apimachinery/pkg/api/resource` reads it. Raises ValueError if invalid.

    It is rounded up to a billionth; with a binary suffix it is at most 2**63 - 1.
    """
    text = str(quantity)
    exact = parse_quantity(text)
    size = abs(exact)
    if size.denominator != 1:
        size = Fraction(ceil(size * _NANO), _NANO)
    if text.endswith("i"):
        size = min(size, Fraction(_LARGEST))
    amount = -size if exact < 0 else size
    return int(amount) if amount.denominator == 1 else amount


_FROM_CLASS: Final = "FromClass"
_FROM_CLAIM: Final = "FromClaim"
_BINARY: Final = ("Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_DECIMAL: Final = ("", "m", "u", "n")


def allocation_of(
    claim: ResourceClaim,
    given: Sequence[Given],
    inventory: Inventory,
    classes: Mapping[str, DeviceClass],
    node: str,
    now: float,
    new_share: Callable[[], str] = lambda: str(uuid4()),
) -> dict[str, Any]:
    """The `status.allocation` of a claim for devices of a node, to be encoded by msgspec.

    `now` is Unix time; `new_share` returns a share ID for a shareable device. Raises KeyError if the claim lacks a
    request of `given`, or a class is gone.
    """
    asked = dict(_requests(claim))
    results = [_result(asked[item.request], item, inventory, new_share) for item in given]
    chosen = _chosen(claim, given)
    config = [*_of_classes(chosen, asked, classes), *_of_claim(claim, chosen)]
    devices: dict[str, Any] = {"results": results}
    if config:
        devices["config"] = [_for_all(item, chosen) for item in config]
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "devices": devices,
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [field]}]},
        "allocationTimestamp": datetime.fromtimestamp(int(now), UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }


def _requests(claim: ResourceClaim) -> Iterator[tuple[str, ExactRequest]]:
    """Requests by name; alternatives are named `request/alternative`."""
    for request in claim.spec.devices.requests or ():
        if request.exactly:
            yield request.name, request.exactly
        for alternative in request.first_available or ():
            yield f"{request.name}/{alternative.name}", alternative


def _chosen(claim: ResourceClaim, given: Iterable[Given]) -> dict[str, str]:
    """The allocated request or alternative, by the name of the claim's request."""
    allocated = {item.request.partition("/")[0]: item.request for item in given}
    return {request.name: allocated[request.name] for request in claim.spec.devices.requests or ()}


# Results


def _result(request: ExactRequest, given: Given, inventory: Inventory, new_share: Callable[[], str]) -> dict[str, Any]:
    device = inventory.devices[given.taking.device]
    result: dict[str, Any] = {"request": given.request, **device.id._asdict()}
    if given.admin:
        result["adminAccess"] = True
    if request.tolerations:
        result["tolerations"] = msgspec.to_builtins(request.tolerations)
    if device.shareable:
        result["shareID"] = new_share()
        consumed = given.taking.capacity
        asked = (request.capacity.requests or {}) if request.capacity else {}
        if consumed:
            result["consumedCapacity"] = {name: _quantity(amount, asked.get(name)) for name, amount in consumed}
    return result


def _quantity(amount: Amount, asked: str | int | float | None) -> str:
    """An amount as a quantity, spelled as in the request if equal."""
    if asked is not None and amount_of(asked) == amount:
        return str(asked)
    return _format_quantity(amount)


def _format_quantity(amount: Amount) -> str:
    """A canonical quantity, with a binary suffix if it divides evenly. Raises ValueError below a billionth."""
    value = Fraction(amount)
    power = next((power for power in range(len(_DECIMAL)) if (value * 1000**power).denominator == 1), None)
    if power is None:
        raise ValueError(f"{amount} is not a quantity")
    number, binary = int(value * 1000**power), ""
    if not power:
        for larger in _BINARY:
            if number == 0 or number % 1024:
                break
            number, binary = number // 1024, larger
    return f"{number}{_DECIMAL[power] or binary}"


# Config


def _of_classes(
    chosen: Mapping[str, str], asked: Mapping[str, ExactRequest], classes: Mapping[str, DeviceClass]
) -> Iterator[dict[str, Any]]:
    """Each class's config once, with all requests that use the class."""
    requests: dict[str, list[str]] = {}
    for name in chosen.values():
        requests.setdefault(asked[name].device_class_name, []).append(name)
    for name, of_class in requests.items():
        for config in classes[name].spec.config or ():
            yield _config(_FROM_CLASS, of_class, config.opaque)


def _of_claim(claim: ResourceClaim, chosen: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """The claim's config for allocated requests or alternatives, or for all requests."""
    names = {*chosen, *chosen.values()}
    for config in claim.spec.devices.config or ():
        if not config.requests or not names.isdisjoint(config.requests):
            yield _config(_FROM_CLAIM, config.requests or (), config.opaque)


def _config(source: str, requests: Sequence[str], opaque: Opaque | None) -> dict[str, Any]:
    parameters = {"opaque": {"driver": opaque.driver, "parameters": opaque.parameters}} if opaque else {}
    return {"source": source, "requests": list(requests), **parameters}


def _for_all(config: dict[str, Any], chosen: Mapping[str, str]) -> dict[str, Any]:
    """A config without its list of requests if it applies to all of them."""
    named = config["requests"]
    if all(request in named or given in named for request, given in chosen.items()):
        named = []
    return {key: value for key, value in config.items() if key != "requests"} | ({"requests": named} if named else {})


# Existing allocations


def takings_of(claim: ResourceClaim, inventory: Inventory) -> tuple[Taking, ...]:
    """The devices of an inventory that a claim takes; none with admin access or without an allocation.

    A device whose consumed capacity can't be read is taken whole.
    """
    takings = []
    for result in claim.results:
        index = inventory.index_of.get(DeviceId(result.driver, result.pool, result.device))
        if index is not None and not result.admin_access:
            takings.append(Taking(index, _consumed(inventory.devices[index], result)))
    return tuple(takings)


def devices_of(claim: ResourceClaim) -> Iterator[DeviceId]:
    """A claim's allocated devices, except those with admin access."""
    taken = (result for result in claim.results if not result.admin_access)
    return (DeviceId(result.driver, result.pool, result.device) for result in taken)


def pools_of(claim: ResourceClaim) -> Sequence[str]:
    """The pools of a claim's allocated devices, `driver/pool`, including those with admin access."""
    return sorted({f"{result.driver}/{result.pool}" for result in claim.results})


def _consumed(device: Device, result: AllocatedDevice) -> tuple[tuple[str, Amount], ...]:
    """The capacity that a result takes of a shareable device; () of any other."""
    if not device.shareable:
        return ()
    try:
        consumed = {name: amount_of(quantity) for name, quantity in (result.consumed_capacity or {}).items()}
    except ValueError:
        consumed = {}
    else:
        if result.share_id is not None:
            return tuple(sorted(consumed.items()))
    # Allocated before the device became shareable: kube-scheduler shares nothing of it.
    return WHOLE
