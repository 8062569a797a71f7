"""Who may not be moved, and why: what would not come back, or not where it is planned."""

from typing import Final

from extender.explain.defrag.facts import Costs
from extender.explain.defrag.movable.budgets import Budgets
from extender.explain.defrag.movable.residents import UNREADABLE
from extender.kube.objects import Pod
from extender.ledger.tenants import Demands, asks_resources_alone
from extender.planning.moves.problems import Running
from extender.queueing.defrag.checks import CROWDED, MOVABLE, why_stays

_SYSTEM_CRITICAL: Final = 2_000_000_000
"""The least of the priority classes that Kubernetes keeps for itself."""


def stays(pod: Pod, demands: Demands | None, budgets: Budgets, costs: Costs, gated_in: frozenset[str] | None) -> str:
    """Why a pod that runs may not be moved, "" where it may: by the rules of the mover, and some more.

    `demands` None: what it wants of a node can't be read. `gated_in` as of `Facts`. With the annotation MOVABLE "true"
    disks, rules about other pods and a critical priority don't hold it.
    """
    metadata, said = pod.metadata, (pod.metadata.annotations or {}).get(MOVABLE, "").strip().lower()
    if why := why_stays(pod, gated_in, costs.exempt):
        return f"it {why}"
    if pod.status.phase != "Running":
        return "it does not run yet"
    owner = metadata.controller.uid if metadata.controller is not None else ""
    if (metadata.namespace, owner) in costs.crowded:
        return f"it {CROWDED}"
    if owner in costs.resting:
        return "moves of its owner's pods came to nothing lately, and it is left alone for a while"
    if fault := budgets.fault(metadata):
        return fault
    return "" if said == "true" else _by_itself(pod, demands)


def is_left(pod: Running) -> bool:
    """Whether a pod that stays is no hindrance to a node's being emptied: it holds no GPUs, and asks for none, so that
    it is `kubectl drain`'s to evict as on any other node."""
    booked = pod.booked
    holds = booked.all_gpus or booked.slices or booked.unknown or booked.takings or booked.mig
    asks = pod.pod.gpus is not None or pod.pod.claims
    return bool(pod.stays) and pod.stays != UNREADABLE and not holds and not asks


def _by_itself(pod: Pod, demands: Demands | None) -> str:
    """Why it stays as long as nobody says that it may be moved."""
    if (pod.spec.priority or 0) >= _SYSTEM_CRITICAL:
        return "its priority class is critical to the system"
    if demands is None:
        return "what it asks of a node can't be read"
    if any("persistentVolumeClaim" in volume or "ephemeral" in volume for volume in demands.volumes or ()):
        return "its volumes may be tied to its node"
    if not asks_resources_alone(demands):
        return "it asks for more than resources (host ports, disks, or rules about other pods)"
    return ""
