"""`kerf simulate moves`: gains and costs of making room."""

import math
import os
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from model.cli.console import JsonOption, exit_on_error, folder, progress_bar, publish, seed_range

_HOUR_S = 3600.0


def moves(  # noqa: PLR0913, PLR0917 - options of a command
    jobs: Annotated[
        Path | None, typer.Option(help="CSV file of timestamp, duration, num_gpus, cluster; .csv.gz too.")
    ] = None,
    traces: Annotated[
        Path | None, typer.Option("--traces", envvar="KERF_TRACES", help="Folder of traces in the layout of openb.")
    ] = None,
    trace: Annotated[str | None, typer.Option(help="Trace, instead of --jobs: openb_pod_list_NAME.csv.")] = None,
    nodes: Annotated[int, typer.Option(min=1, help="Nodes: of 8 GPUs for jobs, else drawn from the trace.")] = 64,
    days: Annotated[int, typer.Option(min=1, help="Days of the jobs, drawn for each seed.")] = 7,
    pods: Annotated[float, typer.Option(min=0.001, max=1, help="Fraction of the trace's pods, drawn by seed.")] = 0.5,
    load: Annotated[str, typer.Option(help="GPU work submitted, relative to capacity, as in 0.8,0.9.")] = (
        "0.8,0.9,1.0,1.1"
    ),
    seeds: Annotated[str, typer.Option(help="Seeds, as in 200-209 or 1,2.")] = "200-209",
    variants: Annotated[
        str, typer.Option(help="Any of off, moves, checkpoints (moves with hourly checkpoints), pool (upper bound).")
    ] = ("off,moves,checkpoints,pool"),
    policy: Annotated[str, typer.Option(help="kerf (the released model), or a policy of kerf simulate jobs.")] = "kerf",
    order: Annotated[str, typer.Option(help="kerf, fifo, oracle-sjf, oracle-area.")] = "kerf",
    every_s: Annotated[float, typer.Option(min=1, help="Seconds between checks of waiting pods.")] = 300.0,
    after_s: Annotated[float, typer.Option(min=0, help="Waiting time in seconds after which room is made.")] = 600.0,
    least_gain: Annotated[
        float, typer.Option(min=0, help="Least GPU-seconds of waiting saved for each GPU-second lost.")
    ] = 2.0,
    restart_s: Annotated[float, typer.Option(min=0, help="Seconds until a moved pod works again.")] = 60.0,
    rest_s: Annotated[float, typer.Option(min=0, help="Cool-down of a moved pod in seconds.")] = 3600.0,
    young_rest: Annotated[bool, typer.Option("--young-rest", help="Also exempt pods younger than that.")] = False,
    checkpoint_s: Annotated[float, typer.Option(min=1, help="Seconds of work between checkpoints.")] = 3600.0,
    processes: Annotated[int | None, typer.Option(min=1, help="Processes. Default: one for each core.")] = None,
    json: JsonOption = None,
) -> None:
    """Gains of multi-GPU jobs from moving pods, and the costs, against the same simulation without moves."""
    with exit_on_error():
        from model.evaluation import moves as compared
        from model.simulations.making_room import MakingRoom

        if (jobs is None) == (trace is None):
            raise ValueError("give either --jobs FILE or --trace NAME, with --traces FOLDER")
        if trace is not None and traces is None:
            raise ValueError(f"trace {trace}: --traces is missing")
        room = MakingRoom(every_s, after_s, least_gain, restart_s, rest_s=rest_s, young_rest=young_rest)
        plan = compared.Plan(
            path=jobs if jobs is not None else folder(traces or Path()),
            trace=trace or "",
            num_nodes=nodes,
            num_days=days,
            pods_frac=pods,
            policy=policy,
            order=order,
            room=room,
            checkpoint_s=checkpoint_s,
            variants=tuple(dict.fromkeys(name.strip() for name in variants.split(","))),
        )
        loads, chosen = _loads(load), seed_range(seeds)
        with progress_bar(len(loads) * len(plan.variants) * len(chosen)) as on_step:
            found = compared.run(loads, chosen, plan, processes or os.cpu_count() or 1, on_step)
    publish(found, [_means(found), _gains(found)], json)


def _loads(text: str) -> list[float]:
    try:
        loads = [float(part) for part in text.split(",")]
    except ValueError:
        loads = []
    if not loads or not all(0 < load <= 10 and math.isfinite(load) for load in loads) or len(set(loads)) < len(loads):
        raise ValueError(f"--load {text}: write numbers up to 10, each once, as in 0.8,0.9")
    return loads


def _means(found: dict[str, Any]) -> Table:
    table = Table(
        "load",
        "",
        "useful GPU time, %",
        "lost, %",
        "moves a day",
        "4+ GPUs: mean, h",
        "median",
        "p95",
        "all: mean, h",
        title=f"waiting times, means over {len(found['seeds'])} seeds",
    )
    for load, cell in found["means"].items():
        for variant, row in cell.items():
            hours = [
                f"{row[name] / _HOUR_S:.2f}" for name in ("large_delay_s", "large_median_s", "large_p95_s", "delay_s")
            ]
            useful, lost, moves = row["useful_percent"], row["lost_percent"], row["moves_a_day"]
            table.add_row(load, variant, f"{useful:.2f}", f"{lost:.2f}", f"{moves:.1f}", *hours)
    return table


def _gains(found: dict[str, Any]) -> Table:
    table = Table(
        "load",
        "",
        "4+ GPUs: mean wait, %",
        "their p95, %",
        "all: mean wait, %",
        "useful GPU time, points",
        "JCT by GPUs, %",
        title="improvement over no moves, paired by seed, ± 95 %",
    )
    for load, cell in found["better"].items():
        for variant, row in cell.items():
            percents = [_cell(row[name], "percent") for name in ("large_delay_s", "large_p95_s", "delay_s")]
            points, jct = _cell(row["useful_percent"], ""), _cell(row["gpu_jct_s"], "percent")
            table.add_row(load, variant, *percents, points, jct)
    return table


def _cell(gain: dict[str, float | None], unit: str) -> str:
    mean, half_width = gain[unit or "mean"], gain[f"{unit}_half_width" if unit else "half_width"]
    if mean is None:
        return "-"
    return f"{mean:+.2f}" if half_width is None else f"{mean:+.2f} ± {half_width:.2f}"
