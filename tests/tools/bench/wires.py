"""No loss on the wire: a trace through the real kube-scheduler and Kerf, beside the simulator's placements of it.

Kerf and its extender entries as they are shipped, decisive mode, every node in view, no pod departs; or, as a planner,
the queue and a kube-scheduler with its default configuration. Nobody tells Kerf
the mix of the pods; the simulator's rank is `kerf-online`, which expects what it has seen as well.

As an oracle both are told the mix, as most policies of the simulator are, and price it once; the simulator is given the
outlook that comes of it, on the same nodes in the same order. What differs then is all that lies between: the API
server, kube-scheduler, reservations, bindings, the watch, the arithmetic of the service.
"""

import json
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from extender.core.clusters import WHOLE_MILLI
from extender.core.fragmentation import ANY_MODEL
from extender.core.valuenet.features import Outlook, node_states
from extender.queueing.pods.objects import GATE
from extender.ranking import files
from model.simulations import learned, online
from model.simulations.measures import LOADS, allocation_curve
from model.simulations.replays import Replay
from model.training.evaluations import _rank_of
from model.workloads.traces import TraceError, read_nodes, read_pods
from model.workloads.workloads import ARRIVED_FRAC, Workload, workload
from tests.controlplane.kerf import QUEUE_RBAC, SCHEDULER_CONFIG
from tests.controlplane.objects import gpu_node, pod, steered
from tests.controlplane.processes import wait_until
from tests.e2e.traces import Offered, gpus_of, nodes_of, offer
from tests.tools.bench import reports, schedulers, servers
from tests.tools.bench.ledgers import running

TOLERANCE: Final = 0.2
"""Points of allocation that the wire may cost."""
_MEMORY_MIB: Final = 32000
"""Of each GPU, which traces do not tell; shares ask for as much of it as of the compute."""
_PRICED_WITHIN_S: Final = 600.0
_FOREVER: Final = 1e9
_STILL_S: Final = 30.0
"""Pods of the queue are all decided once none was bound for so long: nobody calls them unschedulable."""


@dataclass(frozen=True)
class Plan:
    """What to offer."""

    traces: Path
    trace: str = "default"
    seed: int = 1
    """Of the order of arrivals, and of the nodes drawn where not all are there."""
    nodes: int | None = None
    """None: all of the trace."""
    cpu_pods: bool = False
    """Whether pods without GPUs come too: of nodes that lose little by them kube-scheduler chooses, the simulator takes
    the one that loses least."""
    oracle: bool = False
    """Whether the mix is told."""
    model: Path = files.RELEASED
    pods_per_s: float | None = None
    """How fast they come; None: as fast as the API server takes them."""
    whole: bool = False
    """Whether pods that ask for a part of a GPU ask for all of it instead."""
    planner: bool = False
    """Whether all pods wait in the queue, and kube-scheduler calls nobody."""
    timeout_s: float = 3600.0
    """How long kube-scheduler may take for all pods."""

    num_steps: int = 3


def measure(plan: Plan, tell: Callable[[str], None]) -> reports.Report:
    """Run the plan. Raises TraceError, ModelError, and TimeoutError when a pod is left undecided."""
    trace = offered(plan)
    settings = _oracle(plan, trace.workload) if plan.oracle else _shipped(plan)
    tell("simulation")
    simulated = _simulated(plan, trace, settings)
    tell(f"{len(trace.node_manifests)} nodes")
    with servers.workspace() as directory, servers.plane(directory) as plane:
        plane.apply(*trace.node_manifests)
        path = directory / "kerf.yaml"
        path.write_text(yaml.safe_dump(settings))
        plane.apply(QUEUE_RBAC)
        with servers.kerf(plane, "decisive", f"--config={path}") as kerf:
            wait_until(lambda: _is_priced(kerf.url), _PRICED_WITHIN_S, "Kerf has priced what it expects")
            if plan.planner:
                plane.start_scheduler(yaml.safe_dump(schedulers.PLAIN))
            else:
                plane.start_scheduler(SCHEDULER_CONFIG / "decisive.yaml", extender_url=kerf.url)
            tell(f"{len(trace.pod_manifests)} pods")
            began = time.monotonic()
            found = offer(plane, trace, plan.timeout_s, plan.pods_per_s, _STILL_S if plan.planner else None)
            seconds = time.monotonic() - began
            told = _model(kerf.url)
    milli = trace.workload.asks.gpu_milli[trace.workload.classes]
    nodes, gpus = np.array(nodes_of(trace, found)), np.array(gpus_of(trace, found))
    allocation = {
        name: _allocation(trace.workload, placed) for name, placed in (("wire", nodes), ("simulator", simulated.placed))
    }
    return {
        **{"trace": plan.trace, "seed": plan.seed, "oracle": plan.oracle, "planner": plan.planner},
        **{"nodes": len(trace.node_manifests), "pods": len(nodes), "cpu_pods": int((milli == 0).sum())},
        "shares": int(((milli > 0) & (milli < WHOLE_MILLI)).sum()),
        "model": told["model"]["sha256"],
        "priced": {name: told["prices"][name] for name in ("workedOut", "seconds")},
        "allocation": allocation,
        "difference": {
            load: round(percent - allocation["simulator"][load], 2) for load, percent in allocation["wire"].items()
        },
        "unplaced": {"wire": int((nodes < 0).sum()), "simulator": int((simulated.placed < 0).sum())},
        "same": {"node": int((nodes == simulated.placed).sum()), "gpus": int((gpus == simulated.gpus).sum())},
        "policies": dict(Counter(_decided_by(item) for item in found.values())),
        "seconds": round(seconds, 1),
        "machine": reports.machine(),
    }


