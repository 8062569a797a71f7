"""A cluster's state of a driver's devices: pools, ownership, allocations and waiting pods."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from extender.cli.install.findings import ANY, listed
from extender.core.annotations import GENIUS_PRIORITY
from extender.core.dra import owning
from extender.kube.client import ApiError, Transport
from extender.kube.transport import NAMESPACES_PATH, PODS_PATH
from extender.queueing.pods.objects import DISABLED, ENABLED, GATE, QUEUE_LABEL

API: Final = "/apis/resource.k8s.io/v1"
RULES: Final = f"{API}/devicetaintrules"
_ENDED: Final = ("Succeeded", "Failed")
_IMPLICIT_RESOURCE: Final = "deviceclass.resource.kubernetes.io/"
"""Prefix of a class's implicit extended resource."""

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pool:
    """A pool of a driver's devices."""

    name: str
    num_devices: int
    nodes: frozenset[str]
    local: bool
    """Whether all devices belong to one named node."""
    tainted: bool
    """Whether the driver publishes every device with Kerf's ownership taint."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A DeviceTaintRule with Kerf's taint."""

    name: str
    value: str
    """The taint's value."""
    driver: str | None
    """None for all; so are `pool` and `device`."""
    pool: str | None = None
    device: str | None = None
    version: str = ""

    @property
    def path(self) -> str:
        """The rule's API path."""
        return f"{RULES}/{self.name}"


@dataclass(frozen=True, slots=True)
class Holder:
    """A claim with devices of the driver, and its running pods."""

    claim: str
    devices: tuple[str, ...]
    """`pool/device`."""
    pods: tuple[str, ...]
    outside: tuple[str, ...]
    """Those of `pods` that are outside Kerf's queue, as their replacements will be."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The cluster's state of one driver's devices."""

    driver: str
    pools: tuple[Pool, ...]
    """The requested pools, or all."""
    drivers: tuple[str, ...]
    """All drivers that publish devices."""
    rules: tuple[Rule, ...]
    """Rules with Kerf's taint, of all drivers."""
    holders: tuple[Holder, ...]
    twice: tuple[str, ...]
    """Devices allocated whole to several claims: `pool/device`."""
    waiting: tuple[str, ...]
    """Unscheduled pods outside Kerf's queue that request the driver's devices."""
    tolerant: tuple[str, ...]
    """Unallocated claims, and templates, that tolerate Kerf's taint: created before the policy."""
    templates: tuple[str, ...]
    """Templates of claims on the driver, in namespaces that have not opted in."""
    resources: tuple[str, ...]
    """Extended resources of the driver's classes."""


async def serves_rules(transport: Transport) -> bool | None:
    """Whether the API server has DeviceTaintRule in `resource.k8s.io/v1`; None if it does not serve that version.

    Raises ClusterError, msgspec.DecodeError.
    """
    try:
        served = ANY.decode(await transport.get(API))
    except ApiError as error:
        if error.status == 404:
            return None
        raise
    return any(item.get("name") == "devicetaintrules" for item in served.get("resources") or ())


async def rules_in(transport: Transport) -> tuple[Rule, ...]:
    """DeviceTaintRules with Kerf's taint, by name. Raises ClusterError, msgspec.DecodeError."""
    return tuple(sorted(_rules(await listed(transport, RULES)), key=lambda rule: rule.name))


