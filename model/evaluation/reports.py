"""Report with tables and plots of policies on the same traces and seeds, as one HTML file and PNGs."""

import base64
import html
import io
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from matplotlib.figure import Figure

from extender.core.clusters import Floats

# Student's t, 97.5 %, by degrees of freedom; from 30 on within 4 % of the normal distribution's.
_T: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045,
)  # fmt: skip
_THEIR_NAMES: Final = {"fgd": "FGD", "bestfit": "BestFit", "random": "Random"}
"""Names in the published table, by Kerf's names. Its random policy draws other numbers."""
_FROM_LOAD: Final = 60
"""Arrived load at which curves begin: below it nothing fails."""


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % interval."""

    mean: float
    half_width: float | None
    """None for a single value."""

    def __str__(self) -> str:
        return f"{self.mean:.2f}" if self.half_width is None else f"{self.mean:.2f} ± {self.half_width:.2f}"


@dataclass
class Report:
    """Results by trace and policy, one per seed, as from `measures`."""

    seeds: Sequence[int]
    replays: dict[str, dict[str, list[Mapping[str, Any]]]] = field(default_factory=dict)
    """[trace][policy][seed's position]."""
    published: dict[str, dict[str, tuple[float, float]]] = field(default_factory=dict)
    """[trace][policy] means at 100 and 130 % arrived load."""
    ceilings: dict[str, float | None] = field(default_factory=dict)
    """[trace] upper bound in percent at 100 % arrived load on the first seed; None if unknown."""
    delays: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict)
    """[order] results of `kerf simulate jobs`."""
    sizes: Sequence[Mapping[str, float]] = ()
    """Nodes, microseconds per decision and megabytes, by cluster size."""


