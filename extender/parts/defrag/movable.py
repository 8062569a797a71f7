"""Who runs, in the planner's words: who may be moved, what that loses, and why the others stay.

All that runs, in the planner's words: what it holds, what its restart loses, and why it stays where it does.

What a node gets back when a pod that holds something of it goes: the ledger's words in those of decisions.

Disruption budgets: how many pods of each may be away, and whom they count.

Each may have a megabyte of conditions, and is held against every pod of its namespace: what a namespace's budgets say
together is bounded, and pods with equal labels are looked at once.

Jobs: whether one outlives that its pods are evicted. A pod that was counts as failed, where nothing else is said.

Pods that have a node, as far as moving them goes: read from the API server's lists page by page.

How long pods of an owner take to work again once they are moved: as long as those of its pods took that run now.

Nothing is kept for it: every question reads all pods anyway, and who may be moved runs.

Who may not be moved, and why: what would not come back, or not where it is planned.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final, NamedTuple

import msgspec

from extender.core.annotations import read_priority
from extender.core.bookings import Booking
from extender.core.clusters import WHOLE_MILLI, Cluster
from extender.core.fit.device_fits import Part as BookedPart
from extender.core.resources.nodes import OF_CLAIMS, SLICES, GpuUnit
from extender.core.resources.requests import RequestError
from extender.kube import objects
from extender.kube.decoding import Decoder, outline
from extender.kube.objects import Metadata, Pod, unix_time
from extender.kube.watches import stand_in
from extender.ledger.tenants import DemandingPod, SpecDemands, asks_resources_alone
from extender.parts.defrag.checks import CROWDED, MOVABLE, why_stays
from extender.parts.defrag.facts import Costs, Facts, Held
from extender.planning.demands import Condition
from extender.planning.moves.problems import Running, keeping_its_model
from extender.planning.plans import PlanPod
from extender.plugins.holdings import NOTHING, Holding, Part
from extender.plugins.pod_demands import conditions_of
from extender.plugins.pod_resources import read_compute, while_resized
from extender.plugins.pods import owner_of
from extender.queueing.pods.batches import by_gang, gang_of, plan_pod
from extender.queueing.pods.restrictions import Kinds


def _booking_of(cluster: Cluster, row: int, holding: Holding, cpu_milli: int, memory_mib: int) -> Booking:
    """What is counted as taken of a row for a holding (see `ledger.claims`), CPU and main memory included."""
    empty = Booking(
        mig=holding.mig,
        served=int(holding.units > 0 and not holding.unserved),
        unserved=int(holding.unserved),
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
    )
    found = [(gpu, part) for part in holding.parts if (gpu := _gpu_of(cluster, row, part)) is not None]
    if cluster.unit[row] in SLICES:
        return replace(empty, slices=tuple(gpu for gpu, _ in found), unknown=holding.units)
    of_memory = cluster.unit[row] == GpuUnit.PART
    booked = tuple(
        BookedPart(gpu, WHOLE_MILLI, int(cluster.gpu_memory_mib[row, gpu]))
        if part.whole or (part.milli == 0 and not of_memory)
        else BookedPart(gpu, part.milli, part.mib)
        for gpu, part in found
    )
    unknown = max(holding.units - len(booked), 0)
    if all(part.milli == WHOLE_MILLI for part in booked):
        return replace(empty, gpus=tuple(part.gpu for part in booked), unknown=unknown)
    return replace(empty, parts=booked, unknown=unknown)


def _gpus_held(holding: Holding) -> float:
    """GPUs, a share as its part of one, MIG devices as none."""
    known = sum(min(part.milli, WHOLE_MILLI) or WHOLE_MILLI for part in holding.parts) / WHOLE_MILLI
    return known + max(holding.units - len(holding.parts), 0)


def _gpu_of(cluster: Cluster, row: int, part: Part) -> int | None:
    """Which GPU of the row it is, None when that can't be told; as the ledger looks for it."""
    uuids = cluster.gpu_uuids[row]
    if part.uuid and any(uuids):
        return uuids.index(part.uuid) if part.uuid in uuids else None
    return part.gpu if 0 <= part.gpu < len(uuids) else None


