"""Converts ResourceClaims' requests to `core.dra.asks`. Claims that can't be evaluated exactly are refused.

Checks and defaults follow `Allocate` and `validateDeviceRequest` in kubernetes 1.37.2
`dynamic-resource-allocation/structured/internal/incubating/allocator_incubating.go`; CEL selectors are evaluated like
`k8s.io/dynamic-resource-allocation/cel` does.

A compiled CEL program takes thirty times the memory of its text, so programs live in a shared cache of bounded size
and are recompiled after eviction.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from extender.core.dra.asks import (
    ClaimSpec,
    Constraint,
    DeviceClaims,
    DeviceSpec,
    RequestSpec,
    Selector,
    SelectorFault,
    Toleration,
)
from extender.core.dra.devices import Amount, Device
from extender.core.resources.requests import RequestError
from extender.core.texts import printable
from extender.dra.cel.compiling import MAX_MESSAGE_CHARS, Program, Programs
from extender.dra.cel.parsing import AbortError, EvaluationError, RefusedError, tokens_of
from extender.dra.objects import (
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    ExactRequest,
    ResourceClaim,
)
from extender.dra.results import amount_of

MISSING_CLASS: Final = "missing class"
KINDS: Final = {
    MISSING_CLASS: "the DeviceClass does not exist",
    "request": "unknown request type, or no device class",
    "allocation mode": "unknown allocation mode, or a count below 1",
    "too many devices": "more devices than a claim may have",
    "derived attributes": "derived attributes: alpha in Kubernetes 1.37",
    "selector": "not a CEL selector",
    "constraint": "unknown constraint type",
    "capacity": "capacity that is not a quantity, or is negative",
    "CEL": "expression that Kerf can't evaluate exactly or in bounded time; the kind continues with the construct",
}
"""Kinds of unhandled claims (label of `kerf_dra_claims_unhandled`) and their meaning."""


class UnhandledError(RequestError):
    """A claim can't be evaluated exactly. `kind` is one of KINDS, or begins with "CEL: "."""

    def __init__(self, sentence: str, kind: str) -> None:
        super().__init__(sentence)
        self.kind = kind


_MAX_SELECTOR_CHARS: Final = 10 * 1024
"""`CELSelectorExpressionMaxLength`."""
_MAX_PARTS: Final = 16
_OPENING: Final = ("(", "[", "{")
_CLOSING: Final = (")", "]", "}")
_MAX_REMEMBERED_CHARS: Final = 512 * 1024
"""Total length of the cached programs' expressions: about 16 MB of programs."""


_PROGRAMS: Final = Programs(_MAX_REMEMBERED_CHARS)


@dataclass(frozen=True, slots=True)
class _Matches:
    """Returns whether a device matches a CEL expression. Raises SelectorFault."""

    expression: str

    def __call__(self, device: Device) -> bool:
        program = _PROGRAMS.of(self.expression)
        try:
            value = program.run([device, *[None] * (program.num_slots - 1)])
        except (EvaluationError, AbortError) as error:
            raise _fault(device, str(error)) from None
        except RecursionError:
            raise _fault(device, "nested too deeply") from None
        if value is not True and value is not False:
            raise _fault(device, "does not return a bool")
        return bool(value)


def _fault(device: Device, what: str) -> SelectorFault:
    return SelectorFault(printable(f"on device {device.id.device}: {what[:MAX_MESSAGE_CHARS]}"))


@dataclass(frozen=True, slots=True)
class _Parts:
    """Returns the operands of an expression's top-level `&&`; () if it has none."""

    expression: str

    def __call__(self) -> tuple[Selector, ...]:
        texts, depth, start = list[str](), 0, 0
        for token in tokens_of(self.expression):
            depth += (token.kind in _OPENING) - (token.kind in _CLOSING)
            if depth == 0 and token.kind in ("||", "?"):
                return ()
            if depth == 0 and token.kind in ("&&", "end"):
                texts.append(self.expression[start : token.position].strip())
                start = token.position + len(token.kind)
        try:
            return tuple(map(_compile_selector, texts)) if 1 < len(texts) <= _MAX_PARTS else ()
        except UnhandledError:
            return ()


def _compile_selector(expression: str) -> Selector:
    """Compile a selector. Raises UnhandledError if it can't be evaluated as kube-scheduler does, in bounded time."""
    program = _program(expression)
    return Selector(expression, _Matches(expression), program.reads, _Parts(expression), program.cost)


def _program(expression: str) -> Program:
    if len(expression) > _MAX_SELECTOR_CHARS:
        raise UnhandledError(f"has more than {_MAX_SELECTOR_CHARS} characters", "CEL: length")
    try:
        return _PROGRAMS.of(expression)
    except RefusedError as error:
        raise UnhandledError(str(error), f"CEL: {error.kind}") from None


_MAX_DEVICES: Final = 32
"""Per claim: `AllocationResultsMaxSize`."""
_MAX_CHARS: Final = 64 * 1024
"""Total length of the distinct selectors of a pod's claims; Kubernetes allows a megabyte."""
_MAX_COST: Final = 5_000
"""Cost of these selectors on one device, in steps of about a microsecond."""
_EXACT: Final = "ExactCount"
_ALL: Final = "All"


