"""`kerf traces`: public traces to simulate with."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from model.cli.console import console_on, errors, exit_on_error, progress_bar

traces_app = typer.Typer(
    help="Public traces to simulate with.", no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False
)


@traces_app.callback()
def traces() -> None:
    """Public traces to simulate with."""


@traces_app.command()
def fetch(
    names: Annotated[
        list[str] | None, typer.Argument(help="openb, philly; default: both.", metavar="[NAME]...")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the traces; each gets a subfolder.")] = Path("traces"),
    source: Annotated[
        str | None,
        typer.Option("--from", help="Mirror: a folder or URL with the files.", metavar="BASE"),
    ] = None,
) -> None:
    """Fetch public traces and check their SHA-256. Existing valid files are kept."""
    with exit_on_error():
        from model.workloads.published import PHILLY_PART, TRACES, FetchError
        from model.workloads.published import fetch as fetched

        wanted = list(dict.fromkeys(names or TRACES))
        if unknown := [name for name in wanted if name not in TRACES]:
            raise ValueError(f"no trace {unknown[0]!r}; there are {', '.join(TRACES)}")
        console = console_on(sys.stdout)
        for name in wanted:
            with progress_bar(len(TRACES[name].files)) as on_step:
                try:
                    paths = fetched(name, TRACES[name], out, source, on_step)
                except FetchError as error:
                    errors().print(str(error), style="red", markup=False, soft_wrap=True)
                    raise typer.Exit(1) from None
            console.print(f"{name}: {len(paths)} files in {out / name} ({TRACES[name].licence})", soft_wrap=True)
        if "openb" in wanted:
            console.print(f"kerf simulate openb --traces {out}", soft_wrap=True)
        if "philly" in wanted:
            console.print(f"kerf simulate jobs --jobs {out / 'philly' / PHILLY_PART}", soft_wrap=True)
