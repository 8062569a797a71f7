"""A pending pod in one sentence, and what helps it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from extender.core.fit.reasons import Kind, Remedy
from extender.core.resources.requests import GpuRequest, named
from extender.explain.sentences import remedies
from extender.explain.sentences.nearest import Nearest, who
from extender.explain.sentences.words import bounded
from extender.ledger.ledger import Claim, ClaimState
from extender.planning.wait_reasons import FOR_WANT_OF_ROOM, Cause, Code, WaitReason
from extender.plugins.pod_resources import UNMARKED

_BESIDE_ROOM = frozenset(
    {
        *(Cause.GANG, Cause.GATE, Cause.QUOTA, Cause.RESERVATION, Cause.CLAIM, Cause.REQUEST, Cause.REFUSED),
        Cause.API,
    }
)
_OF_NODES = FOR_WANT_OF_ROOM - {
    *(Code.NOT_REACHED, Code.NO_GPU_ROOM, Code.LEFT_OUT, Code.KEPT_FOR_HEAD, Code.GANG_TOO_LARGE)
}

_OF_SCHEDULER = [
    Remedy(Kind.SETTING, "see whether kube-scheduler's configuration has both entries of Kerf", "kerf install check"),
    Remedy(Kind.POD, "see whether a scheduler of its schedulerName runs"),
]


@dataclass(frozen=True, slots=True)
class Standing:
    """Who keeps a pod waiting."""

    queue: WaitReason | None = None
    """Why the queue passed it over last, None where it does not wait there or nothing was said yet."""
    queued: bool = False
    """Whether it waits in the queue."""
    scheduler: str = ""
    """What kube-scheduler said last, or which gate holds it; "" for nothing."""
    by_kerf: bool = False
    """Whether Kerf itself was asked last, and had no node for it."""
    gated: bool = False
    """Whether a scheduling gate holds it, and no queue that would take it off."""
    unattended: bool = False
    """Whether that is the queue's gate, and the queue is off."""
    unseen: bool = False
    """Whether nobody has said anything of it yet."""
    unasked: str = ""
    """What is wrong with its scheduler, which does not ask Kerf about it; "" for nothing."""
    refused: str = ""
    """The node that kube-scheduler refused it last although it had room, and why; "" for none."""
    passed: str = ""
    """Why it should have waited in the queue, which it has passed by; "" for nothing."""
    ahead: int | None = None
    """Pods that wait in the queue and come before it, None where it does not wait there."""


@dataclass(frozen=True, slots=True)
class Lacking:
    """What a pod lacks."""

    pod: str
    """`namespace/name`."""
    request: GpuRequest
    nearest: Nearest
    holders: Sequence[Mapping[str, Any]] = ()
    """Who is in the way there."""
    changes: Sequence[Mapping[str, Any]] = ()
    """Of its request, as `fixes.suggestions` tells them."""
    elsewhere: str = ""
    """A node with room that it was not offered, "" for none."""
    of_all: bool = False
    """Whether the nearest is one of all nodes, and it is not known which of them it was offered."""
    ends_in_s: float | None = None
    """When those in the way are expected to have ended."""
    makes_room: bool = True
    """Whether anybody works out which running pods could move."""
    answers_what_if: bool = True
    """Whether anybody answers what-if questions."""


_WHAT_IF: Final = "kerf what-if"


def why_pending(lacking: Lacking, standing: Standing) -> tuple[str, list[Remedy]]:
    """The sentence, and what helps, the likeliest first."""
    sentence, found = _told(lacking, standing)
    if not lacking.makes_room:
        found = [remedy for remedy in found if remedy.kind is not Kind.MOVE]
    if not lacking.answers_what_if:
        found = [replace(one, command="") if one.command.startswith(_WHAT_IF) else one for one in found]
    return bounded(f"{sentence}; it {standing.passed}" if standing.passed else sentence), found


def of_claim(claim: Claim, refused: str = "") -> str:
    """Of a pod that has no node yet, and for which GPUs are held; `refused` is what kube-scheduler refused it before,
    with its words."""
    if claim.state is ClaimState.RESERVED:
        before = f"; kube-scheduler refused it before: {refused}" if refused else ""
        return bounded(f"reserved on {named(claim.node)}, not bound yet{before}")
    return f"being bound to {named(claim.node)}"


