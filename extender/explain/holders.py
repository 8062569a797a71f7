"""Holders of GPUs: bound pods, by number, with their namespace and owner.

Names and owner references are untrusted: they are cut to a maximum length and only displayed.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final, NamedTuple

import numpy as np

from extender.core.clusters import Mask
from extender.core.dra.devices import DeviceId
from extender.core.resources.nodes import OF_CLAIMS
from extender.core.texts import printable
from extender.core.vendors.registry import DRIVERS, VENDORS
from extender.dra.uses import DeviceUse
from extender.kube import objects
from extender.kube.watches import BOUND_PODS, NODES, WatchHub
from extender.ledger.allocations import AllocationState
from extender.ledger.ledger import Ledger
from extender.plugins.holdings import Holding, Part

_HASH_LABELS: Final = {"pod-template-hash": "Deployment", "rollouts-pod-template-hash": "Rollout"}
"""Labels with the suffix of a ReplicaSet's name, and the kind of the ReplicaSet's controller."""
_OF_CRON_JOB: Final = re.compile(r"-(?:2[6-9]|3[0-9])[0-9]{6}$")
"""Suffix of Job names created by a CronJob (Kubernetes' cronjob_controllerv2.go, `getJobName`): the minute of the run
since 1970, for the years 2019 to 2046. Few dates written by people match."""
_COUNTED: Final = re.compile("-[0-9]+$")
_OF_SEVERAL: Final = {
    "jobset.sigs.k8s.io/jobset-name": "JobSet",
    "leaderworkerset.sigs.k8s.io/name": "LeaderWorkerSet",
    "ray.io/cluster": "RayCluster",
    "workflows.argoproj.io/workflow": "Workflow",
}
"""Pod labels of controllers that create other controllers, and their kinds."""
_MAX_CHARS: Final = 128
_OF_GPUS: Final = tuple(
    label
    for vendor in VENDORS
    for label in (
        vendor.product_label,
        vendor.count_label,
        *((vendor.partitions.strategy_label, vendor.partitions.resource_prefix) if vendor.partitions else ()),
    )
    if label
)
_OWN_TAINTS: Final = "node.kubernetes.io/"
"""Prefix of Kubernetes' own taints: nodes that are not ready, unreachable or under pressure."""
_REPELLING: Final = ("NoSchedule", "NoExecute")
_FIRST_LOOK: Final = 1000


class Closed(Enum):
    """Whether Kubernetes keeps new pods off a node."""

    NOT = auto()
    CORDONED = auto()
    """Marked unschedulable."""
    OUT_OF_USE = auto()
    """Not ready, unreachable or under pressure."""


class Ownership(NamedTuple):
    """The namespace and owner of a holder."""

    namespace: str
    owner: str
    """`Kind/name` of its topmost controller."""


@dataclass(slots=True)
class Holder:
    """A pod, or a ResourceClaim without a known pod."""

    number: int
    key: str
    """UID of the pod, or `namespace/name` of the claim."""
    name: str
    """`namespace/name`."""
    ownership: Ownership
    node: str = ""


def ownership_of(metadata: objects.Metadata) -> Ownership:
    """The namespace and owner of a pod: a JobSet and the like by label, the Deployment or Rollout of a ReplicaSet, else
    the pod's controller, without the suffix that a CronJob adds to its Jobs. A pod without a controller is its own
    owner; bare pods named train-1 and train-2 count as one."""
    labels = metadata.labels or {}
    for label, kind in _OF_SEVERAL.items():
        if name := labels.get(label):
            return _named(metadata.namespace, kind, name)
    controller = metadata.controller
    if controller is None:
        return _named(metadata.namespace, "Pod", _COUNTED.sub("", metadata.name))
    kind, name = controller.kind, controller.name
    if kind == "ReplicaSet":
        for label, keeper in _HASH_LABELS.items():
            if (suffix := labels.get(label)) and name.endswith(f"-{suffix}"):
                return _named(metadata.namespace, keeper, name.removesuffix(f"-{suffix}"))
    if kind == "Job":
        name = _OF_CRON_JOB.sub("", name)
    return _named(metadata.namespace, kind, name)


def _closed(node: objects.Node) -> Closed:
    if node.spec.unschedulable:
        return Closed.CORDONED
    repel = (taint for taint in node.spec.taints or () if taint.effect in _REPELLING)
    return Closed.OUT_OF_USE if any(taint.key.startswith(_OWN_TAINTS) for taint in repel) else Closed.NOT


def _named(namespace: str, kind: str, name: str) -> Ownership:
    # Interned since all pods of an owner share it. API servers accept any text as an owner's name.
    owner = printable(f"{kind}/{name}"[:_MAX_CHARS])[:_MAX_CHARS]
    return Ownership(sys.intern(namespace[:_MAX_CHARS]), sys.intern(owner))


class Holders:
    """Holders by number. Numbers are reused after a holder is gone. Not thread-safe."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self.changed = ledger.rows.written
        """Nodes whose holders may have changed since they were read."""
        self._closed: dict[str, Closed] = {}  # by node
        self._labels: dict[str, list[tuple[str, str]]] = {}
        """Labels about GPUs, by node; the ledger does not keep all that they say about MIG devices."""
        self._who: dict[str, tuple[str, Ownership]] = {}  # name and owner of bound pods, by UID
        self._uid_of: dict[str, str] = {}  # by `namespace/name`
        self._by_key: dict[str, Holder] = {}  # by UID, or a claim's name
        self._by_number: list[Holder | None] = []
        self._given = bytearray()  # whether a number is in use
        self._on: dict[str, set[int]] = {}  # numbers, by node
        self._free: list[int] = []
        self._most = _FIRST_LOOK
        self.fresh: list[int] = []
        """Numbers assigned since the consumer last cleared this."""

    @property
    def num_numbers(self) -> int:
        """Count of numbers assigned so far, free ones included."""
        return len(self._by_number)

    def given(self) -> Mask:
        """(U,) whether each number is in use."""
        return np.frombuffer(bytes(self._given), np.bool_)

    def all(self) -> list[Holder | None]:
        """(U,) holders by number."""
        return list(self._by_number)

    def at(self, number: int) -> Holder | None:
        """The holder with a number."""
        return self._by_number[number]

    # Watch events

    def subscribe(self, hub: WatchHub) -> None:
        """Subscribe to nodes and bound pods; must come after the ledger."""
        hub.cache(NODES).subscribe(self.node_changed)
        hub.group(BOUND_PODS).subscribe(self.pod_changed)

    def node_changed(self, old: objects.Node | None, node: objects.Node | None) -> None:
        """A node was added or changed; the ledger reports its capacity and its removal."""
        if node is None:
            return
        name, why = node.metadata.name, _closed(node)
        if self._closed.get(name, Closed.NOT) is not why:
            self._closed[name] = why
            self.changed.add(name)
        labels = [item for item in (node.metadata.labels or {}).items() if item[0].startswith(_OF_GPUS)]
        if self._labels.get(name, []) != labels:
            self._labels[name] = labels
            self.changed.add(name)

    def closed(self, node: str) -> "Closed":
        """Whether a node takes no new pods, and why."""
        return self._closed.get(node, Closed.NOT)

    def forget_node(self, node: str) -> None:
        """Forget a node that is gone."""
        self._closed.pop(node, None)
        self._labels.pop(node, None)

    def pod_changed(self, old: objects.Pod | None, pod: objects.Pod | None) -> None:
        """A bound pod was added or changed; the ledger reports what pods release."""
        if pod is None:
            return
        uid = pod.metadata.uid
        holds = self._ledger.allocation(uid) is not None or pod.spec.resource_claims
        if holds and uid not in self._who:
            if len(self._who) >= self._most:
                self.forget_gone()
                self._most = 2 * len(self._who) + _FIRST_LOOK
            self._who[uid] = pod.key, ownership_of(pod.metadata)
            self._uid_of[pod.key] = uid
            self.changed.add(pod.spec.node_name or "")

    # Nodes

    def on(self, node: str) -> Iterator[tuple[int, Holding]]:
        """Holders of a node's GPUs. Once exhausted, it forgets former holders."""
        before, found = self._on.pop(node, set()), set[int]()
        for key, name, who, holding in self._held_on(node):
            holder = self._by_key.get(key) or self._add(key, name, who)
            holder.node = node
            found.add(holder.number)
            yield holder.number, holding
        if found:
            self._on[node] = found
        for number in before - found:
            self._drop(number, node)

    def forget_gone(self) -> None:
        """Forget pods that the ledger has forgotten."""
        ledger = self._ledger  # a static pod whose mirror pod is gone still holds its GPUs
        for uid in [uid for uid in self._who if not ledger.is_bound(uid) and ledger.allocation(uid) is None]:
            name, _ = self._who.pop(uid)
            if self._uid_of.get(name) == uid:
                del self._uid_of[name]

    def _held_on(self, node: str) -> Iterator[tuple[str, str, Ownership, Holding]]:
        for claim in self._ledger.rows.holders(node):
            if claim.state is not AllocationState.RESERVED and claim.uid in self._who:
                yield claim.uid, *self._who[claim.uid], claim.held
        uses = self._ledger.device_uses(node) if self._ledger.rows.offer_of(node).unit in OF_CLAIMS else ()
        for use in uses:
            if (part := self._part_of(node, use)) is not None:
                holding = Holding(1, (part,) if part.gpu >= 0 else ())
                uids = [uid for pod in use.pods if (uid := self._uid_of.get(pod))]
                if uids:
                    yield uids[0], *self._who[uids[0]], holding
                else:
                    namespace, _, name = use.claim.partition("/")
                    yield use.claim, use.claim, _named(namespace, "ResourceClaim", name), holding

    def _part_of(self, node: str, use: DeviceUse) -> Part | None:
        """The part of a GPU that a device is, None if it is none."""
        owned = self._ledger.rows.owned
        inventory = None if owned is None else owned.inventory_on(node)
        device_id = DeviceId(use.driver, use.pool, use.device)
        index = None if inventory is None else inventory.index_of.get(device_id)
        if use.admin:
            return None  # admin access holds nothing
        if inventory is not None and index is not None:
            device = inventory.devices[index]
            return Part(device.gpu, device.milli, device.mib) if device.gpu >= 0 else None
        return Part(use.gpu) if use.driver in DRIVERS else None

    def _add(self, key: str, name: str, who: Ownership) -> Holder:
        number = self._free.pop() if self._free else len(self._by_number)
        holder = Holder(number, key, name, who)
        if number == len(self._by_number):
            self._by_number.append(None)
            self._given.append(True)
        self._given[number] = True
        self._by_number[number] = self._by_key[key] = holder
        self.fresh.append(number)
        return holder

    def _drop(self, number: int, node: str) -> None:
        holder = self._by_number[number]
        if holder is not None and holder.node == node:  # else it has moved to another node
            self._by_number[number] = None
            self._given[number] = False
            del self._by_key[holder.key]
            self._free.append(number)
