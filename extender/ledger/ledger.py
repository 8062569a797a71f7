"""The ledger: which pod holds which GPUs, by bound pods, Bindings under way and short reservations.

One writer, the event loop, applies watch events and decisions.

A bound pod holds what it was first known to hold: what this process wrote with the Binding, else what the watch
reported first. Later edits of its annotations change nothing here.

The containers of a static pod keep running when its mirror pod is deleted, so its GPUs stay held until a new mirror
appears. A kubelet recreates a deleted mirror by its next sync (`syncFrequency`, a minute by default), but not while it
is down, when the containers may still run.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from msgspec import structs

from extender.core.clusters import WHOLE_MILLI, Cluster
from extender.core.resources.nodes import MEMORY_TOLERANCE_FRAC, NodeReading
from extender.core.resources.requests import PodRequest
from extender.dra.pod_claims import Hold
from extender.dra.uses import DeviceUse
from extender.kube import objects
from extender.ledger.allocations import AllocationState, PodAllocation
from extender.ledger.arrays import ClusterArrays
from extender.ledger.bookings import Bookings
from extender.ledger.rows import NodeRows, NodeState
from extender.plugins.kerf import read_given_gpus
from extender.plugins.pod_resources import read_compute, while_resized
from extender.plugins.pods import Holdings, completed, read_holdings, read_pod_request, read_policy
from extender.plugins.protocol import Stock

MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation that a kubelet sets on the mirror of a static pod."""

_WITHIN_S: Final = 150.0
"""Time in which a running kubelet has recreated a mirror: one sync and two lost calls. A dead kubelet's node is not
ready after 50 s."""


@dataclass(slots=True)
class _Orphan:
    node: str
    pod: str
    since: float | None = None
    """Monotonic time at which it was first seen to be missing while its kubelet was ready."""


class _Orphans:
    """Static pods whose GPUs stay held although their mirrors are gone. Not thread-safe."""

    def __init__(self) -> None:
        self._mirrors: set[str] = set()
        self._orphans: dict[str, _Orphan] = {}
        self._not_ready: set[str] = set()  # nodes

    def note(self, uid: str) -> None:
        """Note that a pod is a mirror of a static pod."""
        self._mirrors.add(uid)

    def is_mirror(self, uid: str) -> bool:
        """Whether a pod is an existing mirror of a static pod."""
        return uid in self._mirrors and uid not in self._orphans

    def adopt(self, uid: str, node: str, pod: str) -> bool:
        """Note that a pod is gone; return whether it was a mirror, so that its GPUs stay held."""
        if uid not in self._mirrors:
            return False
        self._orphans.setdefault(uid, _Orphan(node, pod))
        return True

    def of(self, node: str, pod: str) -> list[str]:
        """Return the UIDs of a pod's deleted mirrors."""
        return [uid for uid, item in self._orphans.items() if (item.node, item.pod) == (node, pod)]

    def set_ready(self, node: str, *, ready: bool) -> None:
        """Note whether a node's kubelet is ready."""
        (self._not_ready.discard if ready else self._not_ready.add)(node)

    def expired(self, now: float) -> list[str]:
        """Return the orphans whose ready kubelets have not recreated the mirror in time."""
        expired = []
        for uid, orphan in self._orphans.items():
            if orphan.node in self._not_ready:
                orphan.since = None
            elif orphan.since is None:
                orphan.since = now
            elif orphan.since + _WITHIN_S <= now:
                expired.append(uid)
        return expired

    def forget(self, uid: str) -> None:
        """Forget a pod that holds nothing any more."""
        self._mirrors.discard(uid)
        self._orphans.pop(uid, None)


__all__ = ["AllocationState", "Ledger", "NodeState", "PodAllocation"]


