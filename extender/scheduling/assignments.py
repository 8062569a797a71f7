"""Decisions about pods: the pod's identity, its assignment, the placement that explains it, and a log of placements."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Protocol, Self

import msgspec
import numpy as np

from extender import __version__
from extender.core.clusters import WHOLE_MILLI, Cluster, Rows
from extender.core.decisions import Decision
from extender.core.fit.device_fits import devices_at
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.kube import objects
from extender.plugins import kerf
from extender.plugins.holdings import NOTHING, Holding, Part

_MAX_DEVICES_NAMED: Final = 8
"""Devices named in an event. The ResourceClaims name all of them."""


@dataclass(frozen=True, slots=True)
class PodIdentity:
    """A pod, identified by its UID: names may be reused."""

    namespace: str
    name: str
    uid: str
    owner: str = ""
    """Key by which its load is predicted, from `pods.owner_of`."""
    created: str = field(default="", compare=False)
    """creationTimestamp, "" if unknown."""
    gang: str = ""
    """`namespace/name` of the PodGroup that kube-scheduler places it with, "" for none."""

    @classmethod
    def of(cls, pod: objects.Named) -> Self:
        """Return the identity of an object, without owner and gang."""
        return cls(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        """Its path on the API server."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.name}"


class Candidates(Protocol):
    """Names of candidate nodes, decoded only when needed."""

    def __contains__(self, name: object, /) -> bool: ...

    def __len__(self) -> int: ...

    @property
    def num_bytes(self) -> int:
        """Size of the encoded names."""

    @property
    def encoded(self) -> bytes:
        """The names as JSON, b"" where that has more than the candidates."""

    def decode(self) -> list[str]:
        """Return all names."""


@dataclass(frozen=True, slots=True)
class Without:
    """Candidates except for a few."""

    candidates: Candidates
    left_out: frozenset[str]

    def __contains__(self, name: object, /) -> bool:
        return name not in self.left_out and name in self.candidates

    def __len__(self) -> int:
        return max(0, len(self.candidates) - len(self.left_out))

    @property
    def num_bytes(self) -> int:
        """Size of the encoded names, those left out included."""
        return self.candidates.num_bytes

    @property
    def encoded(self) -> bytes:
        """Nothing, since those left out are in the text."""
        return b""

    def decode(self) -> list[str]:
        """Return the names that are not left out."""
        return [name for name in self.candidates.decode() if name not in self.left_out]


class Assignment(msgspec.Struct, frozen=True):
    """The node and GPUs that a placement gives a pod, as bind writes them."""

    node: str
    units: int
    gpus: tuple[int, ...]
    """GPU indices, () when the device plugin picks the GPUs."""
    uuids: tuple[str, ...]
    """UUIDs in the order of `gpus`, () when the node does not report all of them."""
    milli: int
    """Compute booked on each GPU, WHOLE_MILLI for whole GPUs."""
    mib_each: tuple[int, ...]
    """Memory booked on each shared GPU, in the order of `gpus`."""
    mig: tuple[tuple[str, int], ...]
    """MIG devices by profile."""
    models: str
    """Distinct GPU models separated by commas, "" if unknown."""
    request: str
    """The request in words."""
    policy: str
    unserved: bool
    """Whether the request is by annotation or label alone, so that no device plugin serves the container."""
    num_fit: int
    """Nodes with room, including this one."""
    num_nodes: int
    """Nodes considered."""
    devices: tuple[str, ...] = ()
    """Names of the devices that its ResourceClaims get. The claims hold them, not the pod."""

    @property
    def shared(self) -> bool:
        """Whether it gives shares of GPUs."""
        return self.milli < WHOLE_MILLI

    @property
    def holding(self) -> Holding:
        """The pod's GPUs as the ledger counts them."""
        if self.devices:
            return NOTHING
        if self.mig:
            return Holding(0, (), self.mig)
        uuids = self.uuids or ("",) * len(self.gpus)
        mib_each = self.mib_each or (0,) * len(self.gpus)
        parts = (Part(gpu, self.milli, mib, uuid) for gpu, mib, uuid in zip(self.gpus, mib_each, uuids, strict=True))
        return Holding(self.units, tuple(parts), unserved=self.unserved)

    @property
    def mib(self) -> int:
        """The most memory booked on one shared GPU."""
        return max(self.mib_each, default=0)

    @property
    def annotations(self) -> dict[str, str]:
        """The assignment as pod annotations."""
        written = {
            **({} if self.devices else {kerf.ASSIGNED_GPUS: kerf.format_gpus(self.gpus)}),
            kerf.ASSIGNED_BY: f"kerf/{__version__} {self.policy}",
            kerf.EXPLANATION: (
                f"placed: {self.request}; {self.num_fit} of {self.num_nodes} nodes had room,"
                f" this one ranks best by policy {self.policy}"
            ),
        }
        if self.devices:
            return written
        if self.uuids:
            written[kerf.ASSIGNED_UUIDS] = ",".join(self.uuids)
        if self.models:
            written[kerf.ASSIGNED_MODEL] = self.models
        if self.shared:
            written[kerf.ASSIGNED_SHARE] = str(self.milli)
            written[kerf.ASSIGNED_MEMORY] = str(self.mib)
        return written

    def __str__(self) -> str:
        """The assignment in words, for the event."""
        gpus = self.gpus
        if self.devices:
            named = ", ".join(self.devices[:_MAX_DEVICES_NAMED])
            more = len(self.devices) - _MAX_DEVICES_NAMED
            named += f" and {more} more" if more > 0 else ""
            return f"Allocated {named} on node {self.node} by policy {self.policy}"
        assigned = f"GPU{'s' if len(gpus) > 1 else ''} {kerf.format_gpus(gpus)}" if gpus else self.request
        if self.shared:
            assigned = f"{self.request}: {assigned}"
        models = f" ({self.models})" if self.models else ""
        return f"Assigned {assigned}{models} on node {self.node} by policy {self.policy}"


