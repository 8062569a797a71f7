"""`kerf simulate months`: clusters that learn."""

import os
from typing import Annotated

import typer
from rich.table import Table

from model.cli.console import JsonOption, progress_bar, publish, seed_range, telling_faults


def months(  # noqa: PLR0913, PLR0917 - options of a command
    seeds: Annotated[str, typer.Option(help="Seeds of the clusters, as in 1-6 or 1,2.")] = "1-6",
    months: Annotated[int, typer.Option("--months", min=3, help="Months of each.")] = 7,
    jump: Annotated[int, typer.Option(min=1, help="The month, from 0 on, in which all pods become others.")] = 4,
    episodes: Annotated[int, typer.Option(min=1, help="Replays of each fit.")] = 200,
    load: Annotated[float, typer.Option(min=0.1, max=2, help="GPU work submitted, relative to capacity.")] = 1.0,
    memory_load: Annotated[
        float, typer.Option(min=0, max=3, help="Memory asked for, relative to what there is; 0: never short.")
    ] = 0.0,
    flood: Annotated[int, typer.Option(min=0, help="Strange pods that a tenant adds to each month's history.")] = 0,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes. Default: one for each core.")] = None,
    json: JsonOption = None,
) -> None:
    """Months of clusters that learn: their mixes drift and jump, ranks are fitted, tried, and serve or go back."""
    with telling_faults():
        from model.training import months as learned

        plan = learned.Plan(months, jump, episodes, load, memory_load, flood)
        chosen = seed_range(seeds)
        with progress_bar(len(chosen)) as tell:
            found = learned.run(chosen, plan, jobs or os.cpu_count() or 1, tell)
    served = f"a fitted rank served {found['months_served']} of {found['months']} months"
    title = f"{len(chosen)} clusters; {served}"
    table = Table("more than", "GPUs in use, points", "mean delay, s", "of several GPUs, s", title=title)
    for other, row in found["over"].items():
        cells = [f"{row[measure]['mean']:+.2f} ± {row[measure]['half_width']:.2f}" for measure in learned.MEASURES]
        table.add_row(other, *cells)
    publish(found, [table], json)