async def facts_of(transport: Transport, driver: str, names: Collection[str]) -> Facts:
    """The state of a driver's pools; all pools if `names` is empty. Raises ClusterError, msgspec.DecodeError."""
    slices = await listed(transport, f"{API}/resourceslices")
    claims = await listed(transport, f"{API}/resourceclaims")
    classes = {item["metadata"]["name"]: item for item in await listed(transport, f"{API}/deviceclasses")}
    templates = await listed(transport, f"{API}/resourceclaimtemplates")
    pods = await listed(transport, PODS_PATH)
    namespaces = await listed(transport, NAMESPACES_PATH)
    opted_in = {item["metadata"]["name"] for item in namespaces if _labels_of(item).get(QUEUE_LABEL) == ENABLED}
    pools = tuple(pool for pool in pools_of(slices, driver) if not names or pool.name in names)
    pool_names = {pool.name for pool in pools}
    of_driver = {name for name, item in classes.items() if _names_driver(item, driver)}
    resources = sorted(_resources_of(classes[name], name) for name in of_driver)
    running = [pod for pod in pods if pod.get("status", {}).get("phase") not in _ENDED]
    return Facts(
        driver=driver,
        pools=pools,
        drivers=tuple(sorted({item["spec"]["driver"] for item in slices})),
        rules=await rules_in(transport),
        holders=tuple(_holders_of(claims, running, opted_in, driver, pool_names)),
        twice=tuple(_twice_allocated(claims, driver)),
        waiting=tuple(
            sorted(_waiting(claims, running, opted_in, of_driver, {r for pair in resources for r in pair if r}))
        ),
        tolerant=tuple(
            sorted(
                [_key_of(item) for item in claims if not _results_of(item) and _tolerates(item["spec"])]
                + [_key_of(item) for item in templates if _tolerates(item["spec"]["spec"])]
            )
        ),
        templates=tuple(
            sorted(
                _key_of(item)
                for item in templates
                if item["metadata"]["namespace"] not in opted_in and _classes_of(item["spec"]["spec"]) & of_driver
            )
        ),
        resources=tuple(name for name, _ in resources if name),
    )


def pools_of(slices: Sequence[Manifest], driver: str) -> Iterator[Pool]:
    """A driver's pools in their newest generation, sorted by name."""
    of_pool: defaultdict[str, list[Manifest]] = defaultdict(list)
    for item in slices:
        if item["spec"]["driver"] == driver:
            of_pool[item["spec"]["pool"]["name"]].append(item["spec"])
    for name in sorted(of_pool):
        newest = max(spec["pool"].get("generation", 0) for spec in of_pool[name])
        specs = [spec for spec in of_pool[name] if spec["pool"].get("generation", 0) == newest]
        devices = [device for spec in specs for device in spec.get("devices") or ()]
        nodes = frozenset(spec["nodeName"] for spec in specs if spec.get("nodeName"))
        yield Pool(
            name,
            num_devices=len(devices),
            nodes=nodes,
            local=len(nodes) == 1 and all(spec.get("nodeName") or not spec.get("devices") for spec in specs),
            tainted=bool(devices) and all(_is_owned(device) for device in devices),
        )


def _rules(items: Iterable[Manifest]) -> Iterator[Rule]:
    for item in items:
        spec = item["spec"]
        selector = spec.get("deviceSelector")
        if spec["taint"]["key"] == owning.KEY and selector is not None:  # without a selector it taints nothing
            yield Rule(
                name=item["metadata"]["name"],
                value=spec["taint"].get("value", ""),
                driver=selector.get("driver"),
                pool=selector.get("pool"),
                device=selector.get("device"),
                version=item["metadata"].get("resourceVersion", ""),
            )


def _is_owned(device: Manifest) -> bool:
    taints = device.get("taints") or ()
    return owning.owns(owning.Taint(item["key"], item.get("value", ""), item["effect"]) for item in taints)


def _holders_of(
    claims: Iterable[Manifest],
    pods: Iterable[Manifest],
    opted_in: Collection[str],
    driver: str,
    pools: Collection[str],
) -> Iterator[Holder]:
    """The claims with devices of `pools`, except those with admin access."""
    of_uid = {pod["metadata"]["uid"]: pod for pod in pods}
    for claim in claims:
        results = [item for item in _results_of(claim) if item["driver"] == driver and item["pool"] in pools]
        if not results:
            continue
        reserved = (claim.get("status") or {}).get("reservedFor") or ()
        served = [of_uid[item["uid"]] for item in reserved if item.get("uid") in of_uid]
        yield Holder(
            _key_of(claim),
            tuple(f"{item['pool']}/{item['device']}" for item in results),
            tuple(sorted(_key_of(pod) for pod in served)),
            tuple(sorted(_key_of(pod) for pod in served if not _waits_in_queue(pod, opted_in))),
        )