def met(report: reports.Report) -> bool:
    """Whether the wire cost no more than it may, at any load."""
    return all(abs(points) <= TOLERANCE for points in report["difference"].values())


def offered(plan: Plan) -> Offered:
    """A trace's nodes, or some of them, and its pods until 130 % of their GPUs have arrived. Raises TraceError."""
    node_list, pod_list = read_nodes(plan.traces), read_pods(plan.traces, plan.trace)
    whole = workload(plan.traces, plan.trace, plan.seed, node_list, pod_list)
    if plan.whole:
        asks = whole.asks._replace(gpu_milli=np.where(whole.asks.gpu_milli > 0, WHOLE_MILLI, 0))
        whole = replace(whole, asks=asks, asked_milli=(asks.num_gpus * asks.gpu_milli)[whole.classes])
    rows = np.arange(len(whole.node_names))[: plan.nodes]
    nodes = whole.nodes.at(rows)
    if not nodes.num_gpus.any():
        raise TraceError(f"the first {len(rows)} nodes of trace {plan.trace} have no GPUs")
    arrived = np.cumsum(whole.asked_milli) / (float(nodes.num_gpus.sum()) * WHOLE_MILLI)
    kept = np.flatnonzero((arrived <= ARRIVED_FRAC) & (plan.cpu_pods | (whole.asked_milli > 0)))
    part = replace(
        whole,
        node_names=tuple(f"node-{row:05d}" for row in range(len(rows))),  # in the order that ties go by
        nodes=nodes,
        pods=whole.pods[kept],
        classes=whole.classes[kept],
        asked_milli=whole.asked_milli[kept],
    )
    return Offered(
        part,
        [_node(part, row) for row in range(len(rows))],
        [_pod(part, f"pod-{number:05d}", c, gated=plan.planner) for number, c in enumerate(part.classes.tolist())],
    )


def _simulated(plan: Plan, trace: Offered, settings: dict[str, Any]) -> Replay:
    """The simulator's placements, with as much known beforehand."""
    if plan.oracle:
        known = _known(trace, settings)
        _, placed_by = _rank_of(plan.model)
        return placed_by(known.workload, known.outlook)
    model = files.read(plan.model)
    expected = online.outlooks(trace.workload, online.Watch(), model.manifest.foresight_load)
    return learned.replay_pieces(trace.workload, expected, model.potential)


@dataclass(frozen=True)
class _Known:
    """The trace in the service's own numbers of GPU models, and what the service expects."""

    workload: Workload
    outlook: Outlook


