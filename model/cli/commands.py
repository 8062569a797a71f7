"""Commands of the simulator: `kerf simulate`, `kerf report`."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from model.cli.console import (
    JsonOption,
    console_on,
    errors,
    exit_on_error,
    folder,
    progress_bar,
    publish,
    seed_range,
    whole_numbers,
)
from model.cli.demo import demo
from model.cli.months import months
from model.cli.moves import moves
from model.cli.partitions import partitions

if TYPE_CHECKING:
    from extender.core.fragmentation import Mix, Nodes, PodClasses
    from extender.ranking.files import Model
    from model.simulations.delays import Run
    from model.simulations.departures import PeriodicWorkload
    from model.simulations.simulated_jobs import Failures

simulate_app = typer.Typer(
    help="Simulate workloads on a cluster, by the rules of the service.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
report_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

TracesOption = Annotated[
    Path, typer.Option("--traces", envvar="KERF_TRACES", help="Folder of traces in the layout of openb.")
]
OptionalTracesOption = Annotated[
    Path | None, typer.Option("--traces", envvar="KERF_TRACES", help="Folder of traces in the layout of openb.")
]
MixesOption = Annotated[
    Path | None, typer.Option(help="YAML file that describes the mixes of mix:KIND; default: the demo's.")
]
TraceOption = Annotated[str, typer.Option(help="Name of the trace: openb_pod_list_NAME.csv.")]
PolicyOption = Annotated[str, typer.Option(help="fgd, tightest, bestfit, binpack, spread, random, kube-default, ...")]
OrderOption = Annotated[str | None, typer.Option(help="fifo (default), kerf, oracle-sjf, oracle-area.")]
LoadOption = Annotated[
    float | None,
    typer.Option(min=0.001, max=1000, help="GPU work submitted, relative to capacity; default: jobs 0.9, pods 1.0."),
]
RoundOption = Annotated[
    float | None, typer.Option(min=0, help="Seconds between scheduling rounds; default: no rounds.")
]
MtbfOption = Annotated[float | None, typer.Option(min=0.001, help="Mean hours between failures of a node.")]
RepairOption = Annotated[float, typer.Option(min=0.001, help="Mean hours to repair a failed node.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Random seed.")]


simulate_app.command()(demo)
simulate_app.command()(months)
simulate_app.command()(moves)
simulate_app.command()(partitions)


@simulate_app.callback()
def simulate() -> None:
    """Simulate workloads on a cluster, by the rules of the service."""


@simulate_app.command()
def openb(  # noqa: PLR0913, PLR0917 - options of a command
    traces: TracesOption,
    trace: TraceOption = "default",
    policy: Annotated[str, typer.Option(help="kerf, or a policy of kerf simulate jobs.")] = "fgd",
    seed: SeedOption = 42,
    departures: Annotated[bool, typer.Option("--departures", help="Pods leave after their durations.")] = False,
    load: LoadOption = None,
    order: OrderOption = None,
    round_s: RoundOption = None,
    mtbf_hours: MtbfOption = None,
    repair_hours: RepairOption = 4.0,
    engine: Annotated[str, typer.Option(help="compiled, or numpy (same results, slower).")] = "compiled",
    model: Annotated[
        Path | None, typer.Option(help="Folder of the model of policy kerf; default: the released one.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """GPU allocation of a policy as the pods of a trace arrive; with --departures they also leave."""
    with exit_on_error():
        from extender.ranking import files
        from model.simulations import learned
        from model.simulations.baselines import baseline
        from model.workloads.traces import pods_path, read_nodes, read_pods

        loaded = files.read(model or files.RELEASED) if policy == learned.LEARNED else None
        directory = folder(traces)
        pod_list, node_list = read_pods(directory, trace), read_nodes(directory)
        report: dict[str, Any] = {
            **{"trace": trace, "seed": seed, "policy": policy},
            **{"nodes": len(node_list.names), "gpus": int(node_list.num_gpus.sum())},
        }

        def learned_rank(loaded: "Model", nodes: "Nodes", asks: "PodClasses", mix: "Mix") -> learned.Learned:
            foresight = learned.Foresight(loaded.manifest.foresight_load)
            return learned.Learned(
                loaded.potential, learned.trace_outlook(nodes, asks, mix, node_list, pod_list, foresight)
            )

        if departures:
            from model.simulations.departures import periodic_workload, simulate_churn

            offered = periodic_workload(pods_path(directory, trace), node_list, pod_list, load or 1.0, seed)
            nodes, asks, mix = offered.nodes, offered.tasks.asks, offered.tasks.mix
            rule = baseline(policy) if loaded is None else learned_rank(loaded, nodes, asks, mix)
            how: dict[str, Any] = {"load": load or 1.0, "order": order or "fifo", "round_s": round_s or 0.0}
            run = simulate_churn(offered, rule, how["order"], seed, _failures(mtbf_hours, repair_hours), how["round_s"])
            report |= {"departures": True, **how, **_departures(offered, run)}
        else:
            from model.simulations.measures import measures
            from model.simulations.replays import Engine, replay
            from model.workloads.workloads import workload

            if load or order or round_s or mtbf_hours:
                raise ValueError("--load, --order, --round-s and --mtbf-hours need --departures")
            arrivals = workload(directory, trace, seed, node_list, pod_list)
            if loaded is None:
                done = replay(arrivals, baseline(policy), seed, Engine(engine))
            else:
                rank = learned_rank(loaded, arrivals.nodes, arrivals.asks, arrivals.mix)
                done = learned.replay(arrivals, rank.outlook, rank.potential, Engine(engine))
            report |= {"engine": engine, **measures(arrivals, done)}
    publish(report, [_summary(report, f"{policy} on {trace}, seed {seed}")], json)


@simulate_app.command()
def live(
    traces: TracesOption,
    trace: TraceOption = "default",
    weights: Annotated[str, typer.Option(help="Weights of the live term; all are compared with the first.")] = (
        "0,1,2,4,8,16"
    ),
    nodes: Annotated[int, typer.Option(min=1, help="Nodes drawn from the trace for each seed.")] = 60,
    seeds: Annotated[str, typer.Option(help="Seeds, as in 1001-1012 or 1001,1002.")] = "1001-1012",
    json: JsonOption = None,
) -> None:
    """Gain from the learned rank's live term when other processes also use the GPUs (synthetic loads)."""
    with exit_on_error():
        from extender.ranking import files
        from model.evaluation.reports import interval
        from model.simulations.loads import LOADS, Synthetic, outcomes, scenes, weights_of

        model, synthetic = files.read(files.RELEASED), Synthetic()
        tried = weights_of(weights)
        drawn = scenes(folder(traces), trace, model.manifest.foresight_load, nodes, seed_range(seeds), synthetic)
        runs = [outcomes(scene, model.potential, tried, synthetic.refresh_pods) for scene in drawn]
        of_first = [run[next(iter(tried))].mean for run in runs]
    loads = [f"@{load}" for load in LOADS]
    table = Table(
        "weight", *(f"allocated {at}" for at in loads), *(f"effective {at}" for at in loads), "effective gain"
    )
    found: dict[str, Any] = {}
    for name in tried:
        rows = [run[name] for run in runs]
        more = interval([row.mean - first for row, first in zip(rows, of_first, strict=True)])
        means = [
            sum(column) / len(rows) for column in zip(*(row.allocated + row.effective for row in rows), strict=True)
        ]
        table.add_row(name, *(f"{value:.2f}" for value in means), str(more))
        found[name] = [row._asdict() for row in rows]
    publish({"trace": trace, "nodes": nodes, "loads": LOADS, "weights": found}, [table], json)