def _twice_allocated(claims: Iterable[Manifest], driver: str) -> list[str]:
    """Devices allocated whole to several claims: `pool/device`."""
    seen: set[str] = set()
    twice: set[str] = set()
    for claim in claims:
        for item in _results_of(claim):
            device = f"{item['pool']}/{item['device']}"
            if item["driver"] != driver or item.get("shareID"):
                continue
            (twice if device in seen else seen).add(device)
    return sorted(twice)


def _waits_in_queue(pod: Manifest, opted_in: Collection[str]) -> bool:
    """Whether a pod, or its replacement, waits in Kerf's queue before it is scheduled."""
    labels = _labels_of(pod)
    if any(gate.get("name") == GATE for gate in pod["spec"].get("schedulingGates") or ()):
        return True
    if labels.get(QUEUE_LABEL) in (ENABLED, DISABLED):
        return labels[QUEUE_LABEL] == ENABLED
    return pod["metadata"]["namespace"] in opted_in or bool(labels.get(GENIUS_PRIORITY, "").strip())


def _waiting(
    claims: Iterable[Manifest],
    pods: Iterable[Manifest],
    opted_in: Collection[str],
    classes: Collection[str],
    resources: Collection[str],
) -> Iterator[str]:
    asked = {
        _key_of(claim)
        for claim in claims
        if not (claim.get("status") or {}).get("allocation") and _classes_of(claim["spec"]) & set(classes)
    }
    for pod in pods:
        if pod["spec"].get("nodeName") or _waits_in_queue(pod, opted_in):
            continue
        named = [*(pod["spec"].get("resourceClaims") or ()), *(pod["status"].get("resourceClaimStatuses") or ())]
        keys = {f"{pod['metadata']['namespace']}/{item.get('resourceClaimName')}" for item in named}
        if keys & asked or _requested(pod) & set(resources):
            yield _key_of(pod)


def _requested(pod: Manifest) -> set[str]:
    """The resources that a pod's containers request."""
    containers = [*pod["spec"]["containers"], *(pod["spec"].get("initContainers") or ())]
    return {name for item in containers for name in (item.get("resources") or {}).get("limits") or ()}


def _names_driver(device_class: Manifest, driver: str) -> bool:
    """Whether a class's selectors name a driver; a class without selectors counts too."""
    selectors = (device_class.get("spec") or {}).get("selectors") or ()
    texts = [(item.get("cel") or {}).get("expression", "") for item in selectors]
    return not texts or any(f"{quote}{driver}{quote}" in text for text in texts for quote in "'\"")


def _resources_of(device_class: Manifest, name: str) -> tuple[str, str]:
    """A class's explicit extended resource, "" if none, and its implicit one."""
    return str((device_class.get("spec") or {}).get("extendedResourceName") or ""), f"{_IMPLICIT_RESOURCE}{name}"


def _classes_of(spec: Manifest) -> set[str]:
    """The device classes that a claim requests."""
    requests = (spec.get("devices") or {}).get("requests") or ()
    asked = [each for item in requests for each in (item.get("exactly") or {}, *(item.get("firstAvailable") or ()))]
    return {item["deviceClassName"] for item in asked if item.get("deviceClassName")}


def _results_of(claim: Manifest) -> list[Manifest]:
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return [item for item in results if not item.get("adminAccess")]


def _labels_of(item: Manifest) -> Mapping[str, str]:
    return item["metadata"].get("labels") or {}


def _key_of(item: Manifest) -> str:
    return f"{item['metadata']['namespace']}/{item['metadata']['name']}"


def _tolerates(spec: Manifest) -> bool:
    """Whether a claim tolerates Kerf's ownership taint, which the policy forbids for new claims."""
    requests = (spec.get("devices") or {}).get("requests") or ()
    exact = [item["exactly"] for item in requests if item.get("exactly") and not item["exactly"].get("adminAccess")]
    asked = [*exact, *(each for item in requests for each in item.get("firstAvailable") or ())]
    return any(
        each.get("key", "") == owning.KEY
        or (not each.get("key") and each.get("effect", "") not in ("NoExecute", "None"))
        for ask in asked
        for each in ask.get("tolerations") or ()
    )