def not_bound(node: str, decided_at: float, sentence: str) -> str:
    """Of a pod that was given a node at that Unix time and waits still, before the sentence that says why."""
    at = datetime.fromtimestamp(decided_at, UTC).strftime("%H:%M:%S")
    return bounded(f"was given {named(node)} at {at} UTC and not bound there; {sentence}")


def _told(lacking: Lacking, standing: Standing) -> tuple[str, list[Remedy]]:
    nearest, why = lacking.nearest, standing.queue
    if why is not None and (why.code.cause in _BESIDE_ROOM or why.code in _OF_NODES):
        room = f"there is room on {nearest.where}, but " if nearest.fits and why.code in _OF_NODES else ""
        found = remedies.of_queue(why)
        if why.code is Code.REFUSED:
            found = remedies.of_scheduler(str(why), lacking.pod)
        if why.code is Code.GANG_TOO_LARGE:
            found += [
                Remedy(Kind.MOVE, "see which running pods could move", f"kerf defrag --for {lacking.pod}"),
                Remedy(Kind.NODES, "see which nodes are missing", "kerf what-if --waiting --add-node auto"),
            ]
        return f"{room}{why}", found
    if standing.unattended:
        return f"{standing.scheduler}, and the queue is off: nobody takes that off", remedies.of_gate()
    if UNMARKED in standing.scheduler:  # in the words of Kerf itself, that kube-scheduler passes on
        return UNMARKED, [remedies.MARK]
    if standing.gated:
        return standing.scheduler, [Remedy(Kind.POD, "whoever set the gate has to take it off")]
    if standing.unasked:
        room = (
            f"needs {lacking.request}; there is room now on {nearest.where}, but"
            if nearest.fits
            else f"{nearest.words};"
        )
        return f"{room} {standing.unasked}", _OF_SCHEDULER
    if nearest.fits:
        return _with_room(lacking, standing)
    holds = who(nearest, list(lacking.holders))
    if lacking.request.devices is not None:
        holds = next((str(change.get("who", "")) for change in lacking.changes if change["change"] == "room"), "")
    found = _of_elsewhere(lacking) + remedies.of_room(
        lacking.pod, lacking.request, nearest, lacking.holders, lacking.changes, lacking.ends_in_s
    )
    return f"{nearest.words}{', ' if holds else ''}{holds}", found


def _with_room(lacking: Lacking, standing: Standing) -> tuple[str, list[Remedy]]:
    """Of one that would fit now."""
    needs, where = f"needs {lacking.request}", lacking.nearest.where
    if standing.queued:
        said = str(standing.queue or "")
        last = f", but the queue's last round found: {said}" if said else ", and it waits for the queue's next round"
        return f"{needs}; there is room now on {where}{last}", [Remedy(Kind.WAIT, "wait for the queue's next round")]
    if standing.scheduler and not standing.by_kerf:
        words = f"{needs}; there is room on {where}, but kube-scheduler says: {standing.scheduler}"
        return words, remedies.of_scheduler(standing.scheduler, lacking.pod)
    if standing.unseen:
        words = f"{needs}; fits on {where}, but its scheduler has not tried it yet"
        return words, [Remedy(Kind.POD, "see whether its schedulerName names a scheduler that calls Kerf")]
    if standing.by_kerf and lacking.of_all:
        words = f"{needs}; there is room on {where}: kube-scheduler has to try it again, or its own rules keep the pod"
        return f"{words} from there", [Remedy(Kind.POD, "see what it was offered", f"kerf explain {lacking.pod}")]
    last = f"; what it said last: {standing.scheduler}" if " " in standing.scheduler else ""
    words = f"{needs}; there is room now on {where}, and kube-scheduler has to try it again{last}"
    return words, [Remedy(Kind.WAIT, "wait: Kerf has kube-scheduler try it again within minutes")]


def _of_elsewhere(lacking: Lacking) -> list[Remedy]:
    """A node that would do, and that kube-scheduler's own rules keep it from."""
    if not lacking.elsewhere:
        return []
    namespace, _, name = lacking.pod.partition("/")
    rules = "its node selector, affinity, tolerations, CPU or memory keep it from there"
    command = f"kubectl describe pod {name} -n {namespace}"
    return [Remedy(Kind.POD, f"{named(lacking.elsewhere)} has room, but was not offered: {rules}", command)]
