"""ResourceClaims as an API server has them, and a keeper that allocates for a queue of a test's own."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
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
from extender.parts.dra.keeper import ClaimKeeper
from extender.parts.dra.reclaimer import Reclaimer
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.objects import decode_pod
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
        """What had been written each time."""

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


@dataclass
class _AsKnown:
    """A term as of some time."""

    fence: _Fence

    def __post_init__(self) -> None:
        self.term = self.fence.term

    async def confirm(self, uid: str, version: str) -> None:
        await self.confirm_now()

    async def confirm_now(self) -> None:
        await self.fence.confirm_now()

    def check(self, epoch: str) -> None:
        self.fence.check(self.term)

    def standby(self) -> str:
        return self.fence.standby()


class _Mirror:
    """No watches: tests tell the cache of claims what these would."""

    def __init__(self, hub: WatchHub, tell_all: Callable[[], None]) -> None:
        self.hub = hub
        self.failing = ""
        self._tell_all = tell_all

    def fault(self) -> str:
        return self.failing

    async def list_devices_again(self, feed: object) -> None:
        assert feed is CLAIMS
        self._tell_all()


class ClaimRig(OwnedRig):
    """A keeper of the claims on it."""

    def __init__(
        self, gpus: int = 2, node: str = "n", api: ClaimApi | None = None, transport: Transport | None = None
    ) -> None:
        """`transport` is by which what is tested reaches `api`; straight, unless it is said."""
        super().__init__(gpus, node)
        self.api = api or ClaimApi()
        self.entries: dict[str, Entry] = {}
        self.changed: list[str] = []
        self.dirty: list[bool] = []
        self.fence = _Fence(self.api)
        clock = lambda: self.now  # noqa: E731 - a clock
        hub = WatchHub(self.api, clock)  # type: ignore[arg-type]
        self.claims = hub.cache(CLAIMS)
        self.claims.subscribe(self.ledger.device_changed)
        self.mirror = _Mirror(hub, self.tell_all)
        self.resolver = Resolver(self.fence, clock)
        self.keeper = ClaimKeeper(
            transport or self.api,  # type: ignore[arg-type]
            self.mirror,  # type: ignore[arg-type]
            self.ledger,
            self.owned,
            self.fence,  # type: ignore[arg-type]
            self.resolver,
            clock,
            entries_of=lambda key: [entry for entry in self.entries.values() if self._names(entry, key)],
            entries=self.entries.values,
            changed=self.changed.append,
            dirty=lambda: self.dirty.append(True),
            max_age_s=float("inf"),
        )
        self.reclaimer = Reclaimer(self.keeper)
        for reflector in self.keeper.reflectors.values():
            reflector.num_lists = 1

    async def look(self) -> None:
        """One round of what finds out what is in doubt, and of what takes back."""
        await self.resolver.resolve_round()
        await self.reclaimer.look()

    def tell(self, name: str) -> None:
        """A watch tells of a claim as the API server has it."""
        self.claims.upsert(msgspec.convert(self.api.claims[name], ResourceClaim))

    def tell_all(self) -> None:
        """A list tells of all claims."""
        for name in self.api.claims:
            self.tell(name)

    def forget(self, name: str) -> None:
        """A watch tells that a claim is gone."""
        self.claims.remove(msgspec.convert(self.api.claims[name], ResourceClaim))

    def pod(self, name: str, *claims: str) -> Entry:
        """A pod of the queue that names claims; the claim of its name unless it is said."""
        named = [{"name": claim, "resourceClaimName": claim} for claim in claims or (name,)]
        manifest = {
            "metadata": {"name": name, "namespace": "default", "uid": f"p-{name}"},
            "spec": {"resourceClaims": named, "schedulingGates": [{"name": "kerf.dev/queue"}]},
        }
        self.entries[name] = Entry(decode_pod(manifest), 0.0, self.now)
        return self.entries[name]

    def decide(self, pod: Pod, node: str = "n") -> bool:
        """Decide on a node for a pod as a plan does, and hold what it gets; whether it gets anything."""
        asked = self.keeper.read(pod).asked
        assert asked is not None
        cluster = self.ledger.snapshot(self.now)
        request = GpuRequest(asked.num_devices, AskedUnit.CLAIM, devices=asked)
        decision = decide(cluster, request, POLICIES["bestfit"], cluster_rows(cluster, node), Memo())
        return decision.best is not None and self.keeper.hold(pod, node, decision.allocation)

    def allot(self, name: str) -> Entry:
        """A pod whose claim, of its name, has got its device; the watch has told of it."""
        self.api.add(name)
        self.tell(name)
        entry, lose = self.pod(name), self.api.lose
        assert self.decide(entry.pod)
        self.api.lose = lambda name, part: self.tell(name)
        assert asyncio.run(self.keeper.allocate(entry.pod))
        self.api.lose = lose
        return entry

    @staticmethod
    def _names(entry: Entry, key: str) -> bool:
        return key in [f"default/{item.resource_claim_name}" for item in entry.pod.spec.resource_claims or ()]


def cluster_rows(cluster: Any, node: str) -> Any:
    """The row of one node."""
    return np.array([cluster.row_of[node]])
