"""`kerf simulate months`: clusters with continual learning."""

import os
from typing import Annotated

import typer
from rich.table import Table

from model.cli.console import JsonOption, exit_on_error, progress_bar, publish, seed_range


def months(  # noqa: PLR0913, PLR0917 - options of a command
    seeds: Annotated[str, typer.Option(help="Seeds of the clusters, as in 1-6 or 1,2.")] = "1-6",
    months: Annotated[int, typer.Option("--months", min=3, help="Months for each cluster.")] = 7,
    jump: Annotated[int, typer.Option(min=1, help="Month, from 0, in which the whole mix of pods changes.")] = 4,
    episodes: Annotated[int, typer.Option(min=1, help="Training episodes of each fit.")] = 200,
    load: Annotated[float, typer.Option(min=0.1, max=2, help="GPU work submitted, relative to capacity.")] = 1.0,
    memory_load: Annotated[
        float, typer.Option(min=0, max=3, help="Memory requested, relative to capacity; 0: never short.")
    ] = 0.0,
    flood: Annotated[int, typer.Option(min=0, help="Unusual pods that one tenant adds to each month's history.")] = 0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes. Default: one for each core.")] = None,
    json: JsonOption = None,
) -> None:
    """Simulate months of continual learning: mixes drift and jump; ranks are fitted, tried, promoted, rolled back."""
    with exit_on_error():
        from model.training import months as learned

        plan = learned.Plan(months, jump, episodes, load, memory_load, flood)
        chosen = seed_range(seeds)
        with progress_bar(len(chosen)) as on_step:
            found = learned.run(chosen, plan, jobs or os.cpu_count() or 1, on_step)
    served = f"a fitted rank served {found['months_served']} of {found['months']} months"
    title = f"{len(chosen)} clusters; {served}"
    table = Table("gain over", "GPUs in use, points", "mean delay, s", "of multi-GPU pods, s", title=title)
    for other, row in found["over"].items():
        cells = [f"{row[measure]['mean']:+.2f} ± {row[measure]['half_width']:.2f}" for measure in learned.MEASURES]
        table.add_row(other, *cells)
    publish(found, [table], json)
