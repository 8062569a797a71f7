"""The mix of pods that a running Kerf observes."""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Final

from extender.core.fragmentation import Arrivals, drift, fair_weights
from extender.core.resources.requests import PodRequest, RequestError
from extender.kube import objects
from extender.plugins.pod_resources import read_compute
from extender.plugins.pods import read_pod_request
from extender.ranking.demands import Kind, kind_of, prior_pods_of
from extender.scheduling.assignments import PodIdentity

_MAX_REMEMBERED: Final = 50_000
_MAX_AT_START: Final = 5_000
"""Most pods counted of the initial list, to keep the start short."""

_MAX_KINDS: Final = 500
"""Per namespace; pods of further kinds are ignored."""


class _FreshPods:
    """Pods by kind and namespace since `begin`, by which a model on trial is judged.

    A namespace's share of them is limited to its share of the allocated GPUs (`fair_weights`).
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, Kind]] = Counter()
        self._num_kinds: Counter[str] = Counter()
        self.num = 0
        """Number of pods that request GPUs; only these distinguish models."""

    def begin(self) -> None:
        """Reset the counts."""
        self._counts.clear()
        self._num_kinds.clear()
        self.num = 0

    def add(self, namespace: str, kind: Kind) -> None:
        """Count a pod."""
        new = (namespace, kind) not in self._counts
        if new and self._num_kinds[namespace] >= _MAX_KINDS:
            return
        self._num_kinds[namespace] += new
        self._counts[namespace, kind] += 1
        self.num += kind.gpus > 0

    def counts(self, held: Mapping[str, float]) -> dict[Kind, float]:
        """Weighted pods by kind; `held` is the allocated GPUs by namespace."""
        pods: Counter[str] = Counter()
        for (namespace, _), count in self._counts.items():
            pods[namespace] += count
        weight = fair_weights(pods, held)
        by_kind: dict[Kind, float] = {}
        for (namespace, kind), count in self._counts.items():
            by_kind[kind] = by_kind.get(kind, 0.0) + weight[namespace] * count
        return by_kind


class SeenPods:
    """The decayed mix of pods; each pod counts once."""

    def __init__(self, half_life_pods: float, prior: Mapping[Kind, float], prior_pods: float | None) -> None:
        """`prior` has the weight of `prior_pods` pods; None: of `prior_pods_of` the cluster."""
        self.arrivals: Arrivals[Kind] = Arrivals(half_life_pods)
        self._prior, self._prior_pods = prior, prior_pods
        self.num_gpus = 0
        """Number of GPUs in the cluster."""
        self._seen: OrderedDict[str, None] = OrderedDict()
        self.started = False
        """Whether the initial list of pods is complete."""
        self._newest = ""
        """Latest creation time in the initial list; pods created before it never count as fresh."""
        self.num_seen = 0
        """Number of pods counted in the mix."""
        self.fresh = _FreshPods()
        """Pods that arrived since a model on trial was last judged."""
        self.priced: dict[Kind, float] = {}
        """The mix for which prices were last computed."""

    def counts(self) -> dict[Kind, float]:
        """Decayed number of pods by kind; the newest pod counts 1."""
        pods = prior_pods_of(self.num_gpus) if self._prior_pods is None else self._prior_pods
        total = sum(self._prior.values())
        return self.arrivals.after({kind: pods * part / total for kind, part in self._prior.items()} if total else {})

    def drift(self) -> float:
        """The fraction of the mix that has changed since prices were computed."""
        return drift(self.priced, self.counts())

    def asked(self, pod: PodIdentity, request: PodRequest) -> None:
        """Count a pod that kube-scheduler asks about, if it requests GPUs."""
        if request.gpus is not None and self._is_new(pod.uid):
            self._count(pod.namespace, kind_of(request))

    def pod_changed(self, old: objects.Pod | None, pod: objects.Pod | None) -> None:
        """Count a pod that a watch reports, except DaemonSets' pods."""
        if pod is None:
            return
        metadata, created = pod.metadata, pod.metadata.creation_timestamp
        if not self.started:
            self._newest = max(self._newest, created)
        if not self._is_new(metadata.uid) or metadata.belongs_to_a_node:
            return
        if self.num_seen >= _MAX_AT_START and not self.started:
            return
        try:
            request = read_pod_request(pod)
        except RequestError:
            if not pod.spec.node_name:
                del self._seen[metadata.uid]  # it counts when it is bound
            return
        if request.gpus is None:
            request = PodRequest(None, "", 0, (), *read_compute(pod.spec))
        self._count(metadata.namespace, kind_of(request), came=not created or created > self._newest)

    def _is_new(self, uid: str) -> bool:
        if not uid or uid in self._seen:
            return False
        self._seen[uid] = None
        if len(self._seen) > _MAX_REMEMBERED:
            self._seen.popitem(last=False)
        return True

    def _count(self, namespace: str, kind: Kind | None, *, came: bool = True) -> None:
        if kind is not None:
            self.arrivals.add(kind)
            self.num_seen += 1
            if self.started and came:
                self.fresh.add(namespace, kind)
