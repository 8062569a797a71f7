"""Metrics of the ledger, the mirror and leadership."""

from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import Metric

from extender.explain.overview import Figures
from extender.kube.background import Tasks
from extender.kube.events import EventRecorder
from extender.ledger.ledger import AllocationState, Ledger
from extender.ledger.mirror import Mirror
from extender.metrics.registry import counter, gauge
from extender.scheduling.callers import UncalledPods
from extender.scheduling.corrections import Corrections
from extender.scheduling.fence import Fence
from extender.scheduling.reporters import Reporters
from extender.scheduling.takeover import Leadership
from extender.scheduling.waking import Waker


def cluster_metrics(
    ledger: Ledger,
    mirror: Mirror,
    events: EventRecorder,
    waker: Waker,
    now: Callable[[], float],
    num_unread: Callable[[], int],
) -> Iterator[Metric]:
    """Nodes, bookings and waiting pods; `num_unread` counts objects that could not be decoded."""
    cluster = ledger.snapshot(now())
    totals = Figures(cluster).sums()
    yield gauge("kerf_nodes", "Nodes.", len(cluster.row_of))
    yield gauge("kerf_gpus", "GPUs installed.", totals["gpus"])
    yield gauge("kerf_gpu_units", "GPUs, or time slices, of device plugins, including unhealthy ones.", totals["units"])
    yield gauge("kerf_gpu_units_free", "GPUs, or time slices, neither held nor reserved.", totals["unitsFree"])
    passing = ledger.num_allocations(AllocationState.RESERVED) + ledger.num_allocations(AllocationState.UNDECIDED)
    yield gauge("kerf_reservations", "Pods with reserved GPUs.", passing)
    yield gauge("kerf_bindings_under_way", "Bindings in progress.", ledger.num_allocations(AllocationState.BINDING))
    overbooked = ledger.rows.num_overbooked
    unreadable = ledger.num_unreadable + num_unread()
    yield gauge("kerf_nodes_overbooked", "Nodes where pods hold more than their capacity.", overbooked)
    unreadable_help = "Changes of pods and nodes with unreadable values; what they describe counts as held."
    yield counter("kerf_unreadable_objects", unreadable_help, unreadable)
    edits_help = "Ignored edits of bound pods' annotations that would have changed what they hold."
    yield counter("kerf_edits_ignored", edits_help, ledger.num_edits_ignored)
    yield gauge("kerf_cache_age_seconds", "Seconds since the API server last reported nodes and pods.", mirror.age_s())
    yield counter("kerf_cache_lists", "Full lists from the API server.", mirror.num_lists)
    yield gauge("kerf_pods_waiting", "Rejected pods waiting for a node.", waker.num_waiting)
    yield counter("kerf_skips", "Times a pod was left pending although it fitted.", waker.skips.num_skips)
    yield counter("kerf_pods_woken", "Patches that woke a pod.", waker.num_woken)
    given_back = ledger.cycles.num_given_back
    yield counter(
        "kerf_gang_reservations_given_back",
        "Reservations returned because kube-scheduler gave up their gang.",
        given_back,
    )
    yield counter("kerf_events_lost", "Events that could not be written.", events.num_lost)


def correction_metrics(ledger: Ledger, corrections: Corrections) -> Iterator[Metric]:
    """Whether pods have the GPUs chosen for them, as node agents report."""
    description = (
        "Pods whose annotations were corrected because the device plugin allocated other GPUs than Kerf chose."
    )
    yield counter("kerf_assignments_corrected", description, corrections.num_corrected)
    mistaken = "Pods that have other GPUs than their annotations say."
    yield gauge("kerf_assignments_mistaken", mistaken, len(ledger.mistaken()))


def caller_metrics(unasked: UncalledPods) -> Iterator[Metric]:
    """Whether schedulers call Kerf for the pods that wait for them."""
    description = "GPU pods waiting for a scheduler that does not call Kerf."
    yield gauge("kerf_pods_unasked", description, unasked.num_pods())


def reporter_metrics(reporters: Reporters) -> Iterator[Metric]:
    """Whether node agents keep their reports up to date."""
    description = "Ready nodes with a node agent's report but no ready agent."
    yield gauge("kerf_agents_silent", description, len(reporters.silent()))


def task_metrics(tasks: Sequence[Tasks]) -> Iterator[Metric]:
    """Whether background tasks stay alive."""
    deaths = sum(tasks.num_deaths for tasks in tasks)
    yield counter("kerf_task_deaths", "Background tasks that died and were restarted.", deaths)


def leadership_metrics(fence: Fence, leadership: Leadership) -> Iterator[Metric]:
    """Whether this process leads, and its takeovers."""
    yield gauge("kerf_leader", "1 on the leader, 0 on a standby.", int(not fence.fault()))
    yield counter("kerf_terms", "Terms this process has begun as leader.", leadership.num_terms)
    yield counter("kerf_pods_marked", "Unbound pods marked at the start of a term.", leadership.num_marked)
    description = "Unbound pods that could not be marked at the start of a term."
    yield counter("kerf_pods_unmarkable", description, leadership.num_unmarkable)