BUDGETS_PATH: Final = "/apis/policy/v1/poddisruptionbudgets"
_MAX_CONDITIONS: Final = 10_000
_MAX_VALUES: Final = 100_000
"""Of all budgets of a namespace together, whose pods stay beyond that."""
_UNREAD: Final = "a disruption budget of its namespace can't be read"


class _BudgetSpec(objects.Object):
    selector: objects.LabelSelector | None = None


class _BudgetMetadata(objects.Metadata, rename="camel"):
    generation: int = 0


class _BudgetStatus(objects.Object, rename="camel"):
    disruptions_allowed: int = 0
    observed_generation: int = 0


class Budget(objects.Named):
    """A PodDisruptionBudget."""

    metadata: _BudgetMetadata = msgspec.field(default_factory=_BudgetMetadata)
    spec: _BudgetSpec = msgspec.field(default_factory=_BudgetSpec)
    status: _BudgetStatus = msgspec.field(default_factory=_BudgetStatus)

    @property
    def allowed(self) -> int:
        """How many of its pods may be away now: none where that was not worked out for what it says by now."""
        stale = self.status.observed_generation < self.metadata.generation
        return 0 if stale else max(self.status.disruptions_allowed, 0)

    @property
    def conditions(self) -> Sequence[Condition]:
        """All of which hold for a pod that it counts: an empty selector counts every one of its namespace."""
        return conditions_of(self.spec.selector) if self.spec.selector is not None else ()


class Budgets:
    """The budgets of all namespaces."""

    def __init__(self, budgets: Iterable[Budget], unread: Iterable[str] = ()) -> None:
        """`unread` are the namespaces of those that can't be read: whom these count nobody knows."""
        of: dict[str, list[Budget]] = {}
        for budget in budgets:
            of.setdefault(budget.metadata.namespace, []).append(budget)
        too_much = {namespace: why for namespace, found in of.items() if (why := _too_much(found))}
        self._unread = dict.fromkeys(unread, _UNREAD) | too_much
        self.allowed = {budget.key: budget.allowed for found in of.values() for budget in found}
        """How many pods of each may be away, by its `namespace/name`."""
        self._of = {
            namespace: [(budget.key, budget.conditions) for budget in found if budget.spec.selector is not None]
            for namespace, found in of.items()
            if namespace not in self._unread
        }
        self._known: dict[tuple[str, frozenset[tuple[str, str]]], tuple[str, ...]] = {}  # by namespace and labels

    def of(self, pod: Metadata) -> tuple[str, ...]:
        """The budgets that count a pod, by `namespace/name`; of a namespace whose budgets are not known none."""
        labels = pod.labels or {}
        alike = pod.namespace, frozenset(labels.items())
        found = self._known.get(alike)
        if found is None:
            found = self._known[alike] = tuple(
                key
                for key, conditions in self._of.get(pod.namespace, ())
                # One of an operator that nobody knows holds, so that the pod is counted.
                if all(condition.holds(labels, unknown=True) for condition in conditions)
            )
        return found

    def fault(self, pod: Metadata) -> str:
        """Why nobody can say whether a pod may be evicted, "" where the budgets tell."""
        if why := self._unread.get(pod.namespace):
            return why
        # What the API server makes of more than one is an error, whatever they allow.
        found = self.of(pod)
        return f"more than one disruption budget counts it ({', '.join(found[:4])})" if len(found) > 1 else ""


def _too_much(budgets: Iterable[Budget]) -> str:
    """Why the budgets of a namespace are not held against its pods, "" where they are."""
    selectors = [budget.spec.selector for budget in budgets if budget.spec.selector is not None]
    said = [item for selector in selectors for item in selector.match_expressions or ()]
    num_conditions = len(said) + sum(len(selector.match_labels or ()) for selector in selectors)
    num_values = sum(len(item.values or ()) for item in said)
    if num_conditions <= _MAX_CONDITIONS and num_values <= _MAX_VALUES:
        return ""
    return (
        f"the disruption budgets of its namespace say too much to be read: {num_conditions:,} conditions and "
        f"{num_values:,} values, {_MAX_CONDITIONS:,} and {_MAX_VALUES:,} at most"
    )


