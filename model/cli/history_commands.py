"""Commands of a cluster's past: `kerf history`, `kerf replay`, `kerf fit`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from model.cli.console import JsonOption, errors, folder, progress_bar, publish, telling_faults

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
    philly: Annotated[Path | None, typer.Option(help="File of jobs in the form of Philly's trace.")] = None,
    load: Annotated[
        float, typer.Option(min=0.001, max=1000, help="With --philly: load that decides how many nodes there are.")
    ] = 0.9,
    server: Annotated[str | None, typer.Option(help="URL of a Kerf that keeps one (setting history.path).")] = None,
    prometheus: Annotated[
        str | None, typer.Option(help="URL of a Prometheus that scrapes a cluster's kube-state-metrics.")
    ] = None,
    since: Annotated[str, typer.Option(help="With --prometheus: how far back, such as 30d or 12h.")] = "30d",
    match: Annotated[
        str, typer.Option(help="With --prometheus: label matchers that choose one cluster, such as 'cluster=\"a\"'.")
    ] = "",
    token_file: Annotated[Path | None, typer.Option(help="With --prometheus or --server: file with a token.")] = None,
    basic_auth_file: Annotated[Path | None, typer.Option(help="With --prometheus: file with USER:PASSWORD.")] = None,
    ca_file: Annotated[Path | None, typer.Option(help="With both: certificates to trust, PEM.")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="With both: trust any certificate.")] = False,
    hash_owners: Annotated[
        bool, typer.Option("--hash-owners", help="Hashes in place of the names of namespaces, owners, gangs and pods.")
    ] = False,
) -> None:
    """Write a history of pods and nodes: what was asked, when, for how long, and what was there."""
    with telling_faults():
        from extender.history import files
        from model.simulations import histories
        from model.workloads.prometheus.client import Access, Prometheus
        from model.workloads.served_histories import fetch

        if sum(given is not None for given in (openb, philly, prometheus, server)) != 1:
            raise ValueError("one of --openb, --philly, --prometheus and --server says what to read")
        access = Access(token_file, basic_auth_file, ca_file, insecure)
        if server is not None:
            with progress_bar(1) as tell:
                found = fetch(server, access, tell)
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
        str, typer.Option(help="kerf, as it ships and told nothing, and those of kerf simulate.")
    ] = "kerf,fgd,bestfit,kube-default",
    model: Annotated[Path | None, typer.Option(help="Folder of a model for kerf; default: the released one.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a report that needs nothing but a browser.")] = None,
    fewer: Annotated[
        bool | None,
        typer.Option(
            "--fewer/--no-fewer", help="Look for the fewest nodes that would have done. Default: with --html."
        ),
    ] = None,
    price: Annotated[float | None, typer.Option(min=0, help="Of a GPU-hour, for what it all costs.")] = None,
    currency: Annotated[str, typer.Option(help="With --price: how it is written.")] = "",
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes; the figures are the same. Default: one for each core.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """What the weeks of a history would have been under other policies: GPUs in use, waiting, fragments, cost."""
    with telling_faults():
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
            raise ValueError(f"--currency {currency}: of what? --price says what a GPU-hour costs")
        found, ranks = files.read(history), read_model(model or RELEASED)
        asked = replays.Asked(
            names,
            fewer=html is not None if fewer is None else fewer,
            price=None if price is None else Price(price, currency),
            jobs=jobs or os.cpu_count() or 1,
        )
        with progress_bar(asked.num_steps) as tell:
            report = replays.replay(found, asked, ranks, tell)
        if html:
            html.write_text(history_pages.page(report), encoding="utf-8")
    console = publish(report, history_tables.tables(report), json)
    for sentence in report["verdict"]:
        console.print(sentence, markup=False)


@fit_app.command()
def fit(
    history: Annotated[Path, typer.Option(help="Folder of a history (kerf history).")],
    out: Annotated[Path, typer.Option(help="Folder for the model, and run/ with the search.")],
    episodes: Annotated[int, typer.Option(min=1, help="Replays of the history's pods, rounded up.")] = 2000,
    save_interval: Annotated[int, typer.Option(min=1, help="Replays between checkpoints, rounded up.")] = 100,
    resume: Annotated[bool, typer.Option("--resume", help="Continue from the checkpoint in run/.")] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes; the model is the same. Default: one for each core.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Train the learned rank on a cluster's own pods and nodes, and judge it on days that it did not see."""
    with telling_faults():
        from model.training import fitting, runs

        generations = runs.num_generations(fitting.config_of(history), episodes)
        with progress_bar(generations + 1) as tell:
            found = fitting.fit(
                history, out, episodes, save_interval, tell, resume=resume, jobs=jobs or os.cpu_count() or 1
            )
    table = Table("more than", "@100", "@130", title="On the days held out, percentage points of the GPUs, 95 %")
    for name, beside in (("the released rank", "start"), ("fgd", "fgd")):
        table.add_row(name, str(found.more("100", beside)), str(found.more("130", beside)))
    publish({"model": str(out) if found.better else None, **found.describe()}, [table], json)
    said = (
        f"{out}: the model" if found.better else "nothing better than the released rank was found: no model is written"
    )
    errors().print(said, soft_wrap=True)


def _of_prometheus(prometheus: "Prometheus", since: str, match: str) -> "History":
    """Read day by day, and told in words what could not be."""
    from model.workloads.prometheus.histories import read_history
    from model.workloads.prometheus.periods import DAY_S, seconds_of

    try:
        with progress_bar(-(-seconds_of(since) // DAY_S) + 1) as tell:
            found = read_history(prometheus, since, match, tell)
    finally:
        prometheus.close()
    for told in found.about.missing:
        errors().print(f"missing: {told}", soft_wrap=True, markup=False)
    return found
