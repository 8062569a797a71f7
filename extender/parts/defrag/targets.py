"""Converts questions to the planner's targets, moves pods off unhealthy GPUs, and computes a plan's figures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec
import numpy as np

from extender.core.bookings import Booking, book, booking, writable_copy
from extender.core.clusters import WHOLE_MILLI, Cluster, Mask
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest, RequestError
from extender.explain.manifests.documents import DocumentError
from extender.explain.manifests.gangs import together
from extender.explain.manifests.objects import read_given, renamed
from extender.explain.processes import QuestionError
from extender.kube.objects import Node, Pod, PodSpec, Toleration
from extender.parts.defrag.checks import priority_at_most
from extender.parts.defrag.movable import ListedPod
from extender.parts.defrag.questions import MAX_PODS, Figures, RoomQuestion
from extender.planning.moves.problems import NOBODY_ABOVE, MovePlan, Problem, RunningPod, Target
from extender.planning.moves.units import Units, units_of
from extender.planning.plan_state import PlanState, free_units
from extender.planning.plan_state import units as gpu_units
from extender.planning.plans import PlanPod, View
from extender.planning.quotas import Quotas
from extender.queueing.pods.batches import GANG_TOPOLOGY, gang_of, plan_pod
from extender.queueing.pods.objects import decode_pod
from extender.queueing.pods.restrictions import RestrictionKinds

_MAX_TRIED: Final = 32
"""Most pods and gangs tried one by one if not all can leave."""

MakePlan = Callable[[Problem], MovePlan]


def by_node(cluster: Cluster, gpus: Mask) -> dict[str, tuple[int, ...]]:
    """Indices of the GPUs in a mask (N, G), by node name; nodes without any are left out."""
    rows = np.flatnonzero(gpus.any(axis=1)).tolist()
    return {name: tuple(np.flatnonzero(gpus[row]).tolist()) for row in rows if (name := cluster.node_names[row])}


def on_sick(cluster: Cluster, running: Sequence[RunningPod], sick: Mapping[str, tuple[int, ...]]) -> frozenset[int]:
    """Positions of the pods on unhealthy GPUs.

    Pods whose GPUs are unknown count only if all GPUs of their node are unhealthy.
    """
    gpus_of = {row: frozenset(gpus) for name, gpus in sick.items() if (row := cluster.row_of.get(name)) is not None}
    all_unhealthy = {
        row for row, gpus in gpus_of.items() if gpus.issuperset(np.flatnonzero(cluster.gpu_model[row] >= 0).tolist())
    }
    return frozenset(
        number
        for number, pod in enumerate(running)
        if not gpus_of.get(pod.row, frozenset()).isdisjoint((*pod.booked.all_gpus, *pod.booked.slices))
        or (pod.booked.unknown > 0 and pod.row in all_unhealthy)
    )


def without_sick(view: View, sick: Mapping[str, tuple[int, ...]]) -> View:
    """The view without nodes that might hand out an unhealthy GPU: one that the device plugin reports as healthy, while
    samples show the fault."""
    cluster, allowed = view.cluster, view.allowed.copy()
    for name, gpus in sick.items():
        row = cluster.row_of.get(name)
        if row is not None and cluster.gpu_healthy[row, list(gpus)].any():
            allowed[:, row] = False
    return replace(view, allowed=allowed)


def plan_healing(problem: Problem, make: MakePlan, expired: Callable[[], bool]) -> MovePlan:
    """Moves off their GPUs as many pods of `Target.leave` as possible; `impossible` says why the others stay.

    `fits` is true if any pod leaves, or none has to.
    """
    leave = problem.target.leave
    if not leave:
        return MovePlan(problem.view.cluster.version, fits=True)
    units = units_of(problem)
    wanted = sorted({int(units.unit_of[number]) for number in leave}, key=lambda unit: _order(problem, units, unit))
    reasons = [
        f"{_name(problem, units, unit)} stays on an unhealthy GPU: {why}"
        for unit in wanted
        if (why := units.stays[unit])
    ]
    movable = [unit for unit in wanted if not units.stays[unit]]
    plan = make(_leaving(problem, units, movable)) if movable else MovePlan(problem.view.cluster.version, fits=False)
    if movable and not plan.fits:
        plan, stuck = _one_by_one(problem, units, movable, make, expired)
        reasons += stuck
    return replace(plan, impossible=tuple(reasons))


def _one_by_one(
    problem: Problem, units: Units, movable: Sequence[int], make: MakePlan, expired: Callable[[], bool]
) -> tuple[MovePlan, list[str]]:
    """Add units to the plan one by one if they can leave too; returns the plan, and why others can't."""
    best, chosen, reasons = MovePlan(problem.view.cluster.version, fits=False), list[int](), list[str]()
    for number, unit in enumerate(movable):
        plan = make(_leaving(problem, units, [*chosen, unit])) if number < _MAX_TRIED and not expired() else None
        if plan is None or (not plan.fits and expired()):  # the search was cut short
            reasons.append(f"{len(movable) - number} more were not tried: the search ran out of time")
            break
        if plan.fits:
            best, chosen = plan, [*chosen, unit]
        else:
            why = "; ".join(plan.impossible[:2])
            reasons.append(f"{_name(problem, units, unit)} stays on an unhealthy GPU, no room is left for it: {why}")
    return best, reasons