JOBS_PATH: Final = "/apis/batch/v1/jobs"
_INDEX_FAILURES: Final = "batch.kubernetes.io/job-index-failure-count"
_DEFAULT_LIMIT: Final = 6  # the API server's
_EVICTED: Final = "DisruptionTarget"


class _Rule(objects.Object, rename="camel"):
    action: str = ""
    on_pod_conditions: list[objects.Condition] | None = None


class _Policy(objects.Object):
    rules: list[_Rule] | None = None


class _JobSpec(objects.Object, rename="camel"):
    backoff_limit: int | None = None
    backoff_limit_per_index: int | None = None
    pod_failure_policy: _Policy | None = None


class _JobStatus(objects.Object):
    failed: int = 0


class Job(objects.Named):
    """A Job of `batch/v1`."""

    spec: _JobSpec = msgspec.field(default_factory=_JobSpec)
    status: _JobStatus = msgspec.field(default_factory=_JobStatus)

    @property
    def ignores_evictions(self) -> bool:
        """Whether its failure policy says first of all that a pod which was evicted has not failed."""
        policy = self.spec.pod_failure_policy
        rules = (policy.rules or ()) if policy is not None else ()
        first = rules[0] if rules else _Rule()
        conditions = first.on_pod_conditions or ()
        return first.action == "Ignore" and any(
            item.type == _EVICTED and item.status in ("True", "") for item in conditions
        )


class Jobs:
    """The Jobs of the cluster."""

    def __init__(self, jobs: Iterable[Job], why_not: str = "") -> None:
        """`why_not`: why they can't be read, "" where they were."""
        self._by_uid = {job.metadata.uid: job for job in jobs}
        self._why_not = why_not

    def stays(self, pods: Iterable[Metadata]) -> Mapping[str, str]:
        """Why pods of Jobs stay, by their UID: as many as a Job has may be moved one after another, and each counts."""
        of_job: dict[str, list[Metadata]] = {}
        for pod in pods:
            owner = pod.controller
            if owner is not None and owner.kind == "Job":
                of_job.setdefault(owner.uid, []).append(pod)
        return {
            pod.uid: why for uid, found in of_job.items() for pod in found if (why := self._why(uid, pod, len(found)))
        }

    def _why(self, uid: str, pod: Metadata, num_pods: int) -> str:
        job = self._by_uid.get(uid)
        if job is None:
            return f"its Job can't be read{f': {self._why_not}' if self._why_not else ''}"
        if job.ignores_evictions:
            return ""
        per_index, limit = job.spec.backoff_limit_per_index, job.spec.backoff_limit
        if per_index is not None:
            failures = _number((pod.annotations or {}).get(_INDEX_FAILURES, "0"))
            if failures >= per_index:
                return f"its Job allows {per_index} failures of an index, and it has had them"
            if limit is None:
                return ""
        limit = _DEFAULT_LIMIT if limit is None else limit
        left = limit - job.status.failed
        if left >= num_pods:
            return ""
        return (
            f"its Job allows {max(left, 0)} more failures of its {num_pods} pods, and evictions count "
            "(spec.backoffLimit; a podFailurePolicy that ignores DisruptionTarget would say otherwise)"
        )


def _number(text: str) -> int:
    """What can't be read is more than any limit."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 2**31


_UNREADABLE: Final = "it can't be read"


class Resident(NamedTuple):
    """A pod."""

    pod: Pod
    demands: SpecDemands | None
    """What else than resources it wants of a node; None where that can't be read."""
    fault: str = ""
    """Why it can't be told what it is, "" where it can: another pod stands in for it."""
    start_s: float | None = None
    """Seconds from its having a node until it was ready, as its status tells them."""


class _Condition(objects.Object, rename="camel"):
    type: str = ""
    status: str = ""
    last_transition_time: str | None = None


class _PodStatus(objects.Object):
    conditions: list[_Condition] | None = None


class _Rest(DemandingPod):
    """What few ask of a pod."""

    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


_items: Final = Decoder(objects.ObjectList[msgspec.Raw])
_pods: Final = Decoder(Pod)
_rests: Final = Decoder(_Rest)


