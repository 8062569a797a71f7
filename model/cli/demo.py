"""`kerf simulate demo`: policies on small generated clusters, with an explanation of the results."""

from typing import Annotated, Any

import typer
from rich.table import Table

from model.cli.console import JsonOption, exit_on_error, progress_bar, publish

_POLICIES = ("kube-default", "spread", "binpack", "bestfit", "tightest", "fgd")
_FIRST = "kube-default"
_KIND = "usual"


def demo(
    seeds: Annotated[int, typer.Option(min=1, max=20, help="Clusters to generate, each with its own pods.")] = 3,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the first cluster.")] = 42,
    json: JsonOption = None,
) -> None:
    """Compare six policies by GPUs allocated, on generated clusters of 300 to 700 GPUs. Needs no file."""
    with exit_on_error():
        from model.simulations.baselines import baseline
        from model.simulations.measures import measures
        from model.simulations.replays import replay
        from model.workloads.mixes import DEMO, read_mixes
        from model.workloads.sources import mixed

        offer = mixed(read_mixes(DEMO).mix(_KIND), DEMO)
        numbers = list(range(seed, seed + seeds))
        found: dict[str, list[dict[str, Any]]] = {policy: [] for policy in _POLICIES}
        gpus: list[int] = []
        with progress_bar(len(numbers) * len(_POLICIES)) as on_step:
            for number in numbers:
                arrivals = offer(number).arrivals()
                gpus.append(arrivals.num_gpus)
                for policy in _POLICIES:
                    on_step(f"{policy}, cluster {number}")
                    found[policy].append(measures(arrivals, replay(arrivals, baseline(policy), number)))
    means = {policy: _means(runs) for policy, runs in found.items()}
    report = {"seeds": numbers, "gpus": gpus, "policies": means}
    publish(report, [_table(means, gpus)], json).print(_meaning(means, gpus), soft_wrap=True)


def _means(runs: list[dict[str, Any]]) -> dict[str, float]:
    """Return means over a policy's runs, in percent of all GPUs at 100 % arrived load."""
    num = len(runs)
    return {
        "allocated_percent": round(sum(run["allocation"]["100"] for run in runs) / num, 3),
        "fragmented_percent": round(sum(run["fragmentation"]["100"] for run in runs) / num, 3),
    }


def _table(means: dict[str, dict[str, float]], gpus: list[int]) -> Table:
    title = f"{len(gpus)} generated clusters, {min(gpus)} to {max(gpus)} GPUs; pods arrive and stay"
    table = Table(title=title, title_justify="left")
    table.add_column("policy", no_wrap=True)
    for name in ("GPUs allocated, %", "fragmented, %"):
        table.add_column(name, justify="right")
    for policy, row in sorted(means.items(), key=lambda item: -item[1]["allocated_percent"]):
        table.add_row(policy, f"{row['allocated_percent']:.2f}", f"{row['fragmented_percent']:.2f}")
    return table


def _meaning(means: dict[str, dict[str, float]], gpus: list[int]) -> str:
    """Return the explanation of the results."""
    best = max(means, key=lambda policy: means[policy]["allocated_percent"])
    gained = means[best]["allocated_percent"] - means[_FIRST]["allocated_percent"]
    mean = sum(gpus) / len(gpus)
    versus = (
        f"{best} allocates {gained:.2f} points more of the GPUs than kube-scheduler's own scores ({_FIRST}): "
        f"{gained / 100 * mean:.1f} GPUs of {mean:.0f}."
        if best != _FIRST
        else f"No policy allocates more of the GPUs than kube-scheduler's own scores ({_FIRST})."
    )
    return (
        "Measured when pods have requested as many GPUs as the cluster has. Fragmented GPUs are free, but of no use "
        f"to most pods. {versus}\n"
        "These pods are generated and never leave. For more realistic results, replay your cluster's history (kerf "
        "history, kerf replay) or public traces (kerf traces fetch, kerf report)."
    )
