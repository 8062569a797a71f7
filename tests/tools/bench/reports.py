"""Results as JSON for machines and as tables for people."""

import json
import os
import platform
import statistics
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rich.table import Table

from tests.controlplane import find_binaries

Report = dict[str, Any]
"""JSON data."""

_PROCESSES = (("kerf", "echo", "best"), ("scheduler",), ("kube-apiserver",))
_OF_THE_API_SERVER = ("requests", "watch_events")


def machine() -> Report:
    """Where and when it was measured."""
    return {
        "cpus": len(os.sched_getaffinity(0)),
        "cpu_model": _cpu_model(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "kube_scheduler": _version(find_binaries().kube_scheduler),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def write_json(report: Report, target: str) -> None:
    """Write to a file, or to standard output for "-"."""
    text = json.dumps(report, indent=2) + "\n"
    if target == "-":
        sys.stdout.write(text)
    else:
        Path(target).write_text(text)


def scheduler_table(report: Report) -> Table:
    """Pods a second of each mode."""
    of_claims = all(mode.startswith("dra") for mode in report["modes"])
    beside = ("dra", "dra-written") if of_claims else ("none", "echo", "best")
    table = _table(
        f"Pods per second: {_pods(report)} of {_plural(report['pod_gpus'], 'GPU')} on {report['nodes']} "
        f"{'unlike ' if report['unlike'] else ''}nodes, {report['view']} view"
        f"{', all there before' if report['backlog'] else ''}; CPU ms per pod"
        f"{'' if report['counts'] in (None, True) else '; DOES NOT COUNT: best is below 0.9 of none'}",
        "mode",
        "median",
        "min - max",
        *(f"to {than}" for than in beside),
        "CPU: extender",
        "scheduler",
        "API server",
        "API server: requests",
        "watch events",
    )
    for mode, values in report["modes"].items():
        rates = values["pods_per_s"]
        ratios = [report["ratios"].get(f"{mode}/{than}") for than in beside]
        table.add_row(
            mode,
            f"{statistics.median(rates):.1f}",
            f"{min(rates):.1f} - {max(rates):.1f}",
            *(f"{ratio:.2f}" if ratio else "-" for ratio in ratios),
            *(_median_cpu(values["cpu_ms_per_pod"], names) for names in _PROCESSES),
            *(f"{statistics.median(run[key] for run in values['api_per_pod']):.2f}" for key in _OF_THE_API_SERVER),
        )
    return table


def _pods(report: Report) -> str:
    return f"a stream of {report['stream_s']:g} s of pods" if report["stream_s"] else f"{report['pods']} pods"


def _median_cpu(runs: list[dict[str, float]], names: tuple[str, ...]) -> str:
    """CPU ms per pod of the process that has one of the names."""
    found = [run[name] for run in runs for name in names if name in run]
    return f"{statistics.median(found):.1f}" if found else "-"


def calls_table(report: Report) -> Table:
    """Answer times beside the echoes'."""
    table = _table(
        f"Milliseconds per call, p50 / p99: {report['nodes']} nodes, {report['mode']} mode",
        "call",
        "names",
        "Kerf",
        "bare echo",
        "Kerf / echo",
        "Go, raw",
        "Go, decoding",
    )
    for call in report["calls"]:
        times = {
            target: f"{call[target]['p50']:.2f} / {call[target]['p99']:.2f}"
            for target in ("kerf_ms", "echo_ms", "go_raw_ms", "go_echo_ms")
        }
        table.add_row(
            call["verb"],
            str(call["names"]),
            times["kerf_ms"],
            times["echo_ms"],
            f"{call['ratio']:.2f} / {call['ratio_p99']:.2f}",
            times["go_raw_ms"],
            times["go_echo_ms"],
        )
    return table


def ledger_table(report: Report) -> Table:
    """What keeping account of every GPU costs."""
    table = _table(f"Ledger: {report['nodes']} nodes, {report['pods']} pods with shares", "what", "p50", "p99")
    rows = [("one watch event, us", report["event_us"])]
    rows += [
        ("filter with device choice, ms", report["filter_ms"]["devices"]),
        ("filter that counts, ms", report["filter_ms"]["counted"]),
    ]
    for what, times in rows:
        table.add_row(what, f"{times['p50']:.2f}", f"{times['p99']:.2f}")
    table.add_row("ratio", f"{report['filter_ratio']:.2f}", "")
    return table


def hostile_table(report: Report) -> Table:
    """What hostile pods do to others."""
    table = _table(
        f"{report['pods']} hostile pods of {len(report['kinds'])} kinds on {report['nodes']} nodes", "figure", "value"
    )
    for key in ("filter_p99_ratio", "rss_ratio", "ready"):
        table.add_row(key, str(report[key]))
    for key in ("filter_p99_ms", "rss_mb"):
        for kind, values in report[key].items():
            table.add_row(f"{key}, {kind}", ", ".join(f"{value:g}" for value in values))
    table.add_row("refused by the API server", str(sum(report["refused"].values())))
    return table


def learned_table(report: Report) -> Table:
    """What the learned rank costs beside best fit."""
    table = _table(
        f"Learned rank: filter of a request that names all {report['nodes']} nodes, each in a state of its own",
        "what",
        "kerf p50, ms",
        "p99",
        "bestfit p50, ms",
        "p99",
        "ratio of p50",
    )
    for what, row in report["filter_ms"].items():
        times = [f"{row[policy][quantile]:.2f}" for policy in ("kerf", "bestfit") for quantile in ("p50", "p99")]
        table.add_row(what, *times, f"{row['ratio']:.2f}")
    return table


def start_table(report: Report) -> Table:
    """Start-up time and memory."""
    table = _table(
        f"Start of Kerf: {report['nodes']} nodes, {report['pods']} pods",
        "run",
        "ready, s",
        "of it Kerf's CPU, s",
        "RSS at its peak, MB",
        "RSS, MB",
    )
    keys = ("ready_s", "cpu_s", "rss_mb", "rss_steady_mb")
    for number, run in enumerate(report["runs"], 1):
        table.add_row(str(number), *(f"{run[key]:.1f}" for key in keys))
    table.add_row("median", *(f"{report[key]:.1f}" for key in keys), style="bold")
    return table


def idle_table(report: Report) -> Table:
    """What Kerf takes while nothing happens."""
    table = _table(
        f"Idle Kerf: {report['nodes']} nodes, {report['seconds']:g} s each",
        "row",
        "CPU, % of a core",
        "of it Kerf's own",
        "RSS, MB",
        "at its peak, MB",
        "processes beside it, MB",
    )
    keys = ("cpu_percent", "own_cpu_percent", "rss_mb", "peak_mb", "beside_mb")
    for name, row in report["rows"].items():
        table.add_row(name, *(f"{row[key]:g}" for key in keys))
    return table


def guard_table(report: Report) -> Table:
    """Ratios and counts, and those they are held against."""
    title = f"Less is better; {100 * report['margin']:g} % more is worse, of counts 5 %"
    table = _table(title, "what", "now", "before", "times", "")
    before_all = report["before"] | report["counts_before"]
    for name, ratio in (report["ratios"] | report["counts"]).items():
        before = before_all.get(name)
        beside = (f"{before:.2f}", f"{ratio / before:.2f}") if before else ("-", "-")
        table.add_row(name, f"{ratio:.2f}", *beside, "worse" if name in report["worse"] else "")
    return table


def telemetry_table(report: Report) -> Table:
    """What telemetry costs."""
    table = _table(f"Telemetry: {report['nodes']} nodes, {report['series']} series", "figure", "value")
    for key in (
        "refresh_s",
        "stall_ms",
        "stall_cpu_ms",
        "stall_idle_ms",
        "stall_idle_cpu_ms",
        "filter_p99_ratio_dead",
        "score_ratio",
        "score_ratio_half_width",
        "reader_rss_mib",
        "reader_cpu_s",
    ):
        table.add_row(key, f"{report[key]:g}")
    for name, times in report["filter_ms"].items():
        table.add_row(f"filter, {name}: p50 and p99, ms", f"{times['p50']:g}, {times['p99']:g}")
    return table


def planners_table(report: Report) -> Table:
    """What each planner made of the same batches."""
    table = _table(
        "Planners: medians over seeds; worth counts each pod 1 to 2 by its priority",
        "batch",
        "planner",
        "CPU, s",
        "placed",
        "worth",
        "GPUs given",
        "fragments",
    )
    for result in report["results"]:
        if "refused" in result:
            table.add_row(result["batch"], result["planner"], "refused", *"----")
            continue
        table.add_row(
            result["batch"],
            result["planner"],
            f"{result['seconds']:.3f}",
            f"{result['placed']:g} of {result['pods']:g}",
            *(f"{result[key]:g}" for key in ("worth", "gpus", "fragments")),
        )
    return table


def defrag_table(report: Report) -> Table:
    """What each run moved, and what that cost."""
    title = f"Room for {report['gang']} whole nodes of {report['nodes']}, {report['pods']} pods"
    table = _table(title, "seed", "CPU, s", "wall, s", "pods moved", "cost, GPU h", "at least, GPU h", "gap, %")
    for run in report["runs"]:
        if not run["fits"]:
            table.add_row(str(run["seed"]), str(run["cpu_s"]), str(run["wall_s"]), "none", *"---")
            continue
        cost, least = f"{run['cost_gpu_h']:.1f}", f"{run['least_gpu_h']:.1f}"
        gap = "-" if run["gap"] is None else f"{100 * run['gap']:.1f}"
        table.add_row(str(run["seed"]), str(run["cpu_s"]), str(run["wall_s"]), str(run["moves"]), cost, least, gap)
    asked = report["asked"]
    table.caption = (
        f"asked of a service: {asked['cpu_s']} s of CPU in the process that plans, {asked['service_cpu_s']} s beside "
        f"it, {asked['wall_s']} s in all, {asked['peak_mib']} MiB at most; {asked['moves']} pods move"
    )
    return table


def jobs_table(report: Report) -> Table:
    """Completion times on the control plane, and as simulated."""
    table = _table(
        f"Seconds, real / simulated: {report['jobs']} jobs on {report['nodes']} nodes in {report['span_s']:g} s, "
        f"load {report['load']:g}",
        "run",
        "mean JCT",
        "ratio",
        "mean delay",
        "p99 delay",
        "delay of whole nodes",
        "delays' r",
    )
    for run in report["runs"]:
        for name, mode, predicted in (
            ("native", "native", "simulated"),
            ("queue", "queue", "simulated"),
            ("retried", "native", "retried"),
        ):
            real, other = run[mode]["real"], run[mode][predicted]
            first, *rest = (f"{_seconds(real[key])} / {_seconds(other[key])}" for key in real)
            ratio = _seconds(real["mean_jct_s"] / other["mean_jct_s"])
            correlation = _seconds(run[mode]["delay_correlation"] if predicted == "simulated" else None)
            table.add_row(f"{run['seed']}, {name}", first, ratio, *rest, correlation)
    lower = [report["reductions"][which]["jct_reduction"] for which in ("real", "simulated", "retried")]
    words = " / ".join(f"{100 * found['mean']:.0f} ± {100 * found['half_width']:.0f}" for found in lower)
    table.add_row("lower by, %", words, *[""] * 5, style="bold")
    table.caption = "retried: kube-scheduler alone, its queue with retries and back-off simulated"
    return table


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def wire_table(report: Report) -> Table:
    """Allocation on the wire beside the simulator's."""
    pods, same = report["pods"], report["same"]
    table = _table(
        f"GPU allocated, %: trace {report['trace']}, {report['nodes']} nodes, {pods} pods ({report['shares']} shares, "
        f"{report['cpu_pods']} without GPUs){', told the mix' if report['oracle'] else ''}; "
        f"{same['node']} on the simulator's node, {same['gpus']} on its GPUs",
        "arrived, %",
        "kube-scheduler",
        "simulator",
        "difference",
    )
    wire, simulator = report["allocation"]["wire"], report["allocation"]["simulator"]
    for load, points in report["difference"].items():
        table.add_row(load, f"{wire[load]:.2f}", f"{simulator[load]:.2f}", f"{points:+.2f}")
    table.add_row("pods unplaced", *(str(report["unplaced"][side]) for side in ("wire", "simulator")), "")
    return table


def _table(title: str, first: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column(first, no_wrap=True)
    for column in columns:
        table.add_column(column, justify="right", no_wrap=True)
    return table


def _plural(count: int, noun: str) -> str:
    return f"{count} {noun}" + ("" if count == 1 else "s")


def _version(executable: Path) -> str:
    result = subprocess.run([executable, "--version"], check=False, capture_output=True, text=True)
    return result.stdout.strip()


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
