"""What happens in a run, drawn from its seed: nodes, pods, and faults with their times. Equal seeds, equal plans."""

import random
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from enum import StrEnum

WINDOW_S = 3.0
"""Pods come and faults begin in this time."""

_NUM_PODS = (225, 250)
_RESTART_PROBABILITY = 0.15
_GATED_FRAC = 0.75
_NUM_GANGS = (6, 12)
_NUM_THIRSTY = 12
_THIRSTY_FOR_S = 1.5


class Kind(StrEnum):
    """What can go wrong."""

    KILL_FILTER_ANSWERED = "kill-filter-answered"
    """kill -9 once filter has answered, with a reservation made and nothing else."""
    KILL_BIND_CALLED = "kill-bind-called"
    """kill -9 as kube-scheduler asks to bind."""
    KILL_BINDING_ASKED = "kill-binding-asked"
    """kill -9 as the Binding leaves; it is written all the same, soon or late."""
    KILL_BINDING_LOST = "kill-binding-lost"
    """kill -9 as the Binding leaves; it never arrives."""
    KILL_BINDING_WRITTEN = "kill-binding-written"
    """kill -9 when the Binding is written and Kerf has not heard of it."""
    KILL_BINDING_ANSWERED = "kill-binding-answered"
    """kill -9 when Kerf hears that the Binding is written."""
    KILL_BIND_ANSWERED = "kill-bind-answered"
    """kill -9 when bind is answered."""
    KILL_NOMINATION_WRITTEN = "kill-nomination-written"
    """kill -9 when a pod's node is nominated, before its gate is opened."""
    KILL_OPENING_LOST = "kill-opening-lost"
    """kill -9 as the write leaves that opens a gate; it never arrives."""
    KILL_OPENING_WRITTEN = "kill-opening-written"
    """kill -9 when a gate is open and Kerf has not heard of it."""
    PAUSE = "pause"
    """SIGSTOP, wherever it is, and SIGCONT."""
    PAUSE_IN_BIND = "pause-in-bind"
    """SIGSTOP as the Binding leaves; it arrives before or after the SIGCONT, past time-outs."""
    CLOCK_JUMP = "clock-jump"
    """Kerf's wall clock is set an hour ahead, or back again."""
    LATE_BINDING = "late-binding"
    """A Binding that arrives when Kerf has given up waiting for it."""
    LATENCY = "latency"
    """Every answer of the API server is slow for a while."""
    RESET_BEFORE_WRITE = "reset-before-write"
    RESET_AFTER_WRITE = "reset-after-write"
    """The connection ends after the API server has done what was asked: the outcome is unknown."""
    ERROR_AFTER_WRITE = "error-after-write"
    """500 although it was done."""
    CONFLICT = "conflict"
    """409 to a write that was not done."""
    GONE = "gone"
    """410 to a list or watch."""
    THROTTLED = "throttled"
    """429."""
    SERVER_ERROR = "server-error"
    """500, nothing done."""
    WATCH_CUT = "watch-cut"
    WATCH_STALE = "watch-stale"
    """Watches stay open and say nothing for a while, then all at once."""
    WATCH_GONE = "watch-gone"
    """410 inside an open watch."""
    UNREACHABLE = "api-server-unreachable"
    """Kerf alone can't reach the API server: a partition."""
    API_SERVER_RESTART = "api-server-restart"
    ETCD_RESTART = "etcd-restart"
    NODE_DELETED = "node-deleted"
    NODE_SHRUNK = "node-shrunk"
    POD_DELETED = "pod-deleted"
    POD_RECREATED = "pod-recreated"
    """Deleted, and created again at once under the same name."""
    POD_TERMINATING = "pod-terminating"
    """Deleted with a grace period: holds its GPUs until it is gone."""
    LAPSE_ANSWER_LOST = "lapse-answer-lost"
    """The answer to a Binding is lost, and from then on no replica reaches the API server for longer than the lease: it
    lapses, and nobody takes it over."""
    LAPSE_LATE_BINDING = "lapse-late-binding"
    """The same, and the Binding arrives about when the API server can be reached again."""
    VM_PAUSE = "vm-pause"
    """A pause as the Binding leaves, past the lease, after which the monotonic clock knows nothing of it: a virtual
    machine that was paused with its clock."""
    KERF_GONE = "kerf-gone"
    """All replicas are killed and stay away, and pods without GPUs come meanwhile."""
    EDIT_DROPPED = "edit-dropped"
    """The author of a pod that runs takes off it what says which GPUs it asks for and holds."""
    EDIT_MOVED = "edit-moved"
    """The author moves what it holds to other GPUs."""
    EDIT_SHRUNK = "edit-shrunk"
    """The author makes a share a thousandth."""
    EDIT_SHARE_FORGED = "edit-share-forged"
    """The author makes whole GPUs a share."""
    EDIT_PLUGIN_FORGED = "edit-plugin-forged"
    """The author writes what another device plugin would, on a node without that plugin."""
    EDIT_CPU_HOLDER = "edit-cpu-holder"
    """A pod that asks for no GPU says that it holds a node's."""
    MARKS_FORGED = "marks-forged"
    """An author takes the marks off pods by which Bindings of others are fenced off, or writes some."""
    PLANS_FORGED = "plans-forged"
    """Pods that say of themselves that Kerf's queue let them go."""
    DEEP_CLAIM = "deep-claim"
    """A ResourceClaim with parameters thousands of levels deep."""
    DEEP_POD = "deep-pod"
    """A pod with managed fields thousands of levels deep."""
    UNMARKABLE = "unmarkable"
    """A pod that waits, with so many annotations that there is room for no more."""
    COSTLY_PATTERNS = "costly-patterns"
    """Pods that ask for models by patterns that take much memory and time."""
    MIRROR_DELETED = "mirror-deleted"
    """The mirror of a static pod is deleted and made again by its kubelet, while its containers run on."""
    GANG_CYCLES = "gang-cycles"
    """Kubernetes' own gangs compete: what a cycle asked is taken back without a word to extenders."""
    TWO_SCHEDULERS = "two-schedulers"
    """A scheduler's filter was answered while another scheduler's pod was between filter and bind."""
    FAILOVER = "failover"
    """Of two replicas the other one began to lead."""


