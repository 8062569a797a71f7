"""The verb preempt on the wire: victims by UID, or as whole pods; the answer is by UID, whatever was asked in."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from extender.api import wire
from extender.kube import objects
from extender.kube.decoding import Decoder
from extender.ledger.tenants import DemandingPod, Demands


@dataclass(frozen=True, slots=True)
class Proposal:
    """Pods that kube-scheduler would evict from a node."""

    node: str
    uids: tuple[str, ...]
    """Each once."""
    num_pdb_violations: int


@dataclass(frozen=True, slots=True)
class AskedPreemption:
    """A request of preempt: a pod, and on each node those that would have to go for it."""

    pod: objects.Pod
    demands: Demands
    proposals: list[Proposal]


Violations = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""How many victims' disruption budgets an eviction would break."""


class MetaPod(msgspec.Struct, gc=False):
    """A pod by its UID alone."""

    uid: Annotated[str, msgspec.Meta(min_length=1)] = msgspec.field(name="UID")


class MetaVictims(msgspec.Struct, gc=False):
    """The victims on one node."""

    pods: list[MetaPod] = msgspec.field(name="Pods", default_factory=list)
    num_pdb_violations: Violations = msgspec.field(name="NumPDBViolations", default=0)


class ProposedMetaVictims(msgspec.Struct, gc=False):
    """The victims on one node as asked; where Go has none it writes null."""

    pods: list[MetaPod] | None = msgspec.field(name="Pods", default=None)
    num_pdb_violations: Violations | None = msgspec.field(name="NumPDBViolations", default=None)


class ProposedVictims(msgspec.Struct, gc=False):
    """The same as whole pods, where kube-scheduler sends whole objects."""

    pods: list[objects.Pod] | None = msgspec.field(name="Pods", default=None)
    num_pdb_violations: Violations | None = msgspec.field(name="NumPDBViolations", default=None)


class ExtenderPreemptionArgs(msgspec.Struct, gc=False):
    """Body of preempt, as it is on the wire."""

    pod: objects.Pod | None = msgspec.field(name="Pod", default=None)
    victims: dict[str, ProposedVictims | None] | None = msgspec.field(name="NodeNameToVictims", default=None)
    meta_victims: dict[str, ProposedMetaVictims | None] | None = msgspec.field(
        name="NodeNameToMetaVictims", default=None
    )


class PreemptionResult(msgspec.Struct, gc=False):
    """Answer of preempt: the nodes left and who has to go there; always in this form, whatever was asked in."""

    meta_victims: dict[str, MetaVictims] = msgspec.field(name="NodeNameToMetaVictims", default_factory=dict)


_victims_decoder: Final = Decoder(dict[str, msgspec.Raw])
_list_decoder: Final[Decoder[list[msgspec.Raw] | None]] = Decoder(list[msgspec.Raw] | None)  # type: ignore[arg-type]
_violations_decoder: Final[Decoder[int | None]] = Decoder(Violations | None)  # type: ignore[arg-type]
_text_decoder: Final = Decoder(str)
_pod_decoder: Final = Decoder(objects.Pod)
_demands_decoder: Final = Decoder(DemandingPod)


def read_preemption_args(body: bytes) -> AskedPreemption:
    """The body of preempt, in either form; the one by UIDs goes first where both came. Raises WireError."""
    outer = wire.fields(body, ("Pod", "NodeNameToVictims", "NodeNameToMetaVictims"))
    pod = outer.get("Pod", wire.NULL)
    if pod == wire.NULL:
        raise wire.WireError("the request has no Pod")
    by_uid = _proposals(outer.get("NodeNameToMetaVictims", wire.NULL), _uid_of_meta)
    by_pod = _proposals(outer.get("NodeNameToVictims", wire.NULL), _uid_of_pod)
    demands = wire.decode(_demands_decoder, pod).spec
    proposals = by_uid if by_uid is not None else by_pod or []
    return AskedPreemption(wire.decode(_pod_decoder, pod), demands, proposals)


def _proposals(raw: msgspec.Raw, uid_of: Callable[[msgspec.Raw], str]) -> list[Proposal] | None:
    """Victims by node, None when there is no such map. Raises WireError."""
    if raw == wire.NULL:
        return None
    result: list[Proposal] = []
    for node, raw_victims in wire.decode(_victims_decoder, raw).items():
        victims = {} if raw_victims == wire.NULL else wire.fields(raw_victims, ("Pods", "NumPDBViolations"))
        num_violations = wire.decode(_violations_decoder, victims.get("NumPDBViolations", wire.NULL)) or 0
        uids = [uid_of(pod) for pod in wire.decode(_list_decoder, victims.get("Pods", wire.NULL)) or ()]
        if not all(uids):
            raise wire.WireError(f"a victim on node {node[:80]!r} has no UID")
        result.append(Proposal(node, tuple(dict.fromkeys(uids)), num_violations))
    return result


def _uid_of_meta(raw: msgspec.Raw) -> str:
    uid = wire.fields(raw, ("UID",)).get("UID")
    return "" if uid is None else wire.decode(_text_decoder, uid)


def _uid_of_pod(raw: msgspec.Raw) -> str:
    return wire.decode(_pod_decoder, raw).metadata.uid