class Ledger(Bookings):
    """The cluster as Kerf knows it. Not thread-safe; no method blocks."""

    def __init__(
        self,
        *,
        reservation_ttl_s: float,
        memory_tolerance_frac: float = MEMORY_TOLERANCE_FRAC,
        model_aliases: Mapping[str, Iterable[str]] | None = None,
        allocates: bool = False,
        extender: bool = True,
    ) -> None:
        """All but the TTL as in `NodeReading`."""
        reading = NodeReading(memory_tolerance_frac, model_aliases or {}, allocates, extender)
        super().__init__(reading, reservation_ttl_s)
        self._edited: dict[str, Holdings] = {}  # by pod: the ignored edit
        self._orphans = _Orphans()
        self.num_unreadable = 0
        """Changes of pods and nodes with unreadable or implausible values, which count as held."""
        self.num_edits_ignored = 0
        """Edits of bound pods that would have changed what they hold."""
        self.num_left: Counter[str] = Counter()
        """Pods that have ended or gone, by node."""

    def enable_quarantine(self) -> None:
        """Keep new pods off quarantined nodes from now on. To be called before the first node arrives."""
        self.rows.enable_quarantine()

    # Reading

    def snapshot(self, now: float) -> Cluster:
        """Return the current cluster, after expiring reservations."""
        self._expire(now)
        return self.rows.arrays.snapshot()

    def allocations_on(self, node: str) -> list[PodAllocation]:
        """Return the allocations on a node."""
        return [allocation for allocation in self._allocations.on(node) if allocation.holding]

    def num_allocations(self, state: AllocationState) -> int:
        """Return the number of allocations in a state."""
        return sum(allocation.state is state for allocation in self._allocations)

    def without(self, node: str, uids: Collection[str], now: float) -> Cluster | None:
        """Return the cluster of a node alone without these pods, None if the node is unknown."""
        self._expire(now)
        return self.rows.without(node, uids)

    def without_holders(self, now: float) -> NodeRows:
        """Return the current rows without their holders, for another process."""
        self._expire(now)
        return self.rows.without_holders()

    def pinned(self) -> list[PodAllocation]:
        """Return the pinned reservations."""
        return [held for held in self._allocations if held.pinned and held.state is AllocationState.RESERVED]

    def mistaken(self) -> list[PodAllocation]:
        """Return the allocations of bound pods whose annotations name other GPUs than they were given."""
        return [allocation for allocations in self.rows.mistaken.values() for allocation in allocations]

    def num_claim_devices(self) -> Mapping[str, int]:
        """Return the number of devices that ResourceClaims hold, by namespace."""
        return sum((Counter(stock.num_allocated) for stock in self.rows.stocks), Counter())

    def held_by_namespace(self) -> dict[str, float]:
        """Return the GPUs that pods hold, by namespace; a share counts as its fraction of a GPU."""
        held: dict[str, float] = {}
        for allocation in self._allocations:
            namespace, _, name = allocation.pod.partition("/")
            if name:
                parts, units = allocation.holding.parts, allocation.holding.units
                gpus = sum(part.milli for part in parts) / WHOLE_MILLI if parts else units
                held[namespace] = held.get(namespace, 0.0) + gpus
        return held

    @property
    def arrays(self) -> ClusterArrays:
        """The arrays that snapshots are taken from and observations are written to."""
        return self.rows.arrays

    def read_request(self, pod: objects.Pod) -> PodRequest:
        """Return a pod's request. Raises RequestError with a sentence for its author."""
        request = read_pod_request(pod)
        if request.gpus is not None or not pod.spec.resource_claims:
            return request
        requests = (stock.request_of(pod) for stock in self.rows.stocks)
        gpus = next((gpus for gpus in requests if gpus is not None), None)
        return completed(structs.replace(request, gpus=gpus, policy=read_policy(pod)), pod)

    # Watch events

    def upsert_node(self, node: objects.Node) -> tuple[str, ...]:
        """Add or update a node; return warnings about values that can't be parsed."""
        name = node.metadata.name
        self._orphans.set_ready(name, ready=node.ready)
        given, faults = read_given_gpus(node.metadata.annotations or {})
        given_changed = self.rows.given.set(name, given, self._allocations.uids(name), faults)
        offer_changed = self.rows.upsert(node)
        if not (given_changed or offer_changed):
            return ()  # most events are heartbeats
        if offer_changed:
            for allocation in list(self._allocations.on(name)):
                if allocation.state is AllocationState.RESERVED and not allocation.pinned:
                    self._end(allocation.uid)  # decided on the node's previous offer
        self.rows.write(name)
        warnings = (*self.rows.offer_of(name).warnings, *faults, *self.rows.doubts(name))
        self.num_unreadable += bool(warnings)
        return warnings

    def remove_node(self, name: str) -> None:
        """Remove a node. Its allocations stay, in case it comes back."""
        self.rows.remove(name)
        self.num_left.pop(name, None)
        self._orphans.set_ready(name, ready=True)

    def device_changed(self, old: objects.Named | None, new: objects.Named | None) -> None:
        """Handle a change of an object in which a device plugin reports its devices."""
        if new is not None:
            self.upsert_device(new)
        elif old is not None:
            self.remove_device(type(old), old.metadata.uid)

    def upsert_device(self, item: objects.Named) -> None:
        """Add or update such an object."""
        self._restock(self._stock_of(type(item)).upsert(item))

    def remove_device(self, kind: type, uid: str) -> None:
        """Remove such an object."""
        self._restock(self._stock_of(kind).remove(kind, uid))

    def upsert_pod(self, pod: objects.Pod, now: float) -> tuple[str, ...]:
        """Add or update a pod; return warnings about values that can't be parsed, and about ignored edits."""
        uid = pod.metadata.uid
        self._seen_pods.add(uid)
        if pod.finished:
            self._forget(uid)
            return ()
        node = pod.spec.node_name
        if not node:
            return ()
        self.rows.request(uid, node, *read_compute(while_resized(pod)))
        reading, fault = read_holdings(pod)
        if uid in self._first_readings:
            return () if self._apply_correction(uid, reading) else self._warn_of_edit(uid, reading)
        known = self._allocations.get(uid)
        if known is None or known.node != node or known.state is AllocationState.RESERVED:
            self._allocations.drop(uid)
            known = PodAllocation(
                uid, node, reading.on(self.rows.plugin_on(node)), AllocationState.BOUND, now, pod.key, annotated=reading
            )
            if reading:
                self._add(known)
        else:
            self._confirm(known, pod, reading, now)
        self._first_readings[uid] = known.annotated or reading
        if MIRROR in (pod.metadata.annotations or ()):
            self._orphans.note(uid)
            self._drop_orphans(node, pod.key)
        self.num_unreadable += bool(fault)
        return (fault,) if fault else ()

    def remove_pod(self, uid: str) -> None:
        """Remove a pod and release what it holds, unless it is the mirror of a static pod."""
        allocation = self._allocations.get(uid)
        if allocation is None or not self._orphans.adopt(uid, allocation.node, allocation.pod):
            self._forget(uid)
        else:
            self._drop_orphans(allocation.node, allocation.pod)  # a list may report the new mirror first
        self._seen_pods.discard(uid)

    def keep_pods(self, listed: set[str], list_began: float) -> None:
        """Remove the pods that are not in a complete list, begun at that monotonic time."""
        self.rows.given.starting = False
        for uid in self._seen_pods - listed:
            self.remove_pod(uid)
        for held in self._allocations:
            # Bound by Kerf before the list began and never seen: it ended between two watches.
            if held.state is AllocationState.BOUND and held.uid not in listed and held.since < list_began:
                self.remove_pod(held.uid)

    # Devices of ResourceClaims

    def hold_devices(self, claim: str, hold: Hold) -> None:
        """Hold devices for a ResourceClaim, by its UID, before they are written on it."""
        if self.rows.owned is not None:
            self._restock(self.rows.owned.hold(claim, hold))

    def release_devices(self, claim: str) -> None:
        """Release what is held for a ResourceClaim that has its allocation written, or never will."""
        if self.rows.owned is not None:
            self._restock(self.rows.owned.release_hold(claim))

    def forget_orphan(self, claim: str) -> None:
        """Forget a deleted ResourceClaim whose pods are gone, too."""
        if self.rows.owned is not None:
            self._restock(self.rows.owned.forget_orphan(claim))

    def device_uses(self, node: str) -> list[DeviceUse]:
        """Return which ResourceClaims use which devices of a node."""
        return [] if self.rows.pools is None else self.rows.pools.uses_on(node)

    def is_bound(self, uid: str) -> bool:
        """Whether a pod has a node and has not ended."""
        return uid in self._seen_pods and uid in self._first_readings

    def _stock_of(self, kind: type) -> Stock:
        return next(stock for stock in self.rows.stocks if any(feed.kind is kind for feed in stock.feeds))

    def _restock(self, nodes: Iterable[str]) -> None:
        """Update nodes whose devices have changed."""
        for name in nodes:
            node = self.rows.manifest(name)
            if node is not None:
                self.upsert_node(node)
                self.rows.write(name)

    def _apply_correction(self, uid: str, reading: Holdings) -> bool:
        """Apply an edit that corrects the annotations to the GPUs given or reassigned; return whether it is one."""
        allocation = self._allocations.get(uid)
        if allocation is None:
            return False
        written = reading.on(self.rows.plugin_on(allocation.node))
        if allocation.reassigned and written == allocation.decided and reading != allocation.annotated:
            self._first_readings[uid] = allocation.annotated = reading
            return True
        if not allocation.mistaken:
            return False
        if (written.units, sorted(written.gpus)) != (allocation.units, sorted(allocation.gpus)):
            return False
        self._first_readings[uid] = allocation.annotated = reading
        allocation.holding, allocation.decided, allocation.disputed = written, None, False
        self.rows.write(allocation.node)
        return True

    def _warn_of_edit(self, uid: str, reading: Holdings) -> tuple[str, ...]:
        """Return a warning for an ignored edit of a bound pod's GPUs, once for each edit."""
        if reading == self._first_readings[uid]:
            self._edited.pop(uid, None)
        elif reading != self._edited.get(uid):
            self._edited[uid] = reading
            self.num_edits_ignored += 1
            return ("its assignment was edited after it was bound: ignored",)
        return ()

    def _drop_orphans(self, node: str, pod: str) -> None:
        """Release the orphans of a static pod whose new mirror claims the same GPUs.

        A mirror that claims less is not trusted: anyone who may create pods can set the mirror annotation.
        """
        mirror = self._allocations.uids(node).get(pod, "")
        if self._orphans.is_mirror(mirror):
            for uid in self._orphans.of(node, pod):
                if self._first_readings.get(uid) == self._first_readings[mirror]:
                    self._forget(uid)

    def _expire(self, now: float) -> None:
        super()._expire(now)
        for uid in self._orphans.expired(now):
            self._forget(uid)

    def _forget(self, uid: str) -> None:
        """Release what a pod holds; it will not come back."""
        for readings in (self._first_readings, self._edited):
            readings.pop(uid, None)
        self._orphans.forget(uid)
        self._allocations.drop(uid)
        if node := self.rows.request(uid, "", 0, 0):
            self.num_left[node] += 1
