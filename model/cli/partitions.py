"""`kerf simulate partitions`: MIG partitions by policy."""

import os
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from model.cli.console import JsonOption, progress_bar, publish, seed_range, telling_faults

if TYPE_CHECKING:
    from extender.core.dra.packing import Weights

_TITLES = {
    **{"first_refusal": "first refusal later, %", "gpus_staying": "GPUs fewer, staying, %"},
    **{"gpus_leaving": "GPUs fewer, leaving, %"},
}


def partitions(
    seeds: Annotated[str, typer.Option(help="Seeds of the requests, as in 1-8 or 1,2.")] = "1-8",
    gpus: Annotated[int, typer.Option(min=1, max=10_000, help="GPUs, on nodes of 8.")] = 64,
    kinds: Annotated[str, typer.Option(help="Kinds of GPU.")] = "a100-40gb,a100-80gb,h100-80gb",
    mixes: Annotated[str | None, typer.Option(help="Mixes of profiles. Default: all.")] = None,
    requests: Annotated[int, typer.Option(min=3, help="Requests that come and leave at each load.")] = 800,
    weight: Annotated[
        list[str] | None, typer.Option(help="PROFILE=WEIGHT of the worth of what is left; repeatable.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes. Default: one for each core.")] = None,
    json: JsonOption = None,
) -> None:
    """MIG partitions placed by Kerf, by kube-scheduler's first fit and by best fit: how many, on how many GPUs."""
    with telling_faults():
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
        with progress_bar(len(plan.kinds) * len(plan.mixes) * len(chosen)) as tell:
            found = compared.run(chosen, plan, _weights(weight or []), jobs or os.cpu_count() or 1, tell)
    publish(found, [_table(found)], json)


def _table(found: dict[str, Any]) -> Table:
    better = found["better"]["all"]
    measures = list(next(iter(better.values())))
    table = Table(
        "Kerf beside (of at most)", *(_TITLES.get(name, f"more {name.replace('_', ' ')}, %") for name in measures)
    )
    for other, row in better.items():
        table.add_row(other, *(_cell(row[name]) for name in measures))
    return table


def _cell(gain: dict[str, float]) -> str:
    bound = f" (of {gain['at_most']:.1f})" if "at_most" in gain else ""
    return f"{gain['mean']:+.2f} ± {gain['half_width']:.2f}{bound}"


def _some_of(text: str, known: tuple[str, ...], option: str) -> tuple[str, ...]:
    chosen = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not chosen or not set(chosen) <= set(known):
        raise ValueError(f"{option} {text}: write some of {', '.join(known)}")
    return chosen


def _weights(given: list[str]) -> "Weights":
    from extender.core.dra.packing import Weights

    by_kind = {}
    for item in given:
        kind, equals, number = item.partition("=")
        try:
            by_kind[kind] = float(number)
        except ValueError:
            equals = ""
        if not kind or not equals or not 0 <= by_kind[kind] < float("inf"):
            raise ValueError(f"--weight {item}: write PROFILE=NUMBER, as in 1g.5gb=0.5")
    return Weights(by_kind)
