"""GPU requests in a pod's resources: extended resources, counted like kube-scheduler does."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import msgspec

from extender.core.resources.nodes import profile_of
from extender.core.resources.quantities import meant_size, parse_quantity
from extender.core.resources.requests import AskedUnit, RequestError, shorten, wrong
from extender.core.vendors.registry import VENDORS
from extender.core.vendors.vendor import Partitions, Vendor

MAX_UNITS: Final = 2**31 - 1
_MAX_PROFILES: Final = 32
"""MIG profiles per pod; each costs a check of every node."""
_MAX_DIGITS: Final = 18
_SIZES: Final = frozenset({"memory", "ephemeral-storage"})
"""Resources in bytes."""

Resources = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True)
class Container:
    """A container's resource requests; `sidecar` marks an init container with restartPolicy Always."""

    requests: Resources
    sidecar: bool = False


def total_request(
    resource: str, containers: Iterable[Container], init_containers: Iterable[Container], overhead: Resources
) -> Fraction | int:
    """A pod's request for one extended resource, as kube-scheduler counts it.

    The larger of the containers' sum and the peak during initialisation, both with sidecars, plus the overhead:
    `PodRequests` of k8s.io/component-helpers/resource/helpers.go. Pod-level resources don't count: the API server
    accepts only CPU, memory and huge pages there. Raises RequestError when a value is not a quantity.
    """

    def asked(resources: Resources) -> Fraction | int:
        value = resources.get(resource)
        if value is None:
            return 0
        text = str(value)
        if text.isdecimal() and text.isascii() and len(text) <= _MAX_DIGITS:
            return int(text)  # the usual case, faster than a Fraction
        try:
            quantity = parse_quantity(text)
        except ValueError as error:
            meant = meant_size(text) if resource in _SIZES else ""
            right = f"do you mean {meant}?" if meant else "write a whole number"
            raise RequestError(f"{resource}: {wrong(text, str(error))}; {right}") from None
        if quantity < 0:
            raise RequestError(f'{resource}: "{shorten(str(value))}" is negative; write a whole number')
        return quantity

    sidecars: Fraction | int = 0
    initialising: Fraction | int = 0
    for container in init_containers:
        if container.sidecar:
            sidecars += asked(container.requests)
            initialising = max(initialising, sidecars)
        else:
            initialising = max(initialising, sidecars + asked(container.requests))
    running = sidecars + sum(asked(container.requests) for container in containers)
    return max(running, initialising) + asked(overhead)


class RequestedGpus(msgspec.Struct, frozen=True, cache_hash=True):
    """The GPUs that a pod's resources request."""

    units: int = 0
    """Number of GPUs or time slices, without MIG devices."""
    unit: AskedUnit = AskedUnit.GPU
    mig: tuple[tuple[str, int], ...] = ()
    """Number of MIG devices by profile, sorted by profile."""
    vendor: int = 0
    """Vendor's number in the registry."""


NO_GPUS_REQUESTED: Final = RequestedGpus()


def requested_gpus(
    containers: Sequence[Container], init_containers: Sequence[Container], overhead: Resources
) -> RequestedGpus:
    """The GPUs that a pod's resources request.

    Raises RequestError for invalid amounts, for unsupported combinations, and for GPUs of two vendors.
    """
    result = NO_GPUS_REQUESTED
    for number, vendor in enumerate(VENDORS):
        asked = _of_vendor(number, vendor, containers, init_containers, overhead)
        if asked is NO_GPUS_REQUESTED:
            continue
        if result is not NO_GPUS_REQUESTED:
            names = f"{VENDORS[result.vendor].resource} together with {vendor.resource}"
            raise RequestError(f"{names} fits no node: Kerf gives a pod GPUs of one vendor; request one")
        result = asked
    return result


def _of_vendor(
    number: int,
    vendor: Vendor,
    containers: Sequence[Container],
    init_containers: Sequence[Container],
    overhead: Resources,
) -> RequestedGpus:
    whole, shared = (
        _whole_units(name, total_request(name, containers, init_containers, overhead)) if name else 0
        for name in (vendor.resource, vendor.shared_resource)
    )
    if whole and shared:
        raise RequestError(
            f'{vendor.shared_resource}: "{shared}" together with {vendor.resource}: "{whole}" fits no node, '
            "because nodes offer only one of the two; request one"
        )
    partitions = vendor.partitions
    mig = () if partitions is None else _mig_devices(vendor, partitions, containers, init_containers, overhead)
    if not (whole or shared or mig):
        return NO_GPUS_REQUESTED
    return RequestedGpus(shared or whole, AskedUnit.SHARED if shared else AskedUnit.GPU, mig, number)


def _mig_devices(
    vendor: Vendor,
    partitions: Partitions,
    containers: Sequence[Container],
    init_containers: Sequence[Container],
    overhead: Resources,
) -> tuple[tuple[str, int], ...]:
    names = {
        name
        for resources in (overhead, *(container.requests for container in (*containers, *init_containers)))
        for name in resources
        if name.startswith(partitions.resource_prefix)
    }
    if len(names) > _MAX_PROFILES:
        raise RequestError(
            f"{partitions.resource_prefix}...: {len(names)} profiles are more than any GPU can be split into"
        )
    counted = (
        (name, _whole_units(name, total_request(name, containers, init_containers, overhead))) for name in sorted(names)
    )
    return tuple((profile_of(name, vendor), count) for name, count in counted if count)


def _whole_units(resource: str, quantity: Fraction | int) -> int:
    if quantity.denominator != 1:
        raise RequestError(f'{resource}: "{float(quantity):g}" is not a whole number; request whole GPUs')
    if quantity > MAX_UNITS:
        raise RequestError(f'{resource}: "{shorten(str(quantity))}" is more than any node has')
    return int(quantity)
