"""`kerf pipeline`: converts MLFlow objects to pipelines."""

from pathlib import Path
from typing import Annotated

import typer

from extender.cli.client.kerf import USAGE, fail
from extender.cli.main import Group
from extender.cli.printing import as_yaml, echo

app = typer.Typer(
    cls=Group, help="Pipelines of Jobs: see docs/guides/pipelines.md.", no_args_is_help=True, add_completion=False
)


@app.callback()
def _group() -> None:
    """Makes this a command group although it has a single command."""


@app.command()
def convert(
    files: Annotated[list[Path], typer.Argument(help="YAML or JSON files with MLFlow objects.")],
    steps_in_order: Annotated[
        bool, typer.Option("--steps-in-order", help="Make each step a separate stage, so that steps run one by one.")
    ] = False,
) -> None:
    """Convert MLTaskScheduler's MLFlow objects to Pipelines; what can't be converted is reported on standard error."""
    import yaml

    from extender.parts.pipelines.mlflow import ConversionError
    from extender.parts.pipelines.mlflow import convert as converted

    manifests, faults = [], []
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
            manifests.append(pipeline.manifest)
            for note in pipeline.notes:
                echo(f"{path}, document {number}: {note}", err=True)
    if faults:
        fail("\n".join(faults), USAGE)
    echo(as_yaml(*manifests))
