"""Who has which devices: read from slices, claims and pods alone, with none of Kerf's code."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from tests.tools.chaos import holdings
from tests.tools.chaos.holdings import Manifest
from tests.tools.chaos.journals import Event

_FACTORS: Final = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9}


class DeviceKey(NamedTuple):
    """A device's name in the cluster."""

    driver: str
    pool: str
    device: str

    def __str__(self) -> str:
        return "/".join(self)


@dataclass(frozen=True, slots=True)
class Device:
    """What a driver has told of a device."""

    key: DeviceKey
    node: str
    attributes: dict[str, str]
    capacity: dict[str, int]
    shared: bool
    counters: dict[tuple[str, str], int]
    """What it takes of counters while somebody has it, by set and name."""


@dataclass(frozen=True, slots=True)
class Taking:
    """A device that a claim has."""

    key: DeviceKey
    consumed: tuple[tuple[str, int], ...] = ()


@dataclass
class Books:
    """The state of the cluster between two events."""

    pods: dict[str, Manifest] = field(default_factory=dict)
    claims: dict[str, Manifest] = field(default_factory=dict)
    slices: dict[str, Manifest] = field(default_factory=dict)
    devices: dict[DeviceKey, Device] = field(default_factory=dict)
    """All that ever were, as they were last: what goes away is still in use where it was."""
    counters: dict[tuple[str, str], dict[tuple[str, str], int]] = field(default_factory=dict)
    """By driver and pool: all there is of each counter."""
    ghosts: dict[str, Manifest] = field(default_factory=dict)
    """Claims that are gone while their pods have their devices yet."""

    def enter(self, event: Event) -> None:
        """The next event."""
        known = {"pods": self.pods, "claims": self.claims, "slices": self.slices}[event.kind]
        if event.gone:
            known.pop(event.uid, None)
        else:
            known[event.uid] = event.manifest
        if event.kind == "slices" and not event.gone:
            self._learn(event.manifest["spec"])
        if event.kind == "claims" and event.gone and takings_of(event.manifest):
            self.ghosts[event.uid] = event.manifest
        for uid, claim in list(self.ghosts.items()):
            if not any(self.runs(pod) for pod in consumers_of(claim)):
                del self.ghosts[uid]

    def runs(self, uid: str) -> bool:
        """Whether a pod has a node and has not ended."""
        pod = self.pods.get(uid)
        return pod is not None and bool(pod["spec"].get("nodeName")) and not holdings.finished(pod)

    def holders(self) -> dict[DeviceKey, list[tuple[str, Taking]]]:
        """Names of the claims that have each device, with what they have of it."""
        found: dict[DeviceKey, list[tuple[str, Taking]]] = defaultdict(list)
        for claim in (*self.claims.values(), *self.ghosts.values()):
            for taking in takings_of(claim):
                found[taking.key].append((claim["metadata"]["name"], taking))
        return found

    def used(self, held: Collection[DeviceKey]) -> dict[tuple[str, str], Counter[tuple[str, str]]]:
        """What is taken of counters, by driver and pool."""
        used: dict[tuple[str, str], Counter[tuple[str, str]]] = defaultdict(Counter)
        for key in held:
            if (device := self.devices.get(key)) is not None:
                used[key[:2]].update(device.counters)
        return used

    def there(self) -> Iterator[Device]:
        """The devices of all pools that are complete now."""
        pools: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
        for item in self.slices.values():
            spec = item["spec"]
            pools[spec["driver"], spec["pool"]["name"]].append(spec)
        for (driver, pool), specs in pools.items():
            newest = max(spec["pool"]["generation"] for spec in specs)
            current = [spec for spec in specs if spec["pool"]["generation"] == newest]
            if len(current) == current[0]["pool"]["resourceSliceCount"]:
                names = (device["name"] for spec in current for device in spec.get("devices") or ())
                yield from (self.devices[DeviceKey(driver, pool, name)] for name in names)

    def claims_of(self, pod: Manifest) -> dict[str, Manifest | None]:
        """The claims that a pod names, by name; None for each that does not exist."""
        namespace = pod["metadata"]["namespace"]
        by_name = {(claim["metadata"]["namespace"], claim["metadata"]["name"]): claim for claim in self.claims.values()}
        made = {
            item["name"]: item.get("resourceClaimName") for item in pod["status"].get("resourceClaimStatuses") or ()
        }
        names = [item.get("resourceClaimName") or made.get(item["name"]) or item["name"] for item in _named(pod)]
        return {name: by_name.get((namespace, name)) for name in names}

    def _learn(self, spec: Manifest) -> None:
        pool = spec["driver"], spec["pool"]["name"]
        for device in spec.get("devices") or ():
            key = DeviceKey(*pool, device["name"])
            capacity = {name: amount(item["value"]) for name, item in (device.get("capacity") or {}).items()}
            attributes = {name: item.get("string", "") for name, item in (device.get("attributes") or {}).items()}
            shared = bool(device.get("allowMultipleAllocations"))
            counters = dict(_counters(device.get("consumesCounters"), "counterSet"))
            self.devices[key] = Device(key, spec["nodeName"], attributes, capacity, shared, counters)
        if spec.get("sharedCounters"):
            self.counters[pool] = dict(_counters(spec["sharedCounters"], "name"))


def takings_of(claim: Manifest) -> list[Taking]:
    """The devices that a claim has."""
    allocation = (claim.get("status") or {}).get("allocation") or {}
    return [
        Taking(
            DeviceKey(result["driver"], result["pool"], result["device"]),
            tuple(sorted((name, amount(value)) for name, value in (result.get("consumedCapacity") or {}).items())),
        )
        for result in (allocation.get("devices") or {}).get("results") or ()
    ]


def consumers_of(claim: Manifest) -> list[str]:
    """UIDs of the pods that it is reserved for."""
    return [item["uid"] for item in (claim.get("status") or {}).get("reservedFor") or ()]


def has_claims(pod: Manifest) -> bool:
    """Whether a pod names claims."""
    return bool(_named(pod))


def amount(quantity: str) -> int:
    """A quantity; all that this harness writes are whole numbers."""
    for suffix, factor in _FACTORS.items():
        if quantity.endswith(suffix):
            return int(quantity.removesuffix(suffix)) * factor
    return int(quantity)


def _named(pod: Manifest) -> list[dict[str, str]]:
    return pod["spec"].get("resourceClaims") or []


def _counters(sets: Iterable[Manifest] | None, name: str) -> Iterator[tuple[tuple[str, str], int]]:
    for item in sets or ():
        for counter, value in item["counters"].items():
            yield (item[name], counter), amount(value["value"])
