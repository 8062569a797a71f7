"""The mix of pods that a running Kerf sees: those that kube-scheduler asks about, and those that there are."""

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
"""Of the pods of the first list: more would only make the start longer."""

_MAX_KINDS: Final = 500
"""Of a namespace, that are told apart: others are left out."""


class _FreshPods:
    """Counts pods by kind and namespace, since `begin`: what a model on trial is judged by.

    A namespace counts as a part of them no larger than its part of the GPUs held (`fair_weights`).
    """

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, Kind]] = Counter()
        self._num_kinds: Counter[str] = Counter()
        self.num = 0
        """Of those that ask for GPUs: no others tell models apart."""

    def begin(self) -> None:
        """Forget what came so far."""
        self._counts.clear()
        self._num_kinds.clear()
        self.num = 0

    def add(self, namespace: str, kind: Kind) -> None:
        """A pod came."""
        new = (namespace, kind) not in self._counts
        if new and self._num_kinds[namespace] >= _MAX_KINDS:
            return
        self._num_kinds[namespace] += new
        self._counts[namespace, kind] += 1
        self.num += kind.gpus > 0

    def counts(self, held: Mapping[str, float]) -> dict[Kind, float]:
        """Pods by kind, where namespaces hold so much GPU."""
        pods: Counter[str] = Counter()
        for (namespace, _), count in self._counts.items():
            pods[namespace] += count
        weight = fair_weights(pods, held)
        found: dict[Kind, float] = {}
        for (namespace, kind), count in self._counts.items():
            found[kind] = found.get(kind, 0.0) + weight[namespace] * count
        return found


class SeenPods:
    """Counts each pod once."""

    def __init__(self, half_life_pods: float, prior: Mapping[Kind, float], prior_pods: float | None) -> None:
        """`prior` counts as so many pods, in its proportions; None: as `prior_pods_of` the cluster."""
        self.arrivals: Arrivals[Kind] = Arrivals(half_life_pods)
        self._prior, self._prior_pods = prior, prior_pods
        self.num_gpus = 0
        """Of the cluster."""
        self._seen: OrderedDict[str, None] = OrderedDict()
        self.started = False
        """Whether the first list of pods is through."""
        self._newest = ""
        """When the last pod of the first list was created: those of before are none that came since, whenever one is
        heard of."""
        self.num_seen = 0
        """Pods counted for the mix."""
        self.fresh = _FreshPods()
        """Those that came since a model on trial was last judged."""
        self.priced: dict[Kind, float] = {}
        """The mix that prices were worked out for last."""

    def counts(self) -> dict[Kind, float]:
        """Pods by kind; the newest counts 1."""
        pods = prior_pods_of(self.num_gpus) if self._prior_pods is None else self._prior_pods
        total = sum(self._prior.values())
        return self.arrivals.after({kind: pods * part / total for kind, part in self._prior.items()} if total else {})

    def drift(self) -> float:
        """Which part of the pods has become others since."""
        return drift(self.priced, self.counts())

    def asked(self, pod: PodIdentity, request: PodRequest) -> None:
        """A pod is offered nodes; one without GPUs counts once it is heard of."""
        if request.gpus is not None and self._is_new(pod.uid):
            self._count(pod.namespace, kind_of(request))

    def pod_changed(self, old: objects.Pod | None, pod: objects.Pod | None) -> None:
        """A pod is there, with a node or without; those that a DaemonSet keeps on every node do not arrive."""
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
                del self._seen[metadata.uid]  # once it has a node, what it has counts
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
