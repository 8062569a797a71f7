"""Keeps the places of a plan from all other pods, queued or not.

Closed in the ledger are the target's nodes, nodes where pods arrive next, and nodes whose room only the plan frees.
Room that is free already is reserved for the pod to be moved. Neither expires: only the mover releases them.
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
"""Prefix that no UID of the API server has."""


@dataclass(eq=False)
class Places:
    """Keeps places, and hands them over to their pods."""

    ledger: Ledger
    placer: Placer
    dispatcher: Dispatcher
    clock: Callable[[], float]
    _held: set[str] = field(default_factory=set, init=False)
    """UIDs of the moved pods whose new places are reserved."""

    def close(self, nodes: Collection[str]) -> None:
        """Close exactly these nodes to all pods."""
        self.ledger.rows.close(nodes)

    def hold(self, pod: Pod, node: str) -> bool:
        """Reserve room for a pod to be moved on its new node; returns whether there is room now."""
        stand_in = replace(PodIdentity.of(pod), uid=stand_in_of(pod.metadata.uid))
        try:
            policy, request = self._gpu_request(pod)
        except RequestError:
            return False
        if request is None:
            return True  # kube-scheduler counts CPU
        assignment = self.placer.place_on(stand_in, request, policy, node).assignment()
        if assignment is None:
            return False
        self.ledger.reserve(stand_in.uid, node, assignment.holding, self.clock())
        self.ledger.pin(stand_in.uid)
        self._held.add(pod.metadata.uid)
        return True

    def request_key(self, pod: Pod) -> object:
        """A key that is equal for pods with equal requests; None if the request can't be read."""
        try:
            request = self.placer.read_request(pod)
        except RequestError:
            return None
        return request.gpus, request.cpu_milli, request.memory_mib

    def _gpu_request(self, pod: Pod) -> tuple[Policy, GpuRequest | None]:
        """A pod's policy and its GPU request under it. Raises RequestError."""
        request = self.placer.read_request(pod)
        policy = self.placer.policy_of(request)
        return policy, policy.weighed_request(request)

    def give_back(self, uids: Collection[str]) -> None:
        """Release the reservations for these moved pods."""
        for uid in self._held.intersection(uids):
            self.ledger.release(stand_in_of(uid))
            self._held.discard(uid)

    def clear(self) -> None:
        """Release all reservations and open all nodes."""
        self.give_back(list(self._held))
        self.close(())

    def hand_over(self, members: Sequence[tuple[Entry, str]], instead_of: Collection[str], planner: str) -> bool:
        """Release waiting pods to their kept nodes, in place of pods that have left; returns whether there is room.

        Atomic: no other decision is made meanwhile.
        """
        with self.opened({node for _, node in members}):
            self.give_back(instead_of)
            return self.dispatcher.let_go(members, planner)

    def hold_for(self, pod: Pod, node: str) -> bool:
        """Reserve a released pod's room on its kept node, unless it has a reservation; returns whether it is there."""
        if (allocation := self.ledger.allocation(pod.metadata.uid)) is not None:
            return allocation.node == node
        try:
            policy, request = self._gpu_request(pod)
        except RequestError:
            return False
        if request is None:
            return True
        with self.opened({node}):
            placement = self.placer.place_on(PodIdentity.of(pod), request, policy, node)
            self.placer.reserve(placement)
        return placement.node is not None

    def hand_to(self, pod: Pod, node: str, instead_of: str) -> bool:
        """Give a replacement that came outside the queue the place kept for the replaced pod; returns whether it has
        it."""
        with self.opened({node}):
            self.give_back([instead_of])
            return self.hold_for(pod, node)

    @contextmanager
    def opened(self, nodes: Collection[str]) -> Iterator[None]:
        """Open nodes during a block without await."""
        closed = self.ledger.rows.closed
        self.ledger.rows.close(closed - frozenset(nodes))
        try:
            yield
        finally:
            self.ledger.rows.close(closed)


def stand_in_of(uid: str) -> str:
    """The UID under which the place of a pod's replacement is reserved."""
    return _STAND_IN + uid