def read_asks(claims: Iterable[ResourceClaim], classes: Mapping[str, DeviceClass]) -> DeviceClaims:
    """The requests of one pod's unallocated claims, in the pod's order. Raises UnhandledError.

    `classes` are all DeviceClasses by name.
    """
    asked = DeviceClaims(tuple(_read_claim(claim, classes) for claim in claims))
    _check_cost(asked)
    return asked


def _check_cost(asked: DeviceClaims) -> None:
    """Raise UnhandledError if a pod's selectors are too long or too expensive."""
    asks = (ask for claim in asked.claims for request in claim.requests for ask in request.alternatives)
    if sum(map(len, {selector.expression for ask in asks for selector in ask.selectors})) > _MAX_CHARS:
        raise UnhandledError(f"the selectors of all claims have more than {_MAX_CHARS} characters", "CEL: length")
    if asked.cost > _MAX_COST:
        raise UnhandledError(f"the selectors of all claims may take more than {_MAX_COST} steps", "CEL: cost")


def _read_claim(claim: ResourceClaim, classes: Mapping[str, DeviceClass]) -> ClaimSpec:
    reader = _Reader(claim.metadata.name, classes)
    requests = tuple(reader.request(request) for request in claim.spec.devices.requests or ())
    # A lower bound: only the allocator knows the number for allocation mode All and for alternatives.
    if sum(min(ask.count for ask in request.alternatives) for request in requests) > _MAX_DEVICES:
        raise reader.fault("", f"more than {_MAX_DEVICES} devices", "too many devices")
    constraints = tuple(reader.constraint(constraint) for constraint in claim.spec.devices.constraints or ())
    return ClaimSpec(requests, constraints)


class _Reader:
    """Reads the requests of one claim."""

    def __init__(self, claim: str, classes: Mapping[str, DeviceClass]) -> None:
        self._claim = claim
        self._classes = classes

    def fault(self, request: str, what: str, kind: str) -> UnhandledError:
        """An error whose message names the claim and the request."""
        location = f"claim {self._claim}, request {request}" if request else f"claim {self._claim}"
        return UnhandledError(f"{location}: {what}", kind)

    def request(self, request: DeviceRequest) -> RequestSpec:
        """A request with its alternatives."""
        if request.first_available:
            names = [(f"{request.name}/{alternative.name}", alternative) for alternative in request.first_available]
            return RequestSpec(request.name, tuple(self._ask(*named, allow_admin=False) for named in names))
        if request.exactly is None:
            raise self.fault(request.name, "neither exactly nor firstAvailable is set", "request")
        return RequestSpec(request.name, (self._ask(request.name, request.exactly, allow_admin=True),))

    def constraint(self, constraint: DeviceConstraint) -> Constraint:
        """A `matchAttribute` or `distinctAttribute` constraint."""
        attribute = constraint.match_attribute or constraint.distinct_attribute
        if not attribute:
            raise self.fault("", "unknown constraint type", "constraint")
        return Constraint(attribute, tuple(constraint.requests or ()), distinct=not constraint.match_attribute)

    def _ask(self, name: str, request: ExactRequest, allow_admin: bool) -> DeviceSpec:
        if request.derived_attributes:
            raise self.fault(name, "derived attributes are not supported", "derived attributes")
        if not request.device_class_name:
            raise self.fault(name, "no device class is set", "request")
        device_class = self._classes.get(request.device_class_name)
        if device_class is None:
            raise self.fault(name, f"device class {request.device_class_name} does not exist", MISSING_CLASS)
        selectors = (*(device_class.spec.selectors or ()), *(request.selectors or ()))
        return DeviceSpec(
            name,
            tuple(self._selector(name, selector) for selector in selectors),
            self._count(name, request),
            allow_admin and bool(request.admin_access),
            tuple(
                Toleration(item.key, item.operator or "Equal", item.value, item.effect)
                for item in request.tolerations or ()
            ),
            self._capacity(name, request),
        )

    def _count(self, name: str, request: ExactRequest) -> int:
        """The number of devices; 0 for allocation mode All."""
        mode = request.allocation_mode or _EXACT
        count = (request.count or 1) if mode == _EXACT else 0
        if mode not in (_EXACT, _ALL) or count < 0:
            raise self.fault(name, f"allocation mode {mode} with a count of {request.count}", "allocation mode")
        if count > _MAX_DEVICES:
            raise self.fault(name, f"{count} devices: a claim may have at most {_MAX_DEVICES}", "too many devices")
        return count

    def _selector(self, name: str, selector: DeviceSelector) -> Selector:
        if selector.cel is None:
            raise self.fault(name, "unknown selector type", "selector")
        try:
            return _compile_selector(selector.cel.expression)
        except UnhandledError as error:
            raise self.fault(name, f"selector {selector.cel.expression[:80]!r}: {error}", error.kind) from None

    def _capacity(self, name: str, request: ExactRequest) -> tuple[tuple[str, Amount], ...]:
        requests = (request.capacity.requests or {}) if request.capacity else {}
        try:
            amounts = {capacity: amount_of(quantity) for capacity, quantity in requests.items()}
        except ValueError as error:
            raise self.fault(name, f"capacity: {error}", "capacity") from None
        if any(amount < 0 for amount in amounts.values()):
            raise self.fault(name, "capacity is negative", "capacity")
        return tuple(sorted(amounts.items()))
