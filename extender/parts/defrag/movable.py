"""Builds the planner's `RunningPod`s: what each holds, what its restart loses, and why it may not be moved.

Reads pods, PodDisruptionBudgets and Jobs from the API server's lists. A budget may have a megabyte of conditions, and
is matched against every pod of its namespace: the budgets of a namespace are bounded, and results cached by labels. A
Job counts an evicted pod as failed by default. A restart takes as long as the starts of its owner's running pods.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final, NamedTuple

import msgspec

from extender.core.bookings import Booking
from extender.core.clusters import WHOLE_MILLI, Cluster
from extender.core.fit.device_fits import Part as BookedPart
from extender.core.resources.nodes import OF_CLAIMS, SLICES, GpuUnit
from extender.core.resources.requests import RequestError
from extender.kube import objects
from extender.kube.decoding import Decoder, outline
from extender.kube.objects import Metadata, Pod, unix_time
from extender.kube.watches import stand_in
from extender.ledger.bound_pods import DemandingPod, SpecDemands, asks_resources_alone
from extender.parts.defrag.checks import CROWDED, MOVABLE, priority_at_least, why_stays
from extender.parts.defrag.facts import Costs, Held, PlanInputs
from extender.planning.demands import LabelRequirement
from extender.planning.moves.problems import RunningPod, keeping_its_model
from extender.planning.plans import PlanPod
from extender.plugins.holdings import NOTHING, Holding, Part
from extender.plugins.pod_demands import conditions_of
from extender.plugins.pod_resources import read_compute, while_resized
from extender.plugins.pods import owner_of
from extender.queueing.pods.batches import by_gang, gang_of, plan_pod
from extender.queueing.pods.restrictions import RestrictionKinds


def _booking_of(cluster: Cluster, row: int, holding: Holding, cpu_milli: int, memory_mib: int) -> Booking:
    """A holding of the ledger as a booking on a row, with CPU and memory."""
    base = Booking(
        mig=holding.mig,
        served=int(holding.units > 0 and not holding.unserved),
        unserved=int(holding.unserved),
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
    )
    known = [(gpu, part) for part in holding.parts if (gpu := _gpu_of(cluster, row, part)) is not None]
    if cluster.unit[row] in SLICES:
        return replace(base, slices=tuple(gpu for gpu, _ in known), unknown=holding.units)
    of_memory = cluster.unit[row] == GpuUnit.PART
    booked = tuple(
        BookedPart(gpu, WHOLE_MILLI, int(cluster.gpu_memory_mib[row, gpu]))
        if part.whole or (part.milli == 0 and not of_memory)
        else BookedPart(gpu, part.milli, part.mib)
        for gpu, part in known
    )
    unknown = max(holding.units - len(booked), 0)
    if all(part.milli == WHOLE_MILLI for part in booked):
        return replace(base, gpus=tuple(part.gpu for part in booked), unknown=unknown)
    return replace(base, parts=booked, unknown=unknown)


def _gpus_held(holding: Holding) -> float:
    """Number of GPUs held; shares count as fractions, MIG devices as 0."""
    known = sum(min(part.milli, WHOLE_MILLI) or WHOLE_MILLI for part in holding.parts) / WHOLE_MILLI
    return known + max(holding.units - len(holding.parts), 0)


def _gpu_of(cluster: Cluster, row: int, part: Part) -> int | None:
    """Index of the GPU on the row, None if unknown; as the ledger resolves it."""
    uuids = cluster.gpu_uuids[row]
    if part.uuid and any(uuids):
        return uuids.index(part.uuid) if part.uuid in uuids else None
    return part.gpu if 0 <= part.gpu < len(uuids) else None


BUDGETS_PATH: Final = "/apis/policy/v1/poddisruptionbudgets"
_MAX_CONDITIONS: Final = 10_000
_MAX_VALUES: Final = 100_000
"""Limits of all budgets of a namespace together. Beyond them its pods stay."""
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
        """Allowed disruptions; 0 if its status is older than its spec."""
        stale = self.status.observed_generation < self.metadata.generation
        return 0 if stale else max(self.status.disruptions_allowed, 0)

    @property
    def conditions(self) -> Sequence[LabelRequirement]:
        """Conditions, all of which hold for a pod that it covers; an empty selector covers the whole namespace."""
        return conditions_of(self.spec.selector) if self.spec.selector is not None else ()


class Budgets:
    """The budgets of all namespaces."""

    def __init__(self, budgets: Iterable[Budget], unread: Iterable[str] = ()) -> None:
        """`unread` are the namespaces of unreadable budgets: which of their pods these cover is unknown."""
        by_namespace: dict[str, list[Budget]] = {}
        for budget in budgets:
            by_namespace.setdefault(budget.metadata.namespace, []).append(budget)
        too_large = {namespace: why for namespace, group in by_namespace.items() if (why := _too_large(group))}
        self._unread = dict.fromkeys(unread, _UNREAD) | too_large
        self.allowed = {budget.key: budget.allowed for group in by_namespace.values() for budget in group}
        """Allowed disruptions by `namespace/name` of the budget."""
        self._of = {
            namespace: [(budget.key, budget.conditions) for budget in group if budget.spec.selector is not None]
            for namespace, group in by_namespace.items()
            if namespace not in self._unread
        }
        self._cache: dict[tuple[str, frozenset[tuple[str, str]]], tuple[str, ...]] = {}  # by namespace and labels

    def of(self, pod: Metadata) -> tuple[str, ...]:
        """Keys of the budgets that cover a pod; none in a namespace whose budgets can't be read."""
        labels = pod.labels or {}
        cache_key = pod.namespace, frozenset(labels.items())
        keys = self._cache.get(cache_key)
        if keys is None:
            keys = self._cache[cache_key] = tuple(
                key
                for key, conditions in self._of.get(pod.namespace, ())
                # An unknown operator matches, so that the pod is covered.
                if all(condition.holds(labels, unknown=True) for condition in conditions)
            )
        return keys

    def fault(self, pod: Metadata) -> str:
        """Why it is unknown whether a pod may be evicted, "" if it is known."""
        if why := self._unread.get(pod.namespace):
            return why
        # The API server refuses to evict a pod that several budgets cover.
        keys = self.of(pod)
        return f"more than one disruption budget covers it ({', '.join(keys[:4])})" if len(keys) > 1 else ""


