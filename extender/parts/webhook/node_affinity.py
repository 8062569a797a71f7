"""Writes a pod's GPU annotations as node affinity, for cluster autoscalers.

A cluster autoscaler only runs kube-scheduler's own plugins. It assumes that a pod with an annotation for an H100 fits
any free GPU and any new node with GPUs. But it respects required node affinity on the labels that GPU Feature Discovery
sets: product, memory and number.

Affinity must not exclude a node on which the pod could run. So requirements that such a node's labels contradict are
left out, and if some such nodes lack the labels, nodes without them stay allowed. Affinity can't be removed later, so
in doubt none is written.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from extender.api.reviews import Operation
from extender.core.clusters import Cluster, Mask
from extender.core.evaluations import Memo
from extender.core.fit.checks import could_fit
from extender.core.resources.gpu_models import describe_model, models_allowed
from extender.core.resources.nodes import MEMORY_TOLERANCE_FRAC, nominal_mib
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest, RequestError
from extender.core.vendors.registry import VENDORS
from extender.core.vendors.vendor import Vendor
from extender.kube import objects
from extender.kube.decoding import Decoder
from extender.scheduling.placer import Placer

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_SHARED: Final = "-SHARED"
_MAX_LABEL: Final = 63
_MAX_TERMS: Final = 16
_KEPT_S: Final = 5.0
_GIB_MIB: Final = 1024
_MAX_KEPT: Final = 256

Requirement = dict[str, Any]
Labels = Mapping[str, str]


class _Affinity(objects.Object, rename="camel"):
    node_affinity: dict[str, Any] | None = None


class _Spec(objects.Object, rename="camel"):
    affinity: _Affinity | None = None
    node_selector: dict[str, str] | None = None


class _Pod(objects.Object):
    spec: _Spec = msgspec.field(default_factory=_Spec)


class _Affinities(NamedTuple):
    """The affinity for a request."""

    wanted: list[Requirement]
    unlabelled: bool
    """Whether suitable nodes without the labels exist."""
    warnings: list[str]


_NOTHING: Final = _Affinities([], False, [])


class _Known(NamedTuple):
    """Labels of the cluster's nodes, and results based on them."""

    node_names: tuple[str, ...]
    at: float
    labels: list[Labels]
    """By row."""
    products: tuple[frozenset[str], ...]
    """By the vendor's number."""
    results: dict[tuple[str, GpuRequest], _Affinities]
    """By policy and request."""


_decoder: Final = Decoder(_Pod)


@dataclass(eq=False)
class AffinityWriter:
    """Writes node affinity on pods, if enabled."""

    placer: Placer | None
    """None if nothing is written."""
    labels_of: Callable[[str], Labels]
    """Returns the labels of a node."""
    products: tuple[str, ...] = ()
    """Products of node pools that may have no node now."""
    aliases: Mapping[str, Iterable[str]] = field(default_factory=dict)
    clock: Callable[[], float] = lambda: 0.0
    _memo: Memo = field(default_factory=Memo, init=False)
    _known: _Known | None = field(default=None, init=False)

    def patch(self, pod: objects.Pod, body: msgspec.Raw) -> tuple[list[Operation], list[str]]:
        """The operations that write a pod's affinity, and warnings; both may be empty."""
        if self.placer is None or pod.spec.node_name or pod.metadata.belongs_to_a_node:
            return [], []
        try:
            request = self.placer.read_request(pod)
            if request.gpus is None or request.gpus.mig or request.gpus.devices is not None:
                return [], []
            spec = _decoder.decode(body).spec
            result = self._affinities(request, request.gpus, self.placer)
        except (RequestError, msgspec.DecodeError):
            return [], []  # reported elsewhere
        own = _named(spec)
        wanted = [item for item in result.wanted if item["key"] not in own]
        unless = VENDORS[request.gpus.vendor].product_label if result.unlabelled else ""
        return _operations(spec, wanted, unless), result.warnings

    def _affinities(self, request: PodRequest, gpus: GpuRequest, placer: Placer) -> _Affinities:
        """The affinity for a request, cached for `_KEPT_S`."""
        cluster = placer.snapshot()
        known = self._nodes(cluster)
        key = request.policy, gpus
        result = known.results.get(key)
        if result is None:
            result = _NOTHING
            if known.products[gpus.vendor]:  # else new nodes may not have such labels
                wanted, warnings = self._wanted(gpus, known)
                result = _Affinities(wanted, False, warnings)
                if wanted:
                    suitable = self._suitable(cluster, request, gpus, placer)
                    result = _allowing(result, known, VENDORS[gpus.vendor], suitable)
            if len(known.results) < _MAX_KEPT:
                known.results[key] = result
        return result

    def _nodes(self, cluster: Cluster) -> _Known:
        """The labels of all nodes, at most `_KEPT_S` old."""
        now = self.clock()
        if self._known is None or self._known.node_names != cluster.node_names or now - self._known.at > _KEPT_S:
            labels = [self.labels_of(name) if name else {} for name in cluster.node_names]
            products = [{item.get(vendor.product_label, "") for item in labels} - {""} for vendor in VENDORS]
            products[0].update(self.products)
            self._known = _Known(cluster.node_names, now, labels, tuple(map(frozenset, products)), {})
        return self._known

    def _suitable(self, cluster: Cluster, request: PodRequest, gpus: GpuRequest, placer: Placer) -> Mask:
        """(N,) nodes on which the pod would fit if they were empty."""
        policy = placer.policy_of(request)
        reasons = self._memo.evaluate(cluster, policy.weighed_request(request) or gpus, policy).evaluation.reason
        exists = np.array([bool(name) for name in cluster.node_names], np.bool_)
        suitable: Mask = could_fit(reasons) & exists
        return suitable

    def _wanted(self, request: GpuRequest, known: _Known) -> tuple[list[Requirement], list[str]]:
        """The label requirements of a request, and warnings about what labels can't express."""
        wanted: list[Requirement] = []
        warnings: list[str] = []
        vendor = VENDORS[request.vendor]
        if request.include is not None or request.exclude is not None:
            products = known.products[request.vendor]
            accepted = self._products(request, products)
            others = sorted(products - accepted)
            if request.include is None and others:
                wanted.append(_requirement(vendor.product_label, "NotIn", others))
            elif request.include is not None and accepted:
                wanted.append(_requirement(vendor.product_label, "In", sorted(accepted)))
            elif request.include is not None:
                warnings.append(
                    "no known product has the requested GPU model, so autoscalers can't see that request "
                    "(setting webhook.products)"
                )
        if request.memory_each_mib and vendor.memory_label:
            least = _least_reported_mib(request.memory_each_mib, MEMORY_TOLERANCE_FRAC)
            wanted.append(_requirement(vendor.memory_label, "Gt", [str(least - 1)]))
        if request.unit is AskedUnit.WHOLE and request.count and vendor.count_label:
            wanted.append(_requirement(vendor.count_label, "Gt", [str(request.count - 1)]))
        return wanted, warnings

    def _products(self, request: GpuRequest, known: frozenset[str]) -> frozenset[str]:
        """Products with an accepted model; for time slices also the names that nodes use for shared GPUs."""
        names = sorted(known)
        models = [describe_model(name, self.aliases, request.vendor) for name in names]
        allowed = models_allowed(models, request.include, request.exclude, request.vendor)
        found = {name for name, takes in zip(names, allowed.tolist(), strict=True) if takes}
        if request.unit is AskedUnit.GPU:
            found |= {name + _SHARED for name in found if not name.endswith(_SHARED)}
        return frozenset(name for name in found if len(name) <= _MAX_LABEL)


