"""Pods a second of a real kube-scheduler: with no extender, the Go echo, the best decisive extender that can be, Kerf
in both its modes, planned with and without an extender, and bare; of pods whose GPUs are devices of ResourceClaims too.

Nodes are alike, or drawn (`unlike`): no two of them are often in the same state. All pods of a run are created at once,
or for some time as many as are bound (a stream): then what is written behind the pods, such as Events, counts as well.

Repetitions go over the modes in turn, each time from another one on, so that what the machine does besides falls on
all alike. Every single run has a control plane of its own: no mode inherits another one's pods or warm caches. All
run under the same client limits and the same percentageOfNodesToScore. The processor time of each process is reported
too: where all share few cores, that is what the rates come from.
"""

import contextlib
import statistics
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

import yaml

from tests.controlplane import ControlPlane, Process, free_port
from tests.controlplane.kerf import QUEUE_RBAC, SCHEDULER_CONFIG
from tests.tools.bench import api_counts, claims, reports, servers, unlike
from tests.tools.bench.servers import GPUS_PER_NODE, BenchError
from tests.tools.chaos import checker


class Mode(StrEnum):
    """What kube-scheduler asks besides its own plugins."""

    NONE = "none"
    UNBATCHED = "none-unbatched"
    """The same without the batching of alike pods that kube-scheduler has from 1.35 on."""
    ECHO = "echo"
    BEST = "best"
    """A decisive extender that does nothing but that (`bare_extender`): the most that decisive can reach."""
    DECISIVE = "decisive"
    SCORES = "scores"
    PLANNED = "planned"
    """Pods wait behind Kerf's gate: it nominates a node for each, and opens. These writes count."""
    PLANNER = "planner"
    """The same without an extender: their GPUs are written with the nomination, and kube-scheduler binds by itself."""
    BARE = "bare"
    """The same writes by a Go client that knows each pod's node, and no extender: the most that planned can reach."""
    DRA = "dra"
    """Pods ask by claims, for devices that kube-scheduler allocates."""
    DRA_PLANNED = "dra-planned"
    """Kerf owns the pools, and allocates, nominates and opens, without an extender. These writes count."""
    DRA_WRITTEN = "dra-written"
    """The same writes by a Go client that knows each pod's devices: the most that dra-planned can reach."""


class View(StrEnum):
    """How many nodes a pod is offered: all of them, or the sample that kube-scheduler takes by default."""

    FULL = "full"
    DEFAULT = "default"


_PERCENTAGE = {View.FULL: 100, View.DEFAULT: 0}
"""percentageOfNodesToScore; 0 lets kube-scheduler choose by the number of nodes."""
_GATE = "kerf.dev/queue"
_RUN = "load.kerf.dev/run=measured"
_CLIENT_LIMITS = {"qps": 5000, "burst": 5000}
PLAIN = {
    "apiVersion": "kubescheduler.config.k8s.io/v1",
    "kind": "KubeSchedulerConfiguration",
    "profiles": [{"schedulerName": "default-scheduler"}],
}
"""kube-scheduler as it comes."""
_ECHO = {
    **{"urlPrefix": "http://replaced.invalid", "nodeCacheCapable": True, "weight": 1},
    **{"filterVerb": "filter", "prioritizeVerb": "prioritize", "bindVerb": "bind"},
}
_UNBATCHED = "OpportunisticBatching=false"
_OF_KERF = (Mode.DECISIVE, Mode.SCORES, Mode.PLANNED)
"""By an extender."""
CLAIMING: Final = (Mode.DRA, Mode.DRA_PLANNED, Mode.DRA_WRITTEN)
"""Their pods ask by claims. Their rates count from the first creation, the others' from the first binding on."""
COUNTING: Final = tuple(mode for mode in Mode if mode not in CLAIMING and mode is not Mode.UNBATCHED)
_GATED = (Mode.PLANNED, Mode.PLANNER, Mode.BARE, Mode.DRA_PLANNED, Mode.DRA_WRITTEN)
_WRITTEN = (Mode.BARE, Mode.DRA_WRITTEN)
_LEAST_OF_BEST: Final = 0.9
"""Rates count where `best` is at least so many times as fast as `none`: else something held up extenders as such."""
_IN_STREAM: Final = 100
"""Pods of a stream that wait at any time."""
_RATIOS = (
    *((mode, Mode.NONE) for mode in (Mode.UNBATCHED, Mode.ECHO, Mode.BEST, Mode.BARE)),
    *((mode, than) for mode in (*_OF_KERF, Mode.PLANNER) for than in COUNTING),
    *((mode, than) for mode in CLAIMING for than in CLAIMING),
)


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    nodes: int
    pods: int
    view: View
    modes: tuple[Mode, ...] = COUNTING
    pod_gpus: int = 1
    repetitions: int = 5
    backlog: bool = False
    """Whether all pods exist before the first is placed; else they are created meanwhile."""
    timeout_s: float = 600.0
    """How long the pods of one run may take before those still unbound fail it."""
    templates: bool = False
    """Whether claims are made from a template, by Kubernetes' controller, which takes its part of the machine."""
    unlike: bool = False
    """Whether CPU, memory, GPUs and models of the nodes are drawn, and half of them partly used."""
    stream_s: float = 0.0
    """How long pods are created as others are bound, instead of `pods` at once; 0: they are created at once."""

    @property
    def num_steps(self) -> int:
        """Runs."""
        return self.repetitions * len(self.modes)


