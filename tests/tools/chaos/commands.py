"""The command line of `kerf chaos`."""

import contextlib
import itertools
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests.controlplane import BuildError, binaries
from tests.tools.chaos import accounts
from tests.tools.chaos.accounts import Account, Entry
from tests.tools.chaos.faults import REFUSALS, Kind
from tests.tools.chaos.modes import Mode
from tests.tools.chaos.workers import Worker, carry_out

app = typer.Typer(pretty_exceptions_enable=False)

_DRA_SINCE = (1, 37)
_errors = Console(stderr=True)


@app.command()
def chaos(
    runs: Annotated[int, typer.Option(min=0, help="Runs; the seed of each is one more than that of the last.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first run: --seed N --runs 1 repeats run N.")] = 1,
    *,
    queue: Annotated[bool, typer.Option("--queue", help="Most pods wait in Kerf's queue, some in gangs.")] = False,
    extender: Annotated[
        bool | None,
        typer.Option("--extender/--no-extender", help="Whether kube-scheduler calls Kerf; without only with --queue."),
    ] = None,
    dra: Annotated[
        bool, typer.Option("--dra", help="Kerf allocates devices to ResourceClaims; --queue --no-extender unless told.")
    ] = False,
    defrag: Annotated[
        bool, typer.Option("--defrag", help="Kerf makes room by moving pods, over and over; implies --queue.")
    ] = False,
    without: Annotated[
        list[str] | None,
        typer.Option(help="Kind of faults to leave out, of the same run otherwise; or refusals, all kinds of those."),
    ] = None,
    kubernetes: Annotated[str | None, typer.Option(help="Version, such as 1.34; default: that of the tests.")] = None,
    jobs: Annotated[int, typer.Option(min=1, help="Runs at the same time, each on a control plane of its own.")] = 1,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="Account that grows: runs in it count, seeds go on behind its last. --runs 0 tells how far it is."
        ),
    ] = None,
    since: Annotated[
        str | None, typer.Option(help="With --resume: count from this commit on; default: the product's last change.")
    ] = None,
    json_file: Annotated[str | None, typer.Option("--json", help="File for the account; - is standard output.")] = None,
) -> None:
    """Break a real control plane and Kerf on it in every way, and check that no GPU is booked twice and no pod lost.

    Exit status 1: a promise was broken; 2: a run could not be carried out.
    """
    queue = queue or dra or defrag
    extender = (not dra) if extender is None else extender
    if not extender and not queue:
        raise typer.BadParameter("--no-extender needs --queue: without it Kerf decides nothing")
    if dra and defrag:
        raise typer.BadParameter("--dra and --defrag are runs of their own: pods with ResourceClaims are not moved")
    version = kubernetes or os.environ.get("KERF_TEST_KUBERNETES") or binaries.DEFAULT_VERSION
    if dra and tuple(map(int, accounts.minor_of(version).split("."))) < _DRA_SINCE:
        raise typer.BadParameter("--dra needs Kubernetes 1.37 or newer: pools are given to Kerf by DeviceTaintRules")
    mode = Mode(queue, extender, dra, defrag, _left_out(without or ()))
    since = since or accounts.last_mend()
    grown = Account.at(resume) if resume else Account()
    alike = list(grown.like(version, mode))
    counted = [entry for entry in grown.since(since, accounts.commit()) if entry in alike] if resume else []
    # What is being counted is told by this call too, as if it had never been interrupted.
    told = Account([*counted])
    first = max([seed, *(entry.seed + 1 for entry in alike)])
    try:
        if runs:
            grown.claim()
        of = partial(Worker, kubernetes=version, mode=mode)
        _carry_out(max(runs - len(counted), 0), first, jobs, version, worker=of, grown=grown, told=told)
    except BlockingIOError:
        _errors.print(f"{resume} is being written by another kerf chaos: wait for it, or stop it", style="red")
        raise typer.Exit(2) from None
    except BuildError as error:
        _errors.print(str(error), style="red", markup=False, highlight=False)
        raise typer.Exit(2) from None
    finally:
        _publish(told, json_file)  # an interrupted batch has its account too
        if resume:
            _tell_progress(grown, since)
    if told.num_violations:
        raise typer.Exit(1)
    if any(entry.error for entry in told.entries) or (runs and not any(entry.counts for entry in told.entries)):
        raise typer.Exit(2)


def _left_out(names: Iterable[str]) -> tuple[Kind, ...]:
    kinds: set[Kind] = set()
    for name in names:
        if name == "refusals":
            kinds |= set(REFUSALS)
        elif name in set(Kind):
            kinds.add(Kind(name))
        else:
            raise typer.BadParameter(f"--without {name}: one of refusals, {', '.join(sorted(Kind))}")
    return tuple(sorted(kinds))


def _carry_out(
    num_runs: int,
    first_seed: int,
    jobs: int,
    version: str,
    *,
    worker: Callable[[Path, str], Worker],
    grown: Account,
    told: Account,
) -> None:
    if not num_runs:
        return
    binaries.find_binaries(version)  # built before the clock runs
    with (
        _workspace(told) as directory,
        Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=_errors,
            transient=True,
        ) as progress,
    ):
        task = progress.add_task("starting", total=num_runs)

        def enter(entry: Entry) -> None:
            told.entries.append(entry)
            grown.enter(entry)
            described = f"seed {entry.seed}, {told.num_violations} violations"
            progress.update(task, description=described, advance=1)

        commit = accounts.commit()
        workers = [worker(directory / f"worker-{number}", commit) for number in range(min(jobs, num_runs))]
        carry_out(workers, itertools.islice(itertools.count(first_seed), num_runs), enter)


@contextlib.contextmanager
def _workspace(told: Account) -> Iterator[Path]:
    """A folder for logs; it is kept where there is something to find in them."""
    directory = Path(tempfile.mkdtemp(prefix="kerf-chaos-"))
    yield directory
    if not told.num_violations and not any(entry.error for entry in told.entries):
        shutil.rmtree(directory, ignore_errors=True)


def _publish(told: Account, target: str | None) -> None:
    report = told.report()
    console = _errors if target == "-" else Console(width=None if sys.stdout.isatty() else 110)
    console.print(_table(told))
    for entry in told.entries:
        for found in entry.violations:
            _complain(f"seed {entry.seed}: {found.promise}: {found.subject}: {found.detail}")
        if entry.error:
            _complain(f"seed {entry.seed} failed: {entry.error}")
    text = json.dumps(report, indent=2) + "\n"
    if target == "-":
        sys.stdout.write(text)
    elif target is not None:
        Path(target).write_text(text)


def _complain(text: str) -> None:
    _errors.print(text, style="red", markup=False, highlight=False, soft_wrap=True)


def _table(told: Account) -> Table:
    report = told.report()
    title = f"{report['runs']} runs, {report['pods_bound']} pods bound, {report['violations']} violations"
    table = Table(title=title, title_justify="left")
    table.add_column("fault", no_wrap=True)
    table.add_column("took effect", justify="right")
    for kind, number in told.faults.most_common():
        table.add_row(kind, str(number))
    return table


def _tell_progress(grown: Account, since: str) -> None:
    counted = list(grown.since(since))
    violations = sum(len(entry.violations) for entry in counted)
    parts = [f"{name} {there}/{wanted}" for name, there, wanted in accounts.progress(counted)]
    _errors.print(f"since {since or '?'}: {', '.join(parts)}, {violations} violations", markup=False, highlight=False)
