"""Why a pod gets no node: a code, and the parameters of its sentence."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import Final


class Cause(StrEnum):
    """Category of reasons: the label `why` of the metric `kerf_queue_skipped`."""

    GANG = "gang"
    GATE = "gate"
    QUOTA = "quota"
    RESERVATION = "reservation"
    ROOM = "room"
    REQUEST = "request"
    REFUSED = "refused"
    CLAIM = "claim"
    API = "api"


class Code(Enum):
    """Every reason for passing a pod over: its cause, and its sentence, which documentation quotes."""

    NOT_REACHED = (Cause.ROOM, "")
    """The round ended before it reached the pod. Not reported."""
    FORBIDDEN = (Cause.ROOM, "no node matches its selector and tolerations")
    UNTOLERATED = (Cause.ROOM, "untolerated taint {taints} on every node that matches its selector ({nodes})")
    NO_RESOURCE = (Cause.ROOM, "no node has {resource}")
    RESOURCE_TOO_SMALL = (Cause.ROOM, "needs {units} of {resource}, no node has that much")
    RESOURCE_BUSY = (Cause.ROOM, "needs {units} of {resource}, no node with room for it has that much free")
    PORT_TAKEN = (Cause.ROOM, "needs host port {port}, which is taken on every node with room for it")
    NEAR = (Cause.ROOM, "its pod affinity by {topology} keeps it from every node with room for it")
    APART = (Cause.ROOM, "its pod anti-affinity by {topology} keeps it from every node with room for it")
    REPELLED = (Cause.ROOM, "other pods' anti-affinity by {topology} keeps it from every node with room for it")
    SPREAD = (Cause.ROOM, "its spread over {topology} keeps it from every node with room for it")
    NODES_TOO_SMALL = (Cause.ROOM, "needs {cpu:g} CPU and {memory_mib} MiB, no node has that much")
    NODES_BUSY = (Cause.ROOM, "needs {cpu:g} CPU and {memory_mib} MiB, no node has that much free")
    NO_GPU_ROOM = (Cause.ROOM, "{text}")
    """Text by `core.fit`; parameter `never`: it would not fit empty nodes either."""
    LEFT_OUT = (Cause.ROOM, "left out by the planner")
    KEPT_FOR_HEAD = (Cause.RESERVATION, "room is kept for {head}")
    REFUSED = (Cause.REFUSED, "kube-scheduler refused {whom} {node}: {words}")
    """A node that had room as far as plans know."""
    ON_TRIAL = (
        Cause.REFUSED,
        "kube-scheduler refuses pods of namespace {namespace} for reasons unknown to the queue: only few are released",
    )
    OVER_QUOTA = (
        Cause.QUOTA,
        "quota of namespace {namespace}: {limit:g} GPUs, {used:g} in use, {asked:g} more requested",
    )
    GANG_TOO_LARGE = (Cause.GANG, "its gang {gang} does not fit as a whole")
    GANG_UNKNOWN = (Cause.GANG, "gang {gang} waits for its PodGroup to be read")
    GANG_WITHOUT_GROUP = (Cause.GANG, "gang {gang}: its PodGroup does not exist, or has no minMember or minCount")
    GANG_INCOMPLETE = (Cause.GANG, "gang {gang} waits for its pods: {here} of {size} exist")
    OTHER_GATE = (Cause.GATE, "held by another scheduling gate: {gates}")
    CLAIM_MISSING = (Cause.CLAIM, "waits for its ResourceClaim {claim}: it does not exist yet, or is being changed")
    CLAIM_UNDECIDED = (Cause.CLAIM, "waits until Kerf knows whether it is to allocate ResourceClaim {claim}")
    CLAIM_SHARED = (Cause.CLAIM, "waits for its ResourceClaim {claim}: another pod that shares it goes first")
    CLAIM_IN_GANG = (
        Cause.CLAIM,
        "pods of its gang {gang} share ResourceClaim {claim}: give each a claim of its own, by a ResourceClaimTemplate",
    )
    CLAIM_REFUSED = (Cause.CLAIM, "the API server refuses the allocation of its devices: {why}")
    CLAIM_COSTS = (
        Cause.CLAIM,
        "searching devices for ResourceClaims of namespace {namespace} takes too long: it goes on within 5 minutes",
    )
    CLAIMS_UNKNOWN = (Cause.CLAIM, "devices can't be chosen now: {why}")
    NO_RIGHT = (Cause.API, "Kerf may not {right}: user {user} lacks that right, which {manifest} gives")
    NOT_WRITTEN = (Cause.API, "Kerf can't update it: {error}")
    NOT_PLANNED = (Cause.API, "the queue plans nothing: {why}")
    UNREADABLE = (Cause.REQUEST, "{text}")
    """Text by the parser of the request."""

    def __init__(self, cause: Cause, sentence: str) -> None:
        self.cause = cause
        self.sentence = sentence

    def reason(self, **parameters: object) -> "WaitReason":
        """A reason with this code and the parameters of its sentence."""
        return WaitReason(self, parameters)


@dataclass(frozen=True, slots=True)
class WaitReason:
    """Why one pod waits."""

    code: Code
    parameters: Mapping[str, object]

    def __str__(self) -> str:
        return self.code.sentence.format(**self.parameters)

    @property
    def moves_help(self) -> bool:
        """Whether moving running pods might make room for the pod."""
        return self.code not in _INDEPENDENT_OF_PODS and not self.parameters.get("never")


_INDEPENDENT_OF_PODS: Final = frozenset(
    {
        *(Code.FORBIDDEN, Code.UNTOLERATED, Code.NO_RESOURCE, Code.RESOURCE_TOO_SMALL, Code.NODES_TOO_SMALL),
        *(Code.UNREADABLE, Code.OTHER_GATE, Code.GANG_UNKNOWN, Code.GANG_WITHOUT_GROUP, Code.GANG_INCOMPLETE),
        *(Code.OVER_QUOTA, Code.CLAIM_MISSING, Code.CLAIM_UNDECIDED, Code.CLAIM_IN_GANG, Code.CLAIM_REFUSED),
    }
)
"""Reasons that do not depend on what runs."""


NOT_REACHED = Code.NOT_REACHED.reason()
ROOM_CODES = frozenset(
    {
        *(Code.NOT_REACHED, Code.FORBIDDEN, Code.NODES_TOO_SMALL, Code.NODES_BUSY, Code.NO_GPU_ROOM, Code.LEFT_OUT),
        *(Code.KEPT_FOR_HEAD, Code.GANG_TOO_LARGE, Code.UNTOLERATED, Code.NO_RESOURCE, Code.RESOURCE_TOO_SMALL),
        *(Code.RESOURCE_BUSY, Code.PORT_TAKEN, Code.NEAR, Code.APART, Code.REPELLED, Code.SPREAD),
    }
)
"""Reasons that another node may resolve."""
