"""What a pod asks of its GPUs by annotation, as node affinity: for those who read nothing else of a pod, autoscalers.

A cluster autoscaler runs kube-scheduler's own plugins alone. To it a pod that asks for an H100 by annotation has room
wherever a GPU is free, or will have on any new node with GPUs. What it does understand is required node affinity on
the labels by which GPU Feature Discovery tells product, memory and number.

Nothing is written that would keep a pod from a node on which it could run: what the cluster's nodes contradict is left
out, and where nodes that would do have no such labels, nodes without them stay allowed. What is written can't be taken
back, so in doubt nothing is.
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


class _Said(NamedTuple):
    """What a request comes to."""

    wanted: list[Requirement]
    unlabelled: bool
    """Whether there are nodes without labels that would do."""
    warnings: list[str]


_NOTHING: Final = _Said([], False, [])


class _Known(NamedTuple):
    """What the cluster's nodes say of themselves."""

    node_names: tuple[str, ...]
    at: float
    labels: list[Labels]
    """Of each row."""
    products: tuple[frozenset[str], ...]
    """By the vendor's number."""
    said: dict[tuple[str, GpuRequest], _Said]
    """What came of requests."""


_decoder: Final = Decoder(_Pod)


@dataclass(eq=False)
class AffinityWriter:
    """Writes node affinity on pods, where that is wanted."""

    placer: Placer | None
    """None where nothing is written."""
    labels_of: Callable[[str], Labels]
    """The labels of a node."""
    products: tuple[str, ...] = ()
    """Of node pools that may have no node now."""
    aliases: Mapping[str, Iterable[str]] = field(default_factory=dict)
    clock: Callable[[], float] = lambda: 0.0
    _memo: Memo = field(default_factory=Memo, init=False)
    _known: _Known | None = field(default=None, init=False)

    def patch(self, pod: objects.Pod, body: msgspec.Raw) -> tuple[list[Operation], list[str]]:
        """The operations that write a pod's affinity, and warnings; none where there is nothing to write."""
        if self.placer is None or pod.spec.node_name or pod.metadata.belongs_to_a_node:
            return [], []
        try:
            request = self.placer.read_request(pod)
            if request.gpus is None or request.gpus.mig or request.gpus.devices is not None:
                return [], []
            spec = _decoder.decode(body).spec
            said = self._said(request, request.gpus, self.placer)
        except (RequestError, msgspec.DecodeError):
            return [], []  # told elsewhere
        own = _named(spec)
        wanted = [item for item in said.wanted if item["key"] not in own]
        unless = VENDORS[request.gpus.vendor].product_label if said.unlabelled else ""
        return _operations(spec, wanted, unless), said.warnings

    def _said(self, request: PodRequest, gpus: GpuRequest, placer: Placer) -> _Said:
        """What a request comes to in labels; kept a moment for pods that are alike."""
        cluster = placer.snapshot()
        known = self._nodes(cluster)
        key = request.policy, gpus
        said = known.said.get(key)
        if said is None:
            said = _NOTHING
            if known.products[gpus.vendor]:  # else nobody tells that new nodes will have such labels
                wanted, warnings = self._wanted(gpus, known)
                said = _Said(wanted, False, warnings)
                if wanted:
                    said = _allowing(said, known, VENDORS[gpus.vendor], self._will_do(cluster, request, gpus, placer))
            if len(known.said) < _MAX_KEPT:
                known.said[key] = said
        return said

    def _nodes(self, cluster: Cluster) -> _Known:
        """The labels of all nodes, as they were a moment ago at most."""
        now = self.clock()
        if self._known is None or self._known.node_names != cluster.node_names or now - self._known.at > _KEPT_S:
            labels = [self.labels_of(name) if name else {} for name in cluster.node_names]
            products = [{item.get(vendor.product_label, "") for item in labels} - {""} for vendor in VENDORS]
            products[0].update(self.products)
            self._known = _Known(cluster.node_names, now, labels, tuple(map(frozenset, products)), {})
        return self._known

    def _will_do(self, cluster: Cluster, request: PodRequest, gpus: GpuRequest, placer: Placer) -> Mask:
        """(N,) nodes that would do if they were empty."""
        policy = placer.policy_of(request)
        reasons = self._memo.evaluate(cluster, policy.asked(request) or gpus, policy).evaluation.reason
        exists = np.array([bool(name) for name in cluster.node_names], np.bool_)
        would_do: Mask = could_fit(reasons) & exists
        return would_do

    def _wanted(self, request: GpuRequest, known: _Known) -> tuple[list[Requirement], list[str]]:
        """What a request comes to in labels, and what can't be said in them."""
        wanted: list[Requirement] = []
        warnings: list[str] = []
        vendor = VENDORS[request.vendor]
        if request.include is not None or request.exclude is not None:
            products = known.products[request.vendor]
            will_do = self._products(request, products)
            others = sorted(products - will_do)
            if request.include is None and others:
                wanted.append(_requirement(vendor.product_label, "NotIn", others))
            elif request.include is not None and will_do:
                wanted.append(_requirement(vendor.product_label, "In", sorted(will_do)))
            elif request.include is not None:
                warnings.append(
                    "no product known is of the GPU model asked for, so autoscalers are not told of it "
                    "(setting webhook.products)"
                )
        if request.memory_each_mib and vendor.memory_label:
            least = _least_reported_mib(request.memory_each_mib, MEMORY_TOLERANCE_FRAC)
            wanted.append(_requirement(vendor.memory_label, "Gt", [str(least - 1)]))
        if request.unit is AskedUnit.WHOLE and request.count and vendor.count_label:
            wanted.append(_requirement(vendor.count_label, "Gt", [str(request.count - 1)]))
        return wanted, warnings

    def _products(self, request: GpuRequest, known: frozenset[str]) -> frozenset[str]:
        """Products of which a request takes the model; where it takes time slices, as nodes that share them say it."""
        names = sorted(known)
        models = [describe_model(name, self.aliases, request.vendor) for name in names]
        allowed = models_allowed(models, request.include, request.exclude, request.vendor)
        found = {name for name, takes in zip(names, allowed.tolist(), strict=True) if takes}
        if request.unit is AskedUnit.GPU:
            found |= {name + _SHARED for name in found if not name.endswith(_SHARED)}
        return frozenset(name for name in found if len(name) <= _MAX_LABEL)


