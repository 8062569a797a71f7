"""A cluster in arrays on which the service's rules decide: fit, score, choice of GPUs, booking.

Used by the simulator and by trials (`extender.ranking.trials`). The arrays have no time slices and links; a GPU's
memory is 0 if unknown.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from extender.core.bookings import Booking, book, booking
from extender.core.clusters import WHOLE_MILLI, Cluster, Floats, Longs
from extender.core.decisions import choice
from extender.core.evaluations import Memo
from extender.core.fit.fits import enough_compute, fit
from extender.core.fragmentation import ANY_MODEL, Nodes, PodClasses
from extender.core.policies.policy import Policy
from extender.core.resources.gpu_models import GpuModel, ModelPattern
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest, PodRequest


class Rules:
    """Decisions by a policy, which change the nodes in place. Pods are given by the number of one of C classes."""

    def __init__(
        self, nodes: Nodes, asks: PodClasses, policy: Policy, models: Sequence[GpuModel], memory: Longs
    ) -> None:
        """`models` are indexed by `nodes.model`; `memory` (M,) is the MiB of their GPUs."""
        self.nodes, self._policy = nodes, policy
        self._requests = requests_of(asks, [model.names[0] for model in models])
        self._cluster = cluster_of(nodes, models, memory)
        self._rows = np.arange(self._cluster.num_nodes)
        self._memo = Memo(max_classes=len(self._requests) + 1)

    def decide_by(self, policy: Policy) -> None:
        """Use another policy from now on."""
        self._policy, self._memo = policy, Memo(max_classes=len(self._requests) + 1)

    def scores(self, c: int) -> Floats:
        """(N,) score of a class on each node; -inf where it does not fit."""
        request = self._requests[c]
        enough = enough_compute(self._cluster, request.cpu_milli, request.memory_mib, self._rows)
        score = self._memo.evaluate(self._cluster, self._asked(request), self._policy).evaluation.score
        return np.where(enough, score, -np.inf)

    def decide(self, c: int, draw: float = 0.0) -> int:
        """The first node with the best score for a class; -1 if none fits."""
        scores = self.scores(c)
        best = int(scores.argmax())
        return best if scores[best] > -np.inf else -1

    def take(self, c: int, node: int) -> int:
        """Book a class on a node; return its GPUs as a bit mask."""
        request, gpus = self._requests[c], self.gpus(c, node)
        self._book(node, request, gpus, -1)
        return sum(1 << gpu for gpu in gpus)

    def gpus(self, c: int, node: int) -> tuple[int, ...]:
        """The GPUs that a class gets on a node where it fits."""
        request = self._requests[c]
        if not request.count:
            return ()
        checked = fit(self._cluster, request, np.array([node]))
        shares = bool(checked.shares[0])
        return choice(self._cluster, node, self._asked(request), self._policy, checked.room[0], shares=shares) or ()

    def give_back(self, c: int, node: int, gpus: int) -> None:
        """Undo `take`, which returned `gpus`."""
        indices = tuple(g for g in range(self.nodes.gpu_free_milli.shape[1]) if gpus >> g & 1)
        self._book(node, self._requests[c], indices, 1)

    def changed(self, node: int) -> None:
        """Note that a node's free resources were changed by the caller."""
        version = self._cluster.version + 1
        self._cluster = replace(self._cluster, version=version)
        self._cluster.row_version[node] = version

    def _asked(self, request: GpuRequest) -> GpuRequest:
        """The request reduced to what the policy distinguishes."""
        plain = replace(request, cpu_milli=0, memory_mib=0)
        pod = PodRequest(plain, cpu_milli=request.cpu_milli, memory_mib=request.memory_mib)
        return self._policy.weighed_request(pod) or plain

    def _book(self, node: int, request: GpuRequest, gpus: tuple[int, ...], sign: int) -> None:
        cpu, memory = request.cpu_milli, request.memory_mib
        booked = Booking(cpu_milli=cpu, memory_mib=memory)
        if gpus:
            booked = booking(self._cluster, node, request, gpus, cpu, memory)
        book(self._cluster, node, booked, sign)
        self.changed(node)


def cluster_of(nodes: Nodes, models: Sequence[GpuModel], memory_mib: Longs) -> Cluster:
    """A snapshot of the nodes that shares their arrays of free resources; `memory_mib` (M,) is by GPU model."""
    N, G = nodes.gpu_free_milli.shape
    installed = np.arange(G) < nodes.num_gpus[:, None]
    gpu_model = np.where(installed, nodes.model[:, None], -1).astype(np.int32)
    memory = np.append(memory_mib, 0).astype(np.int32)[gpu_model]
    nowhere, no_profiles = np.full((N, G), -1, np.int32), np.zeros((N, 0), np.int32)
    names = tuple(f"node-{row:05}" for row in range(N))
    return Cluster(
        version=0, row_of={name: row for row, name in enumerate(names)}, node_names=names, models=tuple(models),
        gpu_uuids=(("",) * G,) * N, gpu_at={}, mig_profiles=(), row_version=np.zeros(N, np.int64),
        tie_rank=np.arange(N, dtype=np.int32),
        unit=np.where(nodes.num_gpus > 0, GpuUnit.WHOLE, GpuUnit.NONE).astype(np.int8),
        units_per_gpu=np.ones(N, np.int32), gpu_model=gpu_model, gpu_memory_mib=memory, gpu_healthy=installed,
        gpu_numa=nowhere, gpu_link=nowhere, plugin_picks=np.zeros(N, np.bool_), slices_led=np.zeros(N, np.bool_),
        set_aside=np.zeros(N, np.int32), left_out=np.zeros(N, np.int8), vendor=np.zeros(N, np.int8),
        closed=np.zeros(N, np.bool_), withheld_units=np.zeros(N, np.int32),
        num_served=np.zeros(N, np.int32), num_unserved=np.zeros(N, np.int32), gpu_slices=np.zeros((N, G), np.int32),
        gpu_free_milli=nodes.gpu_free_milli,
        gpu_free_mib=np.where(nodes.gpu_free_milli > 0, memory, 0).astype(np.int32),
        untracked_units=np.zeros(N, np.int32), mig_installed=no_profiles, mig_free=no_profiles,
        cpu_milli=nodes.cpu_milli, memory_mib=nodes.memory_mib, cpu_free_milli=nodes.cpu_free_milli,
        memory_free_mib=nodes.memory_free_mib,
    )  # fmt: skip


def requests_of(asks: PodClasses, model_names: Sequence[str]) -> list[GpuRequest]:
    """(C,) the classes as requests."""
    requests = []
    for cpu, memory, num, milli, models in zip(*(column.tolist() for column in asks), strict=True):
        include = None
        if models != ANY_MODEL:
            names = [name for bit, name in enumerate(model_names) if models >> bit & 1]
            include = ModelPattern("|".join(names), _OneOf(frozenset(names)))
        requests.append(
            GpuRequest(
                count=num,
                unit=AskedUnit.WHOLE if num else AskedUnit.NONE,
                include=include,
                milli=milli % WHOLE_MILLI,
                cpu_milli=cpu,
                memory_mib=memory,
            )
        )
    return requests


class _OneOf:
    """A pattern that matches a set of names, in place of a regular expression."""

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def search(self, text: str, /) -> object | None:
        """Return `text` if it is one of the names."""
        return text if text in self._names else None
