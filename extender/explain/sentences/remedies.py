"""What helps a pod that waits: remedies in a sentence each, with the command that does it or tells more."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from extender.core.annotations import MARKER
from extender.core.fit.checks import TABLE
from extender.core.fit.reasons import Kind, Remedy
from extender.core.resources.requests import GpuRequest, named
from extender.explain import answers
from extender.explain.sentences.nearest import Nearest
from extender.explain.sentences.words import bounded, listed
from extender.ledger.ledger import ClaimState
from extender.planning.wait_reasons import Code, WaitReason

_MAX_RELAXED: Final = 2
_MAX_NODES: Final = 3


def to_json(remedy: Remedy) -> answers.Remedy:
    """A remedy as it is answered."""
    return {"kind": remedy.kind.value, "text": bounded(remedy.text), "command": remedy.command or None}


CORRECT: Final = Remedy(Kind.POD, "correct its request, in the template of its pods where it has one")
MARK: Final = Remedy(Kind.POD, f'add the limit {MARKER}: "1" to one of its containers')

_OF_QUEUE: Final = {
    Code.GANG_INCOMPLETE: ((Kind.POD, "create the missing pods of gang {gang}"),),
    Code.GANG_WITHOUT_GROUP: ((Kind.POD, "create the PodGroup of gang {gang}, with minMember or minCount"),),
    Code.OTHER_GATE: ((Kind.POD, "whoever set scheduling gate {gates} has to take it off"),),
    Code.KEPT_FOR_HEAD: ((Kind.WAIT, "wait for {head}, which comes first"), (Kind.POD, "give it a higher priority")),
    Code.CLAIM_MISSING: ((Kind.POD, "create ResourceClaim {claim}"),),
    Code.CLAIM_IN_GANG: ((Kind.POD, "give each pod of gang {gang} a claim of its own, by a ResourceClaimTemplate"),),
    Code.FORBIDDEN: (
        (Kind.POD, "change its node selector, affinity or tolerations"),
        (Kind.NODES, "change labels or taints of nodes"),
    ),
    Code.UNTOLERATED: ((Kind.POD, "tolerate {taints}"), (Kind.NODES, "take {taints} off a node")),
    Code.NO_RESOURCE: (
        (Kind.NODES, "have a device plugin offer {resource} on a node"),
        (Kind.POD, "ask for no {resource}"),
    ),
    Code.RESOURCE_TOO_SMALL: ((Kind.POD, "ask for less of {resource}"),),
    Code.RESOURCE_BUSY: ((Kind.WAIT, "wait for other pods to give {resource} back"),),
    Code.PORT_TAKEN: (
        (Kind.POD, "ask for another host port, or none"),
        (Kind.WAIT, "wait for the pod that has {port}"),
    ),
    Code.NEAR: ((Kind.POD, "change its affinity to other pods"),),
    Code.APART: ((Kind.POD, "change its anti-affinity to other pods"), (Kind.WAIT, "wait for those pods to end")),
    Code.REPELLED: ((Kind.WAIT, "wait for those pods to end"),),
    Code.SPREAD: ((Kind.POD, "loosen its topologySpreadConstraints"),),
    Code.NODES_TOO_SMALL: ((Kind.POD, "ask for less CPU or memory"),),
    Code.NODES_BUSY: ((Kind.WAIT, "wait for other pods to give CPU or memory back"),),
    Code.UNREADABLE: ((CORRECT.kind, CORRECT.text),),
    Code.GANG_TOO_LARGE: (),
    Code.NO_RIGHT: ((Kind.SETTING, "give user {user} the right to {right}, as {manifest} does"),),
}
_LOOKS_AGAIN: Final = ((Kind.WAIT, "wait: Kerf looks again by itself"),)


def of_queue(why: WaitReason) -> list[Remedy]:
    """What helps a pod that the queue passes over for something else than room on nodes."""
    said = {name: named(str(value)) for name, value in why.parameters.items()}
    if why.code is Code.OVER_QUOTA:
        return _of_quota(why, said["namespace"])
    return [Remedy(kind, text.format(**said)) for kind, text in _OF_QUEUE.get(why.code, _LOOKS_AGAIN)]


def of_gate() -> list[Remedy]:
    """What helps a pod that is held by the queue's gate while there is no queue."""
    return [
        Remedy(Kind.SETTING, "turn the queue on (setting queue.enabled)"),
        Remedy(Kind.POD, "take the gate off: docs/guides/queueing.md has the commands that open all gates"),
    ]


