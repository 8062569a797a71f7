"""`kerf simulate partitions`: placement of MIG partitions by policy."""

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from model.cli.console import JsonOption, exit_on_error, progress_bar, publish, seed_range

if TYPE_CHECKING:
    from extender.core.dra.packing import Weights

_TITLES = {
    **{"first_refusal": "first refusal later, %", "gpus_staying": "fewer GPUs, no departures, %"},
    **{"gpus_leaving": "fewer GPUs, departures, %"},
}


def partitions(
    seeds: Annotated[str, typer.Option(help="Seeds of the requests, as in 1-8 or 1,2.")] = "1-8",
    gpus: Annotated[int, typer.Option(min=1, max=10_000, help="Number of GPUs, on nodes of 8.")] = 64,
    kinds: Annotated[str, typer.Option(help="Kinds of GPU.")] = "a100-40gb,a100-80gb,h100-80gb",
    mixes: Annotated[str | None, typer.Option(help="Mixes of profiles. Default: all.")] = None,
    requests: Annotated[int, typer.Option(min=3, help="Requests at each load with departures.")] = 800,
    weight: Annotated[
        list[str] | None, typer.Option(help="PROFILE=WEIGHT in the worth of free slices; repeatable.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes. Default: one for each core.")] = None,
    json: JsonOption = None,
) -> None:
    """Compare Kerf with first fit, kube-scheduler and best fit: MIG partitions placed, and GPUs needed."""
    with exit_on_error():
        from model.evaluation import partitions as compared
        from model.workloads import partition_mixes
        from model.workloads.nvidia import GPUS

        plan = compared.Plan(
            _some_of(kinds, tuple(GPUS), "--kinds"),
            _some_of(mixes or ",".join(partition_mixes.names()), partition_mixes.names(), "--mixes"),
            gpus,
            num_leaving=requests,
        )
        chosen = seed_range(seeds)
        with progress_bar(len(plan.kinds) * len(plan.mixes) * len(chosen)) as on_step:
            found = compared.run(chosen, plan, _weights(weight or []), jobs or os.cpu_count() or 1, on_step)
    publish(found, [_table(found)], json)


def _table(found: dict[str, Any]) -> Table:
    better = found["better"]["all"]
    measures = list(next(iter(better.values())))
    table = Table(
        "Kerf's gain over (upper bound)", *(_TITLES.get(name, f"more {name.replace('_', ' ')}, %") for name in measures)
    )
    for other, row in better.items():
        table.add_row(other, *(_cell(row[name]) for name in measures))
    return table


def _cell(gain: dict[str, float]) -> str:
    bound = f" (≤ {gain['at_most']:.1f})" if "at_most" in gain else ""
    return f"{gain['mean']:+.2f} ± {gain['half_width']:.2f}{bound}"


def _some_of(text: str, choices: tuple[str, ...], option: str) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not chosen or not set(chosen) <= set(choices):
        raise ValueError(f"{option} {text}: choose from {', '.join(choices)}")
    return chosen


def _weights(options: list[str]) -> "Weights":
    from extender.core.dra.packing import Weights

    by_kind = {}
    for item in options:
        kind, equals, number = item.partition("=")
        try:
            by_kind[kind] = float(number)
        except ValueError:
            equals = ""
        if not kind or not equals or not 0 <= by_kind[kind] < float("inf"):
            raise ValueError(f"--weight {item}: write PROFILE=NUMBER, as in 1g.5gb=0.5")
    return Weights(by_kind)