NO_AFFINITY: Final = AffinityWriter(None, lambda node: {})
"""Writes nothing."""


def _allowing(said: _Said, known: _Known, vendor: Vendor, will_do: Mask) -> _Said:
    """Of the requirements those that no labelled node contradicts on which the pod could run."""
    labels = [known.labels[row] for row in np.flatnonzero(will_do).tolist()]
    labelled = [item for item in labels if item.get(vendor.product_label)]
    kept = [item for item in said.wanted if all(_holds(item, found) for found in labelled)]
    return _Said(kept, len(labelled) < len(labels), said.warnings)


def _least_reported_mib(asked_mib: int, tolerance_frac: float) -> int:
    """The least memory that a GPU may report to count as one of `asked_mib`: cards report a little less."""
    size = -(-asked_mib // _GIB_MIB) * _GIB_MIB
    least = min(asked_mib, int(size - tolerance_frac * size))
    while nominal_mib(least, tolerance_frac) < asked_mib:  # what floating-point numbers have rounded
        least += 1
    return least


def _requirement(key: str, operator: str, values: list[str]) -> Requirement:
    return {"key": key, "operator": operator, "values": values}


def _holds(requirement: Requirement, labels: Labels) -> bool:
    """Whether a node's labels meet a requirement, as kube-scheduler sees it."""
    said, values = labels.get(requirement["key"]), requirement["values"]
    match requirement["operator"]:
        case "In":
            return said in values
        case "NotIn":
            return said not in values
    return said is not None and said.isascii() and said.isdigit() and int(said) > int(values[0])


def _named(spec: _Spec) -> set[str]:
    """Labels that a pod says something of itself about."""
    named = set(spec.node_selector or ())
    for term in _terms(spec) or ():
        named.update(str(item.get("key")) for item in _expressions(term))
    return named


def _terms(spec: _Spec) -> list[Any] | None:
    """The terms of a pod's own required node affinity, None where it has none."""
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
    """The operations; each of a pod's own terms is one of several ways, so each is narrowed. Nodes without the label
    `unless`, if any, will do too."""
    ways = [wanted, [{"key": unless, "operator": "DoesNotExist"}]] if unless else [wanted]
    own = _terms(spec)
    if not wanted or (own is not None and not 0 < len(own) <= _MAX_TERMS):
        return []
    terms: list[Any] = []
    for term in [{}] if own is None else own:
        if own is not None and not (
            isinstance(term, dict) and (term.get("matchExpressions") or term.get("matchFields"))
        ):
            terms.append(term)  # matches nothing, and has to go on doing so
            continue
        terms += [{**term, "matchExpressions": [*(term.get("matchExpressions") or ()), *way]} for way in ways]
    required = {"nodeSelectorTerms": terms}
    affinity = spec.affinity
    if affinity is None:
        return [{"op": "add", "path": "/spec/affinity", "value": {"nodeAffinity": {_REQUIRED: required}}}]
    if affinity.node_affinity is None:
        return [{"op": "add", "path": "/spec/affinity/nodeAffinity", "value": {_REQUIRED: required}}]
    return [{"op": "add", "path": f"/spec/affinity/nodeAffinity/{_REQUIRED}", "value": required}]