QUEUE_KILLS = (Kind.KILL_NOMINATION_WRITTEN, Kind.KILL_OPENING_LOST, Kind.KILL_OPENING_WRITTEN)
"""kill -9 as the queue lets a pod go."""
KILLS = tuple(kind for kind in Kind if kind.startswith("kill-") and kind not in QUEUE_KILLS)
"""kill -9 between two steps of a bind."""
LAPSES = (Kind.LAPSE_ANSWER_LOST, Kind.LAPSE_LATE_BINDING)
"""Leases that lapse with a Binding on its way."""
EDITS = tuple(kind for kind in Kind if kind.startswith("edit-"))
"""What authors write on pods that run, as if they held something else."""
HOSTILE = (
    *(Kind.MARKS_FORGED, Kind.PLANS_FORGED, Kind.DEEP_CLAIM, Kind.DEEP_POD, Kind.UNMARKABLE, Kind.COSTLY_PATTERNS),
)
"""What else authors do to harm others."""
OBJECTS = (
    *(Kind.NODE_DELETED, Kind.NODE_SHRUNK, Kind.POD_DELETED, Kind.POD_RECREATED, Kind.POD_TERMINATING),
    *(*EDITS, *HOSTILE, Kind.MIRROR_DELETED, Kind.GANG_CYCLES, Kind.KERF_GONE),
)
"""Faults that are steps of their own, most of which the API server's objects suffer."""
RESTARTS = {Kind.API_SERVER_RESTART: "kube-apiserver", Kind.ETCD_RESTART: "etcd"}
"""Faults of the control plane, with the process that they end."""
APART = frozenset((*OBJECTS, *RESTARTS, Kind.LATENCY, Kind.UNREACHABLE))
"""Faults that do not wait for something to happen to."""
_FOR_GOOD = (Kind.POD_DELETED, Kind.POD_TERMINATING)

