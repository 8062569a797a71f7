"""Commands that come with the simulator: `kerf simulate`, `kerf report`."""

import contextlib
import json as json_format
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from extender.core.fragments import Mix
    from extender.core.packing import Asks, Nodes
    from extender.models.files import Model
    from model.delays import Run
    from model.jobs import JobList
    from model.queues import Failures

simulate_app = typer.Typer(
    help="Offer a trace to a simulated cluster, under the rules that the service decides by.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
report_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)

NODE_LIST = "openb_node_list_gpu_node.csv"


def console_on(stream: TextIO) -> Console:
    """Files and pipes have no width of their own; the tables need 110 columns."""
    return Console(file=stream, width=None if stream.isatty() else 110, highlight=False)


def errors() -> Console:
    """Made anew each time: standard error may be another one by then."""
    return console_on(sys.stderr)


TracesOption = Annotated[
    Path, typer.Option("--traces", envvar="KERF_TRACES", help="Folder of traces in the layout of openb.")
]
PolicyOption = Annotated[str, typer.Option(help="fgd, bestfit, binpack, spread, round-robin, random, kube-default.")]
OrderOption = Annotated[str | None, typer.Option(help="fifo (default), kerf, oracle-sjf, oracle-area.")]
LoadOption = Annotated[
    float | None, typer.Option(min=0.001, max=1000, help="GPU work submitted, by capacity; default 0.9, pods 1.0.")
]
RoundOption = Annotated[float | None, typer.Option(min=0, help="Seconds between scheduling rounds; default: none.")]
MtbfOption = Annotated[float | None, typer.Option(min=0.001, help="Mean hours between failures of a node.")]
RepairOption = Annotated[float, typer.Option(min=0.001, help="Mean hours until a failed node is back.")]
JsonOption = Annotated[str | None, typer.Option("--json", help="File for the figures; - is standard output.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Of everything random.")]


@simulate_app.callback()
def simulate() -> None:
    """Offer a trace to a simulated cluster, under the rules that the service decides by."""


