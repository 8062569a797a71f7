"""What can go wrong in a run: kinds of faults, how they are grouped, and one drawn with its time."""

import random
from dataclasses import dataclass
from enum import StrEnum

WINDOW_S = 3.0
"""Pods come and faults begin in this time."""


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
    KILL_PROTECTION_WRITTEN = "kill-protection-written"
    """kill -9 when a claim has its finalizer, before its devices are written."""
    KILL_ALLOCATION_LOST = "kill-allocation-lost"
    """kill -9 as the devices of a claim leave; they never arrive."""
    KILL_ALLOCATION_ASKED = "kill-allocation-asked"
    """kill -9 as the devices of a claim leave; they are written all the same, soon or late."""
    KILL_ALLOCATION_WRITTEN = "kill-allocation-written"
    """kill -9 when a claim has its devices and Kerf has not heard of it: before nomination and gate."""
    PAUSE = "pause"
    """SIGSTOP, wherever it is, and SIGCONT."""
    PAUSE_IN_BIND = "pause-in-bind"
    """SIGSTOP as the Binding leaves; it arrives before or after the SIGCONT, past time-outs."""
    PAUSE_IN_ALLOCATION = "pause-in-allocation"
    """SIGSTOP as the devices of a claim leave; they arrive before or after the SIGCONT, past time-outs."""
    LATE_ALLOCATION = "late-allocation"
    """The devices of a claim that arrive when Kerf has given up waiting for the answer."""
    CLAIM_CONFLICT = "claim-conflict"
    CLAIM_ERROR = "claim-error"
    """500 to a write to a claim, nothing done."""
    CLAIM_ERROR_AFTER_WRITE = "claim-error-after-write"
    CLAIM_RESET_BEFORE_WRITE = "claim-reset-before-write"
    CLAIM_RESET_AFTER_WRITE = "claim-reset-after-write"
    ALLOCATION_TAKEN = "allocation-taken"
    """The devices of a claim are taken back as soon as they are written."""
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
    CLAIM_DELETED = "claim-deleted"
    """The author deletes a claim, whatever it has, and makes it again where it is his own."""
    CLAIM_STRIPPED = "claim-stripped"
    """The author takes off what keeps a claim with devices from being deleted, and deletes it."""
    CLAIM_EDITED = "claim-edited"
    """The author annotates claims at every moment: what is written to the version before fails."""
    NODE_CORDONED = "node-cordoned"
    NODE_CPU_SHORT = "node-cpu-short"
    """A node lacks CPU for a while: kube-scheduler takes devices back."""
    SLICES_REPUBLISHED = "slices-republished"
    """A driver publishes its pool again, under a new generation."""
    DEVICES_FEWER = "devices-fewer"
    """A driver publishes its pool again with fewer devices."""
    DRIVER_GONE = "driver-gone"
    """All slices of a node go away, and come back under new names and the first generation."""
    POD_FINISHED = "pod-finished"
    """A pod with claims has ended, and stays as an object."""
    KILL_RECORD_LOST = "kill-record-lost"
    """kill -9 as what is under way is written down; it never arrives."""
    KILL_RECORD_WRITTEN = "kill-record-written"
    """kill -9 when that is written and Kerf has not heard of it: a step before its first eviction."""
    KILL_EVICTION_LOST = "kill-eviction-lost"
    """kill -9 as an eviction leaves; it never arrives."""
    KILL_EVICTION_ASKED = "kill-eviction-asked"
    """kill -9 as an eviction leaves; it arrives all the same, soon or late."""
    KILL_EVICTION_WRITTEN = "kill-eviction-written"
    """kill -9 when a pod is evicted and Kerf has not heard of it."""
    PAUSE_IN_EVICTION = "pause-in-eviction"
    """SIGSTOP as an eviction leaves; it arrives before or after the SIGCONT, past time-outs."""
    LATE_EVICTION = "late-eviction"
    """An eviction that arrives when Kerf has given up waiting for the answer."""
    EVICTION_ERROR = "eviction-error"
    EVICTION_ERROR_AFTER_WRITE = "eviction-error-after-write"
    EVICTION_RESET_BEFORE_WRITE = "eviction-reset-before-write"
    EVICTION_RESET_AFTER_WRITE = "eviction-reset-after-write"
    RECORD_CONFLICT = "record-conflict"
    RECORD_ERROR = "record-error"
    RECORD_RESET_AFTER_WRITE = "record-reset-after-write"
    OWNER_SCALED = "owner-scaled"
    """A controller is told to have more pods, or fewer."""
    OWNER_POD_DELETED = "owner-pod-deleted"
    """Somebody deletes a pod that its controller makes anew, perhaps one that is being moved."""
    TARGET_DELETED = "target-deleted"
    """The pods that room is made for are deleted, or one of them."""
    BUDGET_RAISED = "budget-raised"
    """A PodDisruptionBudget allows nothing any more, or is there suddenly."""
    MADE_UNMOVABLE = "made-unmovable"
    """Authors write on pods that run that they are not to be moved."""
    NEVER_READY = "never-ready"
    """Pods of some controllers run and do not get ready."""
    SLOW_END = "slow-end"
    """Pods of some controllers go on running after they were deleted."""
    PLAN_STOPPED = "plan-stopped"
    """An operator stops what is under way."""
    REPLACEMENT_FORGED = "replacement-forged"
    """An author writes on waiting pods that a plan has let them go."""
    UNKNOWN_RESOURCE = "unknown-resource"
    """Pods that ask for a resource besides that no node has."""
    HOST_PORT_TAKEN = "host-port-taken"
    """Pods that want a port of their host which is taken on all nodes."""
    APART_FROM_ALL = "apart-from-all"
    """Pods with required anti-affinity to pods that are on all nodes."""
    VOLUME_UNBOUND = "volume-unbound"
    """Pods with a claim of a volume that nobody makes."""
    VOLUME_ELSEWHERE = "volume-elsewhere"
    """Pods with a volume that is on a node which is not there."""
    REFUSED_BEHIND = "refused-behind"
    """Pods that an extender behind Kerf refuses on all nodes, always."""
    NODE_REFUSED_BEHIND = "node-refused-behind"
    """An extender behind Kerf refuses nodes whose names end alike, or all, to everybody for a while."""
    RESIZE_PENDING = "resize-pending"
    """A pod that runs is made smaller in place, and has its CPUs until its kubelet has done so."""
    LEFT_BY_GPUSHARE = "left-by-gpushare"
    """A node has resources of gpushare's plugin, of which there are none, but no such plugin."""
    LEFT_BY_HAMI = "left-by-hami"
    """A node has the register and the handshake of HAMi's plugin, which ended years ago."""
    LEFT_LOCK = "left-lock"
    """The same, and the node's lock."""
    TWO_SCHEDULERS = "two-schedulers"
    """A scheduler's filter was answered while another scheduler's pod was between filter and bind."""
    FAILOVER = "failover"
    """Of two replicas the other one began to lead."""
    PLAN_BEGUN = "plan-begun"
    """A plan that makes room was carried out, whatever became of it."""
    POD_MOVED = "pod-moved"
    """A pod was evicted by one."""