_LASTING_S = {
    Kind.PAUSE: (0.2, 4.0),
    Kind.PAUSE_IN_BIND: (0.5, 6.0),
    Kind.LATE_BINDING: (2.2, 6.0),
    Kind.LAPSE_ANSWER_LOST: (2.2, 5.0),
    Kind.LAPSE_LATE_BINDING: (2.2, 5.0),
    Kind.VM_PAUSE: (2.2, 4.5),
    Kind.KERF_GONE: (1.0, 3.0),
    Kind.MIRROR_DELETED: (0.3, 1.2),
    Kind.KILL_BINDING_ASKED: (0.0, 4.0),
    Kind.LATENCY: (0.3, 1.5),
    Kind.WATCH_STALE: (0.5, 3.0),
    Kind.UNREACHABLE: (0.2, 3.0),
    Kind.API_SERVER_RESTART: (0.0, 2.0),
    Kind.ETCD_RESTART: (0.0, 2.0),
}
"""How long a fault lasts that is no single moment."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. It takes effect at `at_s` or, where it needs something to happen to, with the next such thing."""

    kind: Kind
    at_s: float
    """Seconds since the storm began."""
    for_s: float = 0.0
    """How long it lasts; of a node, 0: for good."""
    late: bool = False
    """The Binding arrives after Kerf goes on, or can reach the API server again, not before."""
    target: str = ""
    """Name of the node or pod."""


@dataclass(frozen=True, slots=True)
class NodePlan:
    """A node of equal GPUs."""

    name: str
    gpus: int
    product: str
    memory_mib: int


@dataclass(frozen=True, slots=True)
class PodPlan:
    """A pod and when it comes."""

    name: str
    at_s: float
    scheduler: int
    """Which of the two schedulers it is for."""
    gpus: int
    by_resource: bool = False
    """By `nvidia.com/gpu`; else by annotation, where Kerf alone stands against over-commitment."""
    milli: int = 0
    """Of the compute of one GPU, a share of it; 0: whole GPUs."""
    memory_mib: int = 0
    """Memory that each of its GPUs must have, or that its share takes; 0: any."""
    model: str = ""
    node: str = ""
    """Where it runs from the beginning, placed by nobody's scheduler."""
    mirror: bool = False
    """Whether it stands for a static pod of its node's kubelet."""
    gated: bool = False
    """Whether it waits in Kerf's queue."""
    gang: str = ""
    gang_size: int = 0
    group: str = ""
    """Its PodGroup, Kubernetes' own kind of gang."""

    @property
    def size(self) -> float:
        """GPUs that it takes."""
        return self.milli / 1000 or self.gpus


@dataclass(frozen=True, slots=True)
class Plan:
    """A whole run."""

    seed: int
    replicas: int
    """Of Kerf."""
    elects: bool
    """Whether they elect their leader; two always do."""
    nodes: tuple[NodePlan, ...]
    pods: tuple[PodPlan, ...]
    late_pods: tuple[PodPlan, ...]
    """Those that come when all faults are over."""
    faults: tuple[Fault, ...]
    stops_clocks: bool = False
    """Whether Kerf's clocks can be made to miss time."""
    policy: bool = True
    """Whether the API server refuses what Kerf's admission policy says, where authors are hostile."""

    @property
    def load_frac(self) -> float:
        """GPUs asked for over GPUs installed, of the pods that nobody deletes for good."""
        deleted = {fault.target for fault in self.faults if fault.kind in _FOR_GOOD}
        asked = sum(pod.size for pod in (*self.pods, *self.late_pods) if pod.name not in deleted)
        return asked / sum(node.gpus for node in self.nodes)

    @property
    def ends_s(self) -> float:
        """When the last fault is over, seconds since the storm began."""
        return max([WINDOW_S, *(fault.at_s + fault.for_s for fault in self.faults)])


_PRODUCTS = (("NVIDIA-A100-SXM4-80GB", 81920), ("NVIDIA-A100-SXM4-40GB", 40960), ("Tesla-V100-SXM2-16GB", 16384))
_SIZES = ((1, 60), (2, 24), (4, 11), (8, 5))
_DRAWN = {
    # Weights: bindings with an unknown outcome are what most often goes wrong.
    **{Kind.PAUSE: 3, Kind.PAUSE_IN_BIND: 3, Kind.LATE_BINDING: 3, Kind.LATENCY: 3, Kind.CLOCK_JUMP: 2},
    **{Kind.RESET_BEFORE_WRITE: 2, Kind.RESET_AFTER_WRITE: 5, Kind.ERROR_AFTER_WRITE: 3},
    **{Kind.CONFLICT: 3, Kind.GONE: 2, Kind.THROTTLED: 3, Kind.SERVER_ERROR: 3},
    **{Kind.WATCH_CUT: 3, Kind.WATCH_STALE: 4, Kind.WATCH_GONE: 3, Kind.UNREACHABLE: 3},
}


