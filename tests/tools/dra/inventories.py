"""ResourceSlices made by chance, with all that drivers can publish: API objects as JSON."""

from random import Random
from typing import Any, Final

Json = dict[str, Any]

DRIVERS: Final = ("gpu.example.com", "nic.example.com")
ROOT: Final = "resource.kubernetes.io/pcieRoot"
A100: Final = {"1g": (1, 1, (0, 1, 2, 3, 4, 5, 6)), "2g": (2, 2, (0, 2, 4)), "3g": (3, 4, (0, 4)), "4g": (4, 4, (0,))}
"""Compute and memory slices, and where a profile can be placed."""

TAINTS: Final = (
    {"key": "broken", "value": "yes", "effect": "NoSchedule"},
    {"key": "leaving", "value": "soon", "effect": "NoExecute"},
    {"key": "noted", "value": "", "effect": "None"},
)


def slices_of(rng: Random, node: str) -> list[Json]:
    """The slices of all pools of a node."""
    made = []
    for number in range(rng.choice((1, 1, 1, 2, 3))):
        driver = DRIVERS[0] if number == 0 else rng.choice(DRIVERS)
        made += _pool(rng, node, driver, f"{node}-{number}")
    rng.shuffle(made)
    return made


def _pool(rng: Random, node: str, driver: str, pool: str) -> list[Json]:
    sets: list[Json] = []
    devices: list[Json] = []
    for _ in range(rng.randint(1, 4)):
        kind = rng.random()
        if kind < 0.3:
            devices += _partitioned(rng, len(devices), sets)
        elif kind < 0.4:
            devices += _a100(rng, len(devices), sets)
        else:
            devices.append(_device(rng, f"dev-{len(devices)}"))
    if rng.random() < 0.01:
        devices[-1] = devices[-1] | rng.choice(_REFUSED)
    if rng.random() < 0.02:
        devices[-1]["name"] = devices[0]["name"]
    bodies: list[Json] = [{"sharedCounters": sets}] if sets else []
    cut = rng.randint(1, len(devices)) if rng.random() < 0.3 else len(devices)
    bodies += [{"devices": part} for part in (devices[:cut], devices[cut:]) if part]
    generation = rng.randint(1, 3)
    count = len(bodies) + (rng.random() < 0.02)
    made = [_slice(node, driver, pool, f"s{number}", generation, count, body) for number, body in enumerate(bodies)]
    if rng.random() < 0.03:
        made.append(_slice(node, driver, pool, "old", generation - 1, 1, {"devices": [{"name": "old"}]}))
    if rng.random() < 0.005:
        del made[0]["spec"]["nodeName"]
        made[0]["spec"]["allNodes"] = True
    return made


_REFUSED: Final[tuple[Json, ...]] = (
    {"bindingConditions": ["ready"], "bindingFailureConditions": ["failed"]},
    {"attributes": {"list": {"strings": ["a", "b"]}}},
)


def _slice(node: str, driver: str, pool: str, name: str, generation: int, count: int, body: Json) -> Json:
    spec: Json = {"driver": driver, "nodeName": node} | body
    spec["pool"] = {"name": pool, "generation": generation, "resourceSliceCount": count}
    return {"metadata": {"name": f"{pool}-{name}", "uid": f"{pool}-{name}"}, "spec": spec}


def _device(rng: Random, name: str, kind: str = "whole", consumes: list[Json] | None = None) -> Json:
    attributes: Json = {
        "kind": {"string": kind},
        "number": {"int": rng.randint(0, 2)},
        "fast": {"bool": rng.random() < 0.5},
        "firmware": {"version": rng.choice(("1.0.0", "1.2.0", "2.0.0-rc.1"))},
        ROOT: {"string": f"pci-{rng.randint(0, 2)}"},
        "uuid": {"string": f"{name}-{rng.randint(0, 10**6)}"},
    }
    if rng.random() < 0.06:
        del attributes[rng.choice(("number", "fast", "firmware", ROOT))]
    if rng.random() < 0.03:
        attributes["number"] = rng.choice(({"bool": True}, {"string": "1"}))
    device: Json = {"name": name, "attributes": attributes, "capacity": {"memory": {"value": rng.choice(_SIZES)}}}
    if consumes:
        device["consumesCounters"] = consumes
    if rng.random() < 0.12:
        device["taints"] = rng.sample(TAINTS, rng.randint(1, 2))
    if rng.random() < 0.2:
        device["allowMultipleAllocations"] = True
        device["capacity"] = {"memory": _consumable(rng)}
        if rng.random() < 0.1:
            del device["capacity"]["memory"]
        if rng.random() < 0.4:
            device["capacity"]["bandwidth"] = _consumable(rng)
    return device


_SIZES: Final = ("4Gi", "8Gi", "10Gi", "8.5Gi")


def _consumable(rng: Random) -> Json:
    policies = (
        None,
        {"default": "2Gi"},
        {"default": "1Gi", "validRange": {"min": "1Gi"}},
        {"default": "1Gi", "validRange": {"min": "1Gi", "max": "6Gi", "step": "1Gi"}},
        {"default": "2Gi", "validRange": {"min": "500Mi", "step": "1548Mi"}},
        {"default": "1Gi", "validValues": ["1Gi", "3Gi", "8Gi"]},
        {"default": "1500m", "validRange": {"min": "500m", "max": "8", "step": "250m"}},
    )
    policy = rng.choice(policies)
    if policy is None:
        return {"value": "8Gi"}
    return {"value": "8" if policy["default"] == "1500m" else "8Gi", "requestPolicy": policy}


def _partitioned(rng: Random, first: int, sets: list[Json]) -> list[Json]:
    """A device that can be cut in equal parts, two of which may be had as one."""
    name, parts = f"set-{len(sets)}", rng.randint(2, 4)
    counters = {f"slice-{part}": {"value": "1"} for part in range(parts)}
    memory = rng.choice((parts, parts, parts - 1))
    sets.append({"name": name, "counters": counters | {"memory": {"value": f"{memory}Gi"}}})

    def takes(first_part: int, num: int) -> list[Json]:
        taken = {f"slice-{part}": {"value": "1"} for part in range(first_part, first_part + num)}
        return [{"counterSet": name, "counters": taken | {"memory": {"value": f"{num}Gi"}}}]

    devices = [_device(rng, f"dev-{first}", "whole", takes(0, parts))]
    devices += [_device(rng, f"dev-{first + 1 + part}", "part", takes(part, 1)) for part in range(parts)]
    if parts > 2:
        devices.append(_device(rng, f"dev-{first + 1 + parts}", "pair", takes(0, 2)))
    return devices


def _a100(rng: Random, first: int, sets: list[Json]) -> list[Json]:
    """A GPU with the partitions of MIG."""
    name = f"set-{len(sets)}"
    counters = {f"memory-slice-{place}": {"value": "1"} for place in range(8)}
    sets.append({"name": name, "counters": counters | {"compute": {"value": "7"}}})

    def takes(compute: int, places: range) -> list[Json]:
        taken = {f"memory-slice-{place}": {"value": "1"} for place in places}
        return [{"counterSet": name, "counters": taken | {"compute": {"value": str(compute)}}}]

    devices = [_device(rng, f"dev-{first}", "whole", takes(7, range(8)))]
    for profile, (compute, slices, places) in A100.items():
        for place in places:
            consumes = takes(compute, range(place, place + slices))
            devices.append(_device(rng, f"dev-{first + len(devices)}", profile, consumes))
    return devices
