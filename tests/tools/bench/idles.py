"""What an idle Kerf takes: `kerf serve` with the shipped settings, nodes, and nothing that happens.

Rows of the report, each of them a process of its own on the same control plane:
- `default`: as shipped, nobody calls;
- `queue`: the same with the queue;
- `called`: as `default`, with the calls of the kubelet's probes and of one Prometheus, as often as the chart has them.

Processor time is that of Kerf and of all processes it has started, those that have ended included; memory is Kerf's own
(`rss_mb`, `peak_mb`) and that of the processes beside it that are there at the end (`beside_mb`).
"""

import contextlib
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from tests.controlplane import Process
from tests.controlplane.kerf import QUEUE_RBAC
from tests.tools.bench import reports, servers

ROWS: Final = {"default": (), "queue": ("--set=queue.enabled=true",), "called": ()}
"""By name, what is set."""
_CALLS: Final = {"healthz": 15.0, "syncz": 5.0, "metrics": 15.0}
"""Seconds between two calls: the chart's probes, and what most Prometheuses are set to."""
_ANSWER_S: Final = 30.0


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    nodes: int = 5000
    seconds: float = 60.0
    settle_s: float = 30.0
    """After ready: the learned rank works out its first prices."""

    num_steps: int = 1 + len(ROWS)


def measure(plan: Plan, tell: Callable[[str], None]) -> reports.Report:
    """Run the plan. Raises ProcessError when Kerf does not get ready."""
    tell(f"{plan.nodes} nodes")
    with servers.workspace() as directory, servers.plane_with_nodes(directory, plan.nodes) as plane:
        plane.apply(QUEUE_RBAC)
        rows = {}
        for name, settings in ROWS.items():
            tell(name)
            with servers.kerf(plane, "decisive", *settings) as kerf:
                time.sleep(plan.settle_s)
                rows[name] = _row(kerf, plan.seconds, called=name == "called")
    return {
        **{"nodes": plan.nodes, "seconds": plan.seconds},
        "rows": rows,
        "machine": reports.machine(),
    }


def _row(kerf: Process, seconds: float, *, called: bool) -> dict[str, float]:
    """Percent of a core over some time, and megabytes at its end."""
    with _calling(kerf.url) if called else contextlib.nullcontext():
        family = servers.family_cpu_seconds(kerf.pid), servers.cpu_seconds(kerf)
        began = time.perf_counter()
        time.sleep(seconds)
        taken = time.perf_counter() - began
        all_s, own_s = servers.family_cpu_seconds(kerf.pid) - family[0], servers.cpu_seconds(kerf) - family[1]
    return {
        "cpu_percent": round(100 * all_s / taken, 2),
        "own_cpu_percent": round(100 * own_s / taken, 2),
        "rss_mb": servers.memory_mb(kerf),
        "peak_mb": servers.memory_mb(kerf, "VmHWM"),
        "beside_mb": servers.children_mb(kerf.pid),
    }


@contextlib.contextmanager
def _calling(url: str) -> Iterator[None]:
    """Calls of the probes and of Prometheus, from a thread of this process."""
    over = threading.Event()

    def calls(path: str, every_s: float) -> None:
        while not over.wait(every_s):
            with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/{path}", timeout=_ANSWER_S) as answer:
                answer.read()

    threads = [threading.Thread(target=calls, args=call, daemon=True) for call in _CALLS.items()]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join()