def measure(plan: Plan, tell: Callable[[str], None]) -> reports.Report:
    """Run the plan. Raises BenchError when a pod stays unbound or a node is over its capacity."""
    runs: dict[Mode, list[_Run]] = {mode: [] for mode in plan.modes}
    with servers.workspace() as directory:
        for repetition in range(plan.repetitions):
            first = repetition % len(plan.modes)
            for mode in plan.modes[first:] + plan.modes[:first]:
                what = f"{mode}, {plan.view} view, {plan.pod_gpus}-GPU pods, repetition {repetition + 1}"
                tell(what)
                run = _run(mode, plan, directory / f"{repetition + 1}-{mode}")
                _check(run.outcome, what)
                runs[mode].append(run)
    ratios = _ratios({mode: [_rate(mode, run.outcome) for run in of_mode] for mode, of_mode in runs.items()})
    best = ratios.get(f"{Mode.BEST}/{Mode.NONE}")
    return {
        **{"nodes": plan.nodes, "view": plan.view.value, "pods": plan.pods, "pod_gpus": plan.pod_gpus},
        **{"backlog": plan.backlog, "templates": plan.templates, "unlike": plan.unlike, "stream_s": plan.stream_s},
        "modes": {
            mode.value: {
                "pods_per_s": [round(_rate(mode, run.outcome), 1) for run in of_mode],
                "cpu_ms_per_pod": [run.cpu_ms for run in of_mode],
                "api_per_pod": [run.api for run in of_mode],
            }
            for mode, of_mode in runs.items()
        },
        "ratios": ratios,
        "counts": None if best is None else best >= _LEAST_OF_BEST,
        "machine": reports.machine(),
    }


@dataclass(frozen=True)
class _Run:
    """One run of a mode."""

    outcome: dict[str, Any]
    """What the load generator saw."""
    cpu_ms: dict[str, float]
    """Processor time of each process by pod."""
    api: dict[str, float]
    """What the API server did by pod."""


def scheduler_config(mode: Mode, view: View) -> str:
    """The KubeSchedulerConfiguration of a mode: Kerf's own as shipped, apart from what all modes have in common."""
    settings: dict[str, Any] = dict(PLAIN)
    if mode is Mode.ECHO:
        settings["extenders"] = [_ECHO]
    elif mode in (*_OF_KERF, Mode.BEST):
        name = Mode.SCORES if mode is Mode.SCORES else Mode.DECISIVE
        settings = yaml.safe_load((SCHEDULER_CONFIG / f"{name}.yaml").read_text())
    common = {"clientConnection": _CLIENT_LIMITS, "percentageOfNodesToScore": _PERCENTAGE[view]}
    return yaml.safe_dump(settings | common)


def _run(mode: Mode, plan: Plan, directory: Path) -> _Run:
    """One run on a control plane of its own."""
    pods = _pod_flags(mode, plan)
    flags = (
        *(*pods, f"-timeout={plan.timeout_s:g}s"),
        *(["-exist"] if plan.backlog else []),
        *([f"-stream={plan.stream_s:g}s", f"-waiting={_IN_STREAM}"] if plan.stream_s else []),
        *(["-nominate"] if mode in _WRITTEN else []),
    )
    with (
        _plane(mode, plan, directory) as plane,
        ThreadPoolExecutor(1) as pool,
        contextlib.ExitStack() as stack,
    ):

        def measure() -> Future[dict[str, Any]]:
            return pool.submit(servers.load, plane, "measure", *flags)

        if plan.backlog:
            servers.load(plane, "pods", *pods)
        # A backlog is looked at before anything can place it. What lets it go as it is written is `measure` itself.
        early = measure() if plan.backlog and mode not in _WRITTEN else None
        extender = stack.enter_context(_deciding(mode, plan, plane))
        processes = plane.running + ([extender] if extender else [])
        api_before = api_counts.read(plane)
        before = list(map(servers.cpu_seconds, processes))
        outcome = (early or measure()).result()
        if plan.stream_s:
            api_counts.wait_until_written(plane)
        after = list(map(servers.cpu_seconds, processes))
        api = api_counts.read(plane)
        if mode in (Mode.BEST, Mode.DECISIVE, Mode.PLANNED, Mode.PLANNER):
            _judge(plane)
        elif mode in CLAIMING and not outcome["unbound"]:
            claims.judge(plane, plan.pod_gpus)
    used = zip(processes, before, after, strict=True)
    num_pods = outcome["pods"]
    return _Run(
        outcome,
        {process.name: round((end - begin) * 1000 / num_pods, 2) for process, begin, end in used},
        {name: round((api[name] - api_before[name]) / num_pods, 3) for name in api},
    )


