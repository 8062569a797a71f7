"""`kerf pipeline`: MLFlow objects as pipelines."""

from pathlib import Path
from typing import Annotated

import typer
import yaml

from extender.service.clients import USAGE, fail

pipeline_app = typer.Typer(help="Pipelines of Jobs: see docs/pipelines.md.", no_args_is_help=True)


@pipeline_app.callback()
def _group() -> None:
    """A group also with a single command."""


@pipeline_app.command()
def convert(
    files: Annotated[list[Path], typer.Argument(help="YAML or JSON files with MLFlow objects.")],
    steps_in_order: Annotated[
        bool, typer.Option("--steps-in-order", help="Make each step a stage of its own: they run one after the other.")
    ] = False,
) -> None:
    """Print MLTaskScheduler's MLFlow objects as Pipelines, and on standard error what has no counterpart."""
    from extender.queueing.pipelines.conversions import ConversionError
    from extender.queueing.pipelines.conversions import convert as converted

    made, faults = [], []
    for path in files:
        try:
            documents = [document for document in yaml.safe_load_all(path.read_text()) if document is not None]
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            faults.append(f"{path}: {error}")
            continue
        for number, document in enumerate(documents, 1):
            try:
                pipeline = converted(document, steps_in_order=steps_in_order)
            except ConversionError as error:
                faults += [f"{path}, document {number}: {fault}" for fault in error.faults]
                continue
            made.append(pipeline.manifest)
            for note in pipeline.notes:
                typer.echo(f"{path}, document {number}: {note}", err=True)
    if faults:
        fail("\n".join(faults), USAGE)
    typer.echo(yaml.safe_dump_all(made, sort_keys=False).rstrip())