def residents(page: bytes) -> Iterator[Resident]:
    """The pods of a page, whatever is in them; those that have ended are left out."""
    for item in _items.decode(page).items or ():
        try:
            pod = _pods.decode(item)
        except msgspec.DecodeError:
            pod = stand_in(outline(item), Pod)
            if not pod.finished:
                yield Resident(pod, None, _UNREADABLE)
            continue
        if not pod.finished:
            yield _resident(pod, item)


def _resident(pod: Pod, item: msgspec.Raw) -> Resident:
    try:
        rest = _rests.decode(item)
    except msgspec.DecodeError:
        return Resident(pod, None)
    return Resident(pod, rest.spec, start_s=_start_s(rest.status.conditions or ()))


def _start_s(conditions: Iterable[_Condition]) -> float | None:
    since = {item.type: unix_time(item.last_transition_time) for item in conditions if item.status == "True"}
    placed, ready = since.get("PodScheduled", 0.0), since.get("Ready", 0.0)
    return max(ready - placed, 0.0) if placed and ready else None  # clocks of several machines


def _priority_at_least(pod: Pod) -> int:
    """The higher of what a pod's class and its label say: who is moved may say that it matters more."""
    of_class = pod.spec.priority or 0
    try:
        return max(read_priority(pod.metadata.labels or {}, of_class), of_class)
    except RequestError:
        return of_class


def priority_at_most(pod: Pod) -> int:
    """The lower of the two: nobody makes others leave by a label, which anyone may write on a pod of theirs."""
    of_class = pod.spec.priority or 0
    try:
        return min(read_priority(pod.metadata.labels or {}, of_class), of_class)
    except RequestError:
        return of_class


_LEAST: Final = 0.25
_MOST: Final = 16.0
"""Of the time that others are thought to take: within that alone a workload's own starts speak for or against it."""


def restart_times(residents: Iterable[Resident], otherwise_s: float) -> dict[str, float]:
    """Seconds by owner, as `owner_of` tells it: the median of its pods' starts, bounded by LEAST and MOST times
    `otherwise_s`, which is meant where an owner is missing.

    Starts beyond that are left out: so long ago as it was, a pod may have been ready before, and unready since.
    """
    starts: dict[str, list[float]] = {}
    for pod, _, _, start_s in residents:
        if start_s is not None and start_s <= _MOST * otherwise_s and pod.metadata.controller is not None:
            starts.setdefault(owner_of(pod.metadata), []).append(start_s)
    return {owner: max(median(found), _LEAST * otherwise_s) for owner, found in starts.items()}


_SYSTEM_CRITICAL: Final = 2_000_000_000
"""The least of the priority classes that Kubernetes keeps for itself."""


def _stays(
    pod: Pod, demands: SpecDemands | None, budgets: Budgets, costs: Costs, gated_in: frozenset[str] | None
) -> str:
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
    return bool(pod.stays) and pod.stays != _UNREADABLE and not holds and not asks


def _by_itself(pod: Pod, demands: SpecDemands | None) -> str:
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


