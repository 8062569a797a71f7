"""Who has the GPUs of a node: pods, unknown processes, faults, and what its device plugin keeps back."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from extender.core.clusters import Cluster, Mask
from extender.core.dra.explained.free_room import WHOLE
from extender.core.occupancies import ObservedRules, faulty, unmanaged_mib
from extender.dra.uses import HELD, DeviceUse
from extender.ledger.ledger import Claim, ClaimState

_MAX_NAMES: Final = 4


@dataclass(frozen=True, slots=True)
class Unbooked:
    """GPUs of a node that nobody may have, though no pod holds them."""

    used: int
    """In use by unknown processes."""
    faulty: int
    """Healthy to their plugin, while their samples tell of a fault."""
    unhealthy: int


def unbooked(cluster: Cluster, row: int, rules: ObservedRules | None) -> Unbooked:
    """What of a node's GPUs is kept from everybody by what is seen of them, as the policy's rules count it."""
    node = np.array([row])
    installed: Mask = cluster.gpu_model[row] >= 0
    unhealthy = int((installed & ~cluster.gpu_healthy[row]).sum())
    if rules is None:
        return Unbooked(0, 0, unhealthy)
    idle: Mask = cluster.gpu_idle[row]
    broken = idle & faulty(cluster, node, rules)[0] & rules.excludes_faulty
    used = idle & (unmanaged_mib(cluster, node, rules)[0] > 0) & ~broken & rules.counts_memory
    # As many as pods hold on GPUs of unknown index may be theirs.
    num_used = max(int(used.sum()) - int(cluster.untracked_units[row]), 0)
    return Unbooked(num_used, int(broken.sum()), unhealthy)


def holders(claims: Iterable[Claim]) -> list[dict[str, Any]]:
    """What pods hold, those of the first GPUs first."""
    held = (
        {
            "pod": claim.pod or None,
            "units": claim.units,
            "gpus": list(claim.gpus),
            "state": claim.state.name,
            "shared": any(not part.whole for part in claim.holding.parts),
        }
        for claim in claims
    )
    return sorted(held, key=lambda entry: (entry["gpus"], entry["pod"] or ""))


def users(uses: Iterable[DeviceUse]) -> list[dict[str, Any]]:
    """What ResourceClaims have, claim by claim, in the same form: GPUs and parts of them in the name of a pod that may
    use them. What only looks holds nothing."""
    by_claim: dict[str, list[DeviceUse]] = {}
    for use in uses:
        if not use.admin:
            by_claim.setdefault(use.claim, []).append(use)
    return [
        {
            "pod": next((pod for use in used for pod in use.pods), None),
            "units": len({use.gpu for use in used if use.gpu >= 0}) or len(used),
            "gpus": sorted({use.gpu for use in used if use.gpu >= 0}),
            "state": (ClaimState.RESERVED if used[0].state == HELD else ClaimState.BOUND).name,
            "shared": any(use.kind not in ("", WHOLE) for use in used),
            "claim": claim,
            "devices": [use.device for use in used],
        }
        for claim, used in by_claim.items()
    ]


def words(held: list[dict[str, Any]], rest: Unbooked) -> str:
    """Who has how much, in one sentence; "" where nobody has anything."""
    parts = [_holder(holder) for holder in held[:_MAX_NAMES]]
    if others := held[_MAX_NAMES:]:
        units = _gpus(sum(holder["units"] for holder in others))
        parts.append(f"{len(others)} more pod{'s hold' if len(others) > 1 else ' holds'} {units}")
    counts = (
        (rest.used, "in use by unknown processes"),
        (rest.faulty, "faulty according to its samples" if rest.faulty == 1 else "faulty according to their samples"),
        (rest.unhealthy, "unhealthy"),
    )
    parts += [f"{_gpus(count)} {'is' if count == 1 else 'are'} {what}" for count, what in counts if count]
    return ", ".join(parts)


def _holder(holder: dict[str, Any]) -> str:
    what = f"{'part of ' if holder['shared'] else ''}{_gpus(holder['units'])}" if holder["units"] else "MIG devices"
    if claim := holder.get("claim"):
        what = f"{', '.join(holder['devices'][:_MAX_NAMES])}{', ...' if len(holder['devices']) > _MAX_NAMES else ''}"
        state = "is being given" if holder["state"] == ClaimState.RESERVED.name else "has"
        return f"claim {claim}{' of ' + holder['pod'] if holder['pod'] else ''} {state} {what}"
    if holder["state"] == ClaimState.BOUND.name:
        return f"{holder['pod'] or 'a pod'} holds {what}"
    return (
        f"{what} {'is' if holder['units'] == 1 else 'are'} reserved for {holder['pod'] or 'a pod that is being placed'}"
    )


def _gpus(count: int) -> str:
    return f"{count} GPU{'' if count == 1 else 's'}"
