"""`kerf doctor`: one refresh of telemetry, what it met in words, and which rank a running Kerf serves."""

import asyncio
import contextlib
import math
import time
from datetime import UTC, datetime
from typing import Annotated, Any

import msgspec
import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from extender.cli.client.kerf import FAILED, AnswerError, CaFileOption, Kerf, Output, OutputOption, fail, show
from extender.cli.install.findings import KERF, listed
from extender.cli.settings import ConfigOption, ContextOption, KubeconfigOption, SetOption, api_server, load
from extender.cli.silence import silent_faults
from extender.kube import objects
from extender.kube.client import ClusterError, CredentialsError, Transport
from extender.kube.paths import NODES_PATH
from extender.kube.watches.lists import Lister
from extender.ledger.ledger import Ledger
from extender.settings.tree import Settings
from extender.telemetry.aliases import ALIAS_OF, FRACTIONS
from extender.telemetry.observer import Observer
from extender.telemetry.owners import OwnerUsage
from extender.telemetry.service import describe, observe
from extender.telemetry.status import State, passed_over_reason, unmatched_reason

_UNAVAILABLE = 503
_UNITS = {0.01: "percent", 1 / 2**20: "bytes"}

_NO_CONNECTION = "no connection"

_Finding = dict[str, Any]


def doctor(  # noqa: PLR0913, PLR0917 - options of a command
    asked: typer.Context,
    config: ConfigOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    output: OutputOption = Output.TABLE,
    as_json: Annotated[bool, typer.Option("--json", hidden=True, help="As -o json.")] = False,
    settings: SetOption = None,
    server: Annotated[
        str | None,
        typer.Option("--server", "-s", help="Also ask the Kerf at this address which rank serves, and why."),
    ] = None,
    ca_file: CaFileOption = None,
) -> None:
    """Find Prometheus, read it once, and report what was found; exit status 1 if something is wrong."""
    loaded = load(config, settings, {"cluster.kubeconfig": kubeconfig, "cluster.context": context})
    rank, faults = None, list[str]()
    if server:
        with Kerf(asked, server=server, ca_file=ca_file) as kerf:
            rank, faults = _rank(kerf)
    try:
        told = msgspec.to_builtins(asyncio.run(_examine(loaded, api_server(loaded.cluster))))
    except CredentialsError as error:
        fail(str(error), FAILED)
    told |= {"rank": rank, "findings": told["findings"] + faults}
    show(told, Output.JSON if as_json else output, lambda console: _print_finding(told, console))
    if told["findings"]:
        raise typer.Exit(FAILED)


def _rank(kerf: Kerf) -> tuple[_Finding | None, list[str]]:
    """What ranks nodes in a running Kerf, as `GET /model` tells it, and what is not as it should be."""
    try:
        told = kerf.ask("/model")
    except AnswerError as error:
        return None, [f"GET /model: {error.detail}"]
    rank = {name: told[name] for name in ("mode", "served", "reason", "auto", "evidence")}
    faults = told["fault"], told["evidence"] and told["evidence"]["fault"]
    return rank, [f"rank: {fault}" for fault in faults if fault] + _not_well(kerf)


def _not_well(kerf: Kerf) -> list[str]:
    """Why it decides nothing, or what works less well."""
    try:
        return [str(fault) for fault in kerf.ask("/readyz").get("degraded", ())]
    except AnswerError as error:
        return [f"it decides nothing: {error}"] if error.status == _UNAVAILABLE else []


async def _examine(settings: Settings, transport: Transport) -> _Finding:
    """What a refresh meets. Raises CredentialsError when there is no API server to ask."""
    await transport.start()
    ledger = Ledger(
        reservation_ttl_s=settings.decisions.reservation_ttl_s,
        memory_tolerance_frac=settings.decisions.memory_tolerance_frac,
        model_aliases=settings.models.aliases,
    )
    observer = observe(settings, transport, ledger, time.monotonic)
    try:
        silent = await silent_faults(settings, transport, datetime.now(UTC))
        if observer is None:
            off = "telemetry is off (setting telemetry.source)"
            return {"state": State.OFF, "nodes": {}, "findings": [off, *silent]}
        ledger.arrays.observe(observer.wanted.times)
        faults = await _learn_nodes(transport, ledger, observer)
        await observer.round()
        told = describe(observer, OwnerUsage(ledger))
        told["findings"] = faults + _findings(observer, ledger) + silent
        if not (settings.cluster.service_account_dir / "token").exists() and _NO_CONNECTION in " ".join(
            told["findings"]
        ):
            told["findings"].append(await _from_inside(transport))
        return told
    finally:
        if observer is not None:
            await observer.stop()
        await transport.close()


async def _from_inside(transport: Transport) -> str:
    """Where the same can be asked so that Services are reached."""
    namespace, name = "NAMESPACE", "kerf"
    with contextlib.suppress(ClusterError, msgspec.DecodeError):  # who may not list them may still read the rest
        if deployments := await listed(transport, "/apis/apps/v1/deployments", KERF):
            namespace, name = (str(deployments[0]["metadata"][key])[:253] for key in ("namespace", "name"))
    command = f"kubectl -n {namespace} exec deploy/{name} -c kerf -- kerf doctor"
    return f"Services are seldom reached from outside their cluster; from inside: {command}"


