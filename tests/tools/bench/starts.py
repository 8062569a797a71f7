"""How long Kerf takes from the start of its process to ready on a full cluster, and how much memory that needs.

Half of the pods have one GPU, half are CPU-only; all run already, as after a restart of Kerf.
"""

import re
import statistics
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from tests.controlplane import ControlPlane, Process
from tests.controlplane.processes import answers
from tests.tools.bench import reports, servers
from tests.tools.bench.servers import GPUS_PER_NODE, BenchError

_TIMEOUT_S = 600.0
_SETTLING_S = 3.0
"""After ready, until the steady size is read."""


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    nodes: int = 5000
    pods: int = 40000
    repetitions: int = 3

    @property
    def num_steps(self) -> int:
        """The cluster, then the starts."""
        return 1 + self.repetitions


def measure(plan: Plan, tell: Callable[[str], None]) -> reports.Report:
    """Run the plan. Raises BenchError when Kerf does not get ready."""
    gpu_pods = plan.pods // 2
    if gpu_pods > plan.nodes * GPUS_PER_NODE:
        raise BenchError(f"{gpu_pods} GPU pods do not fit on {plan.nodes} nodes of {GPUS_PER_NODE} GPUs")
    tell(f"{plan.nodes} nodes, {plan.pods} pods")
    with servers.workspace() as directory, servers.plane_with_nodes(directory, plan.nodes) as plane:
        servers.run_pods(plane, plan.pods, plan.nodes)
        runs = []
        for repetition in range(plan.repetitions):
            tell(f"start {repetition + 1}")
            runs.append(_start(plane, gpu_pods))
    return {
        **{"nodes": plan.nodes, "pods": plan.pods, "gpu_pods": gpu_pods, "repetitions": plan.repetitions},
        **{key: statistics.median(run[key] for run in runs) for key in runs[0]},
        "runs": runs,
        "machine": reports.machine(),
    }


def _start(plane: ControlPlane, gpu_pods: int) -> dict[str, float]:
    """One start: seconds to ready, of them of Kerf's own processor time, and megabytes at the peak and afterwards."""
    began = time.perf_counter()
    process = servers.start_kerf(plane, "decisive")
    try:
        process.wait_ready(lambda: answers(f"{process.url}/readyz"), _TIMEOUT_S)
        ready_s, cpu_s = time.perf_counter() - began, servers.cpu_seconds(process)
        _check_holdings(process, gpu_pods)
        time.sleep(_SETTLING_S)
        return {
            "ready_s": round(ready_s, 3),
            "cpu_s": round(cpu_s, 2),
            "rss_mb": servers.memory_mb(process, "VmHWM"),
            "rss_steady_mb": servers.memory_mb(process),
        }
    finally:
        process.stop()


def _check_holdings(process: Process, gpu_pods: int) -> None:
    """Refuse a start that is ready before its pods are counted."""
    with urllib.request.urlopen(f"{process.url}/metrics", timeout=_TIMEOUT_S) as answer:
        exposition = answer.read().decode()
    gauges = dict(re.findall(r"^(kerf_gpu_units|kerf_gpu_units_free) (\S+)$", exposition, re.MULTILINE))
    held = float(gauges["kerf_gpu_units"]) - float(gauges["kerf_gpu_units_free"])
    if held != gpu_pods:
        raise BenchError(f"Kerf is ready and counts {held:.0f} GPUs in use, not {gpu_pods}")
