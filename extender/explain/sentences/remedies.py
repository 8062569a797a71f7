"""Remedies for a pending pod: one sentence each, with a command that applies it or shows more."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from extender.core.annotations import MARKER
from extender.core.fit.checks import TABLE
from extender.core.fit.reasons import Kind, Remedy
from extender.core.resources.requests import GpuRequest, named
from extender.explain import answers
from extender.explain.sentences.nearest import Nearest
from extender.explain.sentences.words import bounded, listed
from extender.ledger.ledger import AllocationState
from extender.planning.wait_reasons import Code, WaitReason

_MAX_RELAXED: Final = 2
_MAX_NODES: Final = 3


def to_json(remedy: Remedy) -> answers.Remedy:
    """A remedy as JSON data."""
    return {"kind": remedy.kind.value, "text": bounded(remedy.text), "command": remedy.command or None}


CORRECT: Final = Remedy(Kind.POD, "correct its request, in the template of its pods where it has one")
MARK: Final = Remedy(Kind.POD, f'add the limit {MARKER}: "1" to one of its containers')

_OF_QUEUE: Final = {
    Code.GANG_INCOMPLETE: ((Kind.POD, "create the missing pods of gang {gang}"),),
    Code.GANG_WITHOUT_GROUP: ((Kind.POD, "create the PodGroup of gang {gang}, with minMember or minCount"),),
    Code.OTHER_GATE: ((Kind.POD, "remove scheduling gate {gates}, or have its controller remove it"),),
    Code.KEPT_FOR_HEAD: ((Kind.WAIT, "wait for {head}, which comes first"), (Kind.POD, "give it a higher priority")),
    Code.CLAIM_MISSING: ((Kind.POD, "create ResourceClaim {claim}"),),
    Code.CLAIM_IN_GANG: ((Kind.POD, "give each pod of gang {gang} a claim of its own, by a ResourceClaimTemplate"),),
    Code.FORBIDDEN: (
        (Kind.POD, "change its node selector, affinity or tolerations"),
        (Kind.NODES, "change labels or taints of nodes"),
    ),
    Code.UNTOLERATED: ((Kind.POD, "tolerate {taints}"), (Kind.NODES, "remove {taints} from a node")),
    Code.NO_RESOURCE: (
        (Kind.NODES, "run a device plugin that offers {resource} on a node"),
        (Kind.POD, "don't request {resource}"),
    ),
    Code.RESOURCE_TOO_SMALL: ((Kind.POD, "request less {resource}"),),
    Code.RESOURCE_BUSY: ((Kind.WAIT, "wait for other pods to release {resource}"),),
    Code.PORT_TAKEN: (
        (Kind.POD, "use another host port, or none"),
        (Kind.WAIT, "wait for the pod that has {port}"),
    ),
    Code.NEAR: ((Kind.POD, "change its affinity to other pods"),),
    Code.APART: ((Kind.POD, "change its anti-affinity to other pods"), (Kind.WAIT, "wait for those pods to end")),
    Code.REPELLED: ((Kind.WAIT, "wait for those pods to end"),),
    Code.SPREAD: ((Kind.POD, "relax its topologySpreadConstraints"),),
    Code.NODES_TOO_SMALL: ((Kind.POD, "request less CPU or memory"),),
    Code.NODES_BUSY: ((Kind.WAIT, "wait for other pods to release CPU or memory"),),
    Code.UNREADABLE: ((CORRECT.kind, CORRECT.text),),
    Code.GANG_TOO_LARGE: (),
    Code.NO_RIGHT: ((Kind.SETTING, "grant user {user} permission to {right}, as in {manifest}"),),
}
_RETRIED: Final = ((Kind.WAIT, "wait: Kerf retries it"),)


def of_queue(why: WaitReason) -> list[Remedy]:
    """Remedies for a pod that the queue skips for a reason other than room on nodes."""
    values = {name: named(str(value)) for name, value in why.parameters.items()}
    if why.code is Code.OVER_QUOTA:
        return _of_quota(why, values["namespace"])
    return [Remedy(kind, text.format(**values)) for kind, text in _OF_QUEUE.get(why.code, _RETRIED)]


def of_gate() -> list[Remedy]:
    """Remedies for a pod behind the queue's gate while the queue is off."""
    return [
        Remedy(Kind.SETTING, "turn the queue on (setting queue.enabled)"),
        Remedy(Kind.POD, "remove the gate: docs/guides/queueing.md has the commands that remove all gates"),
    ]