async def _learn_nodes(transport: Transport, ledger: Ledger, observer: Observer) -> list[str]:
    """Learn what nodes offer, and which GPUs ResourceSlices tell of; returns what can't be read."""
    for feed in (feed for stock in ledger.rows.stocks for feed in stock.feeds):
        with contextlib.suppress(ClusterError, msgspec.DecodeError):  # most clusters have none
            for item in (await Lister(transport, feed.path, feed.kind).all()).items:
                ledger.upsert_device(item)
    try:
        found = await Lister(transport, NODES_PATH, objects.Node).all()
        for node in found.items:
            ledger.upsert_node(node)
            observer.node_changed(None, node)
        return [f"node {node.name} can't be read" for node in found.unread]
    except (ClusterError, msgspec.DecodeError) as error:
        return [f"nodes can't be listed: {error}"]


def _findings(observer: Observer, ledger: Ledger) -> list[str]:
    """What is not as it should be, one sentence each."""
    status = observer.status
    found = [text for text in (status.fault, status.withheld) if text]
    if status.state is State.ABSENT:
        found.append(
            "no Prometheus: none is configured (telemetry.url), and no Service of the cluster looks like one in "
            "telemetry.namespaces; exporters can be read directly (telemetry.exporters)"
        )
        found += passed_over_reason(status)
    found += [f"{fault}; the next is asked" for fault in status.report.given_up.values()]
    found += status.doubts
    found += unmatched_reason(status)
    if status.num_gpus > status.num_gpus_matched and not status.unmatched:
        found.append(f"{status.num_gpus - status.num_gpus_matched} GPUs have neither a known UUID nor an index")
    cluster = ledger.snapshot(time.monotonic())
    if cluster.observed is not None and status.num_refreshes:
        silent = (cluster.gpu_model >= 0).any(axis=1) & ~np.isfinite(cluster.observed.sampled_at)
        found += [f"node {cluster.node_names[row]}: no series" for row in np.flatnonzero(silent)[:20].tolist()]
        if silent.sum() > 20:
            found.append(f"and {int(silent.sum()) - 20} more nodes without series")
    found += [f"{name}: {count} invalid samples" for name, count in status.report.refused.items()]
    return found


def _print_finding(told: _Finding, console: Console) -> None:
    """Say it for people."""
    if rank := told.get("rank"):
        console.print(f"rank: {_rank_in_words(rank)}", highlight=False, markup=False, soft_wrap=True)
    console.print(f"telemetry: [bold]{told['state']}[/bold]", highlight=False)
    if "source" not in told:
        _print_list(told, console)
        return
    version = f", version {told['version']}" if told["version"] else ""
    if told["source"]:
        console.print(
            f"source: {told['source']}{version}, read in {told['read_s']:.2f} s", highlight=False, markup=False
        )
    if told["candidates"]:
        console.print(f"found in the cluster: {', '.join(told['candidates'])}", highlight=False, markup=False)
    if told["passedOver"]:
        console.print(f"found, not read: {', '.join(told['passedOver'])}", highlight=False, markup=False)
    if told["series"]:
        table = Table("metric", "exporter", "unit", "series", box=None)
        for name, count in told["series"].items():
            table.add_row(escape(name), *_exporter_and_unit(name), str(count))
        console.print(table)
    nodes = ", ".join(f"{count} {state}" for state, count in told["nodes"].items())
    console.print(f"nodes with GPUs: {nodes}", highlight=False)
    console.print(f"GPUs in series: {told['gpus']}, matched: {told['gpusMatched']}", highlight=False)
    skew = told["skew_s"]
    if math.isfinite(skew) and told["skew_uncertainty_s"]:  # else its clock was not read
        console.print(
            f"clock: {skew:+.2f} s from this machine's (within {told['skew_uncertainty_s']:.2f} s)", highlight=False
        )
    _print_list(told, console)


def _rank_in_words(rank: _Finding) -> str:
    """What serves, and why; where the ranks are tried out, the last trial."""
    if rank["reason"]:
        return f"{rank['served']} serves: {rank['reason']}"
    auto, evidence = f"auto is {rank['auto']}", rank["evidence"]
    if evidence is None:
        return f"{auto}; other ranks are not tried"
    if not evidence["reason"]:
        return f"{auto}; other ranks were not tried yet"
    return f"{auto}: {evidence['reason']} (trial {evidence['tried']}, {evidence['ageSeconds'] / 3600:.1f} h ago)"


def _exporter_and_unit(name: str) -> tuple[str, str]:
    alias = ALIAS_OF.get(name)
    if alias is None:  # a telemetry source may have names of its own
        return "", ""
    return alias.exporter, _UNITS.get(alias.scale, "fraction" if alias.gauge in FRACTIONS else "as is")


def _print_list(told: _Finding, console: Console) -> None:
    for finding in told["findings"]:
        console.print(f"- {finding}", highlight=False, markup=False, soft_wrap=True)
