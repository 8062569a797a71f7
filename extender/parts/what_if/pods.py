"""Converts a question's pods for the planners, and notes what is not checked of them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from extender.core.resources.requests import RequestError
from extender.kube.objects import Node, Pod, Toleration, requests_of
from extender.parts.what_if.claims import AskedClaims
from extender.planning.demands import Demands
from extender.planning.plans import PlanPod
from extender.queueing.pods.batches import plan_pod
from extender.queueing.pods.restrictions import RestrictionKinds

_CLAIMS: Final = "its ResourceClaims, which Kerf doesn't allocate"
_RUNTIME_CLASS: Final = "what its RuntimeClass adds to it"
_TOLERATION: Final = (
    "the toleration of taint {key}: assumed to be added at admission, as ExtendedResourceToleration, GKE and AKS do"
)
_NO_SCHEDULE: Final = "NoSchedule"


@dataclass
class PodReader:
    """Reads the pods of one question."""

    policy: str
    """Policy of pods that choose none."""
    claims: AskedClaims
    kinds: RestrictionKinds = field(default_factory=RestrictionKinds)

    def planned(self, pods: Iterable[Pod]) -> tuple[list[tuple[Pod, PlanPod]], dict[str, str]]:
        """The planned pods, and by pod key the errors of invalid ones."""
        batch: list[tuple[Pod, PlanPod]] = []
        faults: dict[str, str] = {}
        for pod in pods:
            try:
                planned = plan_pod(pod, self.kinds, self.claims.of(pod))
            except RequestError as error:
                faults[pod.key] = str(error)
                continue
            planned = replace(planned, policy=planned.policy or self.policy)
            if pod.key in self.claims.unchecked:
                planned = _with_unchecked(planned, [_CLAIMS])
            batch.append((pod, planned))
        return batch, faults


class NewPods:
    """Anticipates what admission changes in pods that do not exist yet, or notes it as not checked."""

    def __init__(self, nodes: Iterable[Node], *, assume: bool) -> None:
        """`assume`: whether to assume that admission adds tolerations for requested resources."""
        self._keys = {taint.key for node in nodes for taint in node.spec.taints or () if taint.effect == _NO_SCHEDULE}
        self._assume = assume
        self._unchecked: dict[str, list[str]] = {}
        self.tolerate_more = False
        """Whether admission may add tolerations to some pod."""

    def as_admitted(self, pods: Sequence[Pod]) -> list[Pod]:
        """The pods with the tolerations that admission is assumed to add."""
        return [self._as_admitted(pod) for pod in pods]

    def noted(self, planned: PlanPod) -> PlanPod:
        """A pod with its notes of what is not checked."""
        return _with_unchecked(planned, self._unchecked.get(planned.key, ()))

    def _as_admitted(self, pod: Pod) -> Pod:
        words = [_RUNTIME_CLASS] if pod.spec.runtime_class_name else []
        keys = self._added_to(pod)
        self.tolerate_more |= bool(keys)
        if self._assume and keys:
            words += (_TOLERATION.format(key=key) for key in keys)
            added = [Toleration(key, "Exists", "", _NO_SCHEDULE) for key in keys]
            spec = msgspec.structs.replace(pod.spec, tolerations=[*(pod.spec.tolerations or ()), *added])
            pod = msgspec.structs.replace(pod, spec=spec)
        if words:
            self._unchecked[pod.key] = words
        return pod

    def _added_to(self, pod: Pod) -> list[str]:
        """Keys of taints that admission may make the pod tolerate: names of resources that it requests."""
        containers = (*(pod.spec.containers or ()), *(pod.spec.init_containers or ()))
        requested = {name for item in containers for name in requests_of(item.resources) if "/" in name}
        known = {item.key for item in pod.spec.tolerations or () if item.operator == "Exists"}
        return sorted((requested & self._keys) - known)


def _with_unchecked(planned: PlanPod, words: Sequence[str]) -> PlanPod:
    """A pod with further notes of what is not checked."""
    if not words:
        return planned
    demands = planned.demands or Demands()
    return replace(planned, demands=replace(demands, unchecked=(*demands.unchecked, *words)))
