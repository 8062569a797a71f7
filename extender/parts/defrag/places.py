"""The places that a plan counts on: nobody else is placed on them, by the queue or past it.

Nodes of the target, those where something arrives next, and those whose room comes only with the plan are closed: the
ledger gives nothing of them away. What is free elsewhere already is reserved in the name of the pod that is to move.
Neither ends by time: only whoever carries the plan out gives them back.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Final

from extender.core.policies.policy import Policy
from extender.core.resources.requests import GpuRequest, RequestError
from extender.kube.objects import Pod
from extender.ledger.ledger import Ledger
from extender.queueing.dispatch import Dispatcher
from extender.queueing.pods.entries import Entry
from extender.scheduling.placer import Placer, PodIdentity

_STAND_IN: Final = "defrag/"
"""Begins what nothing that the API server has made is called."""


@dataclass(eq=False)
class Places:
    """Keeps places, and gives them to those that they are kept for."""

    ledger: Ledger
    placer: Placer
    dispatcher: Dispatcher
    clock: Callable[[], float]
    _held: set[str] = field(default_factory=set, init=False)
    """UIDs of the pods for which something is reserved."""

    def close(self, nodes: Collection[str]) -> None:
        """Keep just these nodes from everybody."""
        self.ledger.rows.close(nodes)

    def hold(self, pod: Pod, node: str) -> bool:
        """Reserve what a pod that is to move needs of its next node; whether there is room for it now."""
        stand_in = replace(PodIdentity.of(pod), uid=stand_in_of(pod.metadata.uid))
        try:
            policy, asked = self._asked(pod)
        except RequestError:
            return False
        if asked is None:
            return True  # CPU is kube-scheduler's to count
        assignment = self.placer.place_on(stand_in, asked, policy, node).assignment()
        if assignment is None:
            return False
        self.ledger.reserve(stand_in.uid, node, assignment.holding, self.clock())
        self.ledger.make_firm(stand_in.uid)
        self._held.add(pod.metadata.uid)
        return True

    def asked(self, pod: Pod) -> object:
        """What a pod asks for, equal for pods that ask the same; None where that can't be read."""
        try:
            request = self.placer.read_request(pod)
        except RequestError:
            return None
        return request.gpus, request.cpu_milli, request.memory_mib

    def _asked(self, pod: Pod) -> tuple[Policy, GpuRequest | None]:
        """By which policy a pod is placed, and the GPUs that it asks for by that. Raises RequestError."""
        request = self.placer.read_request(pod)
        policy = self.placer.policy_of(request)
        return policy, policy.asked(request)

    def give_back(self, uids: Collection[str]) -> None:
        """Reserve nothing for these pods any more."""
        for uid in self._held.intersection(uids):
            self.ledger.release(stand_in_of(uid))
            self._held.discard(uid)

    def clear(self) -> None:
        """Keep nothing any more."""
        self.give_back(list(self._held))
        self.close(())

    def hand_over(self, members: Sequence[tuple[Entry, str]], instead_of: Collection[str], planner: str) -> bool:
        """Let waiting pods go for the nodes kept for them, `instead_of` pods that have left; whether there is room.

        In one piece: nobody else is decided on meanwhile.
        """
        with self.opened({node for _, node in members}):
            self.give_back(instead_of)
            return self.dispatcher.let_go(members, planner)

    def hold_for(self, pod: Pod, node: str) -> bool:
        """Reserve what a pod that was let go needs of the node kept for it, unless something is; whether it has it."""
        if (claim := self.ledger.claim(pod.metadata.uid)) is not None:
            return claim.node == node
        try:
            policy, asked = self._asked(pod)
        except RequestError:
            return False
        if asked is None:
            return True
        with self.opened({node}):
            placement = self.placer.place_on(PodIdentity.of(pod), asked, policy, node)
            self.placer.reserve(placement)
        return placement.node is not None

    def hand_to(self, pod: Pod, node: str, instead_of: str) -> bool:
        """Reserve for a pod that came past the queue the place that is kept for who replaces another one; whether it
        has it."""
        with self.opened({node}):
            self.give_back([instead_of])
            return self.hold_for(pod, node)

    @contextmanager
    def opened(self, nodes: Collection[str]) -> Iterator[None]:
        """Open some nodes for what is done without a pause."""
        closed = self.ledger.rows.closed
        self.ledger.rows.close(closed - frozenset(nodes))
        try:
            yield
        finally:
            self.ledger.rows.close(closed)


def stand_in_of(uid: str) -> str:
    """In whose name a place is reserved for what replaces a pod."""
    return _STAND_IN + uid