def _known(trace: Offered, settings: dict[str, Any]) -> _Known:
    flags = {f"{section}.{key}": value for section, values in settings.items() for key, value in values.items()}
    with running(trace.node_manifests, flags) as service:
        cluster, served = service.placer.snapshot(), service.rank.score.served
    if served is None or service.rank.priced.fault:
        raise servers.BenchError(f"the model is not served with prices: {service.rank.fault()}")
    rows = np.array([cluster.row_of[name] for name in trace.workload.node_names])
    names = trace.workload.model_names
    bit = {model.name: number for number, model in enumerate(cluster.models)}
    asks = trace.workload.asks
    models = [
        ANY_MODEL if bits == ANY_MODEL else sum(1 << bit[name] for name in _named(names, bits) if name in bit)
        for bits in asks.models.tolist()
    ]
    return _Known(
        replace(
            trace.workload,
            nodes=node_states(cluster, rows, served.num_models),
            asks=asks._replace(models=np.array(models, np.int64)),
        ),
        served.outlook,
    )


def _shipped(plan: Plan) -> dict[str, Any]:
    """What an installation begins with."""
    model = {"model": {"path": str(plan.model.resolve())}} if plan.model != files.RELEASED else {}
    return model | ({"queue": {"enabled": True, "extender": False}} if plan.planner else {})


def _oracle(plan: Plan, offered_to: Workload) -> dict[str, Any]:
    """The mix is told once and for all, and priced once."""
    asks = offered_to.asks
    number = np.bincount(offered_to.classes, minlength=len(asks.cpu_milli))
    pods = [
        {
            **{"cpu_milli": int(asks.cpu_milli[c]), "memory_mib": int(asks.memory_mib[c])},
            **{"gpus": int(asks.num_gpus[c]), "gpu_milli": int(asks.gpu_milli[c]) or WHOLE_MILLI},
            "models": _named(offered_to.model_names, int(asks.models[c])),
            "count": int(number[c]),
        }
        for c in np.flatnonzero(number).tolist()
    ]
    return {
        "decisions": {"policy": "kerf", "typical_pods": pods},
        "model": {
            **{"path": str(plan.model.resolve()), "prices": "lp", "prior_pods": _FOREVER},
        },
        "telemetry": {"source": "off"},
    }


def _named(names: tuple[str, ...], bits: int) -> list[str]:
    """The models of a class; none for any."""
    return [] if bits == ANY_MODEL else [name for bit, name in enumerate(names) if bits >> bit & 1]


def _node(trace: Workload, row: int) -> dict[str, Any]:
    """Steered, so that shares and whole GPUs may be side by side as in the simulator."""
    nodes = trace.nodes
    return steered(
        gpu_node(
            trace.node_names[row],
            int(nodes.num_gpus[row]),
            trace.model_names[int(nodes.model[row])],
            _MEMORY_MIB,
            f"{nodes.cpu_milli[row]}m",
            f"{nodes.memory_mib[row]}Mi",
            allocatable={"pods": "1000"},
        )
    )


def _pod(trace: Workload, name: str, c: int, *, gated: bool) -> dict[str, Any]:
    asks = trace.asks
    milli = int(asks.gpu_milli[c])
    is_share = 0 < milli < WHOLE_MILLI
    annotations = {"kerf.dev/gpu-share": str(milli)} if is_share else {}
    models = _named(trace.model_names, int(asks.models[c]))
    if models:
        annotations["kerf.dev/gpu-model"] = f"^({'|'.join(models)})$"
    gates = [{"name": GATE}] if gated else []
    return pod(
        name,
        0 if is_share else int(asks.num_gpus[c]),
        annotations=annotations,
        cpu=f"{asks.cpu_milli[c]}m",
        memory=f"{asks.memory_mib[c]}Mi",
        schedulingGates=gates,
    )


def _model(url: str) -> Any:
    with urllib.request.urlopen(f"{url}/model", timeout=30) as response:
        return json.loads(response.read())


def _is_priced(url: str) -> bool:
    state = _model(url)
    if state["prices"]["fault"]:
        raise servers.BenchError(state["prices"]["fault"])
    return bool(state["served"] == "model" and state["prices"]["workedOut"])


def _decided_by(item: dict[str, Any]) -> str:
    """The policy that placed a pod, "" for none."""
    return str(item["metadata"].get("annotations", {}).get("kerf.dev/assigned-by", "")).rpartition(" ")[2]


def _allocation(trace: Workload, placed: Any) -> dict[str, float]:
    """Percent of the GPUs allocated at each of LOADS that was reached, and at the end."""
    curve = allocation_curve(trace, placed)
    found = {str(load): percent for load in LOADS if (percent := curve.at(load)) is not None}
    return found | {"end": round(float(100 * trace.asked_milli[placed >= 0].sum() / trace.gpu_milli), 2)}
