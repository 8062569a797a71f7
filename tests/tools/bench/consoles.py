"""What a measurement shows while it goes on, and where its figures go."""

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, TextIO, TypeVar

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from extender.ranking.files import ModelError
from model.workloads.traces import TraceError
from tests.controlplane import ApiError, BuildError, ProcessError
from tests.tools.bench import reports
from tests.tools.bench.servers import BenchError


class Plan(Protocol):
    """What to measure."""

    @property
    def num_steps(self) -> int:
        """How many times the bar is told of a step."""


PlanT = TypeVar("PlanT", bound=Plan)


def _console(stream: TextIO) -> Console:
    """Files and pipes have no width of their own; the tables need 110 columns."""
    return Console(file=stream, width=None if stream.isatty() else 110)


_errors = _console(sys.stderr)


@contextlib.contextmanager
def progress(num_steps: int) -> Iterator[Callable[[str], None]]:
    """A bar on standard error; the block calls what it gets with the name of each step as it begins.

    A failed measurement ends the command with a message and status 1: nothing is written then.
    """
    try:
        with Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=_errors,
            transient=True,
        ) as bar:
            task = bar.add_task("starting", total=num_steps)
            begun = 0

            def tell(step: str) -> None:
                nonlocal begun
                bar.update(task, description=step, completed=begun)
                begun += 1

            yield tell
    except (BenchError, BuildError, ProcessError, ApiError, ModelError, TraceError, TimeoutError, OSError) as error:
        _errors.print(f"failed: {error}", style="red", markup=False, highlight=False)
        for note in getattr(error, "__notes__", ()):
            _errors.print(note, markup=False, highlight=False)
        raise typer.Exit(1) from None


def show(
    measure: Callable[[PlanT, Callable[[str], None]], reports.Report],
    plan: PlanT,
    table: Callable[[reports.Report], Table],
    json: str | None,
) -> reports.Report:
    """Measure as planned, and publish what came out."""
    with progress(plan.num_steps) as tell:
        report = measure(plan, tell)
    publish(report, [table(report)], json)
    return report


def publish(report: reports.Report, tables: Sequence[Table], json: str | None) -> None:
    """Tables on standard output, or on standard error where the figures go there."""
    console = _errors if json == "-" else _console(sys.stdout)
    for table in tables:
        console.print(table)
    if json is not None:
        reports.write_json(report, json)