class Placement(msgspec.Struct, frozen=True):
    """A decision about a pod, with what is needed to explain it later."""

    pod: PodIdentity
    cluster: Cluster
    decision: Decision
    unknown: tuple[str, ...]
    """Candidate names that are not nodes known to Kerf."""
    decided_at: float
    """Unix time."""
    offered: Candidates | None = None
    """The candidates of a decision that considered the whole cluster; None when they are the decision's rows."""

    @property
    def node(self) -> str | None:
        """The best node, None when none fits."""
        return None if self.decision.best is None else self.cluster.node_names[self.decision.best]

    @property
    def counted(self) -> bool:
        """Whether kube-scheduler itself counts what is reserved; on nodes that hand out shares it does not."""
        row = self.decision.best
        return is_counted(self.decision.request) and (row is None or self.cluster.unit.item(row) != GpuUnit.PART)

    def assignment(self) -> Assignment | None:
        """Return what the best node gives, None when no node fits."""
        return assignment_of(self.cluster, self.decision)


def assignment_of(cluster: Cluster, decision: Decision) -> Assignment | None:
    """Return what the best node of a decision gives, None when no node fits."""
    row = decision.best
    if row is None:
        return None
    slots = list(decision.gpus) or [0]
    models = {cluster.models[index].name for index in cluster.gpu_model[row, slots].tolist() if index >= 0}
    known = cluster.gpu_uuids[row]
    uuids = tuple(known[gpu] for gpu in decision.gpus)
    return Assignment(
        node=cluster.node_names[row],
        units=decision.units,
        gpus=decision.gpus,
        uuids=uuids if all(uuids) else (),
        milli=decision.milli,
        mib_each=decision.mib_each,
        mig=decision.request.mig,
        models=",".join(sorted(models - {""})),
        request=str(decision.request),
        policy=decision.policy,
        unserved=decision.request.unit is AskedUnit.WHOLE,
        num_fit=int(np.count_nonzero(decision.evaluation.fits)),
        num_nodes=len(decision.rows),
        devices=_device_names(cluster, row, decision),
    )


def _device_names(cluster: Cluster, row: int, decision: Decision) -> tuple[str, ...]:
    devices = devices_at(cluster, row)
    if decision.allocation is None or devices is None:
        return ()
    given = [one for claim in decision.allocation.claims for one in claim]
    return tuple(devices.inventory.devices[one.taking.device].id.device for one in given)


def is_counted(request: GpuRequest) -> bool:
    """Whether kube-scheduler itself counts a request: it counts GPUs, time slices and devices, but not shares."""
    by_number = request.unit in (AskedUnit.GPU, AskedUnit.SHARED, AskedUnit.MIG, AskedUnit.CLAIM)
    return by_number and not request.milli and not request.shares_by_memory


def rows_of(cluster: Cluster, names: Sequence[str]) -> tuple[Rows, tuple[str, ...]]:
    """Return the distinct rows of the named nodes, and the names that are unknown."""
    unknown: tuple[str, ...] = ()
    try:
        rows = np.fromiter(map(cluster.row_of.__getitem__, names), np.intp, len(names))
    except KeyError:
        unknown = tuple(dict.fromkeys(name for name in names if name not in cluster.row_of))
        rows = np.array([cluster.row_of[name] for name in names if name in cluster.row_of], dtype=np.intp)
    return distinct(cluster, rows), unknown


def distinct(cluster: Cluster, rows: Rows) -> Rows:
    """Return the rows without repetitions, in order."""
    named = np.zeros(cluster.num_nodes, np.bool_)
    named[rows] = True
    if np.count_nonzero(named) != len(rows):
        rows = rows[np.sort(np.unique(rows, return_index=True)[1])]
    return rows


class DecisionLog:
    """The newest decisions, up to a limit."""

    def __init__(self, most: int) -> None:
        self.most = most
        """The most decisions kept."""
        self._kept: deque[Placement] = deque(maxlen=most)
        self.num_made = 0
        """Decisions added since the start."""
        self._outdated: dict[tuple[str, str], None] = {}

    def add(self, placement: Placement) -> None:
        """Add a decision."""
        self._kept.append(placement)
        self._outdated.pop((placement.pod.namespace, placement.pod.name), None)
        self.num_made += 1

    def after(self, number: int) -> list[tuple[int, Placement]]:
        """Return the kept decisions after the `number`th, oldest first, each with its number."""
        first = self.num_made - len(self._kept) + 1
        newer = islice(self._kept, max(number + 1 - first, 0), None)
        return list(enumerate(newer, max(number + 1, first)))

    def newest(self) -> dict[str, Placement]:
        """Return the newest kept decision of each pod, by UID."""
        return {kept.pod.uid: kept for kept in self._kept}

    def outdate(self, namespace: str, name: str) -> None:
        """Invalidate the last decision about a pod, whose request or UID has changed since."""
        if self.last(namespace, name) is not None:
            self._outdated[namespace, name] = None
            if len(self._outdated) > self.most:
                del self._outdated[next(iter(self._outdated))]

    def last(self, namespace: str, name: str) -> Placement | None:
        """Return the newest kept decision about a pod, None if there is none or it is outdated."""
        pod = (namespace, name)
        if pod in self._outdated:
            return None
        return next((kept for kept in reversed(self._kept) if (kept.pod.namespace, kept.pod.name) == pod), None)
