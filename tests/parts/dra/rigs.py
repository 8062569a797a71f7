"""ResourceClaims as an API server has them, and a keeper that allocates them for a test's queue."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from extender.core.decisions import decide
from extender.core.evaluations import Memo
from extender.core.policies.registry import POLICIES
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.dra.objects import CLAIMS, ResourceClaim
from extender.kube.client import Transport
from extender.kube.commit import FencedError, Resolver, Term
from extender.kube.objects import Pod
from extender.kube.watches import WatchHub
from extender.parts.dra.for_queue import allocating
from extender.parts.dra.keeper import ClaimKeeper
from extender.parts.dra.reclaimer import Reclaimer
from extender.queueing.devices import AllocatorParts
from extender.queueing.pods.batches import plan_pod
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.objects import decode_pod
from extender.queueing.pods.restrictions import RestrictionKinds
from tests.dra.claim_api import ClaimApi
from tests.dra.owned_rig import OwnedRig

Manifest = dict[str, Any]


class _Fence:
    def __init__(self, api: ClaimApi) -> None:
        self._api = api
        self.others_lead = ""
        self.unsure = ""
        self.term = "first"
        self.confirmed_after: list[list[tuple[str, str]]] = []
        """The writes so far, at each confirmation."""

    def standby(self) -> str:
        return self.others_lead

    def fault(self) -> str:
        return self.others_lead or self.unsure

    def enter(self) -> str:
        if self.others_lead:
            raise FencedError(self.others_lead)
        return self.term

    def check(self, term: str) -> None:
        if term != self.term:
            raise FencedError("the term has ended")

    def as_of_now(self) -> Term:
        return _AsKnown(self)

    async def confirm(self, uid: str, version: str) -> None:
        await self.confirm_now()

    async def confirm_now(self) -> None:
        self.confirmed_after.append(list(self._api.writes))
        if self.others_lead:
            raise FencedError(self.others_lead)


class _AsKnown:
    def __init__(self, fence: _Fence) -> None:
        self._fence, self.term = fence, fence.term
        self.confirm, self.confirm_now, self.standby = fence.confirm, fence.confirm_now, fence.standby

    def check(self, epoch: str) -> None:
        self._fence.check(self.term)


class _Mirror:
    """No watches: tests put claims into the cache instead."""

    def __init__(self, hub: WatchHub, list_all: Callable[[], None]) -> None:
        self.hub = hub
        self.failing = ""
        self._list_all = list_all

    def fault(self) -> str:
        return self.failing

    async def list_devices_again(self, feed: object) -> None:
        assert feed is CLAIMS
        self._list_all()


class ClaimRig(OwnedRig):
    """A keeper of the claims on it."""

    def __init__(
        self, gpus: int = 2, node: str = "n", api: ClaimApi | None = None, transport: Transport | None = None
    ) -> None:
        """What is tested reaches `api` by `transport` if there is one."""
        super().__init__(gpus, node)
        self.api = api or ClaimApi()
        self.entries: dict[str, Entry] = {}
        self.changed: list[str] = []
        self.dirty: list[bool] = []
        self.fence = _Fence(self.api)
        hub = WatchHub(self.api, self.clock)  # type: ignore[arg-type]
        self.claims = hub.cache(CLAIMS)
        self.claims.subscribe(self.ledger.device_changed)
        self.mirror = _Mirror(hub, lambda: self.tell(*self.api.claims))
        self.resolver = Resolver(self.fence, self.clock)
        self.keeper = self.make_keeper(
            transport=transport or self.api,
            entries_of=lambda key: [entry for entry in self.entries.values() if self._names(entry, key)],
            entries=self.entries.values,
            changed=self.changed.append,
            dirty=lambda: self.dirty.append(True),
        )
        self.reclaimer = Reclaimer(self.keeper)

    def clock(self) -> float:
        return self.now

    def make_keeper(self, **parts: Any) -> ClaimKeeper:
        """A keeper whose watches have listed everything; `parts` are those that the queue gives."""
        given: dict[str, Any] = {
            "transport": self.api, "mirror": self.mirror, "ledger": self.ledger, "owned": self.owned,
            "fence": self.fence, "resolver": self.resolver, "clock": self.clock, "max_age_s": float("inf"),
        }  # fmt: skip
        keeper = ClaimKeeper(**{**given, **parts})
        for reflector in keeper.reflectors.values():
            reflector.num_lists = 1
        return keeper

    def make_allocation(self, **of_queue: Any) -> AllocatorParts:
        return allocating(self.make_keeper(**of_queue))

    def wait(self, seconds: float = 0.0) -> None:
        """Let time pass, then settle what is in doubt and reclaim what is unused."""
        self.now += seconds
        asyncio.run(self.look())

    async def look(self) -> None:
        """Settle what is in doubt and reclaim what is unused, once."""
        await self.resolver.resolve_round()
        await self.reclaimer.look()

    def tell(self, *names: str) -> None:
        """The watch reports claims as the API server has them."""
        for name in names:
            self.claims.upsert(msgspec.convert(self.api.claims[name], ResourceClaim))

    def add(self, *names: str, **exactly: Any) -> None:
        """New claims, of one device of class `gpu` unless `exactly` says otherwise; the watch has reported them."""
        for name in names:
            self.api.add(name, *([{"name": name, "exactly": {"deviceClassName": "gpu", **exactly}}] if exactly else []))
        self.tell(*names)

    def forget(self, name: str) -> None:
        """The watch reports that a claim is gone."""
        self.claims.remove(msgspec.convert(self.api.claims[name], ResourceClaim))

    def pod(self, name: str, *claims: str) -> Entry:
        """A pod of the queue that names claims, by default the one of its name."""
        named = [{"name": claim, "resourceClaimName": claim} for claim in claims or (name,)]
        manifest = {
            "metadata": {"name": name, "namespace": "default", "uid": f"p-{name}"},
            "spec": {"resourceClaims": named, "schedulingGates": [{"name": "kerf.dev/queue"}]},
        }
        self.entries[name] = Entry(decode_pod(manifest), 0.0, self.now)
        return self.entries[name]

    def planned(self, name: str, *claims: str, namespace: str = "default") -> Entry:
        """Such a pod as it enters a plan; a namespace is charged for it, though its claims are in `default`."""
        entry = self.pod(name, *claims)
        entry.planned = plan_pod(entry.pod, RestrictionKinds(), self.keeper.read(entry.pod))
        return in_namespace(entry, namespace)

    def decide(self, pod: Pod, node: str = "n") -> bool:
        """Decide on a node for a pod as a plan does, and hold the devices; whether it gets any."""
        asked = self.keeper.read(pod).asked
        assert asked is not None
        cluster = self.ledger.snapshot(self.now)
        request = GpuRequest(asked.num_devices, AskedUnit.CLAIM, devices=asked)
        decision = decide(cluster, request, POLICIES["bestfit"], np.array([cluster.row_of[node]]), Memo())
        return decision.best is not None and self.keeper.hold(pod, node, decision.allocation)

    def hold(self, name: str = "a") -> Entry:
        """A pod with a new claim of its name, for which a device is held."""
        self.add(name)
        entry = self.pod(name)
        assert self.decide(entry.pod)
        return entry

    def allocate(self, name: str = "a") -> bool:
        """Write what is held for a pod."""
        return asyncio.run(self.keeper.allocate(self.entries[name].pod))

    def allot(self, name: str = "a") -> Entry:
        """A pod whose claim, of its name, is allocated; the watch has reported that."""
        entry, lose = self.hold(name), self.api.lose
        self.api.lose = lambda name, part: self.tell(name)
        assert self.allocate(name)
        self.api.lose = lose
        return entry

    def is_allocated(self, name: str = "a") -> bool:
        return "allocation" in self.api.claims[name]["status"]

    def version(self, name: str = "a") -> str:
        return str(self.api.claims[name]["metadata"]["resourceVersion"])

    @staticmethod
    def _names(entry: Entry, key: str) -> bool:
        return key in [f"default/{item.resource_claim_name}" for item in entry.pod.spec.resource_claims or ()]


def in_namespace(entry: Entry, namespace: str) -> Entry:
    metadata = msgspec.structs.replace(entry.pod.metadata, namespace=namespace)
    entry.pod = msgspec.structs.replace(entry.pod, metadata=metadata)
    return entry
