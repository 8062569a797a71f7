"""Cases made by chance: nodes with devices, claims that have some of them, and the claims of a pod."""

from random import Random
from typing import Any, Final, NamedTuple

from tests.tools.dra.inventories import DRIVERS, ROOT, Json, slices_of

_CLASSES: Final = {
    "gpu": 'device.driver == "gpu.example.com"',
    "nic": 'device.driver == "nic.example.com"',
    "whole": 'device.driver == "gpu.example.com" && device.attributes["gpu.example.com"].kind == "whole"',
    "shared": "device.allowMultipleAllocations == true",
    "any": "",
}

_SOUND: Final = (
    'device.attributes["{driver}"].kind == "whole"',
    'device.attributes["{driver}"].kind == "part"',
    'device.attributes["{driver}"].kind == "1g"',
    'device.attributes["{driver}"].kind == "2g"',
    'device.attributes["{driver}"].kind == "3g"',
    'device.capacity["{driver}"].memory.compareTo(quantity("8Gi")) >= 0',
    "device.allowMultipleAllocations == false",
    'device.attributes["{driver}"].kind in ["whole", "pair", "3g", "4g"]',
    'device.attributes["{driver}"].?number.orValue(0) != 1',
    'has(device.attributes["{driver}"].fast) && device.attributes["{driver}"].fast',
    'device.capacity["{driver}"].memory.isGreaterThan(quantity("4Gi")) || device.attributes["{driver}"].kind == "part"',
)
_FAILING: Final = (
    'device.attributes["{driver}"].number == 1',
    'device.attributes["{driver}"].fast',
    'device.attributes["{driver}"].missing == "x"',
    'device.attributes["{driver}"].firmware.isGreaterThan(semver("1.0.0"))',
)
_COUNTS: Final = (1,) * 10 + (2,) * 5 + (3, 3, 4, 5, 7, 16)
_CAPACITIES: Final = ("1", "1500m", "700Mi", "1Gi", "1.5Gi", "2Gi", "3Gi", "8Gi", "9Gi", "100m", "100u")


class _Wishes(NamedTuple):
    """What requests may name: most of it is there."""

    classes: list[str]
    sound: list[str]


def case_of(seed: int) -> Json:
    """A case: nodes, slices, classes, allocated claims, and those of a pod; the same for the same seed."""
    rng = Random(seed)
    nodes = [f"node-{number}" for number in range(rng.choice((1, 1, 2)))]
    slices = [item for node in nodes for item in slices_of(rng, node)]
    classes = ["gpu", "gpu", "gpu", "whole", "any"]
    classes += ["nic"] * (rng.random() < 0.05 or any(item["spec"]["driver"] == DRIVERS[1] for item in slices))
    classes += ["shared"] * (rng.random() < 0.05 or "allowMultipleAllocations" in str(slices))
    sound = [text for text in _SOUND if "kind" not in text or text.split('"')[-2] in str(slices) or rng.random() < 0.1]
    return {
        "nodes": [{"metadata": {"name": node, "labels": {"kubernetes.io/hostname": node}}} for node in nodes],
        "slices": slices,
        "classes": [_class(name, expression) for name, expression in _CLASSES.items()],
        "claims": [
            _claim(rng, f"claim-{number}", _Wishes(classes, sound)) for number in range(rng.choice((1, 1, 1, 1, 2, 3)))
        ],
        "allocated": _allocated(rng, slices),
    }


def _class(name: str, expression: str) -> Json:
    selectors = [{"cel": {"expression": expression}}] if expression else []
    return {"metadata": {"name": name, "uid": name}, "spec": {"selectors": selectors}}