NO_AFFINITY: Final = AffinityWriter(None, lambda node: {})
"""Writes nothing."""


def _allowing(result: _Affinities, known: _Known, vendor: Vendor, suitable: Mask) -> _Affinities:
    """Only the requirements that the labels of all labelled suitable nodes meet."""
    labels = [known.labels[row] for row in np.flatnonzero(suitable).tolist()]
    labelled = [item for item in labels if item.get(vendor.product_label)]
    kept = [item for item in result.wanted if all(_holds(item, found) for found in labelled)]
    return _Affinities(kept, len(labelled) < len(labels), result.warnings)


def _least_reported_mib(asked_mib: int, tolerance_frac: float) -> int:
    """The least memory that a GPU may report to count as one of `asked_mib`; GPUs report slightly less than nominal."""
    size = -(-asked_mib // _GIB_MIB) * _GIB_MIB
    least = min(asked_mib, int(size - tolerance_frac * size))
    while nominal_mib(least, tolerance_frac) < asked_mib:  # correct floating-point rounding
        least += 1
    return least


def _requirement(key: str, operator: str, values: list[str]) -> Requirement:
    return {"key": key, "operator": operator, "values": values}


def _holds(requirement: Requirement, labels: Labels) -> bool:
    """Whether a node's labels meet a requirement, as in kube-scheduler."""
    value, values = labels.get(requirement["key"]), requirement["values"]
    match requirement["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
    return value is not None and value.isascii() and value.isdigit() and int(value) > int(values[0])


def _named(spec: _Spec) -> set[str]:
    """Labels that the pod itself constrains."""
    named = set(spec.node_selector or ())
    for term in _terms(spec) or ():
        named.update(str(item.get("key")) for item in _expressions(term))
    return named


def _terms(spec: _Spec) -> list[Any] | None:
    """The terms of a pod's own required node affinity, None if it has none."""
    node = spec.affinity.node_affinity if spec.affinity is not None else None
    required = (node or {}).get(_REQUIRED)
    if not isinstance(required, dict):
        return None
    found = required.get("nodeSelectorTerms")
    return found if isinstance(found, list) else []


def _expressions(term: Any) -> Iterator[dict[str, Any]]:
    for item in (term.get("matchExpressions") if isinstance(term, dict) else None) or ():
        if isinstance(item, dict):
            yield item


def _operations(spec: _Spec, wanted: list[Requirement], unless: str) -> list[Operation]:
    """The operations. A pod's own terms are alternatives, so each is narrowed. If `unless` is not empty, nodes without
    that label stay allowed."""
    ways = [wanted, [{"key": unless, "operator": "DoesNotExist"}]] if unless else [wanted]
    own = _terms(spec)
    if not wanted or (own is not None and not 0 < len(own) <= _MAX_TERMS):
        return []
    terms: list[Any] = []
    for term in [{}] if own is None else own:
        if own is not None and not (
            isinstance(term, dict) and (term.get("matchExpressions") or term.get("matchFields"))
        ):
            terms.append(term)  # an empty term matches nothing, and must stay so
            continue
        terms += [{**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *way]} for way in ways]
    required = {"nodeSelectorTerms": terms}
    affinity = spec.affinity
    if affinity is None:
        return [{"op": "add", "path": "/spec/affinity", "value": {"nodeAffinity": {_REQUIRED: required}}}]
    if affinity.node_affinity is None:
        return [{"op": "add", "path": "/spec/affinity/nodeAffinity", "value": {_REQUIRED: required}}]
    return [{"op": "add", "path": f"/spec/affinity/nodeAffinity/{_REQUIRED}", "value": required}]
