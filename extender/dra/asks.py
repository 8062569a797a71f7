"""What claims ask, read into the core's terms exactly, or refused.

Checks as in kubernetes 1.37.2 `dynamic-resource-allocation/structured/internal/incubating/allocator_incubating.go`:
`Allocate` and `validateDeviceRequest`. What the API server defaults is defaulted here as well.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from extender.core.dra.asks import ClaimAsk, Constraint, DeviceAsk, DevicesAsked, RequestAsk, Selector, Toleration
from extender.core.dra.devices import Amount
from extender.dra.objects import (
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    ExactRequest,
    ResourceClaim,
)
from extender.dra.quantities import amount_of
from extender.dra.selectors import compile_selector
from extender.dra.unhandled import MISSING_CLASS, UnhandledError

_MAX_DEVICES: Final = 32
"""`AllocationResultsMaxSize`: of one claim."""
_MAX_CHARS: Final = 64 * 1024
"""Of all different selectors of a pod's claims: Kubernetes allows a megabyte."""
_MAX_COST: Final = 5_000
"""Of all of them on one device, in steps of about a microsecond."""
_EXACT: Final = "ExactCount"
_ALL: Final = "All"


def read_asks(claims: Iterable[ResourceClaim], classes: Mapping[str, DeviceClass]) -> DevicesAsked:
    """What claims without an allocation ask, all of one pod, in the order in which it names them.

    `classes` are all DeviceClasses by name. Raises UnhandledError.
    """
    asked = DevicesAsked(tuple(_read_claim(claim, classes) for claim in claims))
    _check_effort(asked)
    return asked


def _check_effort(asked: DevicesAsked) -> None:
    """Refuse more selectors than one pod may have evaluated on a device."""
    asks = (ask for claim in asked.claims for request in claim.requests for ask in request.alternatives)
    if sum(map(len, {selector.expression for ask in asks for selector in ask.selectors})) > _MAX_CHARS:
        raise UnhandledError(f"the selectors of all claims have more than {_MAX_CHARS} characters", "CEL: length")
    if asked.cost > _MAX_COST:
        raise UnhandledError(f"the selectors of all claims may take more than {_MAX_COST} steps", "CEL: cost")


def _read_claim(claim: ResourceClaim, classes: Mapping[str, DeviceClass]) -> ClaimAsk:
    reader = _Reader(claim.metadata.name, classes)
    requests = tuple(reader.request(request) for request in claim.spec.devices.requests or ())
    # Of "all" devices and of alternatives the allocator finds out how many they are.
    if sum(min(ask.count for ask in request.alternatives) for request in requests) > _MAX_DEVICES:
        raise reader.fault("", f"more than {_MAX_DEVICES} devices", "too many devices")
    constraints = tuple(reader.constraint(constraint) for constraint in claim.spec.devices.constraints or ())
    return ClaimAsk(requests, constraints)


class _Reader:
    """Reads the requests of one claim."""

    def __init__(self, claim: str, classes: Mapping[str, DeviceClass]) -> None:
        self._claim = claim
        self._classes = classes

    def fault(self, request: str, what: str, kind: str) -> UnhandledError:
        """What is wrong, with where it is."""
        where = f"claim {self._claim}, request {request}" if request else f"claim {self._claim}"
        return UnhandledError(f"{where}: {what}", kind)

    def request(self, request: DeviceRequest) -> RequestAsk:
        """A request with its alternatives."""
        if request.first_available:
            names = [(f"{request.name}/{alternative.name}", alternative) for alternative in request.first_available]
            return RequestAsk(request.name, tuple(self._ask(*named, may_look=False) for named in names))
        if request.exactly is None:
            raise self.fault(request.name, "neither exactly nor firstAvailable", "request")
        return RequestAsk(request.name, (self._ask(request.name, request.exactly, may_look=True),))

    def constraint(self, constraint: DeviceConstraint) -> Constraint:
        """What devices must have in common, or must not."""
        attribute = constraint.match_attribute or constraint.distinct_attribute
        if not attribute:
            raise self.fault("", "a constraint of an unknown type", "constraint")
        return Constraint(attribute, tuple(constraint.requests or ()), distinct=not constraint.match_attribute)

    def _ask(self, name: str, request: ExactRequest, may_look: bool) -> DeviceAsk:
        if request.derived_attributes:
            raise self.fault(name, "derived attributes are not handled", "derived attributes")
        if not request.device_class_name:
            raise self.fault(name, "names no device class", "request")
        device_class = self._classes.get(request.device_class_name)
        if device_class is None:
            raise self.fault(name, f"device class {request.device_class_name} does not exist", MISSING_CLASS)
        selectors = (*(device_class.spec.selectors or ()), *(request.selectors or ()))
        return DeviceAsk(
            name,
            tuple(self._selector(name, selector) for selector in selectors),
            self._count(name, request),
            may_look and bool(request.admin_access),
            tuple(
                Toleration(item.key, item.operator or "Equal", item.value, item.effect)
                for item in request.tolerations or ()
            ),
            self._capacity(name, request),
        )

    def _count(self, name: str, request: ExactRequest) -> int:
        """0 for all."""
        mode = request.allocation_mode or _EXACT
        count = (request.count or 1) if mode == _EXACT else 0
        if mode not in (_EXACT, _ALL) or count < 0:
            raise self.fault(name, f"allocation mode {mode} with a count of {request.count}", "allocation mode")
        if count > _MAX_DEVICES:
            raise self.fault(name, f"{count} devices, a claim has at most {_MAX_DEVICES}", "too many devices")
        return count

    def _selector(self, name: str, selector: DeviceSelector) -> Selector:
        if selector.cel is None:
            raise self.fault(name, "a selector of an unknown type", "selector")
        try:
            return compile_selector(selector.cel.expression)
        except UnhandledError as error:
            raise self.fault(name, f"selector {selector.cel.expression[:80]!r}: {error}", error.kind) from None

    def _capacity(self, name: str, request: ExactRequest) -> tuple[tuple[str, Amount], ...]:
        found = (request.capacity.requests or {}) if request.capacity else {}
        try:
            amounts = {capacity: amount_of(quantity) for capacity, quantity in found.items()}
        except ValueError as error:
            raise self.fault(name, f"capacity: {error}", "capacity") from None
        if any(amount < 0 for amount in amounts.values()):
            raise self.fault(name, "asks for less than no capacity", "capacity")
        return tuple(sorted(amounts.items()))
