"""For whom room is made, in the planner's words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from extender.core.clusters import Cluster, Mask
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest, RequestError
from extender.explain.defrag.movable.residents import Resident, priority_at_most
from extender.explain.defrag.questions import MAX_PODS, RoomQuestion
from extender.explain.manifests.asked import read_given
from extender.explain.manifests.documents import DocumentError
from extender.explain.manifests.gangs import together
from extender.explain.manifests.objects import renamed
from extender.explain.processes import QuestionError
from extender.kube.objects import Node, Pod, PodSpec, Toleration
from extender.planning.moves.problems import NOBODY_ABOVE, Target
from extender.planning.plans import PlanPod
from extender.planning.quotas import Quotas
from extender.queueing.pods.batches import GANG_TOPOLOGY, gang_of, plan_pod
from extender.queueing.pods.objects import decode_pod
from extender.queueing.pods.restrictions import Kinds

_OUT_OF_USE: Final = "node.kubernetes.io/"
"""Begins Kubernetes' own taints: nodes that are cordoned, not ready or out of something."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A target, and what its pods are in the cluster."""

    target: Target
    uids: tuple[str, ...] = ()
    """(P,) of its pods, "" for those that do not exist."""
    gang: str = ""
    """Of which nobody is moved."""
    refusal: str = ""
    """Why it may not have room, whoever would move: its namespace's quota."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a target is read with."""

    cluster: Cluster
    nodes: Sequence[Node]
    waiting: Sequence[Resident]
    """Pods without a node of the namespace asked about."""
    residents: Sequence[Resident]
    """Pods with one, of the whole cluster."""
    kinds: Kinds
    policy: str
    quotas: Quotas
    used: Mapping[str, float]
    queued: Mapping[str, tuple[str, str]]
    """Of pods in the queue, by UID: gang and topology, as the queue takes them."""

    @property
    def with_gpus(self) -> Mask:
        """(N,) nodes with GPUs that are not cordoned."""
        found: Mask = self.cluster.unit != GpuUnit.NONE
        cordoned = [self.cluster.row_of.get(node.metadata.name, -1) for node in self.nodes if node.spec.unschedulable]
        found[[row for row in cordoned if row >= 0]] = False
        return found

    def gang_of(self, pod: Pod) -> str:
        """Name of a pod's gang, "" for none; what is wrong with its request is told when it is planned."""
        if (known := self.queued.get(pod.metadata.uid)) is not None:
            return known[0]
        try:
            return gang_of(pod)[0]
        except RequestError:
            return ""

    def topology_of(self, pod: Pod) -> str:
        """Label of nodes of which a pod's gang must find one value, "" for none."""
        if (known := self.queued.get(pod.metadata.uid)) is not None:
            return known[1]
        return (pod.metadata.annotations or {}).get(GANG_TOPOLOGY, "").strip() if self.gang_of(pod) else ""


def wanted_of(asked: RoomQuestion, about: Surroundings) -> Wanted:
    """The target of a question. Raises QuestionError."""
    if asked.for_:
        return _waiting(asked.for_, about)
    if asked.given:
        return _given(asked, about)
    if asked.empty:
        unknown = [name for name in asked.empty if name not in about.cluster.row_of]
        if unknown:
            raise QuestionError(f"empty: no node is named {', '.join(unknown[:5])}")
        rows = frozenset(about.cluster.row_of[name] for name in asked.empty)
        return Wanted(Target(NOBODY_ABOVE if asked.priority is None else asked.priority, empty=rows))
    if asked.heal:  # who has to leave is known with all that runs
        return Wanted(Target(NOBODY_ABOVE if asked.priority is None else asked.priority))
    if asked.free_nodes is not None:
        return Wanted(Target(asked.priority or 0, num_empty=asked.free_nodes, may_empty=about.with_gpus))
    gpus, number = asked.gpus or 1, asked.nodes or 1
    kind = about.kinds.kind_of(_tolerant(about.nodes))
    request = GpuRequest(gpus, AskedUnit.GPU)
    pods = tuple(
        PlanPod(f"room-{position}", gpus=request, kind=kind, policy=about.policy) for position in range(number)
    )
    return Wanted(Target(asked.priority or 0, pods, apart=True), ("",) * number)