_LAST_CHECKPOINT: Final = "kerf.dev/last-checkpoint"
"""Annotation of a pod, RFC 3339: what it has computed since is lost by a restart, and no more."""
_CLOCKS_APART_S: Final = 60.0
"""A checkpoint may seem to be so far in the future; one beyond that is none."""


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """What is known of everybody who runs."""

    facts: Facts
    held: Mapping[str, Held]
    """By UID."""
    budgets: Budgets
    jobs: Jobs
    kinds: Kinds

    def running(self, residents: Iterable[Resident], of_target: str) -> list[Running]:
        """All who hold something, but for those that are there for their node. `of_target` is the target's gang, of
        which nobody is moved for the rest of it."""
        facts, row_of = self.facts, self.facts.cluster.row_of
        known = frozenset(uid for uids in facts.pods_on.values() for uid in uids)
        listed = [resident for resident in residents if resident.pod.spec.node_name]
        of_nodes = by_gang(resident.pod for resident in listed if resident.pod.metadata.belongs_to_a_node).keys()
        living = [
            resident
            for resident in listed
            if resident.pod.spec.node_name in row_of
            and resident.pod.metadata.uid in known
            and not resident.pod.metadata.belongs_to_a_node
        ]
        of_jobs = self.jobs.stays([pod.metadata for pod, *_ in living if (pod.metadata.controller is not None)])
        stuck = {of_target: "it is of the gang for which room is made"} if of_target else {}
        stuck |= dict.fromkeys(of_nodes, "a pod of its gang belongs to its node")
        found = [self._of(resident, of_jobs.get(resident.pod.metadata.uid, ""), stuck) for resident in living]
        return found + self._being_placed({pod.uid for pod in found})

    def _of(self, resident: Resident, of_job: str, stuck: Mapping[str, str]) -> Running:
        """`stuck`: why gangs stay, by their names."""
        facts, pod = self.facts, resident.pod
        cluster, costs = facts.cluster, facts.costs
        uid, row = pod.metadata.uid, cluster.row_of[pod.spec.node_name or ""]
        held = self.held.get(uid)
        holding = held.holding if held is not None and held.node == pod.spec.node_name else NOTHING
        why = resident.fault or _stays(pod, resident.demands, self.budgets, costs, facts.gated_in) or of_job
        why = why or self._rests(pod)
        gang, fault = _gang(pod)
        planned = PlanPod(pod.key)
        try:
            planned = keeping_its_model(cluster, row, replace(plan_pod(pod, self.kinds), gang="", beside=()))
        except RequestError as error:
            fault = fault or str(error)
        why = why or stuck.get(gang, "")
        if not why and holding and cluster.unit[row] in OF_CLAIMS:
            why = "its node gives its GPUs out by ResourceClaims"
        return Running(
            key=pod.key,
            uid=uid,
            row=row,
            booked=_booking_of(cluster, row, holding, *read_compute(while_resized(pod))),
            pod=replace(planned, policy=planned.policy or self.facts.policy),
            cost_gpu_s=_cost_of(pod, holding, costs, self.facts.now),
            priority=_priority_at_least(pod),
            gang=gang,
            budgets=() if why or fault else self.budgets.of(pod.metadata),
            stays=why or (f"where it could go can't be told: {fault}" if fault else ""),
        )

    def _rests(self, pod: Pod) -> str:
        """Why it stays for a while yet, "" where it has run for long enough."""
        age_s, rest_s = max(self.facts.now - _started(pod, self.facts.now), 0.0), self.facts.costs.rest_s
        return f"it has run for {age_s:.0f} s, and is left alone for {rest_s:g} s" if age_s < rest_s else ""

    def _being_placed(self, seen: set[str]) -> list[Running]:
        """Those that are on their way to a node, and count against its being empty."""
        cluster: Cluster = self.facts.cluster
        return [
            Running(
                key=held.key or "a pod that is being placed",
                uid=held.uid,
                row=cluster.row_of[held.node],
                booked=_booking_of(cluster, cluster.row_of[held.node], held.holding, 0, 0),
                pod=PlanPod(held.key),
                stays="it is being placed there",
            )
            for held in self.held.values()
            if not held.bound and held.node in cluster.row_of and held.uid not in seen
        ]


def _cost_of(pod: Pod, holding: Holding, costs: Costs, now: float) -> float:
    """GPU-seconds that a restart loses: of what its GPUs have done since its start, or since its last checkpoint, and
    until it works again."""
    since = _started(pod, now)
    saved = unix_time((pod.metadata.annotations or {}).get(_LAST_CHECKPOINT))
    begun = min(max(since, saved if saved <= now + _CLOCKS_APART_S else 0.0), now)
    restart_s = costs.restart_s_of.get(owner_of(pod.metadata), costs.restart_s)
    return _gpus_held(holding) * (now - begun + restart_s)


def _started(pod: Pod, now: float) -> float:
    """Unix time."""
    return unix_time(pod.status.start_time) or unix_time(pod.metadata.creation_timestamp) or now


def _gang(pod: Pod) -> tuple[str, str]:
    """Name of its gang, and why that can't be told."""
    try:
        return gang_of(pod)[0], ""
    except RequestError as error:
        return "", str(error)
