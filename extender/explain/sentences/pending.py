"""Why a pod is pending, in one sentence, and what would help."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from extender.core.fit.reasons import Kind, Remedy
from extender.core.resources.requests import GpuRequest, named
from extender.explain.sentences import remedies
from extender.explain.sentences.nearest import Nearest, describe_holders
from extender.explain.sentences.words import bounded
from extender.ledger.ledger import AllocationState, PodAllocation
from extender.planning.wait_reasons import ROOM_CODES, Cause, Code, WaitReason
from extender.plugins.pod_resources import UNMARKED

_BESIDE_ROOM = frozenset(
    {
        *(Cause.GANG, Cause.GATE, Cause.QUOTA, Cause.RESERVATION, Cause.CLAIM, Cause.REQUEST, Cause.REFUSED),
        Cause.API,
    }
)
_OF_NODES = ROOM_CODES - {*(Code.NOT_REACHED, Code.NO_GPU_ROOM, Code.LEFT_OUT, Code.KEPT_FOR_HEAD, Code.GANG_TOO_LARGE)}

_OF_SCHEDULER = [
    Remedy(Kind.SETTING, "check that kube-scheduler's configuration has both of Kerf's entries", "kerf install check"),
    Remedy(Kind.POD, "check that the scheduler in its schedulerName is running"),
]


@dataclass(frozen=True, slots=True)
class Standing:
    """What keeps a pod waiting."""

    queue: WaitReason | None = None
    """Why the queue skipped it last; None if it is not queued or was not considered yet."""
    queued: bool = False
    """Whether it waits in the queue."""
    scheduler: str = ""
    """kube-scheduler's last message, or the gate that holds the pod; "" for none."""
    by_kerf: bool = False
    """Whether Kerf was called for it last and found no node."""
    gated: bool = False
    """Whether a scheduling gate holds it that no queue will remove."""
    unattended: bool = False
    """Whether that is the queue's gate while the queue is off."""
    unseen: bool = False
    """Whether no scheduler has tried it yet."""
    unasked: str = ""
    """Why its scheduler does not call Kerf; "" if it does."""
    refused: str = ""
    """The node with room that kube-scheduler last refused for it, and why; "" for none."""
    passed: str = ""
    """Why it should have waited in the queue that it has bypassed; "" if it has not."""
    ahead: int | None = None
    """Queued pods before it; None if it is not queued."""


@dataclass(frozen=True, slots=True)
class Lacking:
    """What a pod lacks."""

    pod: str
    """`namespace/name`."""
    request: GpuRequest
    nearest: Nearest
    holders: Sequence[Mapping[str, Any]] = ()
    """Pods in the way there."""
    changes: Sequence[Mapping[str, Any]] = ()
    """Changes that would make it fit, from `fixes.suggestions`."""
    elsewhere: str = ""
    """A node with room that it was not offered, "" for none."""
    of_all: bool = False
    """Whether all nodes were compared because the offered ones are unknown."""
    ends_in_s: float | None = None
    """Expected seconds until all holders have ended."""
    makes_room: bool = True
    """Whether plans for moving running pods are available."""
    answers_what_if: bool = True
    """Whether what-if questions are answered."""


_WHAT_IF: Final = "kerf what-if"


def why_pending(lacking: Lacking, standing: Standing) -> tuple[str, list[Remedy]]:
    """The sentence and the remedies, the likeliest first."""
    sentence, found = _why(lacking, standing)
    if not lacking.makes_room:
        found = [remedy for remedy in found if remedy.kind is not Kind.MOVE]
    if not lacking.answers_what_if:
        found = [replace(one, command="") if one.command.startswith(_WHAT_IF) else one for one in found]
    return bounded(f"{sentence}; it {standing.passed}" if standing.passed else sentence), found