def draw(seed: int, *, queue: bool = False) -> Plan:
    """The run of a seed; with `queue` most pods of the same run wait behind Kerf's gate, some of them in gangs."""
    plan = _under_attack(_drawn(seed))
    return _queued(plan) if queue else plan


def _drawn(seed: int) -> Plan:
    rng = random.Random(seed)
    replicas = 2 if rng.random() < 0.4 else 1
    two_schedulers = rng.random() < 0.6
    pods = _pods(rng, two_schedulers)
    late_pods = tuple(_pod(rng, f"late-{number}", 1, two_schedulers) for number in range(8))
    pod_faults = _pod_faults(rng, pods)
    deleted = {fault.target for fault in pod_faults if fault.kind in _FOR_GOOD}
    nodes = _nodes(rng, sum(pod.size for pod in (*pods, *late_pods) if pod.name not in deleted))
    foreign = [
        PodPlan(f"foreign-{number}", 0.0, 0, rng.randint(1, 2), by_resource=True, node=node.name)
        for number, node in enumerate(rng.sample(nodes, rng.randint(0, 4)))
    ]
    faults = [_fault(rng, kind) for kind in rng.choices(list(_DRAWN), list(_DRAWN.values()), k=rng.randint(4, 8))]
    faults += [_fault(rng, kind) for kind in rng.choices(list(KILLS), k=rng.choice((0, 1, 1, 2)))]
    if rng.random() < _RESTART_PROBABILITY:
        faults.append(_fault(rng, rng.choice(list(RESTARTS))))
    faults += pod_faults + _node_faults(rng, nodes)
    faults.sort(key=lambda fault: fault.at_s)
    return Plan(seed, replicas, replicas > 1, tuple(nodes), tuple(foreign + pods), late_pods, tuple(faults))


def _under_attack(plan: Plan) -> Plan:
    """The same run with faults that go together, one set of them or two."""
    rng = random.Random(f"attack of {plan.seed}")
    for attack in rng.choices(list(_ATTACKS), list(_ATTACKS.values()), k=rng.choice((1, 1, 2))):
        plan = attack(plan, rng)
    kinds = {fault.kind for fault in plan.faults}
    if not kinds & {*EDITS, *HOSTILE} or rng.random() < 0.5:
        return plan
    if not kinds & set(EDITS):
        return replace(plan, policy=False)
    # Where nobody refuses edits, Kerf knows what was written before as long as it lives and no longer.
    without = (*KILLS, *HOSTILE, Kind.KERF_GONE, Kind.VM_PAUSE)
    return replace(_with(plan, without=without), replicas=1, policy=False)


def _with(plan: Plan, *faults: Fault, without: Collection[Kind] = ()) -> Plan:
    kept = (fault for fault in plan.faults if fault.kind not in without)
    return replace(plan, faults=tuple(sorted((*kept, *faults), key=lambda fault: fault.at_s)))


def _thirsty(plan: Plan, fault: Fault, rng: random.Random) -> Plan:
    """With pods for both schedulers that come as a fault ends, and take whatever is thought to be free then."""
    ends_s = fault.at_s + fault.for_s
    pods = tuple(
        replace(
            _pod(rng, f"thirsty-{len(plan.pods) + number}", rng.choice((1, 1, 1, 2)), False),
            at_s=round(ends_s + rng.uniform(0.0, _THIRSTY_FOR_S), 3),
            scheduler=number % 2,
        )
        for number in range(_NUM_THIRSTY)
    )
    return replace(plan, pods=(*plan.pods, *pods))


def _lapsing(plan: Plan, rng: random.Random) -> Plan:
    """Nobody takes over, and nothing makes Kerf or the API server begin anew meanwhile."""
    fault = _fault(rng, rng.choice(LAPSES))
    return replace(_thirsty(_with(plan, fault, without=(*RESTARTS, *KILLS)), fault, rng), elects=True)


def _pausing_machines(plan: Plan, rng: random.Random) -> Plan:
    fault = _fault(rng, Kind.VM_PAUSE)
    return replace(_thirsty(_with(plan, fault), fault, rng), replicas=2, elects=True, stops_clocks=True)