def _too_large(budgets: Iterable[Budget]) -> str:
    """Why the budgets of a namespace are not matched against its pods, "" if they are."""
    selectors = [budget.spec.selector for budget in budgets if budget.spec.selector is not None]
    expressions = [item for selector in selectors for item in selector.match_expressions or ()]
    num_conditions = len(expressions) + sum(len(selector.match_labels or ()) for selector in selectors)
    num_values = sum(len(item.values or ()) for item in expressions)
    if num_conditions <= _MAX_CONDITIONS and num_values <= _MAX_VALUES:
        return ""
    return (
        f"the disruption budgets of its namespace are too large: {num_conditions:,} conditions and "
        f"{num_values:,} values, at most {_MAX_CONDITIONS:,} and {_MAX_VALUES:,}"
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
        """Whether the first rule of its podFailurePolicy ignores evictions."""
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
        """`why_not`: why Jobs can't be read, "" if they can."""
        self._by_uid = {job.metadata.uid: job for job in jobs}
        self._why_not = why_not

    def stays(self, pods: Iterable[Metadata]) -> Mapping[str, str]:
        """Why pods of Jobs stay, by UID. A Job must survive the eviction of all of its pods, one after another."""
        by_job: dict[str, list[Metadata]] = {}
        for pod in pods:
            owner = pod.controller
            if owner is not None and owner.kind == "Job":
                by_job.setdefault(owner.uid, []).append(pod)
        return {
            pod.uid: why for uid, group in by_job.items() for pod in group if (why := self._why(uid, pod, len(group)))
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
                return f"its Job allows {per_index} failures per index, which are used up"
            if limit is None:
                return ""
        limit = _DEFAULT_LIMIT if limit is None else limit
        left = limit - job.status.failed
        if left >= num_pods:
            return ""
        return (
            f"its Job allows {max(left, 0)} more failures of its {num_pods} pods, and evictions count "
            "(spec.backoffLimit), unless its podFailurePolicy ignores DisruptionTarget"
        )


def _number(text: str) -> int:
    """The number; above any limit if it can't be parsed."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 9 else 2**31


_UNREADABLE: Final = "it can't be read"


class ListedPod(NamedTuple):
    """A listed pod."""

    pod: Pod
    demands: SpecDemands | None
    """Its demands beside resources; None if they can't be read."""
    fault: str = ""
    """Why the pod can't be read, "" if it can; `pod` is then a placeholder."""
    start_s: float | None = None
    """Seconds from its scheduling until it was ready, by its status."""


class _Condition(objects.Object, rename="camel"):
    type: str = ""
    status: str = ""
    last_transition_time: str | None = None


class _PodStatus(objects.Object):
    conditions: list[_Condition] | None = None


class _Details(DemandingPod):
    """Fields of a pod that `Pod` lacks."""

    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


_items: Final = Decoder(objects.ObjectList[msgspec.Raw])
_pods: Final = Decoder(Pod)
_details: Final = Decoder(_Details)


def residents(page: bytes) -> Iterator[ListedPod]:
    """The unfinished pods of a list page; unreadable ones have a `fault`."""
    for item in _items.decode(page).items or ():
        try:
            pod = _pods.decode(item)
        except msgspec.DecodeError:
            pod = stand_in(outline(item), Pod)
            if not pod.finished:
                yield ListedPod(pod, None, _UNREADABLE)
            continue
        if not pod.finished:
            yield _resident(pod, item)


def _resident(pod: Pod, item: msgspec.Raw) -> ListedPod:
    try:
        details = _details.decode(item)
    except msgspec.DecodeError:
        return ListedPod(pod, None)
    return ListedPod(pod, details.spec, start_s=_start_s(details.status.conditions or ()))


def _start_s(conditions: Iterable[_Condition]) -> float | None:
    since = {item.type: unix_time(item.last_transition_time) for item in conditions if item.status == "True"}
    placed, ready = since.get("PodScheduled", 0.0), since.get("Ready", 0.0)
    return max(ready - placed, 0.0) if placed and ready else None  # clocks may differ


_MIN_FACTOR: Final = 0.25
_MAX_FACTOR: Final = 16.0
"""Bounds of measured restart times, as multiples of the default."""


def restart_times(residents: Iterable[ListedPod], otherwise_s: float) -> dict[str, float]:
    """Restart times in seconds by owner (`owner_of`): the median of its pods' starts, at least `_MIN_FACTOR` times the
    default `otherwise_s`, which applies to owners that are missing.

    Starts above `_MAX_FACTOR` times the default are ignored: the pod may have become ready a second time.
    """
    starts: dict[str, list[float]] = {}
    for pod, _, _, start_s in residents:
        if start_s is not None and start_s <= _MAX_FACTOR * otherwise_s and pod.metadata.controller is not None:
            starts.setdefault(owner_of(pod.metadata), []).append(start_s)
    return {owner: max(median(times), _MIN_FACTOR * otherwise_s) for owner, times in starts.items()}


_SYSTEM_CRITICAL: Final = 2_000_000_000
"""Lowest priority of the classes that Kubernetes reserves for itself."""


def _stays(
    pod: Pod, demands: SpecDemands | None, budgets: Budgets, costs: Costs, gated_in: frozenset[str] | None
) -> str:
    """Why a running pod may not be moved, "" if it may: the mover's checks, and further ones.

    `demands` None: they can't be read. `gated_in`: as in `PlanInputs`. With annotation MOVABLE "true", volumes, host
    ports, rules about other pods and a critical priority don't matter.
    """
    metadata, movable = pod.metadata, (pod.metadata.annotations or {}).get(MOVABLE, "").strip().lower()
    if why := why_stays(pod, gated_in, costs.exempt):
        return f"it {why}"
    if pod.status.phase != "Running":
        return "it does not run yet"
    owner = metadata.controller.uid if metadata.controller is not None else ""
    if (metadata.namespace, owner) in costs.crowded:
        return f"it {CROWDED}"
    if owner in costs.backing_off:
        return "recent moves of its owner's pods failed, and it is left alone for a while"
    if fault := budgets.fault(metadata):
        return fault
    return "" if movable == "true" else _stays_by_default(pod, demands)


def is_left(pod: RunningPod) -> bool:
    """Whether an immovable pod does not keep a node from being emptied: it neither holds nor requests GPUs, and is left
    to `kubectl drain`."""
    booked = pod.booked
    holds = booked.all_gpus or booked.slices or booked.unknown or booked.takings or booked.mig
    requests = pod.pod.gpus is not None or pod.pod.claims
    return bool(pod.stays) and pod.stays != _UNREADABLE and not holds and not requests


def _stays_by_default(pod: Pod, demands: SpecDemands | None) -> str:
    """Why a pod stays unless annotation MOVABLE is "true"; "" if it does not."""
    if (pod.spec.priority or 0) >= _SYSTEM_CRITICAL:
        return "its priority class is critical to the system"
    if demands is None:
        return "its demands on a node can't be read"
    if any("persistentVolumeClaim" in volume or "ephemeral" in volume for volume in demands.volumes or ()):
        return "its volumes may be tied to its node"
    if not asks_resources_alone(demands):
        return "it requests more than resources (host ports, disks, or rules about other pods)"
    return ""


_LAST_CHECKPOINT: Final = "kerf.dev/last-checkpoint"
"""Pod annotation, RFC 3339: a restart loses only the work since then."""
_CLOCK_SKEW_S: Final = 60.0
"""A checkpoint further in the future is ignored."""


@dataclass(frozen=True, slots=True)
class RunningPodInputs:
    """Data about all running pods."""

    facts: PlanInputs
    held: Mapping[str, Held]
    """Ledger entries by UID."""
    budgets: Budgets
    jobs: Jobs
    kinds: RestrictionKinds

    def running(self, residents: Iterable[ListedPod], target_gang: str) -> list[RunningPod]:
        """All pods that hold resources, except DaemonSet and static pods. Those of `target_gang` stay."""
        facts, row_of = self.facts, self.facts.cluster.row_of
        known = frozenset(uid for uids in facts.pods_on.values() for uid in uids)
        listed = [resident for resident in residents if resident.pod.spec.node_name]
        with_daemons = by_gang(resident.pod for resident in listed if resident.pod.metadata.belongs_to_a_node).keys()
        movable = [
            resident
            for resident in listed
            if resident.pod.spec.node_name in row_of
            and resident.pod.metadata.uid in known
            and not resident.pod.metadata.belongs_to_a_node
        ]
        job_stays = self.jobs.stays(resident.pod.metadata for resident in movable)
        gang_stays = {target_gang: "it is in the gang for which room is made"} if target_gang else {}
        gang_stays |= dict.fromkeys(with_daemons, "a pod of its gang belongs to its node")
        running = [self._of(resident, job_stays.get(resident.pod.metadata.uid, ""), gang_stays) for resident in movable]
        return running + self._being_placed({pod.uid for pod in running})

    def _of(self, resident: ListedPod, job_stays: str, gang_stays: Mapping[str, str]) -> RunningPod:
        """`job_stays`: why its Job's pods stay; `gang_stays`: why gangs stay, by name."""
        facts, pod = self.facts, resident.pod
        cluster, costs = facts.cluster, facts.costs
        uid, row = pod.metadata.uid, cluster.row_of[pod.spec.node_name or ""]
        held = self.held.get(uid)
        holding = held.holding if held is not None and held.node == pod.spec.node_name else NOTHING
        why = resident.fault or _stays(pod, resident.demands, self.budgets, costs, facts.gated_in) or job_stays
        why = why or self._rest_left(pod)
        gang, fault = _gang(pod)
        planned = PlanPod(pod.key)
        try:
            planned = keeping_its_model(cluster, row, replace(plan_pod(pod, self.kinds), gang="", beside=()))
        except RequestError as error:
            fault = fault or str(error)
        why = why or gang_stays.get(gang, "")
        if not why and holding and cluster.unit[row] in OF_CLAIMS:
            why = "its node offers GPUs through ResourceClaims"
        return RunningPod(
            key=pod.key,
            uid=uid,
            row=row,
            booked=_booking_of(cluster, row, holding, *read_compute(while_resized(pod))),
            pod=replace(planned, policy=planned.policy or self.facts.policy),
            cost_gpu_s=_cost_of(pod, holding, costs, self.facts.now),
            priority=priority_at_least(pod),
            gang=gang,
            budgets=() if why or fault else self.budgets.of(pod.metadata),
            stays=why or (f"its request can't be read: {fault}" if fault else ""),
        )

    def _rest_left(self, pod: Pod) -> str:
        """Why a pod stays for now, "" if it has run for long enough."""
        age_s, rest_s = max(self.facts.now - _started(pod, self.facts.now), 0.0), self.facts.costs.rest_s
        return f"it has run for {age_s:.0f} s, and is left alone for {rest_s:g} s" if age_s < rest_s else ""

    def _being_placed(self, seen: set[str]) -> list[RunningPod]:
        """Pods that are being placed on a node, and keep it from being empty."""
        cluster = self.facts.cluster
        return [
            RunningPod(
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
    """GPU-seconds lost by a restart: its GPUs times the time since its start or last checkpoint, plus the restart."""
    since = _started(pod, now)
    saved = unix_time((pod.metadata.annotations or {}).get(_LAST_CHECKPOINT))
    begun = min(max(since, saved if saved <= now + _CLOCK_SKEW_S else 0.0), now)
    restart_s = costs.restart_s_of.get(owner_of(pod.metadata), costs.restart_s)
    return _gpus_held(holding) * (now - begun + restart_s)


def _started(pod: Pod, now: float) -> float:
    """Unix time of a pod's start, or of its creation."""
    return unix_time(pod.status.start_time) or unix_time(pod.metadata.creation_timestamp) or now


def _gang(pod: Pod) -> tuple[str, str]:
    """Name of a pod's gang, and why it can't be read."""
    try:
        return gang_of(pod)[0], ""
    except RequestError as error:
        return "", str(error)
