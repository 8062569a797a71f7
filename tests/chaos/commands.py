"""The command line of `kerf chaos`."""

import json
import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.chaos import batches
from tests.controlplane import BuildError

app = typer.Typer(pretty_exceptions_enable=False)

_errors = Console(stderr=True)


@app.command()
def chaos(
    runs: Annotated[int, typer.Option(min=1, help="Runs; the seed of each is one more than that of the last.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first run: --seed N --runs 1 repeats run N.")] = 1,
    *,
    queue: Annotated[bool, typer.Option("--queue", help="Most pods wait in Kerf's queue, some in gangs.")] = False,
    json_file: Annotated[str | None, typer.Option("--json", help="File for the account; - is standard output.")] = None,
) -> None:
    """Break a real control plane and Kerf on it in every way, and check that no GPU is booked twice and no pod lost.

    Exit status 1: a promise was broken; 2: a run could not be carried out.
    """
    account = batches.Account()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=_errors, transient=True) as progress:
        task = progress.add_task("starting", total=runs)

        def tell(step: str) -> None:
            done = len(account.outcomes) + len(account.unharmed) + len(account.errors)
            progress.update(task, description=f"{step}, {account.num_violations} violations", completed=done)

        try:
            batches.carry_out(runs, seed, tell, account, queue=queue)
        except BuildError as error:
            _errors.print(str(error), style="red", markup=False, highlight=False)
            raise typer.Exit(2) from None
        finally:
            _publish(account, json_file)  # an interrupted batch has its account too
    if account.num_violations:
        raise typer.Exit(1)
    if account.errors or not account.outcomes:
        raise typer.Exit(2)


def _publish(account: batches.Account, target: str | None) -> None:
    report = account.report()
    console = _errors if target == "-" else Console(width=None if sys.stdout.isatty() else 110)
    console.print(_table(account))
    for outcome in account.outcomes:
        for found in outcome.violations:
            text = f"seed {outcome.seed}: {found.promise}: {found.subject}: {found.detail}"
            _errors.print(text, style="red", markup=False, highlight=False, soft_wrap=True)
    for failed, error in account.errors.items():
        _errors.print(f"seed {failed} failed: {error}", style="red", markup=False, highlight=False, soft_wrap=True)
    text = json.dumps(report, indent=2) + "\n"
    if target == "-":
        sys.stdout.write(text)
    elif target is not None:
        Path(target).write_text(text)


def _table(account: batches.Account) -> Table:
    report = account.report()
    title = f"{report['runs']} runs, {report['pods_bound']} pods bound, {report['violations']} violations"
    table = Table(title=title, title_justify="left")
    table.add_column("fault", no_wrap=True)
    table.add_column("took effect", justify="right")
    for kind, number in account.faults.most_common():
        table.add_row(kind, str(number))
    return table
