"""What the author of many pods can do to others: filter's time and Kerf's memory beside those of a harmless one.

On the real control plane, with the queue switched on: nodes, ordinary pods that run, and then as many pods of one
namespace that are created, changed and deleted while kube-scheduler's calls go on, in turn one about an ordinary pod,
which is timed, and one about a pod of that namespace. Kerf and whoever asks have a core of their own. Once the pods are
plain ones, once hostile ones of every kind below, each time with a Kerf of its own. Objects that the API server refuses
are left out and counted.
"""

import contextlib
import itertools
import json
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.controlplane import ControlPlane, processes, wait_until
from tests.controlplane.kerf import QUEUE_RBAC
from tests.tools.bench import reports, requests, servers
from tests.tools.bench.clients import Client
from tests.tools.bench.hostile_authors import NAMESPACE, Author
from tests.tools.bench.hostile_pods import KINDS, Object, plain
from tests.tools.bench.servers import BenchError

_NUM_WARMING = 50
_NUM_ORDINARY = 16
_READY_S = 60.0
_PHASES = ("created", "changed", "deleted")


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    nodes: int = 500
    pods: int = 2000
    """Hostile ones, and ordinary ones that run."""
    repetitions: int = 1
    interval_s: float = 0.02
    """Between two calls about ordinary pods."""
    leave_out: tuple[str, ...] = ()
    """Kinds not to make."""

    @property
    def kinds(self) -> list[str]:
        """Names of the kinds to make."""
        return [name for name in KINDS if name not in self.leave_out]

    @property
    def num_steps(self) -> int:
        """The cluster, then the runs."""
        return 1 + 2 * self.repetitions


@dataclass
class Run:
    """One run: seconds of the timed calls, and megabytes at most."""

    seconds: list[float] = field(default_factory=list)
    rss_mb: float = 0.0
    ready: bool = False
    refused: Counter[str] = field(default_factory=Counter)
    made: Counter[str] = field(default_factory=Counter)


def measure(plan: Plan, tell: Callable[[str], None]) -> reports.Report:
    """Run the plan. Raises BenchError when Kerf gives an ordinary pod no node."""
    tell(f"{plan.nodes} nodes, {plan.pods} pods")
    runs: dict[str, list[Run]] = {"plain": [], "hostile": []}
    with servers.on_core(first=False), servers.workspace() as directory, _plane(directory, plan) as plane:
        names = [item["metadata"]["name"] for item in plane.request("GET", "/api/v1/nodes")["items"]]
        for repetition in range(plan.repetitions):
            for kind in sorted(runs, reverse=repetition % 2 == 0):
                tell(f"{kind} pods, repetition {repetition + 1}")
                runs[kind].append(_run(plane, plan, names, _pods(plan, names, hostile=kind == "hostile")))
    p99 = {kind: [_p99(run.seconds) for run in found] for kind, found in runs.items()}
    rss = {kind: [run.rss_mb for run in found] for kind, found in runs.items()}
    refused: Counter[str] = sum((run.refused for run in runs["hostile"][:1]), Counter())
    return {
        "pods": sum(runs["hostile"][0].made.values()),
        "kinds": dict(sorted(runs["hostile"][0].made.items())),
        "nodes": plan.nodes,
        "filter_p99_ratio": round(statistics.median(map(_ratio, p99["hostile"], p99["plain"])), 3),
        "rss_ratio": round(statistics.median(map(_ratio, rss["hostile"], rss["plain"])), 3),
        "ready": all(run.ready for run in runs["hostile"]),
        "refused": dict(sorted(refused.items())),
        "filter_p99_ms": {kind: [round(1e3 * value, 3) for value in values] for kind, values in p99.items()},
        "rss_mb": rss,
        "calls": {kind: [len(run.seconds) for run in found] for kind, found in runs.items()},
        "machine": reports.machine(),
    }


@contextlib.contextmanager
def _plane(directory: Path, plan: Plan) -> Iterator[ControlPlane]:
    """The control plane with nodes and ordinary pods that run."""
    with servers.plane_with_nodes(directory, plan.nodes) as plane:
        plane.apply(QUEUE_RBAC, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
        with_gpus = min(plan.pods // 2, 2 * plan.nodes)
        servers.load(plane, "pods", f"-bound={with_gpus}", "-pod-gpus=1", "-prefix=gpu")
        servers.load(plane, "pods", f"-bound={plan.pods - with_gpus}", "-pod-gpus=0", "-prefix=cpu")
        yield plane


def _ratio(hostile: float, other: float) -> float:
    return hostile / other


def _p99(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[98]


def _pods(plan: Plan, names: Sequence[str], *, hostile: bool) -> list[tuple[str, list[Object]]]:
    """Objects to make for each pod, with the name of its kind, kinds in turn."""
    if not hostile:
        return [("plain", plain(f"plain-{number}")) for number in range(plan.pods)]
    made = zip(range(plan.pods), itertools.cycle(plan.kinds), strict=False)
    return [(kind, KINDS[kind](f"{kind}-{number}", number, names)) for number, kind in made]


def _run(plane: ControlPlane, plan: Plan, names: list[str], pods: list[tuple[str, list[Object]]]) -> Run:
    run, author = Run(), Author(plane, pods)
    with (
        author,
        servers.on_core(first=True),
        servers.kerf(plane, "decisive", "--set", "queue.enabled=true") as kerf,
        Client(kerf.url) as client,
    ):
        asked = _Asking(client, names)
        for _ in range(_NUM_WARMING):
            asked.ordinary()
        asked.seconds.clear()
        for phase in _PHASES:
            author.begin(phase)
            began = time.monotonic()
            for number in itertools.count(1):
                asked.ordinary()
                asked.hostile(author.stored())
                run.rss_mb = max(run.rss_mb, servers.memory_mb(kerf))
                if author.is_done() and number >= len(pods) // len(_PHASES):
                    break
                time.sleep(max(0.0, began + number * plan.interval_s - time.monotonic()))
        run.seconds, run.made, run.refused = asked.seconds, author.made, author.refused
        with contextlib.suppress(TimeoutError):
            run.ready = wait_until(lambda: processes.answers(f"{kerf.url}/readyz"), _READY_S, "Kerf is ready", 0.5)
    return run


class _Asking:
    """kube-scheduler, as far as filter sees it."""

    def __init__(self, client: Client, names: list[str]) -> None:
        self._client = client
        self._names = json.dumps(names).encode()
        self._bodies = [requests.extender_args(number, names) for number in range(_NUM_ORDINARY)]
        self._number = 0
        self.seconds: list[float] = []

    def ordinary(self) -> None:
        """Ask about the next of a few pods, each again and again: it gives back what it held."""
        self._number += 1
        reply = self._client.post("/filter", self._bodies[self._number % _NUM_ORDINARY])
        if not json.loads(reply.body)["NodeNames"]:
            raise BenchError(f"Kerf places no pod: {reply.body[:300]!r}")
        self.seconds.append(reply.seconds)

    def hostile(self, pod: bytes | None) -> None:
        """Ask about one of the author's."""
        if pod is not None:
            self._client.post("/filter", b'{"Pod":%b,"Nodes":null,"NodeNames":%b}' % (pod, self._names))
