"""Who holds which GPU: pods that are bound, bindings under way, and short reservations.

One writer (the event loop) applies what the watch tells and what decisions reserve.

What a bound pod holds is what it was first known to hold: what this process wrote with the Binding, else what the watch
told first. Authors may edit their pods' annotations later; that changes nothing here.

Static pods whose mirror was deleted: their containers run on, so what they hold is kept until a new mirror tells.

A kubelet makes a deleted mirror again at once, and by its next look at its pods at the latest: `syncFrequency`, a
minute unless set. While it is not at work it makes none, and its containers may run on all the same.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from extender.core.clusters import WHOLE_MILLI, Cluster
from extender.core.resources.nodes import MEMORY_TOLERANCE_FRAC, NodeReading
from extender.core.resources.requests import PodRequest
from extender.dra.pod_claims import Hold
from extender.dra.uses import DeviceUse
from extender.kube import objects
from extender.ledger.arrays import ClusterArrays
from extender.ledger.bookings import Bookings
from extender.ledger.claims import Claim, ClaimState
from extender.ledger.rows import NodeRows, NodeState
from extender.plugins.kerf import told_given
from extender.plugins.pod_resources import read_compute, while_resized
from extender.plugins.pods import Reading, completed, read_holdings, read_pod_request, read_policy
from extender.plugins.protocol import Stock

MIRROR: Final = "kubernetes.io/config.mirror"
"""Annotation that a kubelet gives to the mirror of a static pod."""

_WITHIN_S: Final = 150.0
"""In which a kubelet at work has made a mirror again: the look every minute, and what two lost calls take. A kubelet
that has died is known to be not ready after 50 s of it."""


@dataclass(slots=True)
class _Orphan:
    node: str
    pod: str
    since: float | None = None
    """When it was first seen to be missing while its kubelet was at work."""


class _Orphans:
    """What is kept though its mirror is gone. Not thread-safe."""

    def __init__(self) -> None:
        self._mirrors: set[str] = set()
        self._orphans: dict[str, _Orphan] = {}
        self._idle: set[str] = set()  # nodes whose kubelet is not at work

    def note(self, uid: str) -> None:
        """A pod is the mirror of a static one."""
        self._mirrors.add(uid)

    def is_mirror(self, uid: str) -> bool:
        """Whether a pod is the mirror of a static one, and there."""
        return uid in self._mirrors and uid not in self._orphans

    def adopt(self, uid: str, node: str, pod: str) -> bool:
        """A pod is gone. Whether it is kept, as the mirror of a static one."""
        if uid not in self._mirrors:
            return False
        self._orphans.setdefault(uid, _Orphan(node, pod))
        return True

    def of(self, node: str, pod: str) -> list[str]:
        """The mirrors of a pod that were deleted."""
        return [uid for uid, item in self._orphans.items() if (item.node, item.pod) == (node, pod)]

    def set_ready(self, node: str, *, ready: bool) -> None:
        """Whether a node's kubelet is at work."""
        (self._idle.discard if ready else self._idle.add)(node)

    def expired(self, now: float) -> list[str]:
        """Those that no mirror has come back for."""
        found = []
        for uid, orphan in self._orphans.items():
            if orphan.node in self._idle:
                orphan.since = None
            elif orphan.since is None:
                orphan.since = now
            elif orphan.since + _WITHIN_S <= now:
                found.append(uid)
        return found

    def forget(self, uid: str) -> None:
        """A pod holds nothing any more."""
        self._mirrors.discard(uid)
        self._orphans.pop(uid, None)


__all__ = ["Claim", "ClaimState", "Ledger", "NodeState"]