def of_claim(claim: PodAllocation, refused: str = "") -> str:
    """The sentence of a pod that holds GPUs but is not bound yet.

    `refused` is the node that kube-scheduler refused before, with its message.
    """
    if claim.state is AllocationState.RESERVED:
        before = f"; kube-scheduler refused it before: {refused}" if refused else ""
        return bounded(f"reserved on {named(claim.node)}, not bound yet{before}")
    return f"being bound to {named(claim.node)}"


def not_bound(node: str, decided_at: float, sentence: str) -> str:
    """The sentence of a pod that was assigned a node at a Unix time but is still pending, followed by `sentence`."""
    at = datetime.fromtimestamp(decided_at, UTC).strftime("%H:%M:%S")
    return bounded(f"was given {named(node)} at {at} UTC but not bound there; {sentence}")


def _why(lacking: Lacking, standing: Standing) -> tuple[str, list[Remedy]]:
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
        return f"{standing.scheduler}, but the queue is off, so nothing removes that gate", remedies.of_gate()
    if UNMARKED in standing.scheduler:  # Kerf's message, passed on by kube-scheduler
        return UNMARKED, [remedies.MARK]
    if standing.gated:
        return standing.scheduler, [Remedy(Kind.POD, "remove the gate, or have its controller remove it")]
    if standing.unasked:
        room = (
            f"needs {lacking.request}; there is room now on {nearest.where}, but"
            if nearest.fits
            else f"{nearest.words};"
        )
        return f"{room} {standing.unasked}", _OF_SCHEDULER
    if nearest.fits:
        return _with_room(lacking, standing)
    holds = describe_holders(nearest, list(lacking.holders))
    if lacking.request.devices is not None:
        holds = next((str(change.get("who", "")) for change in lacking.changes if change["change"] == "room"), "")
    found = _of_elsewhere(lacking) + remedies.of_room(
        lacking.pod, lacking.request, nearest, lacking.holders, lacking.changes, lacking.ends_in_s
    )
    return f"{nearest.words}{', ' if holds else ''}{holds}", found


def _with_room(lacking: Lacking, standing: Standing) -> tuple[str, list[Remedy]]:
    """The sentence and remedies of a pod that would fit now."""
    needs, where = f"needs {lacking.request}", lacking.nearest.where
    if standing.queued:
        said = str(standing.queue or "")
        last = f", but the queue's last round found: {said}" if said else "; it waits for the queue's next round"
        return f"{needs}; there is room now on {where}{last}", [Remedy(Kind.WAIT, "wait for the queue's next round")]
    if standing.scheduler and not standing.by_kerf:
        words = f"{needs}; there is room on {where}, but kube-scheduler says: {standing.scheduler}"
        return words, remedies.of_scheduler(standing.scheduler, lacking.pod)
    if standing.unseen:
        words = f"{needs}; fits on {where}, but its scheduler has not tried it yet"
        return words, [Remedy(Kind.POD, "check that its schedulerName names a scheduler that calls Kerf")]
    if standing.by_kerf and lacking.of_all:
        words = f"{needs}; there is room on {where}: kube-scheduler has not retried it yet, or does not allow it there"
        return words, [Remedy(Kind.POD, "see which nodes it was offered", f"kerf explain {lacking.pod}")]
    last = f"; its last message: {standing.scheduler}" if " " in standing.scheduler else ""
    words = f"{needs}; there is room now on {where}; kube-scheduler has not retried it yet{last}"
    return words, [Remedy(Kind.WAIT, "wait: Kerf makes kube-scheduler retry it within minutes")]


def _of_elsewhere(lacking: Lacking) -> list[Remedy]:
    """The remedy for a node that has room but that kube-scheduler's own rules exclude."""
    if not lacking.elsewhere:
        return []
    namespace, _, name = lacking.pod.partition("/")
    rules = "its node selector, affinity, tolerations, CPU or memory keep it from there"
    command = f"kubectl describe pod {name} -n {namespace}"
    return [Remedy(Kind.POD, f"{named(lacking.elsewhere)} has room, but was not offered: {rules}", command)]
