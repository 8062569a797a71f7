"""Kerf and kube-scheduler's allocator on the same case: whether they call the same possible."""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec

from extender.core.dra.allocator import Allocation, Given, _allocate
from extender.core.dra.asks import Fault
from extender.core.dra.devices import Amount, NodeDevices
from extender.core.resources.nodes import NodeReading
from extender.dra.asks import UnhandledError, read_asks
from extender.dra.objects import DeviceClass, ResourceClaim, ResourceSlice
from extender.dra.published import read_pools
from extender.dra.results import _format_quantity, amount_of, takings_of

Json = dict[str, Any]

_Object = TypeVar("_Object")

PINNED: Final = "pinned.example.com"
"""Domain of an attribute that tells devices apart, where a request may have only those that Kerf gave it."""


@dataclass(frozen=True)
class Found:
    """What Kerf finds on a node."""

    outcome: str
    """possible, impossible, or refused."""
    why: str = ""
    """The kind of what is refused."""
    allocation: Allocation | None = None
    state: NodeDevices | None = None


def find(case: Json, node: str) -> Found:
    """What Kerf finds possible on a node."""
    slices = _read(case["slices"], ResourceSlice)
    classes = {item.metadata.name: item for item in _read(case["classes"], DeviceClass)}
    pools = read_pools(slices, (), NodeReading(), node=node, owned_only=False)
    try:
        asked = read_asks(_read(case["claims"], ResourceClaim), classes)
    except UnhandledError as error:
        return Found("refused", error.kind)
    holders = _read(case["allocated"], ResourceClaim)
    takings = [taking for holder in holders for taking in takings_of(holder, pools.inventory)]
    state = NodeDevices.of(pools.inventory, takings)
    try:
        allocation = _allocate(state, asked)
    except Fault as fault:
        return Found("refused", type(fault).__name__)
    if allocation is not None:
        return Found("possible", "", allocation, state)
    unhandled = [fault for fault in pools.faults if "not supported" in fault]
    return Found("refused", _kind(unhandled[0])) if unhandled else Found("impossible")


def _read(objects: list[Json] | None, kind: type[_Object]) -> list[_Object]:
    return msgspec.json.decode(json.dumps(objects or []), type=list[kind])  # type: ignore[valid-type]


def _kind(fault: str) -> str:
    """What a fault of a pool is about, without the names in it."""
    return re.sub(r"(device|attribute) \S+ ", r"\1 ", fault.partition(": ")[2])[:60]


def compare(theirs: Json, ours: Found) -> str:
    """What the two differ in, "" where they agree. An error of kube-scheduler's is as good as impossible."""
    if ours.outcome == "refused" or theirs["outcome"] == "timeout":
        return ""
    if ours.outcome == "impossible":
        return "Kerf finds nothing" if theirs["outcome"] == "possible" else ""
    if theirs["outcome"] != "possible":
        return f"Kerf allocates what is {theirs['outcome']}: {theirs.get('error', '')}"
    return ""


def pinned(case: Json, node: Json, found: Found) -> Json:
    """The case with nothing but what Kerf gave: each request may have its own devices and no others.

    Counters that others have are taken off the counters that there are.
    """
    assert found.allocation and found.state
    devices = found.state.inventory.devices
    given: list[dict[str, list[int]]] = [{} for _ in found.allocation.claims]
    for of_claim, claim in zip(given, found.allocation.claims, strict=True):
        for item in claim:
            of_claim.setdefault(item.request, []).append(item.taking.device)
    kept = {index for of_claim in given for indices in of_claim.values() for index in indices}
    names = {tuple(devices[index].id): index for index in kept}
    gone = {
        tuple(device.id) for index, device in enumerate(devices) if found.state.taken >> index & 1 and index not in kept
    }
    restricted = deepcopy(case) | {"nodes": [node]}
    restricted["slices"] = restricted["slices"] or []
    held = _held(restricted["slices"], gone)
    for item in restricted["slices"]:
        _restrict(item["spec"], names, held)
    for claim, of_claim in zip(restricted["claims"], given, strict=True):
        requests = claim["spec"]["devices"].get("requests") or []
        claim["spec"]["devices"]["requests"] = [_pinned_request(request, of_claim) for request in requests]
    return restricted


def _held(slices: Sequence[Json], gone: Collection[tuple[str, ...]]) -> dict[tuple[str, ...], Amount]:
    """What the devices that are left out hold of counters."""
    held: dict[tuple[str, ...], Amount] = {}
    for item in slices:
        pool = item["spec"]["driver"], item["spec"]["pool"]["name"]
        for device in item["spec"].get("devices") or ():
            for consumed in device.get("consumesCounters", ()) if (*pool, device["name"]) in gone else ():
                for name, counter in (consumed["counters"] or {}).items():
                    key = (*pool, consumed["counterSet"], name)
                    held[key] = held.get(key, 0) + amount_of(counter["value"])
    return held