def _waiting(name: str, about: Surroundings) -> Wanted:
    """A gang, or a pod with its gang."""
    pods = [pod for pod, _, fault, _ in about.waiting if not fault and not pod.metadata.deletion_timestamp]
    gangs: dict[str, list[Pod]] = {}
    for pod in pods:
        if gang := about.gang_of(pod):
            gangs.setdefault(gang, []).append(pod)
    gang = name if name in gangs else next((about.gang_of(pod) for pod in pods if pod.key == name), "")
    found = gangs[gang] if gang else [pod for pod in pods if pod.key == name]
    if not found:
        node = next((pod.spec.node_name for pod, *_ in about.residents if pod.key == name), None)
        raise QuestionError(
            f"for: {name} {f'has a node: {node}' if node else 'is no pod or gang that waits for a node'}"
        )
    mates = (pod for pod, _, fault, _ in about.residents if gang and not fault and about.gang_of(pod) == gang)
    beside = tuple(node for pod in mates if (node := pod.spec.node_name))
    planned = tuple(
        replace(_planned(pod, f"for: {pod.key}", about), gang=gang, topology=about.topology_of(pod), beside=beside)
        for pod in found
    )
    target = Target(min(map(priority_at_most, found)), planned)
    return Wanted(target, tuple(pod.metadata.uid for pod in found), gang, _over_quota(planned, about))


def _given(asked: RoomQuestion, about: Surroundings) -> Wanted:
    """Pods that do not exist."""
    pods: list[Pod] = []
    for number, manifest in enumerate(asked.pods):
        try:
            pod = decode_pod(manifest)
        except msgspec.ValidationError as error:
            raise QuestionError(f"pods[{number}]: {error}") from None
        metadata = pod.metadata
        name, namespace = metadata.name or f"pod-{number}", metadata.namespace or "default"
        named = msgspec.structs.replace(metadata, name=name, namespace=namespace, uid=f"{number}-{name}")
        pods.append(msgspec.structs.replace(pod, metadata=named))
    planned = [_planned(pod, f"pods[{number}]", about) for number, pod in enumerate(pods)]
    try:
        given = read_given(asked.objects, asked.manifest, asked.namespace)
    except DocumentError as error:
        raise QuestionError(str(error)) from None
    made = [pod for found in renamed(given.workloads, (pod.key for pod in pods)) for pod in found]
    if not (pods or made):
        raise QuestionError("there is nothing that makes pods")
    if len(pods) + len(made) > MAX_PODS:
        raise QuestionError(f"{len(pods) + len(made):,} pods are more than {MAX_PODS:,}")
    gangs = together([(pod, _planned(pod, pod.key, about)) for pod in made], planned, given.groups)
    if gangs.faults:
        raise QuestionError(next(f"{key}: {why}" for key, why in gangs.faults.items()))
    pods, planned = [*pods, *made], [*planned, *gangs.batch]
    said = [priority_at_most(pod) for pod in pods if pod.spec.priority is not None]
    others = [asked.priority or 0] if len(said) < len(pods) else []
    return Wanted(Target(min(said + others), tuple(planned)), ("",) * len(pods), "", _over_quota(planned, about))


def _planned(pod: Pod, where: str, about: Surroundings) -> PlanPod:
    """A pod as planners take it. Raises QuestionError."""
    if pod.spec.resource_claims:
        raise QuestionError(f"{where} asks devices by ResourceClaims: for these no room is made yet")
    try:
        planned = plan_pod(pod, about.kinds)
    except RequestError as error:
        raise QuestionError(f"{where}: {error}") from None
    return replace(planned, policy=planned.policy or about.policy)


def _over_quota(pods: Iterable[PlanPod], about: Surroundings) -> str:
    """Why a namespace may not have so many more GPUs: no room is made past its quota."""
    asked: dict[str, float] = {}
    for pod in pods:
        namespace = pod.key.partition("/")[0]
        asked[namespace] = asked.get(namespace, 0.0) + pod.num_gpus
    excess = [about.quotas.excess(name, about.used.get(name, 0.0), gpus) for name, gpus in asked.items()]
    return next((str(why) for why in excess if why is not None), "")


def _tolerant(nodes: Iterable[Node]) -> PodSpec:
    """A pod that tolerates whatever taints keep others off GPUs, and none by which a node is out of use."""
    keys = {taint.key for node in nodes for taint in node.spec.taints or () if not taint.key.startswith(_OUT_OF_USE)}
    return PodSpec(tolerations=[Toleration(key=key, operator="Exists") for key in sorted(keys)])