def _without_kerf(plan: Plan, rng: random.Random) -> Plan:
    return _with(plan, _fault(rng, Kind.KERF_GONE), without=RESTARTS)


def _edited(plan: Plan, rng: random.Random) -> Plan:
    faults = []
    for kind in rng.choices(EDITS, k=rng.randint(3, 8)):
        target = rng.choice(plan.nodes).name if kind is Kind.EDIT_CPU_HOLDER else _victim(plan, kind, rng)
        faults.append(replace(_fault(rng, kind), target=target))
    return _with(plan, *faults)


def _victim(plan: Plan, kind: Kind, rng: random.Random) -> str:
    """A pod that such an edit makes sense of."""
    fits: dict[Kind, Callable[[PodPlan], bool | int]] = {
        Kind.EDIT_SHRUNK: lambda pod: pod.milli,
        Kind.EDIT_SHARE_FORGED: lambda pod: not pod.milli and pod.by_resource,
        Kind.EDIT_PLUGIN_FORGED: lambda pod: not pod.milli and pod.by_resource,
        Kind.EDIT_DROPPED: lambda pod: not pod.by_resource,
    }
    fit = fits.get(kind)
    deleted = {fault.target for fault in plan.faults}
    return rng.choice(
        [pod.name for pod in plan.pods if (fit is None or fit(pod)) and not pod.node and pod.name not in deleted]
    )


def _hostile(plan: Plan, rng: random.Random) -> Plan:
    kinds = rng.sample(HOSTILE, rng.randint(1, 3))
    faults = [replace(_fault(rng, kind), at_s=round(rng.uniform(0.1, WINDOW_S / 2), 3)) for kind in kinds]
    faults.append(_fault(rng, rng.choice(KILLS)))  # who takes over, or starts, has to cope with them
    return _with(plan, *faults)


def _with_mirrors(plan: Plan, rng: random.Random) -> Plan:
    free = [node for node in plan.nodes if node.name not in {pod.node for pod in plan.pods}]
    mirrors = tuple(
        PodPlan(f"mirror-{node.name}", 0.0, 0, rng.randint(1, 2), by_resource=True, node=node.name, mirror=True)
        for node in rng.sample(free, min(2, len(free)))
    )
    if not mirrors:
        return plan
    faults = [replace(_fault(rng, Kind.MIRROR_DELETED), target=rng.choice(mirrors).name) for _ in range(2)]
    return replace(_with(plan, *faults), pods=(*mirrors, *plan.pods))


def _with_groups(plan: Plan, rng: random.Random) -> Plan:
    """Gangs of pods that come at about the same time: more than there is room for."""
    pods = list(plan.pods)
    deleted = {fault.target for fault in plan.faults}
    for number in range(rng.randint(3, 6)):
        size, gpus, at_s = rng.randint(2, 4), rng.choice((1, 2, 4)), round(rng.uniform(0.0, WINDOW_S * 0.9), 3)
        whole = [at for at, pod in enumerate(pods) if not (pod.milli or pod.node or pod.group or pod.name in deleted)]
        scheduler = pods[whole[0]].scheduler
        for at in rng.sample(whole, size):
            name = pods[at].name
            pods[at] = PodPlan(
                name, at_s, scheduler, gpus, by_resource=True, gang_size=size, group=f"group-{plan.seed}-{number}"
            )
    groups = [Fault(Kind.GANG_CYCLES, 0.0, target=group) for group in sorted({pod.group for pod in pods} - {""})]
    return replace(_with(plan, *groups), pods=tuple(pods))


_ATTACKS: dict[Callable[[Plan, random.Random], Plan], int] = {
    **{_lapsing: 5, _pausing_machines: 3, _without_kerf: 3, _edited: 5, _hostile: 5, _with_mirrors: 1, _with_groups: 3}
}
"""Weights."""


