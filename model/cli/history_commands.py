"""Commands for a cluster's history: `kerf history`, `kerf replay`, `kerf fit`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from model.cli.console import JsonOption, errors, exit_on_error, folder, progress_bar, publish

if TYPE_CHECKING:
    from extender.history.records import History
    from model.workloads.prometheus.client import Prometheus

history_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
replay_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
fit_app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@history_app.command()
def history(  # noqa: PLR0913, PLR0917 - options of a command
    out: Annotated[Path, typer.Option(help="Folder for history.json, pods-*.parquet and nodes-*.parquet.")],
    openb: Annotated[Path | None, typer.Option(help="Folder of traces in the layout of openb.")] = None,
    trace: Annotated[str, typer.Option(help="With --openb: name of the trace.")] = "default",
    philly: Annotated[Path | None, typer.Option(help="File of jobs in the format of Philly's trace.")] = None,
    load: Annotated[
        float, typer.Option(min=0.001, max=1000, help="With --philly: load that determines the number of nodes.")
    ] = 0.9,
    server: Annotated[str | None, typer.Option(help="URL of a Kerf with a history (setting history.path).")] = None,
    prometheus: Annotated[
        str | None, typer.Option(help="URL of a Prometheus that scrapes a cluster's kube-state-metrics.")
    ] = None,
    since: Annotated[str, typer.Option(help="With --prometheus: how far back, such as 30d or 12h.")] = "30d",
    match: Annotated[
        str, typer.Option(help="With --prometheus: label matchers that select one cluster, such as 'cluster=\"a\"'.")
    ] = "",
    token_file: Annotated[Path | None, typer.Option(help="With --prometheus or --server: file with a token.")] = None,
    basic_auth_file: Annotated[Path | None, typer.Option(help="With --prometheus: file with USER:PASSWORD.")] = None,
    ca_file: Annotated[Path | None, typer.Option(help="With both: certificates to trust, PEM.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="With both: trust any certificate.")] = False,
    hash_owners: Annotated[
        bool, typer.Option("--hash-owners", help="Hash the names of namespaces, owners, gangs and pods.")
    ] = False,
) -> None:
    """Write a history of pods and nodes: requests, times, durations and capacity."""
    with exit_on_error():
        from extender.history import files
        from model.simulations import histories
        from model.workloads.prometheus.client import Access, Prometheus
        from model.workloads.served_histories import fetch

        if sum(given is not None for given in (openb, philly, prometheus, server)) != 1:
            raise ValueError("give exactly one of --openb, --philly, --prometheus and --server")
        access = Access(token_file, basic_auth_file, ca_file, insecure)
        if server is not None:
            with progress_bar(1) as on_step:
                found = fetch(server, access, on_step)
        elif prometheus is not None:
            found = _of_prometheus(Prometheus(prometheus, access), since, match)
        else:
            found = histories.philly(philly, load) if philly else histories.openb(folder(openb or Path()), trace)
        if hash_owners:
            found = histories.hashed(found)
        files.write(out, found)
        errors().print(f"{out}: {len(found.pods['pod']):,} pods on {len(found.nodes['node']):,} nodes", soft_wrap=True)


@replay_app.command()
def replay(  # noqa: PLR0913, PLR0917 - options of a command
    history: Annotated[Path, typer.Option(help="Folder of a history (kerf history).")],
    policies: Annotated[
        str, typer.Option(help="kerf (without prior knowledge of the workload), and policies of kerf simulate.")
    ] = "kerf,fgd,bestfit,kube-default",
    model: Annotated[Path | None, typer.Option(help="Folder of a model for kerf; default: the released one.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a self-contained HTML report.")] = None,
    fewer: Annotated[
        bool | None,
        typer.Option(
            "--fewer/--no-fewer", help="Search for the fewest nodes that would have been enough. Default: with --html."
        ),
    ] = None,
    price: Annotated[float | None, typer.Option(min=0, help="Price of a GPU-hour, to report costs.")] = None,
    currency: Annotated[str, typer.Option(help="With --price: currency to print.")] = "",
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes; results do not depend on it. Default: one for each core.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Replay a history under other policies: GPUs in use, waiting times, fragments, cost."""
    with exit_on_error():
        from extender.history import files
        from extender.ranking.files import RELEASED
        from extender.ranking.files import read as read_model
        from model.cli import history_tables
        from model.evaluation import history_pages
        from model.pasts import replays
        from model.pasts.usages import Price

        names = [name.strip() for name in policies.split(",")]
        if len(set(names)) < len(names):
            raise ValueError(f"--policies {policies}: a policy is named twice")
        if currency and price is None:
            raise ValueError(f"--currency {currency}: needs --price")
        found, ranks = files.read(history), read_model(model or RELEASED)
        config = replays.Asked(
            names,
            fewer=html is not None if fewer is None else fewer,
            price=None if price is None else Price(price, currency),
            jobs=jobs or os.cpu_count() or 1,
        )
        with progress_bar(config.num_steps) as on_step:
            report = replays.replay(found, config, ranks, on_step)
        if html:
            html.write_text(history_pages.page(report), encoding="utf-8")
    console = publish(report, history_tables.tables(report), json)
    for sentence in report["verdict"]:
        console.print(sentence, markup=False)


@fit_app.command()
def fit(
    history: Annotated[Path, typer.Option(help="Folder of a history (kerf history).")],
    out: Annotated[Path, typer.Option(help="Folder for the model, and run/ for the search.")],
    episodes: Annotated[int, typer.Option(min=1, help="Training episodes, rounded up.")] = 2000,
    save_interval: Annotated[int, typer.Option(min=1, help="Episodes between checkpoints, rounded up.")] = 100,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint in run/.")] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes; the model does not depend on it. Default: one for each core.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Train the learned rank on a cluster's history, and evaluate it on held-out days."""
    with exit_on_error():
        from model.training import fitting, runs

        generations = runs.num_generations(fitting.config_of(history), episodes)
        with progress_bar(generations + 1) as on_step:
            found = fitting.fit(
                history, out, episodes, save_interval, on_step, resume=resume, jobs=jobs or os.cpu_count() or 1
            )
    table = Table("gain over", "@100", "@130", title="Held-out days, percentage points of the GPUs, 95 %")
    for name, beside in (("the released rank", "start"), ("fgd", "fgd")):
        table.add_row(name, str(found.more("100", beside)), str(found.more("130", beside)))
    publish({"model": str(out) if found.better else None, **found.describe()}, [table], json)
    message = (
        f"{out}: model written"
        if found.better
        else "the trained rank is not better than the released one: no model was written"
    )
    errors().print(message, soft_wrap=True)


def _of_prometheus(prometheus: "Prometheus", since: str, match: str) -> "History":
    """Read a history from Prometheus, and report what is missing."""
    from model.workloads.prometheus.histories import read_history
    from model.workloads.prometheus.periods import DAY_S, seconds_of

    try:
        with progress_bar(-(-seconds_of(since) // DAY_S) + 1) as on_step:
            found = read_history(prometheus, since, match, on_step)
    finally:
        prometheus.close()
    for missing in found.about.missing:
        errors().print(f"missing: {missing}", soft_wrap=True, markup=False)
    return found