def _claim(rng: Random, name: str, wishes: _Wishes) -> Json:
    requests = [_request(rng, f"r{number}", wishes) for number in range(rng.choice((1, 1, 1, 2, 3)))]
    constraints = [_constraint(rng, requests) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
    devices = {"requests": requests, "constraints": constraints}
    return {"metadata": {"name": name, "namespace": "default", "uid": name}, "spec": {"devices": devices}, "status": {}}


def _request(rng: Random, name: str, wishes: _Wishes) -> Json:
    if rng.random() < 0.25:
        alternatives = [_exactly(rng, wishes, False) | {"name": f"a{number}"} for number in range(rng.randint(1, 3))]
        return {"name": name, "firstAvailable": alternatives}
    return {"name": name, "exactly": _exactly(rng, wishes, True)}


def _exactly(rng: Random, wishes: _Wishes, may_look: bool) -> Json:
    device_class = rng.choice(wishes.classes)
    driver = DRIVERS[device_class == "nic"]
    exactly: Json = {"deviceClassName": device_class}
    chance = rng.random()
    selectors = [] if chance < 0.5 else [rng.choice(wishes.sound)] if chance < 0.94 else [rng.choice(_FAILING)]
    if selectors and rng.random() < 0.1:
        selectors.append(rng.choice(wishes.sound))
    exactly["selectors"] = [{"cel": {"expression": text.format(driver=driver)}} for text in selectors]
    if rng.random() < 0.12:
        exactly["allocationMode"] = "All"
    else:
        exactly |= {"allocationMode": "ExactCount", "count": rng.choice(_COUNTS)}
    if may_look and rng.random() < 0.08:
        exactly["adminAccess"] = True
    if rng.random() < 0.25:
        exactly["tolerations"] = [rng.choice(_TOLERATIONS)]
    if rng.random() < 0.2:
        names = ["memory"] if rng.random() < 0.8 else ["memory", "bandwidth"]
        exactly["capacity"] = {"requests": {capacity: rng.choice(_CAPACITIES) for capacity in names}}
    return exactly


_TOLERATIONS: Final[tuple[Json, ...]] = (
    {"operator": "Exists"},
    {"key": "broken", "operator": "Exists", "effect": "NoSchedule"},
    {"key": "broken", "operator": "Equal", "value": "yes"},
    {"key": "broken", "operator": "Equal", "value": "no"},
    {"key": "leaving", "operator": "Exists", "effect": "NoExecute"},
)


def _constraint(rng: Random, requests: list[Json]) -> Json:
    kind = rng.choice(("matchAttribute", "matchAttribute", "distinctAttribute"))
    driver = rng.choice((DRIVERS[0], DRIVERS[0], DRIVERS[1]))
    names = ("number", "fast", "firmware", "uuid", "kind", "missing")
    attribute = ROOT if rng.random() < 0.4 else f"{driver}/{rng.choice(names)}"
    constraint: Json = {kind: attribute}
    if rng.random() < 0.4:
        named = [request["name"] for request in requests]
        named += [f"{item['name']}/{sub['name']}" for item in requests for sub in item.get("firstAvailable", ())]
        constraint["requests"] = rng.sample(named, rng.randint(1, len(named)))
    return constraint


# What is allocated already


def _allocated(rng: Random, slices: list[Json]) -> list[Json]:
    """Claims that have devices: now and then more than their counters are good for."""
    share = rng.choice((0, 0, 0.05, 0.1, 0.2, 0.5))
    claims: list[Json] = []
    left: dict[tuple[str, str, str], float] = {}
    for item in slices:
        spec = item["spec"]
        for counters in spec.get("sharedCounters", ()):
            for name, counter in counters["counters"].items():
                left[spec["pool"]["name"], counters["name"], name] = _number(counter["value"])
    for item in slices:
        for device in item["spec"].get("devices", ()):
            if rng.random() < share and (_draw(left, item["spec"], device) or rng.random() < 0.02):
                results = [_result(rng, item["spec"], device) for _ in range(1 + _shares(rng, device))]
                claims.append(_holder(f"holder-{len(claims)}", results))
    return claims


def _number(quantity: str) -> float:
    return float(quantity.removesuffix("Gi"))


def _draw(left: dict[tuple[str, str, str], float], spec: Json, device: Json) -> bool:
    takes = {
        (spec["pool"]["name"], consumed["counterSet"], name): _number(counter["value"])
        for consumed in device.get("consumesCounters", ())
        for name, counter in consumed["counters"].items()
    }
    if any(left.get(key, 0) < amount for key, amount in takes.items()):
        return False
    for key, amount in takes.items():
        left[key] -= amount
    return True


def _shares(rng: Random, device: Json) -> int:
    return rng.randint(0, 2) if device.get("allowMultipleAllocations") else 0


def _result(rng: Random, spec: Json, device: Json) -> Json:
    result: Json = {"request": "r", "driver": spec["driver"], "pool": spec["pool"]["name"], "device": device["name"]}
    if rng.random() < 0.05:
        return result | {"adminAccess": True}
    if device.get("allowMultipleAllocations") and rng.random() < 0.97:
        result["shareID"] = f"{rng.getrandbits(32):08x}-0000-0000-0000-000000000000"
        if rng.random() < 0.95:
            result["consumedCapacity"] = {
                name: rng.choice(("1Gi", "2Gi", "500m", "100Mi")) for name in device["capacity"]
            }
    return result


def _holder(name: str, results: list[Json]) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "default", "uid": name},
        "spec": {"devices": {"requests": []}},
        "status": {"allocation": {"devices": {"results": results}}},
    }