QUEUE_KILLS = (Kind.KILL_NOMINATION_WRITTEN, Kind.KILL_OPENING_LOST, Kind.KILL_OPENING_WRITTEN)
"""kill -9 as the queue lets a pod go."""
MOVE_KILLS = (
    *(Kind.KILL_RECORD_LOST, Kind.KILL_RECORD_WRITTEN),
    *(Kind.KILL_EVICTION_LOST, Kind.KILL_EVICTION_ASKED, Kind.KILL_EVICTION_WRITTEN),
)
"""kill -9 as a pod is moved."""
CLAIM_KILLS = (
    *(
        Kind.KILL_PROTECTION_WRITTEN,
        Kind.KILL_ALLOCATION_LOST,
        Kind.KILL_ALLOCATION_ASKED,
        Kind.KILL_ALLOCATION_WRITTEN,
    ),
)
"""kill -9 as a claim gets its devices."""
OBSTACLES = (
    *(Kind.UNKNOWN_RESOURCE, Kind.HOST_PORT_TAKEN, Kind.APART_FROM_ALL),
    *(Kind.VOLUME_UNBOUND, Kind.VOLUME_ELSEWHERE, Kind.REFUSED_BEHIND),
)
"""Why no node takes a pod: nothing of GPUs."""
LEFTOVERS = (Kind.LEFT_BY_GPUSHARE, Kind.LEFT_BY_HAMI, Kind.LEFT_LOCK)
"""What other device plugins have left on a node before Kerf starts."""
REFUSALS = (*OBSTACLES, *LEFTOVERS, Kind.NODE_REFUSED_BEHIND, Kind.RESIZE_PENDING)
"""What makes kube-scheduler refuse a pod that GPUs are free for, or looks like it."""
_OF_MODES = (*QUEUE_KILLS, *CLAIM_KILLS, *MOVE_KILLS)
KILLS = tuple(kind for kind in Kind if kind.startswith("kill-") and kind not in _OF_MODES)
"""kill -9 between two steps of a bind."""
LAPSES = (Kind.LAPSE_ANSWER_LOST, Kind.LAPSE_LATE_BINDING)
"""Leases that lapse with a Binding on its way."""
EDITS = tuple(kind for kind in Kind if kind.startswith("edit-"))
"""What authors write on pods that run, as if they held something else."""
HOSTILE = (
    *(Kind.MARKS_FORGED, Kind.PLANS_FORGED, Kind.DEEP_CLAIM, Kind.DEEP_POD, Kind.UNMARKABLE, Kind.COSTLY_PATTERNS),
)
"""What else authors do to harm others."""
CLAIM_WRITES = (
    *(Kind.PAUSE_IN_ALLOCATION, Kind.LATE_ALLOCATION, Kind.CLAIM_CONFLICT, Kind.CLAIM_ERROR),
    *(Kind.CLAIM_ERROR_AFTER_WRITE, Kind.CLAIM_RESET_BEFORE_WRITE, Kind.CLAIM_RESET_AFTER_WRITE),
    Kind.ALLOCATION_TAKEN,
)
"""What happens to a write to a claim on its way."""
DEVICES = (
    *(Kind.CLAIM_DELETED, Kind.CLAIM_STRIPPED, Kind.CLAIM_EDITED, Kind.NODE_CORDONED, Kind.NODE_CPU_SHORT),
    *(Kind.SLICES_REPUBLISHED, Kind.DEVICES_FEWER, Kind.DRIVER_GONE, Kind.POD_FINISHED),
)
"""What happens to claims, devices and the nodes that have them."""
MOVE_WRITES = (
    *(Kind.PAUSE_IN_EVICTION, Kind.LATE_EVICTION, Kind.EVICTION_ERROR, Kind.EVICTION_ERROR_AFTER_WRITE),
    *(Kind.EVICTION_RESET_BEFORE_WRITE, Kind.EVICTION_RESET_AFTER_WRITE),
    *(Kind.RECORD_CONFLICT, Kind.RECORD_ERROR, Kind.RECORD_RESET_AFTER_WRITE),
)
"""What happens to an eviction, or to what is written down of moves, on its way."""
USERS = (
    *(Kind.OWNER_SCALED, Kind.OWNER_POD_DELETED, Kind.TARGET_DELETED, Kind.BUDGET_RAISED, Kind.MADE_UNMOVABLE),
    *(Kind.NEVER_READY, Kind.SLOW_END, Kind.PLAN_STOPPED, Kind.REPLACEMENT_FORGED),
)
"""What others do while pods are moved."""
OBJECTS = (
    *USERS,
    *DEVICES,
    *(*LEFTOVERS, Kind.RESIZE_PENDING),
    *(Kind.NODE_DELETED, Kind.NODE_SHRUNK, Kind.POD_DELETED, Kind.POD_RECREATED, Kind.POD_TERMINATING),
    *(*EDITS, *HOSTILE, Kind.MIRROR_DELETED, Kind.GANG_CYCLES, Kind.KERF_GONE),
)
"""Faults that are steps of their own, most of which the API server's objects suffer."""
RESTARTS = {Kind.API_SERVER_RESTART: "kube-apiserver", Kind.ETCD_RESTART: "etcd"}
"""Faults of the control plane, with the process that they end."""
FOR_GOOD = (Kind.POD_DELETED, Kind.POD_TERMINATING)
"""Faults after which a pod does not come again."""
APART = frozenset((*OBJECTS, *RESTARTS, Kind.LATENCY, Kind.UNREACHABLE, *OBSTACLES, Kind.NODE_REFUSED_BEHIND))
"""Faults that do not wait for something to happen to."""

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
    Kind.KILL_ALLOCATION_ASKED: (0.0, 4.0),
    Kind.PAUSE_IN_ALLOCATION: (0.5, 6.0),
    Kind.LATE_ALLOCATION: (2.2, 6.0),
    Kind.CLAIM_EDITED: (0.3, 1.5),
    Kind.NODE_CORDONED: (0.1, 2.0),
    Kind.NODE_CPU_SHORT: (0.1, 1.0),
    Kind.DEVICES_FEWER: (0.2, 2.0),
    Kind.DRIVER_GONE: (0.1, 3.0),
    Kind.KILL_EVICTION_ASKED: (0.0, 4.0),
    Kind.PAUSE_IN_EVICTION: (0.5, 6.0),
    Kind.LATE_EVICTION: (2.2, 6.0),
    Kind.NEVER_READY: (1.0, 12.0),
    Kind.SLOW_END: (0.5, 10.0),
    Kind.NODE_REFUSED_BEHIND: (2.0, 10.0),
    Kind.RESIZE_PENDING: (2.0, 10.0),
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


def drawn_fault(rng: random.Random, kind: Kind) -> Fault:
    """A fault of that kind, at some time of the storm."""
    low, high = _LASTING_S.get(kind, (0.0, 0.0))
    at_s = rng.uniform(0.2, WINDOW_S)
    return Fault(kind, round(at_s, 3), round(rng.uniform(low, high), 3), late=rng.random() < 0.5)