def _restrict(spec: Json, names: Mapping[tuple[str, ...], int], held: Mapping[tuple[str, ...], Amount]) -> None:
    pool = spec["driver"], spec["pool"]["name"]
    kept = [device for device in spec.get("devices") or () if (*pool, device["name"]) in names]
    for device in kept:
        device["attributes"] = device.get("attributes") or {}
        device["attributes"][f"{PINNED}/index"] = {"int": names[*pool, device["name"]]}
    spec["devices"] = kept
    for counters in spec.get("sharedCounters", ()):
        for name, counter in (counters["counters"] or {}).items():
            left = amount_of(counter["value"]) - held.get((*pool, counters["name"], name), 0)
            counter["value"] = _format_quantity(left)


def _pinned_request(request: Json, given: Mapping[str, list[int]]) -> Json:
    """A request that only the devices given do for, of alternatives the one that was taken."""
    if request.get("exactly"):
        return request | {"exactly": _only(request["exactly"], given[request["name"]])}
    chosen = next(sub for sub in request["firstAvailable"] if f"{request['name']}/{sub['name']}" in given)
    return request | {"firstAvailable": [_only(chosen, given[f"{request['name']}/{chosen['name']}"])]}


def _only(exactly: Json, indices: Sequence[int]) -> Json:
    if exactly.get("allocationMode") == "All":
        return exactly
    text = f'device.attributes["{PINNED}"].index in {json.dumps(sorted(indices))}'
    return exactly | {"selectors": [*(exactly.get("selectors") or ()), {"cel": {"expression": text}}]}


def confirm(theirs: Json, pinned_theirs: Json, found: Found, case: Json) -> str:
    """What kube-scheduler says against an allocation of Kerf's, "" for nothing.

    It must find it possible, down to the capacities consumed, where there are no other devices; and the alternatives
    must not be later ones than its own.
    """
    assert found.allocation and found.state
    if pinned_theirs["outcome"] != "possible":
        return f"what Kerf allocates is {pinned_theirs['outcome']}: {pinned_theirs.get('error', '')}"
    ours = [sorted(_given(item, found.state) for item in claim) for claim in found.allocation.claims]
    wanted = [_results(result) for result in (pinned_theirs.get("results") or [])]
    if ours != wanted:
        return f"Kerf gives {ours}, kube-scheduler {wanted}"
    if theirs["outcome"] != "possible":  # it took too long
        return ""
    rank, first = _rank(case, (pinned_theirs.get("results") or [])), _rank(case, (theirs.get("results") or []))
    if rank > first:
        return f"Kerf takes alternatives {rank}, kube-scheduler {first}"
    if rank == first and _of_all(case, (pinned_theirs.get("results") or [])) != _of_all(
        case, (theirs.get("results") or [])
    ):
        return "all devices are not the same"
    return ""


_Result = tuple[str, str, str, str, bool, tuple[tuple[str, Amount], ...]]


def _given(given: Given, state: NodeDevices) -> _Result:
    device = state.inventory.devices[given.taking.device]
    return given.request, *device.id, given.admin, given.taking.capacity


def _results(allocation: Json) -> list[_Result]:
    return sorted(
        (
            result["request"],
            result["driver"],
            result["pool"],
            result["device"],
            bool(result.get("adminAccess")),
            tuple(sorted((name, amount_of(value)) for name, value in result.get("consumedCapacity", {}).items())),
        )
        for result in allocation["devices"]["results"] or ()
    )


def _rank(case: Json, allocations: Sequence[Json]) -> list[int]:
    """The alternative taken by each request that has some."""
    rank = []
    for claim, allocation in zip(case["claims"], allocations, strict=True):
        names = {result["request"] for result in allocation["devices"]["results"] or ()}
        for request in claim["spec"]["devices"].get("requests") or ():
            subs = [f"{request['name']}/{sub['name']}" for sub in request.get("firstAvailable") or ()]
            rank += [number for number, name in enumerate(subs) if name in names]
    return rank


def _of_all(case: Json, allocations: Sequence[Json]) -> list[list[_Result]]:
    """What requests for all devices get, by claim."""
    of_all = []
    for claim, allocation in zip(case["claims"], allocations, strict=True):
        asks = [named for request in claim["spec"]["devices"].get("requests") or () for named in _asks(request)]
        names = {name for name, ask in asks if ask.get("allocationMode") == "All"}
        of_all.append([result for result in _results(allocation) if result[0] in names])
    return of_all


def _asks(request: Json) -> list[tuple[str, Json]]:
    if request.get("exactly"):
        return [(request["name"], request["exactly"])]
    return [(f"{request['name']}/{sub['name']}", sub) for sub in request["firstAvailable"]]