def _queued(plan: Plan) -> Plan:
    rng = random.Random(f"queue of {plan.seed}")
    pods, late_pods = (
        [replace(pod, gated=not (pod.node or pod.group) and rng.random() < _GATED_FRAC) for pod in drawn]
        for drawn in (plan.pods, plan.late_pods)
    )
    for number in range(rng.randint(*_NUM_GANGS)):
        size, gpus = rng.randint(2, 4), rng.choice((1, 1, 2, 4))
        alone = [
            at
            for at, pod in enumerate(pods)
            if pod.gated and not (pod.gang or pod.group) and (pod.gpus, pod.milli) == (gpus, 0)
        ]
        if len(alone) < size:
            continue
        members = rng.sample(alone, size)
        first = replace(pods[members[0]], gang=f"gang-{number}", gang_size=size)
        for at in members:
            pods[at] = replace(first, name=pods[at].name, at_s=pods[at].at_s)
    policy = plan.policy or any(fault.kind in EDITS for fault in plan.faults)  # kills and edits
    kills = [_fault(rng, kind) for kind in rng.choices(QUEUE_KILLS, k=rng.choice((1, 1, 2)))]
    faults = sorted((*plan.faults, *kills), key=lambda fault: fault.at_s)
    return replace(plan, pods=tuple(pods), late_pods=tuple(late_pods), faults=tuple(faults), policy=policy)


def _fault(rng: random.Random, kind: Kind) -> Fault:
    low, high = _LASTING_S.get(kind, (0.0, 0.0))
    at_s = rng.uniform(0.2, WINDOW_S)
    return Fault(kind, round(at_s, 3), round(rng.uniform(low, high), 3), late=rng.random() < 0.5)


def _pods(rng: random.Random, two_schedulers: bool) -> list[PodPlan]:
    sizes, weights = zip(*_SIZES, strict=True)
    wanted = rng.choices(sizes, weights, k=rng.randint(*_NUM_PODS))
    return [_pod(rng, f"pod-{number:03d}", gpus, two_schedulers) for number, gpus in enumerate(wanted)]


def _pod(rng: random.Random, name: str, gpus: int, two_schedulers: bool) -> PodPlan:
    picky = rng.random()
    planned = PodPlan(
        name,
        at_s=round(rng.uniform(0.0, WINDOW_S * 0.9), 3),
        scheduler=rng.randint(0, 1) if two_schedulers else 0,
        gpus=gpus,
        model=rng.choice(("a100", "v100")) if picky > 0.9 else "",
    )
    if gpus == 1 and rng.random() < 0.4:
        return replace(planned, milli=rng.choice((200, 300, 500, 700)), memory_mib=rng.choice((0, 4096, 12288)))
    memory_mib = rng.choice((16384, 40960, 81920)) if picky < 0.2 else 0
    return replace(planned, by_resource=rng.random() < 0.5, memory_mib=memory_mib)


def _nodes(rng: random.Random, asked: float) -> list[NodePlan]:
    """As many as make a load of 80 % and more."""
    capacity = asked / rng.uniform(0.85, 1.15)
    nodes: list[NodePlan] = []
    while sum(node.gpus for node in nodes) < capacity:
        product, memory_mib = rng.choice(_PRODUCTS)
        nodes.append(NodePlan(f"node-{len(nodes):02d}", rng.choice((8, 8, 4)), product, memory_mib))
    return nodes


def _node_faults(rng: random.Random, nodes: list[NodePlan]) -> list[Fault]:
    kinds = rng.choices((Kind.NODE_DELETED, Kind.NODE_SHRUNK), k=rng.randint(0, 2))
    faults = []
    for kind, node in zip(kinds, rng.sample(nodes, len(kinds)), strict=True):
        for_s = 0.0 if rng.random() < 0.33 else rng.uniform(0.1, 2.0)
        faults.append(Fault(kind, round(rng.uniform(0.2, WINDOW_S), 3), round(for_s, 3), target=node.name))
    return faults


def _pod_faults(rng: random.Random, pods: list[PodPlan]) -> list[Fault]:
    """Pods deleted at every moment: before, during and after their binding."""
    kinds = (Kind.POD_DELETED, Kind.POD_RECREATED, Kind.POD_TERMINATING)
    faults = []
    for pod in rng.sample(pods, rng.randint(8, 24)):
        kind = rng.choices(kinds, (1, 4, 2))[0]
        soon = rng.random() < 0.6  # about when it is being bound
        at_s = pod.at_s + rng.uniform(0.0, 0.15) if soon else rng.uniform(pod.at_s, WINDOW_S + 0.5)
        for_s = rng.uniform(0.2, 2.0) if kind is Kind.POD_TERMINATING else 0.0
        faults.append(Fault(kind, round(at_s, 3), round(for_s, 3), target=pod.name))
    return faults
