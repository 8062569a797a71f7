"""What-if questions, answered beside the loop: in a process of its own, one at a time, for so long and no longer.

Whoever may read may ask, and a question may be as large as a body. The loop, which filter and the lease wait for,
hands bytes on and decodes nothing of it.
"""

import asyncio
import pickle
import sys
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Final
from weakref import WeakKeyDictionary

import msgspec

from extender.children import Child
from extender.core.clusters import Cluster
from extender.core.dra.devices import Inventory, NodeDevices
from extender.core.policies.policy import Policy
from extender.dra.objects import ResourceClaim
from extender.explain.what_if.claims import DeviceFacts, PackedDevices, pack
from extender.explain.what_if.grounds import Facts
from extender.explain.what_if.process import FAULT, LENGTH_BYTES
from extender.explain.what_if.questions import Needs, WhatIfError
from extender.explain.what_if.waiting import Waiting
from extender.kube.client import ClusterError, Query, Transport
from extender.kube.paths import NODES_PATH, PODS_PATH
from extender.kube.watches.feeds import PENDING_PODS
from extender.kube.watches.lists import Lister
from extender.ledger.ledger import Ledger
from extender.ledger.mirror import Mirror

_MAX_WAITING: Final = 4
_PENDING: Final = {"fieldSelector": PENDING_PODS.field_selector}

_needs_decoder: Final = msgspec.json.Decoder(Needs)


class BusyError(Exception):
    """No answer now; says why."""


@dataclass(eq=False)
class WhatIfAnswers:
    """Answers what-if questions."""

    transport: Transport
    ledger: Ledger
    mirror: Mirror
    clock: Callable[[], float]
    policy: str
    """The default one."""
    policies: Callable[[], Mapping[str, Policy]] = dict
    """The configured ones, for use elsewhere."""
    max_s: float = 60.0
    """The time for an answer."""
    waiting: Callable[[], Waiting] = Waiting
    """What the queue knows of the pods that wait."""
    _busy: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)
    _num_waiting: int = field(default=0, init=False)
    _inventories: WeakKeyDictionary[Inventory, bytes] = field(default_factory=WeakKeyDictionary, init=False)
    """Pickled: they are large, and change seldom."""

    async def answer(self, body: bytes) -> bytes:
        """Where the pods would go, as JSON. Raises WhatIfError, BusyError, ClusterError."""
        if self._num_waiting >= _MAX_WAITING:
            raise BusyError(f"{_MAX_WAITING} what-if requests are waiting already; try again later")
        self._num_waiting += 1
        try:
            async with self._busy, asyncio.timeout(self.max_s):
                return await self._answer(body)
        except TimeoutError:
            raise BusyError(f"no answer within {self.max_s:g} s (setting access.what_if_s)") from None
        finally:
            self._num_waiting -= 1

    async def _answer(self, body: bytes) -> bytes:
        child = await Child.start(sys.executable, "-m", "extender.explain.what_if.process")
        try:
            needs = _needs_decoder.decode(await _exchange(child, body))
            facts = await self._facts(needs)
            return await _exchange(child, pickle.dumps(facts, pickle.HIGHEST_PROTOCOL))
        except (OSError, EOFError) as error:
            raise BusyError("the what-if request used too much memory, or its process was ended") from error
        finally:
            await child.end()

    async def _facts(self, needs: Needs) -> Facts:
        nodes = await self._list(NODES_PATH, {})
        known = self.ledger.snapshot(self.clock()).row_of
        drained = [name for name in needs.drain if name in known]
        pods_on = {name: await self._list(PODS_PATH, {"fieldSelector": f"spec.nodeName={name}"}) for name in drained}
        pending = await self._list(PODS_PATH, _PENDING) if needs.waiting else None
        # What follows sees one moment: no await in between.
        cluster = self.ledger.snapshot(self.clock())
        num_pods = {name: len(self.mirror.tenants.on(name)) for name in cluster.row_of}
        # Only what ranks nodes: the rest are functions, which can't be sent.
        policies = {name: replace(policy, apart=None, terms=None) for name, policy in self.policies().items()}
        ledger = self.ledger.apart(self.clock()) if needs.adds else None
        waiting = self.waiting() if needs.waiting else Waiting()
        named = dict.fromkeys((*needs.claims, *waiting.claims))
        devices, claims = self._claims(named, drained, cluster)
        told = await self._devices(devices, claims) if devices else None
        return Facts(
            *(nodes, pods_on, replace(cluster, devices=None), ledger, num_pods, self.policy, policies, told),
            *(pending, waiting, self.max_s),
        )

    def _claims(
        self, names: Collection[str], drained: list[str], cluster: Cluster
    ) -> tuple[dict[str, NodeDevices], dict[str, ResourceClaim]]:
        """The devices of all nodes and the claims that matter; nothing where no pod names a claim."""
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
        """What does not change any more, node by node: others have their turn in between."""
        packed: dict[str, PackedDevices] = {}
        for name, one in devices.items():
            inventory = self._inventories.get(one.inventory)
            if inventory is None:
                inventory = self._inventories[one.inventory] = pickle.dumps(one.inventory, pickle.HIGHEST_PROTOCOL)
                await asyncio.sleep(0)
            packed[name] = pack(one, inventory)
        owned = self.ledger.rows.owned
        return DeviceFacts(packed, dict(claims), dict(owned.classes) if owned is not None else {})

    async def _list(self, path: str, query: Query) -> bytes:
        """A list of the API server, its objects as they come. Raises ClusterError."""
        try:
            found = await Lister(self.transport, path, msgspec.Raw, query).all()
        except msgspec.DecodeError as error:
            raise ClusterError(f"{path} can't be read: {error}") from None
        return b'{"items":[%b]}' % b",".join(map(bytes, found.items))


async def _exchange(child: Child, content: bytes) -> bytes:
    """Send something to the process, and take what it answers. Raises WhatIfError, OSError, EOFError."""
    child.writer.write(len(content).to_bytes(LENGTH_BYTES, "big") + content)
    await child.writer.drain()
    reply = await child.reader.readexactly(int.from_bytes(await child.reader.readexactly(LENGTH_BYTES), "big"))
    if reply.startswith(FAULT):
        raise WhatIfError(reply[1:].decode(errors="replace"))
    return reply[1:]
