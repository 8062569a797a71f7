"""Gathers a what-if question's input, and has it answered in a separate process (see `processes`)."""

import asyncio
import pickle
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from weakref import WeakKeyDictionary

import msgspec

from extender.core.clusters import Cluster
from extender.core.dra.devices import Inventory, NodeDevices
from extender.core.policies.policy import Policy
from extender.dra.objects import ResourceClaim
from extender.explain.processes import QuestionQueue, whole
from extender.explain.stranded import Stranding
from extender.kube.client import Transport
from extender.kube.transport import NODES_PATH, PODS_PATH
from extender.kube.watches import PENDING_PODS
from extender.ledger.ledger import Ledger
from extender.ledger.mirror import Mirror
from extender.parts.what_if.claims import DeviceFacts, PackedDevices, pack
from extender.parts.what_if.inputs import WhatIfInputs
from extender.parts.what_if.questions import Needs
from extender.parts.what_if.waiting import PendingState

_PENDING: Final = {"fieldSelector": PENDING_PODS.field_selector}

_needs_decoder: Final = msgspec.json.Decoder(Needs)


@dataclass(eq=False)
class WhatIfAnswers:
    """Answers what-if questions."""

    transport: Transport
    ledger: Ledger
    mirror: Mirror
    clock: Callable[[], float]
    policy: str
    """Default policy."""
    policies: Callable[[], Mapping[str, Policy]] = dict
    """The configured policies, for another process."""
    turns: QuestionQueue = field(default_factory=QuestionQueue)
    waiting: Callable[[], PendingState] = PendingState
    """The queue's state of the pending pods."""
    stranding: Callable[[], Stranding | None] = lambda: None
    """Computes stranded GPUs; None if this process does not count them."""
    _inventories: WeakKeyDictionary[Inventory, bytes] = field(default_factory=WeakKeyDictionary, init=False)
    """Pickled inventories, cached as they are large and change seldom."""

    async def answer(self, body: bytes) -> bytes:
        """Where the pods would go, as JSON. Raises QuestionError, BusyError, ClusterError."""
        async with self.turns.process("extender.parts.what_if.process") as talk:
            needs = _needs_decoder.decode(await talk.ask(body))
            facts = await self._facts(needs)
            return await talk.ask(pickle.dumps(facts, pickle.HIGHEST_PROTOCOL))

    async def _facts(self, needs: Needs) -> WhatIfInputs:
        nodes = await whole(self.transport, NODES_PATH)
        known = self.ledger.snapshot(self.clock()).row_of
        drained = [name for name in needs.drain if name in known]
        on = {name: {"fieldSelector": f"spec.nodeName={name}"} for name in drained}
        pods_on = {name: await whole(self.transport, PODS_PATH, query) for name, query in on.items()}
        pending = await whole(self.transport, PODS_PATH, _PENDING) if needs.waiting else None
        crowd = await self.mirror.bound_pods.index.packed(labels=needs.rules)
        # No await from here on, so that all state is of one moment.
        cluster = self.ledger.snapshot(self.clock())
        num_pods = {name: len(self.mirror.bound_pods.on(name)) for name in cluster.row_of}
        # Without the other functions of a policy, which can't be pickled.
        policies = {
            name: replace(policy, apart=None, terms=None, breakdown=None) for name, policy in self.policies().items()
        }
        ledger = self.ledger.without_holders(self.clock()) if needs.adds else None
        waiting = self.waiting() if needs.waiting else PendingState()
        named = dict.fromkeys((*needs.claims, *waiting.claims))
        devices, claims = self._claims(named, drained, cluster)
        device_facts = await self._devices(devices, claims) if devices else None
        stranding = self.stranding()
        return WhatIfInputs(
            nodes=nodes,
            pods_on=pods_on,
            cluster=replace(cluster, devices=None),
            ledger=ledger,
            num_pods=num_pods,
            default_policy=self.policy,
            policies=policies,
            devices=device_facts,
            pending=pending,
            waiting=waiting,
            max_s=self.turns.max_s,
            crowd=tuple(crowd),
            ignored=self.mirror.bound_pods.index.ignored,
            stranding=None if stranding is None else stranding.packed(),
        )

    def _claims(
        self, names: Collection[str], drained: list[str], cluster: Cluster
    ) -> tuple[dict[str, NodeDevices], dict[str, ResourceClaim]]:
        """The devices by node and the claims by key; both empty if no pod names a claim."""
        owned = self.ledger.rows.owned
        if owned is None or cluster.devices is None:
            return {}, {}
        named = [claim for key in names if (claim := owned.claim_at(key)) is not None]
        moving = [claim for node in drained for claim in owned.claims_on(node)]
        if not names and not moving:
            return {}, {}
        devices = {name: cluster.devices[row] for name, row in cluster.row_of.items()}
        found = {name: one for name, one in devices.items() if one is not None}
        return found, {claim.key: claim for claim in (*named, *moving)}

    async def _devices(self, devices: Mapping[str, NodeDevices], claims: Mapping[str, ResourceClaim]) -> DeviceFacts:
        """Pack devices and claims, which are immutable, yielding to the event loop between inventories."""
        packed: dict[str, PackedDevices] = {}
        for name, one in devices.items():
            inventory = self._inventories.get(one.inventory)
            if inventory is None:
                inventory = self._inventories[one.inventory] = pickle.dumps(one.inventory, pickle.HIGHEST_PROTOCOL)
                await asyncio.sleep(0)
            packed[name] = pack(one, inventory)
        owned = self.ledger.rows.owned
        return DeviceFacts(packed, dict(claims), dict(owned.classes) if owned is not None else {})
