"""Commands of the learned rank: `kerf train`, `kerf evaluate`."""

import os
from contextlib import nullcontext
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from model.cli.commands import MixesOption, OptionalTracesOption
from model.cli.console import JsonOption, errors, exit_on_error, folder, progress_bar, publish, seed_range

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from extender.ranking.files import Evaluation, Manifest
    from model.training.evaluations import Figures, Found

train_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
evaluate_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

_MODES = ("es", "ppo")


@train_app.command()
def train(  # noqa: PLR0913, PLR0917 - options of a command
    config: Annotated[
        Path,
        typer.Option(help="YAML file: traces, seeds, search (docs/research/model.md), or `demo`."),
    ],
    traces: OptionalTracesOption = None,
    out: Annotated[Path, typer.Option(help="Folder for checkpoint.npz, log.jsonl, plots and model/.")] = Path(
        "kerf-train"
    ),
    mode: Annotated[str, typer.Option(help="es: evolution strategy (CMA-ES); ppo: actor-critic (PPO).")] = "es",
    episodes: Annotated[int, typer.Option(min=1, help="Total training episodes, rounded up to generations.")] = 2000,
    save_interval: Annotated[
        int, typer.Option(min=1, help="Episodes between checkpoints, rounded up to generations.")
    ] = 100,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint in the folder.")] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes; the model does not depend on it. Default: one for each core.")
    ] = None,
    ray: Annotated[
        str | None, typer.Option(help="Mode ppo: run rollouts on this Ray cluster; auto: the one in RAY_ADDRESS.")
    ] = None,
) -> None:
    """Train the learned rank on traces, and evaluate it on held-out orders of arrival."""
    with exit_on_error():
        from model.training import runs

        if mode not in _MODES:
            raise ValueError(f"no mode {mode!r}; there are {', '.join(_MODES)}")
        directory, jobs = folder(traces) if traces else None, jobs or os.cpu_count() or 1
        if mode == "ppo":
            manifest = _trained_by_ppo(directory, config, out, episodes, save_interval, jobs, ray, resume=resume)
        else:
            chosen = runs.read_config(config)
            generations = runs.num_generations(chosen, episodes)
            num_validations = len(chosen.validation or chosen.train)
            with progress_bar(generations + num_validations) as on_step:
                save_every = runs.num_generations(chosen, save_interval)
                manifest = runs.train(
                    directory, chosen, generations, save_every, out, on_step, resume=resume, jobs=jobs
                )
    if manifest is None:  # not rank 0 of several learners
        return
    table = Table("trace", "seeds", "kerf @100", "fgd @100", "kerf @130", "fgd @130", title="Validation")
    for row in manifest.evaluation:
        means = [f"{fmean(policy[load]):.2f}" for load in ("100", "130") for policy in (row.kerf, row.fgd)]
        table.add_row(row.trace, str(len(row.seeds)), *means)
    publish({}, [table], None)
    _print_gain(manifest.evaluation)
    errors().print(f"{out / runs.MODEL}", soft_wrap=True)


def _print_gain(rows: "Sequence[Evaluation]") -> None:
    """Print the gain from training on held-out episodes."""
    from model.evaluation.reports import interval

    pairs = [pair for row in rows if row.start for pair in zip(row.kerf["100"], row.start["100"], strict=True)]
    if pairs:
        more = interval([ours - before for ours, before in pairs])
        errors().print(f"gain from training at 100 %: {more} percentage points, on {len(pairs)} held-out episodes")


def _trained_by_ppo(
    traces: Path | None,
    config: Path,
    out: Path,
    episodes: int,
    save_interval: int,
    jobs: int,
    ray: str | None,
    *,
    resume: bool,
) -> "Manifest | None":
    try:
        from model.training import ppo_rollouts, ppo_runs
        from model.training.peers import joined
    except ModuleNotFoundError as error:
        raise ValueError(f'{error}: --mode ppo needs Kerf with the extra "train"') from None

    chosen = ppo_runs.read_config(config)
    updates = ppo_runs.num_updates(chosen, episodes)
    players = nullcontext(ppo_rollouts.on_ray(traces, ray)) if ray else ppo_rollouts.beside(traces, jobs)
    with joined() as peers, players as play, progress_bar(updates + len(chosen.validation or chosen.train)) as on_step:
        run = ppo_runs.Run(traces, chosen, out, peers=peers, play=play)
        return run.train(updates, ppo_runs.num_updates(chosen, save_interval), on_step, resume=resume)