@simulate_app.command()
def openb(  # noqa: PLR0913, PLR0917 - options of a command
    traces: TracesOption,
    trace: Annotated[str, typer.Option(help="Name of the trace: openb_pod_list_NAME.csv.")] = "default",
    policy: Annotated[str, typer.Option(help="kerf, or one of kerf simulate jobs.")] = "fgd",
    seed: SeedOption = 42,
    departures: Annotated[bool, typer.Option("--departures", help="Pods leave after their own durations.")] = False,
    load: LoadOption = None,
    order: OrderOption = None,
    round_s: RoundOption = None,
    mtbf_hours: MtbfOption = None,
    repair_hours: RepairOption = 4.0,
    engine: Annotated[str, typer.Option(help="compiled, or numpy: the same results, slower.")] = "compiled",
    model: Annotated[
        Path | None, typer.Option(help="Folder of the model of policy kerf; default: the released.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """GPU allocation of a policy as the pods of a trace arrive; none departs, or all do (--departures)."""
    with telling_faults():
        from extender.models import files
        from model import learned
        from model.baselines import baseline
        from model.learned import LEARNED, Foresight, Learned
        from model.traces import pods_path, read_nodes, read_pods

        loaded = files.read(model or files.RELEASED) if policy == LEARNED else None
        directory = folder(traces)
        pod_list, node_list = read_pods(directory, trace), read_nodes(directory)
        report: dict[str, Any] = {
            **{"trace": trace, "seed": seed, "policy": policy},
            **{"nodes": len(node_list.names), "gpus": int(node_list.num_gpus.sum())},
        }

        def learned_rank(loaded: "Model", nodes: "Nodes", asks: "Asks", mix: "Mix") -> Learned:
            foresight = Foresight(loaded.manifest.foresight_load)
            return Learned(loaded.potential, learned.told(nodes, asks, mix, node_list, pod_list, foresight))

        if departures:
            from model import delays
            from model.departures import churn, simulate_churn

            offered = churn(pods_path(directory, trace), node_list, pod_list, load or 1.0, seed)
            nodes, asks, mix = offered.nodes, offered.tasks.asks, offered.tasks.mix
            rule = baseline(policy) if loaded is None else learned_rank(loaded, nodes, asks, mix)
            run = simulate_churn(
                offered, rule, order or "fifo", seed, _failures(mtbf_hours, repair_hours), round_s or 0.0
            )
            _tell_time(run)
            report |= {"departures": True, "load": load or 1.0, "order": order or "fifo", "round_s": round_s or 0.0}
            report |= {"pods": len(offered.owners) - offered.num_before, "pods_before": offered.num_before}
            report |= {"left_out": {"pods": offered.left_out}}
            report |= {"time_factor": round(offered.time_factor, 6), **delays.measures(run)}
        else:
            from model.measures import measures
            from model.replays import Engine, replay
            from model.workloads import workload

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
    trace: Annotated[str, typer.Option(help="Name of the trace: openb_pod_list_NAME.csv.")] = "default",
    weights: Annotated[str, typer.Option(help="Values of model.live_weight; the first is compared with.")] = (
        "0,1,2,4,8,16"
    ),
    nodes: Annotated[int, typer.Option(min=1, help="Nodes drawn from the trace for each seed.")] = 60,
    seeds: Annotated[str, typer.Option(help="As in 1001-1012 or 1001,1002.")] = "1001-1012",
    json: JsonOption = None,
) -> None:
    """What the live term of the learned rank is worth where others use GPUs as well; their loads are made up."""
    with telling_faults():
        from extender.models import files
        from model.learning_commands import seed_range
        from model.loads import LOADS, Synthetic, outcomes, scenes, weights_of
        from model.reports import interval

        model, synthetic = files.read(files.RELEASED), Synthetic()
        tried = weights_of(weights)
        drawn = scenes(folder(traces), trace, model.manifest.foresight_load, nodes, seed_range(seeds), synthetic)
        runs = [outcomes(scene, model.potential, tried, synthetic.refresh_pods) for scene in drawn]
        of_first = [run[next(iter(tried))].mean for run in runs]
    loads = [f"@{load}" for load in LOADS]
    table = Table(
        "weight", *(f"allocated {at}" for at in loads), *(f"effective {at}" for at in loads), "effective more"
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
    generate: Annotated[int | None, typer.Option(min=1, help="Instead of a file: so many drawn jobs.")] = None,
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
    """Queueing delay and completion time of jobs that come, wait for GPUs, run and go."""
    with telling_faults():
        from model import delays
        from model.baselines import baseline
        from model.jobs import GPUS_PER_NODE, drawn_jobs, nodes_for_load, read_jobs

        rule = baseline(policy)
        if (jobs is None) == (generate is None):
            raise ValueError("give either --jobs FILE or --generate NUMBER")
        listed = read_jobs(jobs) if jobs is not None else drawn_jobs(generate or 0, seed)
        num_gpus = gpus or nodes_for_load(listed, load or 0.9) * GPUS_PER_NODE
        fitting = listed.select(listed.num_gpus <= num_gpus)
        too_large = listed.select(listed.num_gpus > num_gpus)
        if not fitting.cluster:
            raise ValueError(f"every job asks for more than the {num_gpus} GPUs of the cluster")
        run = delays.simulate_jobs(
            fitting,
            num_gpus,
            rule,
            order or "fifo",
            seed,
            failures=_failures(mtbf_hours, repair_hours),
            round_s=round_s or 0.0,
        )
        _tell_time(run)
        offered = float(listed.gpu_s.sum()) / max(listed.span_s * num_gpus, 1e-9)
        report: dict[str, Any] = {
            **{"policy": policy, "order": order or "fifo", "seed": seed, "round_s": round_s or 0.0},
            **{"gpus": num_gpus, "nodes": -(-num_gpus // GPUS_PER_NODE), "load": round(offered, 6)},
            **{"jobs": len(fitting.cluster), "left_out": _left_out(too_large)},
            **delays.measures(run),
            "fairness": delays.fairness(run, fitting.cluster),
        }
    if too_large.cluster:
        errors().print(f"left out: {len(too_large.cluster)} jobs of more than {num_gpus} GPUs")
    publish(report, [_summary(report, f"{len(fitting.cluster)} jobs, order {order or 'fifo'}, {policy}")], json)


def _tell_time(run: "Run") -> None:
    """On standard error: equal seeds give equal figures, and this is none."""
    events = 2 * len(run.submitted_s)
    errors().print(f"simulated in {run.seconds:.1f} s, {events / max(run.seconds, 1e-9):,.0f} events a second")


def _left_out(too_large: "JobList") -> dict[str, Any]:
    return {
        "jobs": len(too_large.cluster),
        "gpu_hours": round(float(too_large.gpu_s.sum()) / 3600, 3),
        "because": "they ask for more GPUs than the cluster has",
    }


def _failures(mtbf_hours: float | None, repair_hours: float) -> "Failures | None":
    from model.queues import Failures

    return Failures(mtbf_hours * 3600, repair_hours * 3600) if mtbf_hours else None


@report_app.command()
def report(  # noqa: PLR0913, PLR0917 - options of a command
    traces: TracesOption,
    out: Annotated[Path, typer.Option(help="Folder for index.html and its PNGs.")] = Path("kerf-report"),
    trace: Annotated[list[str] | None, typer.Option(help="A trace; may be repeated. Default: default.")] = None,
    policies: Annotated[str, typer.Option(help="Which, the first being what others are compared with.")] = (
        "fgd,bestfit,binpack,spread,random,kube-default"
    ),
    seeds: Annotated[str, typer.Option(help="As in 42,43,44.")] = "42,43,44,45,46",
    jobs: Annotated[Path | None, typer.Option(help="Jobs over time too, in the form of Philly's trace.")] = None,
    orders: Annotated[str, typer.Option(help="Of the jobs.")] = "fifo,kerf,oracle-sjf",
    load: LoadOption = None,
    sizes: Annotated[bool, typer.Option("--sizes", help="Cost of a decision by the number of nodes too.")] = False,
) -> None:
    """Compare policies on the same traces and seeds: tables and plots in one HTML file."""
    with telling_faults():
        from model import reports
        from model.baselines import baseline
        from model.comparisons import SIZES, compare, compare_orders, compare_sizes

        names = [baseline(name.strip()).name for name in policies.split(",")]
        numbers = whole_numbers(seeds)
        listed = trace or ["default"]
        ordered = [name.strip() for name in orders.split(",")] if jobs is not None else []
        num_steps = len(listed) * len(names) * len(numbers) + len(ordered) + (len(SIZES) if sizes else 0)
        with progress_bar(num_steps) as tell:
            found = compare(folder(traces), listed, names, numbers, tell)
            if jobs is not None:
                found.delays = compare_orders(jobs, ordered, load or 0.9, numbers[0], tell)
            if sizes:
                found.sizes = compare_sizes(folder(traces), listed[0], names[0], SIZES, tell)
        path = reports.write(found, out)
    console_on(sys.stdout).print(f"{path}", soft_wrap=True)


def whole_numbers(text: str) -> list[int]:
    """Seeds as they are written on a command line."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) <= 15 for part in parts):
        raise ValueError(f"--seeds {text}: write whole numbers, as in 42,43,44")
    return [int(part) for part in parts]


def folder(traces: Path) -> Path:
    """The folder that holds the lists itself, or has them in `openb`."""
    inner = traces / "openb"
    return inner if not (traces / NODE_LIST).exists() and (inner / NODE_LIST).exists() else traces


def _summary(report: dict[str, Any], title: str) -> Table:
    """Numbers and texts of a report, one a line."""
    table = Table(show_header=False, title=title)
    for key, value in report.items():
        if isinstance(value, int | float | str):
            table.add_row(key, f"{value:,}" if isinstance(value, int) else str(value))
        elif isinstance(value, dict) and not any(isinstance(part, list | dict) for part in value.values()):
            for name, part in value.items():
                table.add_row(f"{key} {name}", str(part))
    return table


@contextlib.contextmanager
def telling_faults() -> Iterator[None]:
    """Bad files and arguments end the command with a message and status 2."""
    try:
        yield
    except ModuleNotFoundError as error:
        errors().print(f'{error}: install Kerf with its extra "sim"', style="red", markup=False)
        raise typer.Exit(2) from None
    except (ValueError, OSError) as error:
        errors().print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(2) from None


class _Rate(ProgressColumn):
    """Steps by time, in the unit that makes a number above 1."""

    def render(self, task: Task) -> Text:
        """Nothing before the first step is done."""
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("")
        return Text(f"{speed:.1f}/s" if speed >= 1 else f"{60 * speed:.1f}/min")


@contextlib.contextmanager
def progress_bar(num_steps: int) -> Iterator[Callable[[str], None]]:
    """A bar on standard error; the block calls what it gets with the name of each step as it begins."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), _Rate(),
               TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=errors(), transient=True) as progress:
        task = progress.add_task("starting", total=num_steps)
        begun = 0

        def tell(step: str) -> None:
            nonlocal begun
            progress.update(task, description=step, completed=begun)
            begun += 1

        yield tell


def publish(report: dict[str, Any], tables: list[Table], json: str | None) -> None:
    """Tables on standard output, or on standard error where the figures go there."""
    console = errors() if json == "-" else console_on(sys.stdout)
    for table in tables:
        console.print(table)
    if json is None:
        return
    text = json_format.dumps(report, indent=2) + "\n"
    if json == "-":
        sys.stdout.write(text)
    else:
        with telling_faults():
            Path(json).write_text(text)