class Ledger(Bookings):
    """The cluster as Kerf knows it. Not thread-safe; every method returns at once."""

    def __init__(
        self,
        *,
        reservation_ttl_s: float,
        memory_tolerance_frac: float = MEMORY_TOLERANCE_FRAC,
        model_aliases: Mapping[str, Iterable[str]] | None = None,
        allocates: bool = False,
        extender: bool = True,
    ) -> None:
        """All but the time as of `NodeReading`."""
        reading = NodeReading(memory_tolerance_frac, model_aliases or {}, allocates, extender)
        super().__init__(reading, reservation_ttl_s)
        self._edited: dict[str, Reading] = {}  # by pod: what it says instead, and in vain
        self._orphans = _Orphans()
        self.num_unreadable = 0
        """Pods and nodes, at each change, of which something could not be read or believed: it counts as held."""
        self.num_edits_ignored = 0
        """Edits of bound pods that would have changed what they hold."""
        self.num_left: Counter[str] = Counter()
        """Pods that have ended or gone, by the node that they were on."""

    def heed_notes(self) -> None:
        """Nodes that Kerf has noted as set aside take no new pods from now on: before the first node is told of."""
        self.rows.heed_notes()

    # Reading

    def snapshot(self, now: float) -> Cluster:
        """The cluster at this moment, reservations past their TTL left out."""
        self._expire(now)
        return self.rows.arrays.snapshot()

    def claims_on(self, node: str) -> list[Claim]:
        """What is held on a node."""
        return [claim for claim in self._claims.on(node) if claim.holding]

    def num_claims(self, state: ClaimState) -> int:
        """How many claims are in a state."""
        return sum(claim.state is state for claim in self._claims)

    def without(self, node: str, uids: Collection[str], now: float) -> Cluster | None:
        """A node alone, as it would be if these pods were gone; None when it is not known."""
        self._expire(now)
        return self.rows.without(node, uids)

    def apart(self, now: float) -> NodeRows:
        """The nodes and what is held of them now, without who holds it: for a look at them in another process."""
        self._expire(now)
        return self.rows.apart()

    def firm(self) -> list[Claim]:
        """Reservations that are written on their pods."""
        return [claim for claim in self._claims if claim.firm and claim.state is ClaimState.RESERVED]

    def mistaken(self) -> list[Claim]:
        """Bound pods that say they have other GPUs than they were given."""
        return [claim for claims in self.rows.mistaken.values() for claim in claims]

    def num_claimed(self) -> Mapping[str, int]:
        """How many devices ResourceClaims hold, by their namespace."""
        return sum((Counter(stock.num_allocated) for stock in self.rows.stocks), Counter())

    def held_by_namespace(self) -> dict[str, float]:
        """GPUs that pods hold, by namespace; a share is its part of one."""
        found: dict[str, float] = {}
        for claim in self._claims:
            namespace, _, name = claim.pod.partition("/")
            if name:
                parts, units = claim.holding.parts, claim.holding.units
                gpus = sum(part.milli for part in parts) / WHOLE_MILLI if parts else units
                found[namespace] = found.get(namespace, 0.0) + gpus
        return found

    @property
    def arrays(self) -> ClusterArrays:
        """The arrays that snapshots are taken of, for observations to be written into."""
        return self.rows.arrays

    def read_request(self, pod: objects.Pod) -> PodRequest:
        """What a pod asks for. Raises RequestError with a sentence for its author."""
        request = read_pod_request(pod)
        if request.gpus is not None or not pod.spec.resource_claims:
            return request
        asked = (stock.request_of(pod) for stock in self.rows.stocks)
        gpus = next((found for found in asked if found is not None), None)
        return completed(replace(request, gpus=gpus, policy=read_policy(pod)), pod)

    # What the watch tells

    def upsert_node(self, node: objects.Node) -> tuple[str, ...]:
        """A node was added or changed. Returns warnings about values that can't be understood."""
        name = node.metadata.name
        self._orphans.set_ready(name, ready=node.ready)
        given, faults = told_given(node.metadata.annotations or {})
        given_anew = self.rows.given.set(name, given, self._claims.uids(name), faults)
        offers_anew = self.rows.upsert(node)
        if not (given_anew or offers_anew):
            return ()  # most events are heartbeats
        if offers_anew:
            for claim in list(self._claims.on(name)):
                if claim.state is ClaimState.RESERVED and not claim.firm:
                    self._end(claim.uid)  # decided on what the node offered before
        self.rows.write(name)
        warnings = (*self.rows.offer_of(name).warnings, *faults, *self.rows.doubts(name))
        self.num_unreadable += bool(warnings)
        return warnings

    def remove_node(self, name: str) -> None:
        """A node is gone. Claims on it stay, in case it comes back."""
        self.rows.remove(name)
        self.num_left.pop(name, None)
        self._orphans.set_ready(name, ready=True)

    def device_changed(self, old: objects.Named | None, new: objects.Named | None) -> None:
        """An object by which a device plugin tells of its devices was added, has changed or is gone."""
        if new is not None:
            self.upsert_device(new)
        elif old is not None:
            self.remove_device(type(old), old.metadata.uid)

    def upsert_device(self, item: objects.Named) -> None:
        """One was added or changed."""
        self._restock(self._stock_of(type(item)).upsert(item))

    def remove_device(self, kind: type, uid: str) -> None:
        """One is gone."""
        self._restock(self._stock_of(kind).remove(kind, uid))

    def upsert_pod(self, pod: objects.Pod, now: float) -> tuple[str, ...]:
        """A pod was added or changed, whoever scheduled it. Returns warnings about values that can't be understood, and
        about edits that change nothing."""
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
        if uid in self._told:
            return () if self._is_correction(uid, reading) else self._warn_of_edit(uid, reading)
        known = self._claims.get(uid)
        if known is None or known.node != node or known.state is ClaimState.RESERVED:
            self._claims.drop(uid)
            known = Claim(
                uid, node, reading.on(self.rows.plugin_on(node)), ClaimState.BOUND, now, pod.key, told=reading
            )
            if reading:
                self._add(known)
        else:
            self._confirm(known, pod, reading, now)
        self._told[uid] = known.told or reading
        if MIRROR in (pod.metadata.annotations or ()):
            self._orphans.note(uid)
            self._drop_orphans(node, pod.key)
        self.num_unreadable += bool(fault)
        return (fault,) if fault else ()

    def remove_pod(self, uid: str) -> None:
        """A pod is gone, and what it held is free; not that of a static pod, which its kubelet runs on."""
        claim = self._claims.get(uid)
        if claim is None or not self._orphans.adopt(uid, claim.node, claim.pod):
            self._forget(uid)
        else:
            self._drop_orphans(claim.node, claim.pod)  # a list has told of the new mirror first
        self._seen_pods.discard(uid)

    def keep_pods(self, listed: set[str], list_began: float) -> None:
        """Pods that a complete list, begun at that time, does not name are gone."""
        self.rows.given.starting = False
        for uid in self._seen_pods - listed:
            self.remove_pod(uid)
        for claim in self._claims:
            # Bound by Kerf before the list began and never seen: it came and went between two watches.
            if claim.state is ClaimState.BOUND and claim.uid not in listed and claim.since < list_began:
                self.remove_pod(claim.uid)

    # Devices of ResourceClaims

    def hold_devices(self, claim: str, hold: Hold) -> None:
        """Hold devices for a claim, by its UID, from before they are written on it."""
        if self.rows.owned is not None:
            self._restock(self.rows.owned.hold(claim, hold))

    def let_go_devices(self, claim: str) -> None:
        """The claim says itself what it has, or will never have what was held for it."""
        if self.rows.owned is not None:
            self._restock(self.rows.owned.let_go(claim))

    def forget_orphan(self, claim: str) -> None:
        """The pods of a claim that is gone are gone, too."""
        if self.rows.owned is not None:
            self._restock(self.rows.owned.forget_orphan(claim))

    def device_uses(self, node: str) -> list[DeviceUse]:
        """Who has which devices of a node by ResourceClaims."""
        return [] if self.rows.pools is None else self.rows.pools.uses_on(node)

    def is_bound(self, uid: str) -> bool:
        """Whether a pod has a node, and has not ended."""
        return uid in self._seen_pods and uid in self._told

    def _stock_of(self, kind: type) -> Stock:
        return next(stock for stock in self.rows.stocks if any(feed.kind is kind for feed in stock.feeds))

    def _restock(self, nodes: Iterable[str]) -> None:
        """Something of these nodes' devices has changed."""
        for name in nodes:
            node = self.rows.manifest(name)
            if node is not None:
                self.upsert_node(node)
                self.rows.write(name)

    def _is_correction(self, uid: str, reading: Reading) -> bool:
        """Whether a pod that said something else now says what it was given, whoever wrote that; then it counts. Or
        what it was assigned anew."""
        claim = self._claims.get(uid)
        if claim is None:
            return False
        said = reading.on(self.rows.plugin_on(claim.node))
        if claim.anew and said == claim.decided and reading != claim.told:
            self._told[uid] = claim.told = reading
            return True
        if not claim.mistaken:
            return False
        if (said.units, sorted(said.gpus)) != (claim.units, sorted(claim.gpus)):
            return False
        self._told[uid] = claim.told = reading
        claim.holding, claim.decided, claim.disputed = said, None, False
        self.rows.write(claim.node)
        return True

    def _warn_of_edit(self, uid: str, reading: Reading) -> tuple[str, ...]:
        """What is told when a bound pod says something else than it did; once for each edit."""
        if reading == self._told[uid]:
            self._edited.pop(uid, None)
        elif reading != self._edited.get(uid):
            self._edited[uid] = reading
            self.num_edits_ignored += 1
            return ("what it holds was edited after it was bound: ignored",)
        return ()

    def _drop_orphans(self, node: str, pod: str) -> None:
        """Where a static pod's mirror is back, the one before it holds nothing beside it, if this one says the same.

        What says less may be anybody's, for whoever may create pods may write that one is a mirror.
        """
        back = self._claims.uids(node).get(pod, "")
        if self._orphans.is_mirror(back):
            for uid in self._orphans.of(node, pod):
                if self._told.get(uid) == self._told[back]:
                    self._forget(uid)

    def _expire(self, now: float) -> None:
        super()._expire(now)
        for uid in self._orphans.expired(now):
            self._forget(uid)

    def _forget(self, uid: str) -> None:
        """A pod holds nothing any more, and will not come back."""
        for facts in (self._told, self._edited):
            facts.pop(uid, None)
        self._orphans.forget(uid)
        self._claims.drop(uid)
        if node := self.rows.request(uid, "", 0, 0):
            self.num_left[node] += 1
