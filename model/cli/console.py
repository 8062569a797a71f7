"""Shared parts of the commands: consoles, errors, progress, seeds, JSON output."""

import contextlib
import json as json_format
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, TextIO

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

from extender.cli.consoles import PlainConsole

JsonOption = Annotated[str | None, typer.Option("--json", help="JSON file for the results; - is standard output.")]


def console_on(stream: TextIO) -> Console:
    """Return a console; files and pipes get the 110 columns that the tables need."""
    return PlainConsole(file=stream, width=None if stream.isatty() else 110, highlight=False, emoji=False)


def errors() -> Console:
    """Return a console on the current standard error, which tests replace."""
    return console_on(sys.stderr)


def whole_numbers(text: str) -> list[int]:
    """Parse seeds such as "42,43,44". Raises ValueError."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) <= 15 for part in parts):
        raise ValueError(f"--seeds {text}: write whole numbers, as in 42,43,44")
    return [int(part) for part in parts]


def folder(traces: Path) -> Path:
    """Return the folder with the trace files: `traces` itself, or its subfolder `openb`."""
    from model.workloads.traces import NODE_LIST  # slow import

    inner = traces / "openb"
    return inner if not (traces / NODE_LIST).exists() and (inner / NODE_LIST).exists() else traces


@contextlib.contextmanager
def exit_on_error() -> Iterator[None]:
    """Report invalid files and arguments, and exit with status 2."""
    try:
        yield
    except ModuleNotFoundError as error:
        errors().print(f'{error}: install Kerf with the extra "sim"', style="red", markup=False)
        raise typer.Exit(2) from None
    except (ValueError, OSError) as error:
        errors().print(str(error), style="red", markup=False, soft_wrap=True)
        raise typer.Exit(2) from None


class _Rate(ProgressColumn):
    """Speed in steps per second, or per minute if that is below 1."""

    def render(self, task: Task) -> Text:
        """Return the speed; empty before the first step is done."""
        speed = task.finished_speed or task.speed
        if not speed:
            return Text("")
        return Text(f"{speed:.1f}/s" if speed >= 1 else f"{60 * speed:.1f}/min")


@contextlib.contextmanager
def progress_bar(num_steps: int) -> Iterator[Callable[[str], None]]:
    """Show a bar on standard error; yields a function to call with the name of each step at its start."""
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=errors(),
        transient=True,
    ) as progress:
        task = progress.add_task("starting", total=num_steps)
        begun = 0

        def on_step(step: str) -> None:
            nonlocal begun
            progress.update(task, description=step, completed=begun)
            begun += 1

        yield on_step


def publish(report: dict[str, Any], tables: list[Table], json: str | None) -> Console:
    """Print tables on standard output, or on standard error if the JSON goes there; returns the console used."""
    console = errors() if json == "-" else console_on(sys.stdout)
    for table in tables:
        console.print(table)
    if json is not None:
        text = json_format.dumps(report, indent=2) + "\n"
        if json == "-":
            sys.stdout.write(text)  # in ASCII
        else:
            with exit_on_error():
                Path(json).write_text(text)
    return console


def seed_range(text: str) -> list[int]:
    """Parse seeds such as "42-51", "42,43" or a mix of both. Raises ValueError."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = (piece.strip() for piece in part.partition("-"))
        ends = [first, last] if dash else [first, first]
        if not all(end.isascii() and end.isdecimal() and len(end) <= 9 for end in ends):
            raise ValueError(f"--seeds {text}: write whole numbers, as in 42-51 or 42,43")
        low, high = int(ends[0]), int(ends[1])
        if not low <= high < low + 1000:
            raise ValueError(f"--seeds {text}: a range must be ascending and have at most 1000 seeds")
        found += range(low, high + 1)
    if len(set(found)) < len(found):
        raise ValueError(f"--seeds {text}: a seed is named twice")
    return found
