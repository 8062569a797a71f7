"""Commands that come with the simulator: `kerf simulate`, `kerf verify`, `kerf report`."""

import contextlib
import json as json_format
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

simulate_app = typer.Typer(
    help="Offer a trace to a simulated cluster, under the rules that the service decides by.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
verify_app = typer.Typer(
    help="Compare the simulator with published results.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

NODE_LIST = "openb_node_list_gpu_node.csv"


def _console(stream: TextIO) -> Console:
    """Files and pipes have no width of their own; the tables need 110 columns."""
    return Console(file=stream, width=None if stream.isatty() else 110, highlight=False)


def _errors() -> Console:
    """Made anew each time: standard error may be another one by then."""
    return _console(sys.stderr)


TracesOption = Annotated[
    Path, typer.Option("--traces", envvar="KERF_TRACES", help="Folder of traces in the layout of openb.")
]
JsonOption = Annotated[str | None, typer.Option("--json", help="File for the figures; - is standard output.")]
SeedOption = Annotated[int, typer.Option(min=0, help="Of everything random.")]


@simulate_app.callback()
def simulate() -> None:
    """Offer a trace to a simulated cluster, under the rules that the service decides by."""


@simulate_app.command()
def openb(
    traces: TracesOption,
    trace: Annotated[str, typer.Option(help="Name of the trace: openb_pod_list_NAME.csv.")] = "default",
    policy: Annotated[str, typer.Option(help="fgd, bestfit, binpack, spread, round-robin, random, ...")] = "fgd",
    seed: SeedOption = 42,
    engine: Annotated[str, typer.Option(help="compiled, or numpy: the same results, slower.")] = "compiled",
    json: JsonOption = None,
) -> None:
    """GPU allocation of a policy when the pods of a trace arrive one after the other and none departs."""
    with _telling_faults():
        from model.baselines import baseline
        from model.measures import measures
        from model.replays import Engine, replay
        from model.traces import read_nodes, read_pods
        from model.workloads import workload

        rule = baseline(policy)
        directory = _folder(traces)
        pod_list, node_list = read_pods(directory, trace), read_nodes(directory)
        offered = workload(directory, trace, seed, node_list, pod_list)
        report = {
            **{"trace": trace, "seed": seed, "policy": policy, "engine": engine},
            **{"nodes": len(node_list.names), "gpus": offered.num_gpus},
            **measures(offered, replay(offered, rule, seed, Engine(engine))),
        }
    _publish(report, [_summary(report)], json)


@verify_app.callback()
def verify() -> None:
    """Compare the simulator with published results."""


@verify_app.command()
def published(
    traces: TracesOption,
    trace: Annotated[list[str] | None, typer.Option(help="Only this trace; may be repeated.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Only this seed; may be repeated.")] = None,
    json: JsonOption = None,
) -> None:
    """Replay the published experiment; exit status 1 when a result differs by more than 0.01 points."""
    with _telling_faults():
        from model import published as experiment

        directory = _folder(traces)
        lines = [
            line
            for line in experiment.table(directory)
            if (not trace or line[0] in trace) and (not seed or line[2] in seed)
        ]
        if not lines:
            raise ValueError("no such line in published_allocation.csv")
        with _progress(len(lines)) as tell:
            runs = experiment.verify(directory, lines, tell)
    table = Table("trace", "policy", "runs", "largest difference", "differ", title="Published and replayed allocation")
    for name, rule in sorted({(run.trace, run.policy) for run in runs}):
        group = [run for run in runs if (run.trace, run.policy) == (name, rule)]
        worst = max(run.difference for run in group)
        table.add_row(name, rule, str(len(group)), f"{worst:.2f}", str(sum(not run.equal for run in group)))
    different = [run for run in runs if not run.equal]
    for run in different:
        _errors().print(f"{run.trace}, {run.policy}, seed {run.seed}: published {run.published}, replayed {run.ours}")
    report = {
        "runs": [
            {"trace": run.trace, "policy": run.policy, "seed": run.seed, "published": run.published, "ours": run.ours}
            for run in runs
        ],
        "equal": not different,
    }
    _publish(report, [table], json)
    console = _errors() if json == "-" else _console(sys.stdout)
    console.print(f"{len(runs) - len(different)} of {len(runs)} runs equal within {experiment.TOLERANCE} points")
    if different:
        raise typer.Exit(1)


def _folder(traces: Path) -> Path:
    """The folder that holds the lists itself, or has them in `openb`."""
    inner = traces / "openb"
    return inner if not (traces / NODE_LIST).exists() and (inner / NODE_LIST).exists() else traces


def _summary(report: dict[str, Any]) -> Table:
    """Numbers and texts of a report, one a line."""
    table = Table(show_header=False, title=f"{report['policy']} on {report['trace']}, seed {report['seed']}")
    for key, value in report.items():
        if isinstance(value, int | float | str):
            table.add_row(key, f"{value:,}" if isinstance(value, int) else str(value))
        elif isinstance(value, dict) and not any(isinstance(part, list) for part in value.values()):
            for name, part in value.items():
                table.add_row(f"{key} {name}", str(part))
    return table


@contextlib.contextmanager
def _telling_faults() -> Iterator[None]:
    """Bad files and arguments end the command with a message and status 2."""
    try:
        yield
    except ModuleNotFoundError as error:
        _errors().print(f'{error}: install Kerf with its extra "sim"', style="red", markup=False)
        raise typer.Exit(2) from None
    except (ValueError, OSError) as error:
        _errors().print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(2) from None


@contextlib.contextmanager
def _progress(num_steps: int) -> Iterator[Callable[[str], None]]:
    """A bar on standard error; the block calls what it gets with the name of each step as it begins."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=_errors(), transient=True) as progress:
        task = progress.add_task("starting", total=num_steps)
        begun = 0

        def tell(step: str) -> None:
            nonlocal begun
            progress.update(task, description=step, completed=begun)
            begun += 1

        yield tell


def _publish(report: dict[str, Any], tables: list[Table], json: str | None) -> None:
    """Tables on standard output, or on standard error where the figures go there."""
    console = _errors() if json == "-" else _console(sys.stdout)
    for table in tables:
        console.print(table)
    if json is None:
        return
    text = json_format.dumps(report, indent=2) + "\n"
    if json == "-":
        sys.stdout.write(text)
    else:
        with _telling_faults():
            Path(json).write_text(text)
