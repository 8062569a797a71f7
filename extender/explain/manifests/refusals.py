"""What the API server refuses of a pod's resources: `validateResourceRequirements` of kubernetes 1.37
`pkg/apis/core/validation/validation.go`."""

from typing import Final

from extender.core.resources.quantities import parse_quantity
from extender.core.vendors.registry import DEFAULT
from extender.kube.objects import Container, PodSpec, Quantities
from extender.plugins.managed_resources import managed_names

_STANDARD: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
_HUGE_PAGES: Final = "hugepages-"
_MAX_NAME: Final = 80


def refusal_of(spec: PodSpec) -> tuple[str, str]:
    """Where in a pod's spec something is that is refused, and why; ("", "") where nothing is."""
    for key, containers in (("containers", spec.containers), ("initContainers", spec.init_containers)):
        for number, container in enumerate(containers or ()):
            if why := _of_container(container):
                return f"{key}[{number}].resources", f"the API server refuses it: {why}"
    return "", ""


def _of_container(container: Container) -> str:
    resources = container.resources
    if resources is None:
        return ""
    limits, requests = resources.limits or {}, resources.requests or {}
    for name in dict.fromkeys((*limits, *requests)):
        if why := _of_name(name) or _of_amounts(name, limits, requests):
            return f"{name[:_MAX_NAME]}: {why}"
    asked = {*limits, *requests}
    if any(name.startswith(_HUGE_PAGES) for name in asked) and asked.isdisjoint(("cpu", "memory")):
        return "huge pages need cpu or memory beside them"
    return ""


def _of_name(name: str) -> str:
    if "/" not in name and name not in _STANDARD and not name.startswith(_HUGE_PAGES):
        return f"no standard resource; one of a device plugin has a domain, such as {DEFAULT.resource}"
    domain, _, rest = name.rpartition("/")
    return "no name of a resource" if "/" in domain or ("/" in name and not (domain and rest)) else ""


def _of_amounts(name: str, limits: Quantities, requests: Quantities) -> str:
    limit, request = limits.get(name), requests.get(name)
    try:
        amounts = [parse_quantity(str(value)) for value in (limit, request) if value is not None]
    except ValueError:
        return ""  # told by who reads it
    if any(amount < 0 for amount in amounts):
        return "is negative"
    counted = "/" in name and "kubernetes.io/" not in name
    if counted and name not in managed_names() and any(amount.denominator != 1 for amount in amounts):
        return "must be a whole number"
    if len(amounts) == 2 and (
        amounts[0] != amounts[1] if counted or name.startswith(_HUGE_PAGES) else amounts[1] > amounts[0]
    ):
        return f"its request {request} is {'not its' if counted else 'above its'} limit {limit}"
    if (counted or name.startswith(_HUGE_PAGES)) and limit is None:
        return "is requested without a limit, which has to be the same"
    return ""