def _leaving(problem: Problem, units: Units, wanted: Sequence[int]) -> Problem:
    """The problem restricted to these leaving units."""
    chosen = set(wanted)
    leave = frozenset(number for number in problem.target.leave if int(units.unit_of[number]) in chosen)
    return replace(problem, target=replace(problem.target, leave=leave))


def _order(problem: Problem, units: Units, unit: int) -> tuple[int, str]:
    """Sort key: highest priority first, then pod key."""
    members = [problem.running[number] for number in units.members[unit]]
    return -max(pod.priority for pod in members), members[0].key


def _name(problem: Problem, units: Units, unit: int) -> str:
    first = problem.running[units.members[unit][0]]
    return f"gang {first.gang}" if first.gang and len(units.members[unit]) > 1 else first.key


def figures(problem: Problem, view: View) -> Figures:
    """The figures of a view of the problem's cluster."""
    free, installed = free_units(view.cluster), gpu_units(view.cluster)
    free_nodes = int(((free == installed) & (installed > 0)).sum())
    pods = problem.target.pods
    if not pods or pods[0].gpus is None or not pods[0].gpus.count:
        return Figures(free_nodes, None)
    each = pods[0].gpus.count
    fits = PlanState(view, pods[:1], problem.policy).fits(0)
    return Figures(free_nodes, int((free[fits] // each * each).sum()))


def gpus_of_use(problem: Problem, plan: MovePlan) -> float:
    """GPUs that a plan makes usable: the target's requests, shares as fractions, and GPUs of nodes emptied by moves."""
    requested = sum(
        pod.gpus.count * (pod.gpus.milli / WHOLE_MILLI if pod.gpus.milli else 1)
        for pod in problem.target.pods
        if pod.gpus
    )
    rows = sorted({move.pod.row for move in plan.moves}.intersection(plan.emptied))
    return float(requested + (problem.view.cluster.gpu_model[rows] >= 0).sum())


def view_after(view: View, plan: MovePlan) -> View:
    """The view after the moves, before the target's pods arrive."""
    cpu, memory, slots = view.cpu_free_milli.copy(), view.memory_free_mib.copy(), view.pods_free.copy()
    version = view.cluster.version + 1
    left = np.zeros(view.cluster.gpu_model.shape, np.bool_)
    for move in plan.moves:
        left[move.pod.row, list(move.pod.booked.all_gpus)] = True
    observed = view.cluster.observed.without_memory_of(left) if view.cluster.observed is not None else None
    cluster = replace(
        writable_copy(view.cluster),
        version=version,
        observed=observed,
        row_version=view.cluster.row_version.copy(),
        cpu_free_milli=cpu,
        memory_free_mib=memory,
    )
    for move in plan.moves:
        book(cluster, move.pod.row, move.pod.booked, 1)
        slots[move.pod.row] += 1
    for move in plan.moves:
        pod = move.pod.pod
        booked = Booking(cpu_milli=pod.cpu_milli, memory_mib=pod.memory_mib)
        if pod.gpus is not None:
            booked = booking(cluster, move.row, pod.gpus, move.gpus, pod.cpu_milli, pod.memory_mib)
        book(cluster, move.row, booked)
        slots[move.row] -= 1
    for move in plan.moves:
        cluster.row_version[[move.pod.row, move.row]] = version
    return replace(view, cluster=cluster, cpu_free_milli=cpu, memory_free_mib=memory, pods_free=slots)


_OUT_OF_USE: Final = "node.kubernetes.io/"
"""Prefix of Kubernetes' own taints, such as of cordoned or not ready nodes."""


@dataclass(frozen=True, slots=True)
class RoomTarget:
    """A target with details of its pods."""

    target: Target
    uids: tuple[str, ...] = ()
    """(P,) UIDs of its pods, "" for those that do not exist."""
    gang: str = ""
    """The target's gang, whose running pods are not moved; "" for none."""
    refusal: str = ""
    """Why no room may be made for it, as by its namespace's quota; "" if it may."""


@dataclass(frozen=True, slots=True)
class TargetInputs:
    """Data for reading a target."""

    cluster: Cluster
    nodes: Sequence[Node]
    waiting: Sequence[ListedPod]
    """Pods without a node in the target's namespace."""
    residents: Sequence[ListedPod]
    """Pods with a node in the whole cluster."""
    kinds: RestrictionKinds
    policy: str
    quotas: Quotas
    used: Mapping[str, float]
    queued: Mapping[str, tuple[str, str]]
    """Gang and topology of queued pods, by UID, as the queue reads them."""

    @property
    def with_gpus(self) -> Mask:
        """(N,) nodes with GPUs that are not cordoned."""
        mask: Mask = self.cluster.unit != GpuUnit.NONE
        cordoned = [self.cluster.row_of.get(node.metadata.name, -1) for node in self.nodes if node.spec.unschedulable]
        mask[[row for row in cordoned if row >= 0]] = False
        return mask

    def gang_of(self, pod: Pod) -> str:
        """Name of a pod's gang, "" for none; errors in its request are reported when it is planned."""
        if (known := self.queued.get(pod.metadata.uid)) is not None:
            return known[0]
        try:
            return gang_of(pod)[0]
        except RequestError:
            return ""

    def topology_of(self, pod: Pod) -> str:
        """Topology key in one of whose domains a pod's gang must fit, "" for none."""
        if (known := self.queued.get(pod.metadata.uid)) is not None:
            return known[1]
        return (pod.metadata.annotations or {}).get(GANG_TOPOLOGY, "").strip() if self.gang_of(pod) else ""


def target_of_question(question: RoomQuestion, inputs: TargetInputs) -> RoomTarget:
    """The target of a question. Raises QuestionError."""
    if question.for_:
        return _waiting(question.for_, inputs)
    if question.given:
        return _given(question, inputs)
    if question.empty:
        unknown = [name for name in question.empty if name not in inputs.cluster.row_of]
        if unknown:
            raise QuestionError(f"empty: no node is named {', '.join(unknown[:5])}")
        rows = frozenset(inputs.cluster.row_of[name] for name in question.empty)
        return RoomTarget(Target(NOBODY_ABOVE if question.priority is None else question.priority, empty=rows))
    if question.heal:  # `Target.leave` is set later, with the running pods
        return RoomTarget(Target(NOBODY_ABOVE if question.priority is None else question.priority))
    if question.free_nodes is not None:
        return RoomTarget(Target(question.priority or 0, num_empty=question.free_nodes, may_empty=inputs.with_gpus))
    gpus, num_nodes = question.gpus or 1, question.nodes or 1
    kind = inputs.kinds.kind_of(_tolerant(inputs.nodes))
    request = GpuRequest(gpus, AskedUnit.GPU)
    pods = tuple(
        PlanPod(f"room-{position}", gpus=request, kind=kind, policy=inputs.policy) for position in range(num_nodes)
    )
    return RoomTarget(Target(question.priority or 0, pods, apart=True), ("",) * num_nodes)


def _waiting(name: str, inputs: TargetInputs) -> RoomTarget:
    """The target of a waiting gang, or of a waiting pod with its gang."""
    pods = [pod for pod, _, fault, _ in inputs.waiting if not fault and not pod.metadata.deletion_timestamp]
    gangs: dict[str, list[Pod]] = {}
    for pod in pods:
        if gang := inputs.gang_of(pod):
            gangs.setdefault(gang, []).append(pod)
    gang = name if name in gangs else next((inputs.gang_of(pod) for pod in pods if pod.key == name), "")
    waiting = gangs[gang] if gang else [pod for pod in pods if pod.key == name]
    if not waiting:
        node = next((pod.spec.node_name for pod, *_ in inputs.residents if pod.key == name), None)
        raise QuestionError(
            f"for: {name} {f'has a node: {node}' if node else 'is not a pod or gang that waits for a node'}"
        )
    members = (pod for pod, _, fault, _ in inputs.residents if gang and not fault and inputs.gang_of(pod) == gang)
    beside = tuple(node for pod in members if (node := pod.spec.node_name))
    planned = tuple(
        replace(_planned(pod, f"for: {pod.key}", inputs), gang=gang, topology=inputs.topology_of(pod), beside=beside)
        for pod in waiting
    )
    target = Target(min(map(priority_at_most, waiting)), planned)
    return RoomTarget(target, tuple(pod.metadata.uid for pod in waiting), gang, _over_quota(planned, inputs))


def _given(question: RoomQuestion, inputs: TargetInputs) -> RoomTarget:
    """The target of pods that do not exist."""
    pods: list[Pod] = []
    for number, manifest in enumerate(question.pods):
        try:
            pod = decode_pod(manifest)
        except msgspec.ValidationError as error:
            raise QuestionError(f"pods[{number}]: {error}") from None
        metadata = pod.metadata
        name, namespace = metadata.name or f"pod-{number}", metadata.namespace or "default"
        named = msgspec.structs.replace(metadata, name=name, namespace=namespace, uid=f"{number}-{name}")
        pods.append(msgspec.structs.replace(pod, metadata=named))
    planned = [_planned(pod, f"pods[{number}]", inputs) for number, pod in enumerate(pods)]
    try:
        given = read_given(question.objects, question.manifest, question.namespace)
    except DocumentError as error:
        raise QuestionError(str(error)) from None
    created = [pod for workload in renamed(given.workloads, (pod.key for pod in pods)) for pod in workload]
    if not (pods or created):
        raise QuestionError("no object creates pods")
    if len(pods) + len(created) > MAX_PODS:
        raise QuestionError(f"{len(pods) + len(created):,} pods are more than {MAX_PODS:,}")
    gangs = together([(pod, _planned(pod, pod.key, inputs)) for pod in created], planned, given.groups)
    if gangs.faults:
        raise QuestionError(next(f"{key}: {why}" for key, why in gangs.faults.items()))
    pods, planned = [*pods, *created], [*planned, *gangs.batch]
    priorities = [priority_at_most(pod) for pod in pods if pod.spec.priority is not None]
    if len(priorities) < len(pods):
        priorities.append(question.priority or 0)
    return RoomTarget(Target(min(priorities), tuple(planned)), ("",) * len(pods), "", _over_quota(planned, inputs))


def _planned(pod: Pod, where: str, inputs: TargetInputs) -> PlanPod:
    """A pod in the planner's form. Raises QuestionError."""
    if pod.spec.resource_claims:
        raise QuestionError(f"{where} requests devices by ResourceClaims, for which Kerf can't make room yet")
    try:
        planned = plan_pod(pod, inputs.kinds)
    except RequestError as error:
        raise QuestionError(f"{where}: {error}") from None
    return replace(planned, policy=planned.policy or inputs.policy)


def _over_quota(pods: Iterable[PlanPod], inputs: TargetInputs) -> str:
    """Why pods would exceed the quota of their namespace, "" if they would not."""
    requested: dict[str, float] = {}
    for pod in pods:
        requested[pod.namespace] = requested.get(pod.namespace, 0.0) + pod.num_gpus
    excess = [inputs.quotas.excess(name, inputs.used.get(name, 0.0), gpus) for name, gpus in requested.items()]
    return next((str(why) for why in excess if why is not None), "")


def _tolerant(nodes: Iterable[Node]) -> PodSpec:
    """A pod spec that tolerates all taints except Kubernetes' own, such as those that reserve nodes for GPU pods."""
    keys = {taint.key for node in nodes for taint in node.spec.taints or () if not taint.key.startswith(_OUT_OF_USE)}
    return PodSpec(tolerations=[Toleration(key=key, operator="Exists") for key in sorted(keys)])
