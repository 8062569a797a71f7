"""GPU requests of claims that kube-scheduler allocates, to rank nodes by.

They need not be exact: nodes that reach Kerf's filter have passed kube-scheduler's check of all claims, and a selector
that can't be read only drops a condition from the ranking.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Final

from extender.core.resources.gpu_models import ModelPattern
from extender.core.resources.nodes import MAX_MEMORY_MIB
from extender.core.resources.quantities import mib_of_bytes, parse_quantity
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.core.vendors.registry import DRIVERS, NUMBER_OF_DRIVER
from extender.core.vendors.vendor import Driver
from extender.dra.cel.parsing import Call, Index, ListOf, Literal, Name, Node, RefusedError, Select, parse
from extender.dra.objects import ExactRequest, ResourceClaim
from extender.kube.patterns import compile_pattern

_MAX_COUNT: Final = 1024
_MAX_CHARS: Final = 10 * 1024
"""Total length of a pod's selectors; this many take about 10 ms to read."""
_SEPARATORS: Final = re.compile(r"[\s_-]+")


def read_request(claims: Iterable[ResourceClaim]) -> GpuRequest | None:
    """The whole GPUs that unallocated claims request; None if none.

    Only the first alternative (`firstAvailable`) and the first registered vendor's requests count. Conditions are kept
    only if all requests have the same ones.
    """
    asked_of = [request for claim in claims for request in _gpu_requests(claim)]
    names = {request.device_class_name for request in asked_of}
    driver = next((driver for name, driver in DRIVERS.items() if name in names), None)
    if driver is None:
        return None
    requests = [request for request in asked_of if request.device_class_name == driver.name]
    readable = sum(len(expression) for request in requests for expression in _expressions(request)) <= _MAX_CHARS
    asked = [_read_exactly(request, readable, driver) for request in requests]
    count = min(sum(request.count for request in asked), _MAX_COUNT)
    same = len({replace(request, count=1) for request in asked}) == 1
    return replace(asked[0], count=count) if same else GpuRequest(count, AskedUnit.CLAIM, vendor=asked[0].vendor)


def _gpu_requests(claim: ResourceClaim) -> Iterator[ExactRequest]:
    for request in claim.spec.devices.requests or ():
        exactly = request.exactly or next(iter(request.first_available or ()), None)
        if exactly and exactly.device_class_name in DRIVERS and not exactly.admin_access:
            yield exactly


def _expressions(request: ExactRequest) -> Iterator[str]:
    return (selector.cel.expression for selector in request.selectors or () if selector.cel)


def _read_exactly(request: ExactRequest, readable: bool, driver: Driver) -> GpuRequest:
    """One request with the conditions that can be read."""
    asked = GpuRequest(max(request.count, 1), AskedUnit.CLAIM, vendor=NUMBER_OF_DRIVER[driver.name])
    for expression in _expressions(request) if readable else ():
        for condition in _conditions(expression):
            asked = _with_condition(asked, condition, driver)
    return asked


@lru_cache(maxsize=64)
def _conditions(expression: str) -> tuple[Node, ...]:
    """The operands of an expression's top-level `&&`; () if it can't be parsed."""
    try:
        tree = parse(expression)
    except RefusedError:
        return ()
    return tuple(_joined_by_and(tree))


def _joined_by_and(node: Node) -> Iterator[Node]:
    if isinstance(node, Call) and node.name == "_&&_":
        for arg in node.args:
            yield from _joined_by_and(arg)
    else:
        yield node


def _with_condition(asked: GpuRequest, condition: Node, driver: Driver) -> GpuRequest:
    """The request with a condition added; unchanged if the condition can't be read."""
    if not isinstance(condition, Call):
        return asked
    args = (condition.target, *condition.args) if condition.target else condition.args
    match condition.name, args:
        case "_==_", (Literal(str(text)), attribute) | (attribute, Literal(str(text))):
            return _with_values(asked, attribute, [text], driver)
        case "_in_", (attribute, ListOf(items)):
            texts = [item.value for item in items if isinstance(item, Literal) and isinstance(item.value, str)]
            return _with_values(asked, attribute, texts, driver) if len(texts) == len(items) else asked
        case ("matches" | "contains") as verb, (attribute, Literal(str(text))):
            return _with_pattern(asked, attribute, verb, text, driver)
        case "_>=_" | "_>_", (Call("compareTo", (Call("quantity", (Literal(str(text)),), None),), memory), Literal(0)):
            return _with_memory(asked, memory, text, driver)
        case "isGreaterThan", (memory, Call("quantity", (Literal(str(text)),), None)):
            return _with_memory(asked, memory, text, driver)
    return asked


def _path(node: Node | None) -> tuple[str, ...]:
    """The path of a node within the device; () for anything else."""
    match node:
        case Name("device"):
            return ("device",)
        case Select(operand, field, False) | Index(operand, Literal(str(field)), False) if path := _path(operand):
            return (*path, field)
    return ()


def _attribute(node: Node, driver: Driver) -> str:
    """The name of the driver's attribute that a node selects; "" for anything else."""
    path = _path(node)
    return path[3] if len(path) == 4 and path[:3] == ("device", "attributes", driver.name) else ""


def _product(node: Node, driver: Driver) -> bool:
    """Whether a node is the product name, possibly in lower case."""
    inner = node.target if isinstance(node, Call) and node.name == "lowerAscii" and node.target else node
    return _attribute(inner, driver) == driver.product


def _with_values(asked: GpuRequest, node: Node, values: Sequence[str], driver: Driver) -> GpuRequest:
    if driver.uuid and _attribute(node, driver) == driver.uuid:
        return replace(asked, uuids=frozenset(values))
    if _product(node, driver):
        return _with_model(asked, "|".join(f"^{_spelled(value)}$" for value in values))
    return asked


def _with_memory(asked: GpuRequest, node: Node | None, text: str, driver: Driver) -> GpuRequest:
    try:
        of_memory = _path(node) == ("device", "capacity", driver.name, "memory")
        memory_mib = mib_of_bytes(parse_quantity(text)) if of_memory else 0
    except ValueError:
        return asked
    return replace(asked, memory_each_mib=max(asked.memory_each_mib, min(memory_mib, MAX_MEMORY_MIB)))


def _with_pattern(asked: GpuRequest, node: Node, verb: str, text: str, driver: Driver) -> GpuRequest:
    if not _product(node, driver):
        return asked
    if verb == "contains":
        return _with_model(asked, _spelled(text))
    # Kerf's model names may replace the driver's separators by blanks or hyphens, so such a pattern may not match.
    return asked if _SEPARATORS.search(text) or "[" in text else _with_model(asked, text)


def _spelled(text: str) -> str:
    """A pattern for a product name that matches blanks and hyphens as separators."""
    return "[ -]".join(re.escape(part) for part in _SEPARATORS.split(text))


def _with_model(asked: GpuRequest, pattern: str) -> GpuRequest:
    try:
        return replace(asked, include=ModelPattern(pattern, compile_pattern(f"(?i){pattern}")))
    except ValueError:
        return asked