@evaluate_app.command()
def evaluate(  # noqa: PLR0913, PLR0917 - options of a command
    traces: OptionalTracesOption = None,
    trace: Annotated[
        str, typer.Option(help="Name of the trace: openb_pod_list_NAME.csv; or mix:KIND, drawn for each seed.")
    ] = "default",
    mixes: MixesOption = None,
    model: Annotated[Path | None, typer.Option(help="Folder of a model; default: the released one.")] = None,
    seeds: Annotated[str, typer.Option(help="Seeds, as in 42-51 or 42,43.")] = "42-51",
    policies: Annotated[
        str | None,
        typer.Option(
            help="kerf, kerf-online, with --departures also kerf-selective and pool, policies of kerf simulate, and "
            "NAME=FOLDER for other models; all are compared with the first. Default: kerf,kerf-online,fgd; with "
            "--departures also kube-default."
        ),
    ] = None,
    nodes: Annotated[
        str, typer.Option(help="Nodes: all, half, mostly-large, mostly-small, lean (docs/research/model.md).")
    ] = "all",
    departures: Annotated[
        bool, typer.Option("--departures", help="Pods leave after their durations: GPUs in use, queueing delay.")
    ] = False,
    load: Annotated[
        str | None,
        typer.Option(help="With --departures: GPU work submitted, relative to capacity. Default: 0.8,1.0,1.2."),
    ] = None,
    json: JsonOption = None,
) -> None:
    """Compare the GPU allocation of policies on a trace at 100 % and 130 % arrived load, or with --departures."""
    with exit_on_error():
        if load and not departures:
            raise ValueError("--load needs --departures")
        from extender.ranking.files import RELEASED
        from model.simulations.baselines import POOL
        from model.training import departures as churned
        from model.training.evaluations import SELECTIVE, resolve_policies
        from model.training.evaluations import evaluate as evaluated
        from model.workloads.mixes import DEMO
        from model.workloads.sources import source_lookup

        listed = policies or f"kerf,kerf-online,fgd{',kube-default' if departures else ''}"
        compared = resolve_policies([name.strip() for name in listed.split(",")], model or RELEASED)
        if not departures and (only_departures := {SELECTIVE, POOL.name} & compared.keys()):
            raise ValueError(f"{only_departures.pop()} needs --departures")
        numbers, loads = seed_range(seeds), _listed_loads(load or "0.8,1.0,1.2")
        report: dict[str, Any] = {"trace": trace, "seeds": numbers, **({} if nodes == "all" else {"nodes": nodes})}
        with progress_bar(len(compared) * len(numbers) * (len(loads) if departures else 1)) as on_step:
            source = source_lookup(folder(traces) if traces else None, mixes or DEMO, nodes)(trace)
            if departures:
                by_load = churned.evaluate(source, trace, loads, numbers, compared, on_step)
                report["loads"] = by_load
                tables = [table for load, found in by_load.items() for table in _churn_tables(trace, load, found)]
            else:
                found = evaluated(source, trace, numbers, compared, on_step)
                report |= {"policies": found.policies, "ceiling": found.ceiling}
                tables = _tables(trace, found)
    publish(report, tables, json)


def _tables(trace: str, result: "Found") -> list[Table]:
    """Return tables of the percent allocated, and of the first policy's gain over each other one."""
    from model.evaluation.reports import interval
    from model.training.evaluations import differences

    found = result.policies
    num_seeds = len(next(iter(found.values()))["refused"])
    table = Table(
        "policy",
        "@100",
        "@130",
        "FGD-to-ceiling gap closed",
        "refused",
        title=f"{trace}: GPUs allocated, %, {num_seeds} seeds, 95 % intervals",
    )
    for name, rows in found.items():
        closed = result.closed(name)
        gap = "" if closed is None or name == "fgd" else f"{closed:.0%}"
        table.add_row(name, str(interval(rows["100"])), str(interval(rows["130"])), gap, str(sum(rows["refused"])))
    ends = [[value for value in values if value is not None] for values in result.ceiling.values()]
    table.add_row("ceiling", *(str(interval(values)) if values else "" for values in ends), "", "")
    paired = Table(
        "over", "@100", "@130", title=f"{trace}: gain of {next(iter(found))} over each policy (paired by seed, 95 %)"
    )
    for name, by_load in differences(found).items():
        paired.add_row(name, str(by_load["100"]), str(by_load["130"]))
    return [table, paired] if len(found) > 1 else [table]


def _churn_tables(trace: str, load: str, found: "Mapping[str, Figures]") -> list[Table]:
    """Return tables of GPUs in use and queueing delays at a load, and of the first policy's gain over each other."""
    from model.evaluation.reports import interval
    from model.training.departures import differences

    num_seeds = len(next(iter(found.values()))["allocated_gpus"])
    title = f"{trace}, load {load}, {num_seeds} seeds, 95 % intervals"
    table = Table("policy", "GPUs in use", "mean delay, s", "of multi-GPU pods", "median", "p99", "max", title=title)
    for name, rows in found.items():
        intervals = [str(interval(rows[key])) for key in ("allocated_gpus", "mean_delay_s", "large_delay_s")]
        means = [f"{fmean(rows[key]):,.0f}" for key in ("median_delay_s", "p99_delay_s", "max_delay_s")]
        table.add_row(name, *intervals, *means)
    first = next(iter(found))
    paired = Table(
        "over", "GPUs in use", "mean delay, s", "of multi-GPU pods",
        title=f"{trace}, load {load}: improvement of {first} over each policy (paired by seed, 95 %)",
    )  # fmt: skip
    for name, better in differences(found).items():
        paired.add_row(name, *(str(found_interval) for found_interval in better.values()))
    return [table, paired] if len(found) > 1 else [table]


def _listed_loads(text: str) -> list[float]:
    """Parse loads such as "0.8,1.0". Raises ValueError."""
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(0.001 <= load <= 1000 for load in found) or len(set(found)) < len(found):
        raise ValueError(f"--load {text}: write different numbers from 0.001 to 1000, as in 0.8,1.0")
    return found