def _pod_flags(mode: Mode, plan: Plan) -> tuple[str, ...]:
    asked = (
        claims.pod_flags(plan.pod_gpus, templates=plan.templates)
        if mode in CLAIMING
        else (f"-pod-gpus={plan.pod_gpus}",)
    )
    return (f"-count={plan.pods}", f"-label={_RUN}", *asked, *([f"-gate={_GATE}"] if mode in _GATED else []))


@contextlib.contextmanager
def _plane(mode: Mode, plan: Plan, directory: Path) -> Iterator[ControlPlane]:
    """A control plane with nodes whose GPUs are resources, or devices."""
    if mode not in CLAIMING:
        with_nodes = unlike.plane_with_nodes if plan.unlike else servers.plane_with_nodes
        with with_nodes(directory, plan.nodes) as plane:
            yield plane
        return
    with servers.plane(directory) as plane:
        claims.publish(plane, plan.nodes, owned=mode is not Mode.DRA)
        if plan.templates:
            plane.start_controller_manager(claims.CONTROLLER)
        yield plane


@contextlib.contextmanager
def _deciding(mode: Mode, plan: Plan, plane: ControlPlane) -> Iterator[Process | None]:
    """kube-scheduler with the extender of a mode. Of the two the one that the pods wait for is started last."""
    config = scheduler_config(mode, plan.view)
    if mode is Mode.PLANNED:
        plane.apply(QUEUE_RBAC)
        port = free_port()
        plane.start_scheduler(config, extender_url=servers.url_of(port))
        with servers.kerf(plane, Mode.DECISIVE, "--set=queue.enabled=true", port=port) as extender:
            yield extender
    elif mode in (Mode.PLANNER, Mode.DRA_PLANNED):
        plane.apply(QUEUE_RBAC, *(claims.rights() if mode in CLAIMING else ()))
        plane.start_scheduler(config)
        settings = ["--set=queue.enabled=true", "--set=queue.extender=false"]
        settings += ["--set=dra.allocate=true"] if mode in CLAIMING else []
        with servers.kerf(plane, Mode.DECISIVE, *settings) as planner:
            yield planner
    elif mode in (Mode.NONE, Mode.UNBATCHED, Mode.BARE, Mode.DRA, Mode.DRA_WRITTEN):
        plane.start_scheduler(config, gates=[_UNBATCHED] if mode is Mode.UNBATCHED else [])
        yield None
    else:
        with _extender(mode, plane) as extender:
            plane.start_scheduler(config, extender_url=extender.url)
            yield extender


def _extender(mode: Mode, plane: ControlPlane) -> contextlib.AbstractContextManager[Process]:
    if mode is Mode.ECHO:
        return servers.go_echo(plane)
    return servers.bare_extender(plane) if mode is Mode.BEST else servers.kerf(plane, mode)


def _judge(plane: ControlPlane) -> None:
    """Each pod has the GPUs that it asked for, and no GPU two of them. Raises BenchError."""
    nodes, pods = (plane.request("GET", f"/api/v1/{plural}")["items"] for plural in ("nodes", "pods"))
    found = checker.overbooked(nodes, pods) + checker.misplaced(nodes, pods, ["default-scheduler"])
    if found:
        raise BenchError(f"{len(found)} promises are broken; the first: {found[0]}")


def _check(outcome: dict[str, Any], what: str) -> None:
    """Refuse a rate that was reached, or not reached, by wrong placements."""
    if outcome["unbound"]:
        raise BenchError(f"{outcome['unbound']} of {outcome['pods']} pods stayed unbound ({what})")
    if outcome["over_capacity_nodes"]:
        raise BenchError(
            f"{outcome['over_capacity_nodes']} nodes are over their {GPUS_PER_NODE} GPUs, "
            f"up to {outcome['max_per_node']} on one ({what})"
        )
    if not outcome["pods_per_s"] > 0:
        raise BenchError(f"no rate in {outcome['pods']} pods: it takes two bindings at different times ({what})")


def _rate(mode: Mode, outcome: dict[str, Any]) -> float:
    """Pods a second: where claims are asked for, all that is done before the first binding counts too."""
    return float(outcome["bound"] / outcome["seconds"] if mode in CLAIMING else outcome["pods_per_s"])


def _ratios(rates: dict[Mode, list[float]]) -> dict[str, float]:
    """Of medians: "decisive/none" is how many times as fast decisive is."""
    medians = {mode: statistics.median(values) for mode, values in rates.items()}
    return {
        f"{mode}/{than}": round(medians[mode] / medians[than], 3)
        for mode, than in _RATIOS
        if mode != than and mode in medians and than in medians
    }
