"""A short run of ratios and exact counts that a change can be held against: no absolute times, as machines differ.

Of each less is better. A ratio is what something of Kerf's takes by what it is compared with, side by side in this run.

- `filter / Go echo`: filter of 750 names, beside the Go echo that decodes and encodes them (`calls`), at the median: in
  so short a run the slowest of a hundred are those that something else came between;
- `learned rank / best fit, cached`, `new, whole` and `new, share`: processor time of filter (`learned`);
- `live scores / none`: processor time of filter with live scores beside best fit without telemetry (`telemetry`);
- `none / decisive, pods/s`, `echo / decisive, pods/s` and `best / decisive, pods/s`: rates of kube-scheduler, full view
  (`schedulers`);
- `Kerf / Go echo, CPU a pod`: processor time of the two extenders in those runs.

Counts are of one pod: functions that Kerf calls, in Python and in C (`call_counts`), and what the API server did for it
in the runs of decisive mode (`api_counts`).
"""

import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.tools.bench import call_counts, calls, learned, reports, schedulers, telemetry
from tests.tools.bench.schedulers import Mode
from tests.tools.bench.servers import BenchError

MARGIN: Final = 0.25
"""A ratio that is larger than before by more than this part is worse."""
COUNT_MARGIN: Final = 0.05
"""The same of a count."""
_NAMES: Final = 750
_MODES: Final = (Mode.NONE, Mode.ECHO, Mode.BEST, Mode.DECISIVE)


@dataclass(frozen=True)
class Plan:
    """What to measure, and what to hold it against."""

    nodes: int = 5000
    """Of calls, of the learned rank and of live scores."""
    requests: int = 300
    """Of each of them."""
    scheduler_nodes: int = 500
    pods: int = 600
    """Of one run of kube-scheduler."""
    repetitions: int = 2
    """Of calls, and of kube-scheduler."""
    against: Path | None = None
    """A report of this command."""
    margin: float = MARGIN

    @property
    def parts(self) -> tuple[calls.Plan, learned.Plan, telemetry.Plan, schedulers.Plan]:
        """Of each of its parts."""
        requests = max(100, self.requests)
        return (
            calls.Plan(self.nodes, self.requests, self.repetitions, verbs=("filter",), names=(_NAMES,)),
            learned.Plan(self.nodes, self.requests),
            telemetry.Plan(self.nodes, 1, requests),
            schedulers.Plan(
                self.scheduler_nodes, self.pods, schedulers.View.FULL, _MODES, repetitions=self.repetitions
            ),
        )

    @property
    def num_steps(self) -> int:
        """Those of its parts; of telemetry's only those that lead to `score_ratio`."""
        of_calls, of_learned, _, of_schedulers = self.parts
        of_parts = (of_calls, of_learned, of_schedulers, call_counts.Plan())
        return 2 + sum(part.num_steps for part in of_parts)


def measure(plan: Plan, tell: Callable[[str], None]) -> reports.Report:
    """Run the plan. Raises BenchError where there is nothing to hold it against, and as its parts do."""
    before, counts_before = read(plan.against) if plan.against else ({}, {})
    of_calls, of_learned, of_telemetry, of_schedulers = plan.parts
    (call,) = calls.measure(of_calls, tell)["calls"]
    ranks = learned.measure(of_learned, tell)["filter_ms"]
    of_scheduler = schedulers.measure(of_schedulers, tell)
    counts = _counts(call_counts.measure(call_counts.Plan(), tell), of_scheduler)
    ratios = {
        "filter / Go echo": call["kerf_ms"]["p50"] / call["go_echo_ms"]["p50"],
        **{f"learned rank / best fit, {kind}": row["ratio"] for kind, row in ranks.items()},
        "live scores / none": telemetry.measure_scores(of_telemetry, tell),
        **_scheduler_ratios(of_scheduler),
    }
    ratios = {name: round(ratio, 3) for name, ratio in ratios.items()}
    return {
        "ratios": ratios,
        "counts": counts,
        "worse": worse(ratios, before, plan.margin) + worse(counts, counts_before, COUNT_MARGIN),
        "before": before,
        "counts_before": counts_before,
        "margin": plan.margin,
        "sizes": {"nodes": plan.nodes, "scheduler_nodes": plan.scheduler_nodes, "pods": plan.pods},
        "machine": reports.machine(),
    }


def worse(now: Mapping[str, float], before: Mapping[str, float], margin: float) -> list[str]:
    """Names of the numbers that are larger than before by more than a part of them; those of one side only are none."""
    return [name for name, ratio in now.items() if name in before and ratio > before[name] * (1 + margin)]


def read(path: Path) -> tuple[dict[str, float], dict[str, float]]:
    """The ratios and the counts of a report; older ones have no counts. Raises BenchError for what is none."""
    try:
        report = json.loads(path.read_text())
        ratios, counts = (
            {str(name): float(number) for name, number in found.items()}
            for found in (report["ratios"], report.get("counts", {}))
        )
        return ratios, counts
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise BenchError(f"{path} has no ratios: {error}") from None


def _scheduler_ratios(report: reports.Report) -> dict[str, float]:
    modes = report["modes"]
    rate = {mode: statistics.median(modes[mode]["pods_per_s"]) for mode in _MODES}
    own, echo = (
        statistics.median(run[name] for run in modes[mode]["cpu_ms_per_pod"])
        for mode, name in ((Mode.DECISIVE, "kerf"), (Mode.ECHO, "echo"))
    )
    ratios = {f"{than} / decisive, pods/s": rate[than] / rate[Mode.DECISIVE] for than in _MODES[:-1]}
    return ratios | ({"Kerf / Go echo, CPU a pod": own / echo} if echo else {})  # at tiny sizes it takes no tick


def _counts(called: call_counts.Counts, report: reports.Report) -> dict[str, float]:
    runs = report["modes"][Mode.DECISIVE]["api_per_pod"]
    return {
        **{f"calls of {verb}, {kind}": number for verb, kinds in called.items() for kind, number in kinds.items()},
        **{f"API server, {what}": statistics.median(run[what] for run in runs) for what in runs[0]},
    }
