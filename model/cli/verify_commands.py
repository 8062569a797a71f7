"""`kerf verify`: comparisons with published results and with targets."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from model.cli.commands import LoadOption, TracesOption
from model.cli.console import JsonOption, errors, exit_on_error, folder, progress_bar, publish, whole_numbers

verify_app = typer.Typer(
    help="Compare with published results and with targets.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@verify_app.callback()
def verify() -> None:
    """Compare with published results and with targets."""


@verify_app.command()
def published(
    traces: TracesOption,
    trace: Annotated[list[str] | None, typer.Option(help="Only this trace; repeatable.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Only this seed; repeatable.")] = None,
    json: JsonOption = None,
) -> None:
    """Replay the published experiment; exit status 1 if a result differs by more than 0.01 points."""
    with exit_on_error():
        from model.evaluation import published as experiment

        directory = folder(traces)
        lines = [
            line
            for line in experiment.table(directory)
            if (not trace or line[0] in trace) and (not seed or line[2] in seed)
        ]
        if not lines:
            raise ValueError("no row of published_allocation.csv matches --trace and --seed")
        with progress_bar(len(lines)) as on_step:
            runs = experiment.verify(directory, lines, on_step)
    table = Table("trace", "policy", "runs", "largest difference", "differ", title="Published and replayed allocation")
    for name, rule in sorted({(run.trace, run.policy) for run in runs}):
        group = [run for run in runs if (run.trace, run.policy) == (name, rule)]
        worst = max(run.difference for run in group)
        table.add_row(name, rule, str(len(group)), f"{worst:.2f}", str(sum(not run.equal for run in group)))
    different = [run for run in runs if not run.equal]
    for run in different:
        errors().print(f"{run.trace}, {run.policy}, seed {run.seed}: published {run.published}, replayed {run.ours}")
    console = publish({"runs": [asdict(run) for run in runs], "equal": not different}, [table], json)
    console.print(f"{len(runs) - len(different)} of {len(runs)} runs equal within {experiment.TOLERANCE} points")
    if different:
        raise typer.Exit(1)


@verify_app.command(name="jobs")
def verify_jobs(
    jobs: Annotated[Path, typer.Option(help="CSV file of timestamp, duration, num_gpus, cluster; .csv.gz too.")],
    load: LoadOption = 0.9,
    seeds: Annotated[str, typer.Option(help="Seeds of random halves of the jobs, as in 42,43,44.")] = "42,43,44,45,46",
    window_days: Annotated[float, typer.Option(min=0.01, help="Length of a window.")] = 4.0,
    skip_days: Annotated[float, typer.Option(min=0, help="Days to exclude, on which constants were tuned.")] = 0.0,
    json: JsonOption = None,
) -> None:
    """Compare job completion time under the queue's order with kube-scheduler's; exit status 1 unless 30 % lower."""
    with exit_on_error():
        from model.evaluation import job_trials
        from model.workloads.jobs import read_jobs

        listed, numbers = read_jobs(jobs), whole_numbers(seeds)
        with progress_bar(job_trials.num_steps(listed, numbers, window_days)) as on_step:
            report = job_trials.compare(listed, load or 0.9, numbers, window_days, skip_days, on_step)
    table = Table("subset", "jobs", "GPUs", "mean JCT, h", "lower by", "p99 delay, h", "ratio", "max delay, h")
    for part in ("windows", "samples", "apart"):
        for row in ([report["whole"]] if part == "windows" else []) + report[part]:
            alone = ", alone" if part == "apart" else ""
            table.add_row(
                f"{row['name']}{alone}{'' if row.get('held_out', True) else ' (tuned on)'}",
                str(row["jobs"]),
                str(row["gpus"]),
                _hours(row["jct_s"]),
                f"{100 * row['jct_reduction']:.1f} %",
                _hours(row["p99_delay_s"]),
                f"{row['p99_ratio'] or 0:.2f}",
                _hours(row["max_delay_s"]),
            )
        table.add_section()
    console = publish(report, [table], json)
    for part, means in report["intervals"].items():
        words = ", ".join(f"{name} {_spread(found)}" for name, found in means.items())
        console.print(f"{part}: {words}")
    for which, fair in zip(("fifo, kube-default", "kerf, bestfit"), report["whole"]["fairness"], strict=True):
        console.print(f"fairness between virtual clusters, {which}: {fair['jain_slowdown']:.3f} (Jain, slowdown)")
    if not job_trials.met(report):
        raise typer.Exit(1)


def _spread(found: dict[str, float | None]) -> str:
    """Format a mean, with its interval if there are several values."""
    words = f"{found['mean']:.3f}"
    return words if found["half_width"] is None else f"{words} ± {found['half_width']:.3f}"


def _hours(seconds: list[float]) -> str:
    """Format values of the baseline and the queue in hours."""
    return " / ".join(f"{value / 3600:.2f}" for value in seconds)