def interval(values: Sequence[float]) -> Interval:
    """Return the mean with Student's 95 % interval."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return Interval(mean, None)
    quantile = _T[len(values) - 2] if len(values) - 2 < len(_T) else 1.96
    return Interval(mean, quantile * statistics.stdev(values) / len(values) ** 0.5)


def write(report: Report, directory: Path) -> Path:
    """Write `index.html` and PNGs into a folder; returns the HTML file, which also embeds the pictures."""
    directory.mkdir(parents=True, exist_ok=True)
    parts = ["<h1>Kerf: policies compared</h1>", f"<p>Seeds {', '.join(map(str, report.seeds))}.</p>"]
    for trace, by_policy in report.replays.items():
        parts += [f"<h2>Trace {html.escape(trace)}</h2>", _allocation_table(report, trace)]
        for name, title, draw in (
            ("allocation", "GPU allocated by arrived load", _draw_allocation),
            ("fragmentation", "Idle GPU that typical pods can't use", _draw_fragmentation),
            ("utilisation", "Utilisation after the last arrival", _draw_utilisation),
        ):
            parts.append(_picture(directory, f"{trace}-{name}", title, partial(draw, report=report, trace=trace)))
        if len(by_policy) > 1:
            parts.append(_differences(report, trace))
    if report.delays:
        parts += ["<h2>Jobs over time</h2>", _delay_table(report)]
        parts.append(_picture(directory, "queueing-delay", "Queueing delay", partial(_draw_delays, report=report)))
    if report.sizes:
        parts.append("<h2>Size of the cluster</h2>")
        parts.append(_picture(directory, "sizes", "Cost of a decision", partial(_draw_sizes, report=report)))
    path = directory / "index.html"
    path.write_text(_PAGE.format(body="\n".join(parts)), encoding="utf-8")
    return path


def _at(figures: Mapping[str, Any], measure: str, load: int) -> float:
    """Return a measure at an arrived load; NaN if it was never reached."""
    value = figures[measure][str(load)]
    return float("nan") if value is None else float(value)


def _picture(directory: Path, name: str, title: str, draw: Callable[[Any], None]) -> str:
    figure = Figure(figsize=(8.0, 4.6), dpi=110, layout="constrained")
    axes = figure.add_subplot()
    draw(axes)
    axes.set_title(title)
    axes.grid(alpha=0.3)
    content = io.BytesIO()
    figure.savefig(content, format="png", metadata={"Software": None})
    (directory / f"{name}.png").write_bytes(content.getvalue())
    data = base64.b64encode(content.getvalue()).decode("ascii")
    return f'<p><img alt="{html.escape(title)}" src="data:image/png;base64,{data}"></p>'


def _mean_curve(runs: Sequence[Mapping[str, Any]], measure: str) -> tuple[Floats, Floats]:
    """Return the mean over seeds at each load that all seeds have."""
    curves = [dict(zip(run["curve"]["arrived"], run["curve"][measure], strict=True)) for run in runs]
    loads = sorted(set.intersection(*(set(curve) for curve in curves)))
    return np.array(loads, float), np.array([statistics.fmean(curve[load] for curve in curves) for load in loads])


def _draw_allocation(axes: Any, report: Report, trace: str) -> None:
    lowest = 100.0
    for policy, runs in report.replays[trace].items():
        loads, percent = _mean_curve(runs, "allocated")
        shown = loads >= _FROM_LOAD
        axes.plot(loads[shown], percent[shown], label=policy)
        lowest = min(lowest, percent[loads >= 95].min(initial=100.0))
    for policy in report.replays[trace]:
        values = report.published.get(trace, {}).get(_THEIR_NAMES.get(policy, ""))
        if values:
            axes.plot([100, 130], values, linestyle=":", marker="x", color="black", linewidth=0.8)
            axes.annotate(f" {_THEIR_NAMES[policy]},\n published", (130, values[1]), fontsize=7, va="center")
    highest = report.ceilings.get(trace)
    if highest is not None:
        axes.axhline(highest, color="grey", linestyle="--", linewidth=1)
        words = f"ceiling at 100 %, seed {report.seeds[0]}"
        axes.annotate(words, (_FROM_LOAD, highest), fontsize=8, va="bottom")
    axes.plot([_FROM_LOAD, 100], [_FROM_LOAD, 100], color="lightgrey", linewidth=1, zorder=0)
    axes.set_xlim(_FROM_LOAD, 140)
    axes.set_ylim(max(lowest - 12, 0), 100)
    axes.set_xlabel("arrived load, % of the GPU capacity")
    axes.set_ylabel("allocated, % of the GPU capacity")
    axes.legend(fontsize=8, loc="lower right")


def _draw_fragmentation(axes: Any, report: Report, trace: str) -> None:
    for policy, runs in report.replays[trace].items():
        axes.plot(*_mean_curve(runs, "fragmented"), label=policy)
    axes.set_xlabel("arrived load, % of the GPU capacity")
    axes.set_ylabel("fragmented, % of the GPU capacity")
    axes.legend(fontsize=8)


def _draw_utilisation(axes: Any, report: Report, trace: str) -> None:
    policies = list(report.replays[trace])
    place = np.arange(len(policies))
    for shift, kind in enumerate(("gpu", "cpu", "memory")):
        spans = [interval([run[f"{kind}_utilisation"] for run in report.replays[trace][policy]]) for policy in policies]
        bars, errors = [span.mean for span in spans], [span.half_width or 0.0 for span in spans]
        axes.bar(place + 0.27 * (shift - 1), bars, 0.25, yerr=errors, capsize=2, label=kind)
    axes.set_xticks(place, policies, fontsize=8)
    axes.set_ylabel("% of the capacity")
    axes.set_ylim(0, 112)
    axes.legend(fontsize=8, ncols=3, loc="upper right")


def _draw_delays(axes: Any, report: Report) -> None:
    for order, runs in report.delays.items():
        percentiles = np.mean([run["queueing_delay_percentiles_s"] for run in runs], axis=0)
        axes.plot(np.maximum(percentiles, 1.0) / 60, np.arange(101), label=order)
    axes.set_xscale("log")
    axes.set_xlabel("queueing delay, minutes")
    axes.set_ylabel("% of jobs with at most this delay")
    axes.legend(fontsize=8)


def _draw_sizes(axes: Any, report: Report) -> None:
    nodes = [size["nodes"] for size in report.sizes]
    axes.plot(nodes, [size["us"] for size in report.sizes], marker="o", label="microseconds of a decision")
    axes.plot(nodes, [size["mb"] for size in report.sizes], marker="s", linestyle="--", label="memory, MB")
    axes.set_xlabel("nodes")
    axes.set_ylim(bottom=0)
    axes.legend(fontsize=8)


def _allocation_table(report: Report, trace: str) -> str:
    rows = [
        ["policy", "allocated at 100 %", "at 130 %", "published at 100 %", "at 130 %", "fragmented at 100 %", "placed"]
    ]
    for policy, runs in report.replays[trace].items():
        published = report.published.get(trace, {}).get(_THEIR_NAMES.get(policy, ""))
        rows.append(
            [
                policy,
                *(str(interval([_at(run, "allocation", load) for run in runs])) for load in (100, 130)),
                *([f"{value:.2f}" for value in published] if published else ["", ""]),
                str(interval([_at(run, "fragmentation", 100) for run in runs])),
                str(interval([100 * run["success_rate"] for run in runs])),
            ]
        )
    return _table(rows)


def _differences(report: Report, trace: str) -> str:
    """Return paired differences from the first policy: the variance between seeds cancels."""
    (first, reference), *others = report.replays[trace].items()
    rows = [[f"minus {first}, paired by seed", "allocated at 100 %, points", "at 130 %, points"]]
    for policy, runs in others:
        spans = [
            interval(
                [
                    _at(run, "allocation", load) - _at(ref, "allocation", load)
                    for run, ref in zip(runs, reference, strict=True)
                ]
            )
            for load in (100, 130)
        ]
        rows.append([policy, *map(str, spans)])
    return "<h3>Paired differences, 95 % intervals</h3>" + _table(rows)


def _delay_table(report: Report) -> str:
    rows = [["order", "mean delay, min", "p50", "p95", "p99", "mean completion time, min", "mean slowdown", "fairness"]]
    for order, runs in report.delays.items():
        delays = [
            interval([run["queueing_delay_s"][key] / 60 for run in runs]) for key in ("mean", "p50", "p95", "p99")
        ]
        jct = interval([run["jct_s"]["mean"] / 60 for run in runs])
        slowdown = interval([run["slowdown"]["mean"] for run in runs])
        fair = interval([run["fairness"]["jain_slowdown"] for run in runs])
        rows.append([order, *map(str, delays), str(jct), str(slowdown), str(fair)])
    return _table(rows)


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    cells = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    lines = ["<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in body]
    return f"<table><tr>{cells}</tr>{''.join(lines)}</table>"


_PAGE: Final = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Kerf: policies compared</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; color: #222 }}
table {{ border-collapse: collapse; margin: 1rem 0 }}
th, td {{ border: 1px solid #ccc; padding: .25rem .6rem; text-align: right; font-variant-numeric: tabular-nums }}
th:first-child, td:first-child {{ text-align: left }}
img {{ max-width: 100% }}
</style></head><body>
{body}
</body></html>
"""