def _of_quota(why: WaitReason, namespace: str) -> list[Remedy]:
    """Remedies for a pod over its quota; waiting is one only if ending pods would free enough of the quota."""
    limit, used, asked = (float(str(why.parameters[name])) for name in ("limit", "used", "asked"))
    found = [Remedy(Kind.SETTING, f"raise the quota of namespace {namespace} (setting queue.quotas)")]
    if asked > limit:
        return [*found, Remedy(Kind.POD, f"ask for {limit:g} GPUs at most, the whole gang included")]
    return [Remedy(Kind.WAIT, f"wait until pods of namespace {namespace} end"), *found] if used else found


_RULED_OUT: Final = (
    ("untolerated taint", Kind.POD, "tolerate the taint, or remove it from the node"),
    (
        "didn't match pod's node affinity/selector",
        Kind.POD,
        "change its node selector or affinity, or the node's labels",
    ),
    ("affinity rules", Kind.POD, "change its affinity to other pods"),
    ("topology spread", Kind.POD, "relax its topologySpreadConstraints"),
    ("insufficient cpu", Kind.POD, "ask for less CPU"),
    ("insufficient memory", Kind.POD, "ask for less memory"),
    ("volume node affinity", Kind.NODES, "its volume is available on other nodes only"),
    ("unschedulable", Kind.NODES, "uncordon the node"),
)
"""Phrases of kube-scheduler's messages, in lower case, and the remedy for each."""


def of_scheduler(why: str, key: str) -> list[Remedy]:
    """Remedies for a pod that would fit but is excluded by kube-scheduler's own plugins, with their message `why`."""
    message = why.lower()
    found = [Remedy(kind, text, _describe_command(key)) for phrase, kind, text in _RULED_OUT if phrase in message]
    return found or [Remedy(Kind.WAIT, "wait: kube-scheduler retries it within minutes", _describe_command(key))]


def _describe_command(key: str) -> str:
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
    """Remedies for a pod that lacks room. `changes` of its request would make it fit; the pods in the way are
    expected to end in `ends_in_s`."""
    found: list[Remedy] = []
    bound = [str(one["pod"]) for one in holders if one["pod"] and one["state"] == AllocationState.BOUND.name]
    if nearest.node and bound:
        names = list(dict.fromkeys(bound))
        expected = "" if ends_in_s is None else f", expected in {_duration(ends_in_s)}"
        found.append(Remedy(Kind.WAIT, f"wait for {listed(names)} on {named(nearest.node)} to end{expected}"))
    if nearest.missing and not request.mig and (not nearest.whole or nearest.free_elsewhere >= nearest.missing):
        plural, are = ("", "is") if nearest.free_elsewhere == 1 else ("s", "are")
        free = f"{nearest.free_elsewhere} suitable {request.noun}{plural} {are} free on other nodes"
        elsewhere = f": {free}" if nearest.whole else ""
        found.append(Remedy(Kind.MOVE, f"see which running pods could move{elsewhere}", f"kerf defrag --for {key}"))
    for change in [change for change in changes if change["change"] != "room"][:_MAX_RELAXED]:
        where = ", ".join(named(node) for node in change["nodes"][:_MAX_NODES])
        verb = "ask" if change["text"].startswith("without") else "request"
        found.append(Remedy(Kind.POD, f"{verb} {change['text']}: fits on {where} now"))
    return [*found, *TABLE[nearest.reason].remedies(request, nearest.node, nearest.number)]


def _duration(seconds: float) -> str:
    if seconds < 5400:
        return f"{max(round(seconds / 60), 1)} min"
    return f"{round(seconds / 3600)} h" if seconds < 129600 else f"{round(seconds / 86400)} d"
