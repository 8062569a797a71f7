"""NVIDIA's driver for dynamic resource allocation (DRA): GPUs that kube-scheduler itself allocates to ResourceClaims.

The driver publishes its GPUs in ResourceSlices. kube-scheduler picks the devices; what is left to Kerf is which node.
So nothing here has to be exact: a node that reaches Kerf's filter has passed kube-scheduler's check of all claims, and
a selector that can't be read is one condition less in the ranking.

Read in kubernetes 1.36 `api/resource/v1/types.go`, `dynamic-resource-allocation/structured/internal/stable`, and in
NVIDIA/k8s-dra-driver-gpu 2240711 `cmd/gpu-kubelet-plugin/deviceinfo.go`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from extender.core.dra import owning
from extender.core.dra.devices import Taint
from extender.core.resources.gpu_models import UNKNOWN_MODEL, ModelPattern, describe_model
from extender.core.resources.nodes import MAX_GPUS_PER_NODE, MAX_MEMORY_MIB, Gpu, GpuUnit, NodeOffer, nominal_mib
from extender.core.resources.quantities import MIB, mib_of_bytes, parse_quantity
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.kube.patterns import compile_pattern
from extender.plugins.dra import objects
from extender.plugins.dra.gathering import PoolId, taints_of
from extender.plugins.protocol import NodeReading

DRIVER: Final = "gpu.nvidia.com"
"""Its name, and that of its device class for whole GPUs."""

GPU: Final = "gpu"
_MAX_EXPRESSION_CHARS: Final = 4096
_MAX_COUNT: Final = 1024
_ATTRIBUTE: Final = rf"""device\.attributes\[\s*['"]{re.escape(DRIVER)}['"]\s*\]\s*\.\s*(?P<name>\w+)"""
_CAPACITY: Final = rf"""device\.capacity\[\s*['"]{re.escape(DRIVER)}['"]\s*\]\s*\.\s*memory"""
_TEXT: Final = r"""(?P<quote>['"])(?P<text>[^'"\\]*)(?P=quote)"""
_EQUALS: Final = re.compile(rf"{_ATTRIBUTE}\s*==\s*{_TEXT}")
_MATCHES: Final = re.compile(rf"{_ATTRIBUTE}(?:\.lowerAscii\(\))?\s*\.\s*(?P<verb>matches|contains)\(\s*{_TEXT}\s*\)")
_ITEM: Final = r"""\s*['"][^'"\\]*['"]\s*"""
_ONE_OF: Final = re.compile(rf"{_ATTRIBUTE}\s+in\s+\[(?P<list>{_ITEM}(?:,{_ITEM})*(?:,\s*)?)\]")
_AT_LEAST: Final = re.compile(
    rf"{_CAPACITY}\s*\.\s*(?:compareTo\(\s*quantity\({_TEXT}\)\s*\)\s*>=?\s*0|isGreaterThan\(\s*quantity\("
    rf"{_TEXT.replace('quote', 'quote2').replace('text', 'text2')}\)\s*\))"
)
_QUOTED: Final = re.compile(r"""['"]([^'"\\]*)['"]""")
_SEPARATORS: Final = re.compile(r"[\s_-]+")
_MINOR: Final = re.compile(r"gpu-([0-9]{1,4})")


@dataclass(frozen=True, slots=True)
class Inventory:
    """The GPUs of one node's complete pools."""

    offer: NodeOffer
    index_of: Mapping[tuple[str, str], int]
    """Index of the GPU of each device, a partition's being that of the GPU it is cut from, by pool and device."""


# ResourceSlices


def newest_complete(slices: Sequence[objects.ResourceSlice]) -> tuple[objects.ResourceSlice, ...]:
    """The slices of a pool's newest generation, () while some of them are missing."""
    newest = max((item.spec.pool.generation for item in slices), default=0)
    found = tuple(item for item in slices if item.spec.pool.generation == newest)
    return found if found and len(found) == found[0].spec.pool.resource_slice_count else ()


def read_inventory(
    slices: Sequence[objects.ResourceSlice],
    reading: NodeReading,
    rules: Sequence[objects.DeviceTaintRule] = (),
) -> Inventory:
    """The GPUs in the slices of one node, in the order of their minor numbers.

    Tainted ones are not healthy, but for the taint by which Kerf owns them.
    """
    devices = [(item.spec.pool.name, device) for item in slices for device in item.spec.devices or ()]
    whole = sorted(
        ((pool, device) for pool, device in devices if text_of(device, "type") == GPU),
        key=lambda named: (_minor(named[1].name), named),
    )[:MAX_GPUS_PER_NODE]
    gpus = tuple(_gpu(device, taints_of(PoolId(DRIVER, pool), device, rules), reading) for pool, device in whole)
    index_of = {(pool, device.name): index for index, (pool, device) in enumerate(whole)}
    by_uuid = {gpu.uuid: index for index, gpu in enumerate(gpus) if gpu.uuid}
    for pool, device in devices:
        parent = by_uuid.get(text_of(device, "parentUUID"))
        if parent is not None:
            index_of[pool, device.name] = parent
    return Inventory(NodeOffer(gpus, GpuUnit.CLAIM, 1, sum(gpu.healthy for gpu in gpus)), index_of)


def _minor(name: str) -> int:
    match = _MINOR.fullmatch(name)
    return int(match[1]) if match else 2**31


def _gpu(device: objects.Device, taints: Iterable[Taint], reading: NodeReading) -> Gpu:
    product = text_of(device, "productName")
    memory = (device.capacity or {}).get("memory") or (device.capacity or {}).get(f"{DRIVER}/memory")
    try:
        memory_mib = int(parse_quantity(str(memory.value)) // MIB) if memory else 0
    except ValueError:
        memory_mib = 0
    return Gpu(
        describe_model(product, reading.aliases) if product else UNKNOWN_MODEL,
        nominal_mib(memory_mib, reading.memory_tolerance_frac) if 0 < memory_mib <= MAX_MEMORY_MIB else 0,
        text_of(device, "uuid"),
        healthy=not any(taint.effect in ("NoSchedule", "NoExecute") and taint.key != owning.KEY for taint in taints),
    )


def text_of(device: objects.Device, name: str) -> str:
    """A device's attribute, under its name or the driver's domain; "" where it has none."""
    attributes = device.attributes or {}
    found = attributes.get(name) or attributes.get(f"{DRIVER}/{name}")
    return (found.string or "") if found else ""


# ResourceClaims


def allocated_devices(claim: objects.ResourceClaim) -> tuple[tuple[str, str], ...]:
    """The driver's devices that a claim has, as pool and device. Access for administrators takes nothing."""
    allocation = claim.status.allocation
    return tuple(
        (result.pool, result.device)
        for result in (allocation.devices.results or () if allocation else ())
        if result.driver == DRIVER and not result.admin_access
    )


def read_request(claims: Iterable[objects.ResourceClaim]) -> GpuRequest | None:
    """The whole GPUs that claims without an allocation ask for, None when they ask for none.

    Of alternatives (`firstAvailable`) the first counts. Conditions count where all requests have the same ones.
    """
    asked = [_read_exactly(request) for claim in claims for request in _gpu_requests(claim)]
    if not asked:
        return None
    count = min(sum(request.count for request in asked), _MAX_COUNT)
    same = len({replace(request, count=1) for request in asked}) == 1
    return replace(asked[0], count=count) if same else GpuRequest(count, AskedUnit.CLAIM)


def _gpu_requests(claim: objects.ResourceClaim) -> Iterator[objects.ExactRequest]:
    for request in claim.spec.devices.requests or ():
        exactly = request.exactly or next(iter(request.first_available or ()), None)
        if exactly and exactly.device_class_name == DRIVER and not exactly.admin_access:
            yield exactly


def _read_exactly(request: objects.ExactRequest) -> GpuRequest:
    """One request, with the conditions that can be read."""
    asked = GpuRequest(max(request.count, 1), AskedUnit.CLAIM)
    for selector in request.selectors or ():
        expression = selector.cel.expression if selector.cel else ""
        if len(expression) <= _MAX_EXPRESSION_CHARS and "||" not in expression and "?" not in expression:
            for condition in expression.split("&&"):
                asked = _with_condition(asked, condition.strip())
    return asked


def _with_condition(asked: GpuRequest, condition: str) -> GpuRequest:
    """The request with one more condition in CEL; unchanged by one that can't be read."""
    if match := _EQUALS.fullmatch(condition):
        return _with_values(asked, match["name"], [match["text"]])
    if match := _ONE_OF.fullmatch(condition):
        return _with_values(asked, match["name"], _QUOTED.findall(match["list"]))
    if match := _MATCHES.fullmatch(condition):
        return _with_pattern(asked, match["name"], match["verb"], match["text"])
    if match := _AT_LEAST.fullmatch(condition):
        try:
            memory_mib = mib_of_bytes(parse_quantity(match["text"] or match["text2"]))
        except ValueError:
            return asked
        return replace(asked, memory_each_mib=max(asked.memory_each_mib, min(memory_mib, MAX_MEMORY_MIB)))
    return asked


def _with_values(asked: GpuRequest, name: str, values: Sequence[str]) -> GpuRequest:
    if name == "uuid":
        return replace(asked, uuids=frozenset(values))
    if name == "productName":
        return _with_model(asked, "|".join(f"^{_spelled(value)}$" for value in values))
    return asked


def _with_pattern(asked: GpuRequest, name: str, verb: str, text: str) -> GpuRequest:
    if name != "productName":
        return asked
    if verb == "contains":
        return _with_model(asked, _spelled(text))
    # Kerf knows models with blanks or hyphens only: a pattern of the driver's own spelling can't be tried on those.
    return asked if _SEPARATORS.search(text) or "[" in text else _with_model(asked, text)


def _spelled(text: str) -> str:
    """A product's name as a pattern on the spellings that Kerf knows of it."""
    return "[ -]".join(re.escape(part) for part in _SEPARATORS.split(text))


def _with_model(asked: GpuRequest, pattern: str) -> GpuRequest:
    try:
        return replace(asked, include=ModelPattern(pattern, compile_pattern(f"(?i){pattern}")))
    except ValueError:
        return asked