def _of_quota(why: WaitReason, namespace: str) -> list[Remedy]:
    """What helps one over a quota: to wait only where pods that end would leave enough of it."""
    limit, used, asked = (float(str(why.parameters[name])) for name in ("limit", "used", "asked"))
    found = [Remedy(Kind.SETTING, f"raise the quota of namespace {namespace} (setting queue.quotas)")]
    if asked > limit:
        return [*found, Remedy(Kind.POD, f"ask for {limit:g} GPUs at most, of the whole gang if it is of one")]
    return [Remedy(Kind.WAIT, f"wait until pods of namespace {namespace} end"), *found] if used else found


_RULED_OUT: Final = (
    ("untolerated taint", Kind.POD, "tolerate the taint, or take it off the node"),
    (
        "didn't match pod's node affinity/selector",
        Kind.POD,
        "change its node selector or affinity, or the node's labels",
    ),
    ("affinity rules", Kind.POD, "change its affinity to other pods"),
    ("topology spread", Kind.POD, "loosen its topologySpreadConstraints"),
    ("insufficient cpu", Kind.POD, "ask for less CPU"),
    ("insufficient memory", Kind.POD, "ask for less memory"),
    ("volume node affinity", Kind.NODES, "its volume is to be had on other nodes"),
    ("unschedulable", Kind.NODES, "uncordon the node"),
)
"""In kube-scheduler's words, in small letters, and what helps."""


def of_scheduler(why: str, key: str) -> list[Remedy]:
    """What helps a pod that has room, and that kube-scheduler's own plugins keep from it, in their words `why`."""
    said = why.lower()
    found = [Remedy(kind, text, _described(key)) for phrase, kind, text in _RULED_OUT if phrase in said]
    return found or [Remedy(Kind.WAIT, "wait: kube-scheduler tries it again within minutes", _described(key))]


def _described(key: str) -> str:
    namespace, _, name = key.partition("/")
    return f"kubectl describe pod {name} -n {namespace}"


def of_room(
    key: str,
    request: GpuRequest,
    nearest: Nearest,
    holders: Sequence[Mapping[str, Any]],
    changes: Sequence[Mapping[str, Any]],
    ends_in_s: float | None,
) -> list[Remedy]:
    """What helps a pod that lacks room: `changes` are those of its request that would make it fit, `ends_in_s` when
    those in the way are expected to have ended."""
    found: list[Remedy] = []
    bound = [str(one["pod"]) for one in holders if one["pod"] and one["state"] == ClaimState.BOUND.name]
    if nearest.node and bound:
        names = list(dict.fromkeys(bound))
        expected = "" if ends_in_s is None else f", expected in {_duration(ends_in_s)}"
        found.append(Remedy(Kind.WAIT, f"wait for {listed(names)} on {named(nearest.node)} to end{expected}"))
    if nearest.missing and not request.mig and (not nearest.whole or nearest.free_elsewhere >= nearest.missing):
        plural, are = ("", "is") if nearest.free_elsewhere == 1 else ("s", "are")
        free = f"{nearest.free_elsewhere} {request.noun}{plural} that would do {are} free on other nodes"
        elsewhere = f": {free}" if nearest.whole else ""
        found.append(Remedy(Kind.MOVE, f"see which running pods could move{elsewhere}", f"kerf defrag --for {key}"))
    for change in [change for change in changes if change["change"] != "room"][:_MAX_RELAXED]:
        where = ", ".join(named(node) for node in change["nodes"][:_MAX_NODES])
        ask = "ask" if change["text"].startswith("without") else "request"
        found.append(Remedy(Kind.POD, f"{ask} {change['text']}: fits on {where} now"))
    return [*found, *TABLE[nearest.reason].remedies(request, nearest.node, nearest.number)]


def _duration(seconds: float) -> str:
    if seconds < 5400:
        return f"{max(round(seconds / 60), 1)} min"
    return f"{round(seconds / 3600)} h" if seconds < 129600 else f"{round(seconds / 86400)} d"