@simulate_app.command()
def jobs(  # noqa: PLR0913, PLR0917 - options of a command
    jobs: Annotated[
        Path | None, typer.Option(help="CSV file of timestamp, duration, num_gpus, cluster; .csv.gz too.")
    ] = None,
    generate: Annotated[
        int | None, typer.Option(min=1, help="Number of random jobs to generate instead of a file.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs of the cluster; default: by --load.")] = None,
    policy: PolicyOption = "bestfit",
    order: OrderOption = None,
    load: LoadOption = None,
    seed: SeedOption = 42,
    round_s: RoundOption = None,
    mtbf_hours: MtbfOption = None,
    repair_hours: RepairOption = 4.0,
    json: JsonOption = None,
) -> None:
    """Queueing delay and completion time of jobs."""
    with exit_on_error():
        from model.simulations import delays
        from model.simulations.baselines import baseline
        from model.workloads.jobs import GPUS_PER_NODE, drawn_jobs, nodes_for_load, read_jobs

        rule = baseline(policy)
        if (jobs is None) == (generate is None):
            raise ValueError("give either --jobs FILE or --generate NUMBER")
        listed = read_jobs(jobs) if jobs is not None else drawn_jobs(generate or 0, seed)
        num_gpus = gpus or nodes_for_load(listed, load or 0.9) * GPUS_PER_NODE
        fitting = listed.select(listed.num_gpus <= num_gpus)
        too_large = listed.select(listed.num_gpus > num_gpus)
        if not fitting.cluster:
            raise ValueError(f"every job requests more than the {num_gpus} GPUs of the cluster")
        order, round_s, failures = order or "fifo", round_s or 0.0, _failures(mtbf_hours, repair_hours)
        run = delays.simulate_jobs(fitting, num_gpus, rule, order, seed, failures=failures, round_s=round_s)
        _print_time(run)
        left_out = {
            "jobs": len(too_large.cluster),
            "gpu_hours": round(float(too_large.gpu_s.sum()) / 3600, 3),
            "because": "they request more GPUs than the cluster has",
        }
        offered = float(listed.gpu_s.sum()) / max(listed.span_s * num_gpus, 1e-9)
        report: dict[str, Any] = {
            **{"policy": policy, "order": order, "seed": seed, "round_s": round_s},
            **{"gpus": num_gpus, "nodes": -(-num_gpus // GPUS_PER_NODE), "load": round(offered, 6)},
            **{"jobs": len(fitting.cluster), "left_out": left_out},
            **delays.measures(run),
            "fairness": delays.fairness(run, fitting.cluster),
        }
    if too_large.cluster:
        errors().print(f"left out: {len(too_large.cluster)} jobs of more than {num_gpus} GPUs")
    publish(report, [_summary(report, f"{len(fitting.cluster)} jobs, order {order}, {policy}")], json)


def _departures(offered: "PeriodicWorkload", run: "Run") -> dict[str, Any]:
    """Return the report of a trace with departures."""
    from model.simulations import delays

    _print_time(run)
    return {
        "pods": len(offered.owners) - offered.num_before,
        "pods_before": offered.num_before,
        "left_out": {"pods": offered.left_out},
        "time_factor": round(offered.time_factor, 6),
        **delays.measures(run),
    }


def _print_time(run: "Run") -> None:
    """Print the wall time on standard error, because the report is reproducible."""
    events = 2 * len(run.submitted_s)
    errors().print(f"simulated in {run.seconds:.1f} s, {events / max(run.seconds, 1e-9):,.0f} events a second")


def _failures(mtbf_hours: float | None, repair_hours: float) -> "Failures | None":
    from model.simulations.simulated_jobs import Failures

    return Failures(mtbf_hours * 3600, repair_hours * 3600) if mtbf_hours else None


@report_app.command()
def report(  # noqa: PLR0913, PLR0917 - options of a command
    traces: TracesOption,
    out: Annotated[Path, typer.Option(help="Folder for index.html and its PNGs.")] = Path("kerf-report"),
    trace: Annotated[list[str] | None, typer.Option(help="A trace; repeatable. Default: default.")] = None,
    policies: Annotated[str, typer.Option(help="Policies; all are compared with the first.")] = (
        "fgd,bestfit,binpack,spread,random,kube-default"
    ),
    seeds: Annotated[str, typer.Option(help="Seeds, as in 42,43,44.")] = "42,43,44,45,46",
    jobs: Annotated[
        Path | None, typer.Option(help="Also compare queue orders on jobs, a file in the format of Philly's trace.")
    ] = None,
    orders: Annotated[str, typer.Option(help="Queue orders to compare.")] = "fifo,kerf,oracle-sjf",
    load: LoadOption = None,
    sizes: Annotated[
        bool, typer.Option("--sizes", help="Also measure the cost of a decision by number of nodes.")
    ] = False,
) -> None:
    """Compare policies on the same traces and seeds: tables and plots in one HTML file."""
    with exit_on_error():
        from model.evaluation import reports
        from model.evaluation.comparisons import SIZES, compare, compare_orders, compare_sizes
        from model.simulations.baselines import baseline

        names = [baseline(name.strip()).name for name in policies.split(",")]
        numbers = whole_numbers(seeds)
        listed = trace or ["default"]
        ordered = [name.strip() for name in orders.split(",")] if jobs is not None else []
        num_steps = len(listed) * len(names) * len(numbers) + len(ordered) + (len(SIZES) if sizes else 0)
        with progress_bar(num_steps) as on_step:
            found = compare(folder(traces), listed, names, numbers, on_step)
            if jobs is not None:
                found.delays = compare_orders(jobs, ordered, load or 0.9, numbers[0], on_step)
            if sizes:
                found.sizes = compare_sizes(folder(traces), listed[0], names[0], SIZES, on_step)
        path = reports.write(found, out)
    console_on(sys.stdout).print(f"{path}", soft_wrap=True)


def _summary(report: dict[str, Any], title: str) -> Table:
    """Return a table with the report's numbers and texts, one per line."""
    table = Table(show_header=False, title=title)
    for key, value in report.items():
        if isinstance(value, int | float | str):
            table.add_row(key, f"{value:,}" if isinstance(value, int) else str(value))
        elif isinstance(value, dict) and not any(isinstance(part, list | dict) for part in value.values()):
            for name, part in value.items():
                table.add_row(f"{key} {name}", str(part))
    return table
