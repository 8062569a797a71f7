"""What a cluster has of a driver's devices: pools, who owns them, who has them now, and who waits for them."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from extender.cli.install.dra import users
from extender.cli.install.findings import ANY, listed
from extender.core.dra import owning
from extender.kube.client import ApiError, Transport
from extender.kube.paths import NAMESPACES_PATH, PODS_PATH
from extender.queueing.opt_in import ENABLED, QUEUE_LABEL

API: Final = "/apis/resource.k8s.io/v1"
RULES: Final = f"{API}/devicetaintrules"
_ENDED: Final = ("Succeeded", "Failed")

Manifest = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Pool:
    """A driver's devices that it publishes together."""

    name: str
    num_devices: int
    nodes: frozenset[str]
    local: bool
    """Whether all of them are of one node."""
    tainted: bool
    """Whether every device has Kerf's taint in the slices themselves."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A DeviceTaintRule with Kerf's taint."""

    name: str
    value: str
    """Of the taint."""
    driver: str | None
    """None for all drivers; likewise the other two."""
    pool: str | None = None
    device: str | None = None
    version: str = ""

    @property
    def path(self) -> str:
        """Where the API server has it."""
        return f"{RULES}/{self.name}"


@dataclass(frozen=True, slots=True)
class Facts:
    """All that is known of a driver's devices, at about one moment."""

    driver: str
    pools: tuple[Pool, ...]
    """Those asked for; all where none is named."""
    drivers: tuple[str, ...]
    """All that publish devices."""
    rules: tuple[Rule, ...]
    """Of all drivers."""
    holders: tuple[users.Holder, ...]
    twice: tuple[str, ...]
    """Devices that two claims have: `pool/device`."""
    waiting: tuple[str, ...]
    """Pods without devices that ask for such ones, and do not wait in Kerf's queue."""
    tolerant: tuple[str, ...]
    """Claims without devices, and templates, that tolerate Kerf's taint: made before its policy."""
    templates: tuple[str, ...]
    """Templates of such claims in namespaces that do not opt in."""
    resources: tuple[str, ...]
    """Extended resources that the driver's classes stand for."""


async def serves_rules(transport: Transport) -> bool | None:
    """Whether the API server has DeviceTaintRule in `resource.k8s.io/v1`, None where it has no such version at all.

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
    """All with Kerf's taint. Raises ClusterError, msgspec.DecodeError."""
    return tuple(sorted(_rules(await listed(transport, RULES)), key=lambda rule: rule.name))


async def facts_of(transport: Transport, driver: str, names: Collection[str]) -> Facts:
    """Everything about a driver's pools, all where none is named. Raises ClusterError, msgspec.DecodeError."""
    slices = await listed(transport, f"{API}/resourceslices")
    claims = await listed(transport, f"{API}/resourceclaims")
    classes = {item["metadata"]["name"]: item for item in await listed(transport, f"{API}/deviceclasses")}
    templates = await listed(transport, f"{API}/resourceclaimtemplates")
    pods = await listed(transport, PODS_PATH)
    namespaces = await listed(transport, NAMESPACES_PATH)
    opted_in = {item["metadata"]["name"] for item in namespaces if users.labels_of(item).get(QUEUE_LABEL) == ENABLED}
    pools = tuple(pool for pool in pools_of(slices, driver) if not names or pool.name in names)
    of_pools = {pool.name for pool in pools}
    mine = {name for name, item in classes.items() if users.names_driver(item, driver)}
    resources = sorted(users.resources_of(classes[name], name) for name in mine)
    running = [pod for pod in pods if pod.get("status", {}).get("phase") not in _ENDED]
    return Facts(
        driver=driver,
        pools=pools,
        drivers=tuple(sorted({item["spec"]["driver"] for item in slices})),
        rules=await rules_in(transport),
        holders=tuple(users.holders_of(claims, running, opted_in, driver, of_pools)),
        twice=tuple(users.twice_allocated(claims, driver)),
        waiting=tuple(
            sorted(users.waiting(claims, running, opted_in, mine, {r for pair in resources for r in pair if r}))
        ),
        tolerant=tuple(
            sorted(
                [users.key_of(item) for item in claims if not users.results_of(item) and users.tolerates(item["spec"])]
                + [users.key_of(item) for item in templates if users.tolerates(item["spec"]["spec"])]
            )
        ),
        templates=tuple(
            sorted(
                users.key_of(item)
                for item in templates
                if item["metadata"]["namespace"] not in opted_in and users.classes_of(item["spec"]["spec"]) & mine
            )
        ),
        resources=tuple(name for name, _ in resources if name),
    )


def pools_of(slices: Sequence[Manifest], driver: str) -> Iterator[Pool]:
    """The pools that a driver publishes, by name, of each the newest generation that is known."""
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
