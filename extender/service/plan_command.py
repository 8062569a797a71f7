"""`kerf plan`: where a batch of pods would go together, as table, JSON or picture; or to carry it out."""

import asyncio
import json
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table


class Output(StrEnum):
    """Form of the report."""

    TABLE = "table"
    JSON = "json"


_errors = Console(stderr=True)


def plan(  # noqa: PLR0913, PLR0917 - options of a command
    files: Annotated[
        list[Path] | None, typer.Option("--file", "-f", help="Manifests of pods, and of nodes; may be repeated.")
    ] = None,
    planner: Annotated[str, typer.Option(help="greedy, genetic, q-learning or exact.")] = "greedy",
    apply: Annotated[bool, typer.Option("--apply", help="Carry it out: nominate nodes, open gates.")] = False,
    output: Annotated[Output, typer.Option("--output", "-o", help="table or json.")] = Output.TABLE,
    picture: Annotated[Path | None, typer.Option(help="Write the report as an SVG file too.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of planners that search by chance.")] = 0,
    reserve: Annotated[float, typer.Option(min=0, max=0.95, help="Part of each node's CPU and memory to keep.")] = 0.0,
    namespace: Annotated[str | None, typer.Option("--namespace", "-n", help="Only waiting pods of this one.")] = None,
    kubeconfig: Annotated[str, typer.Option(help="kubeconfig file; default: as kubectl, or in-cluster.")] = "",
    context: Annotated[str, typer.Option(help="kubeconfig context.")] = "",
) -> None:
    """Plan pods jointly: those of -f, or the cluster's waiting ones; on the nodes of -f, or the cluster's.

    Exit status 0 also when pods are left unassigned: the report names each with its reason.
    """
    from extender.cluster.transports import ClusterError
    from extender.queueing.planners import PLANNERS
    from extender.queueing.plans import PlanError
    from extender.queueing.sources import SourceError

    if planner not in PLANNERS:
        _fail([f"no planner named {planner!r}; write one of {', '.join(PLANNERS)}"], 2)
    try:
        asyncio.run(_plan(files or [], planner, apply, output, picture, seed, reserve, namespace, kubeconfig, context))
    except SourceError as error:
        _fail(error.faults, 2)
    except (PlanError, ClusterError, OSError) as error:
        _fail([str(error)], 1)


async def _plan(  # noqa: PLR0913, PLR0917 - as given
    files: Sequence[Path],
    planner: str,
    apply: bool,
    output: Output,
    picture_path: Path | None,
    seed: int,
    reserve: float,
    namespace: str | None,
    kubeconfig: str,
    context: str,
) -> None:
    from extender.queueing import pictures, reports, sources
    from extender.queueing.planners import PLANNERS
    from extender.queueing.realisations import Realiser
    from extender.service.settings import ClusterSettings

    given = sources.read_files(files)
    if apply and given.nodes:
        raise sources.SourceError(["--apply places pods on the cluster's own nodes; leave nodes out of -f"])
    transport = None
    try:
        source = given
        if not given.nodes:
            from extender.cluster.transports import ApiServer

            transport = ApiServer(
                kubeconfig=kubeconfig, context=context, service_account_dir=ClusterSettings().service_account_dir
            )
            await transport.start()
            source = await sources.read_cluster(transport)
            if given.waiting:
                source.waiting, source.manifests = given.waiting, given.manifests
        source.waiting = [pod for pod in source.waiting if namespace in (None, pod.metadata.namespace)]
        view, pods, faults = sources.batch_of(source, reserve)
        made = PLANNERS[planner].make(view, pods, seed)
        report = {**reports.report(view, made)}
        report["unassigned"] = [*report["unassigned"], *({"pod": key, "reason": why} for key, why in faults.items())]
        if transport is not None and apply:
            nodes = sources.node_of(view, made)
            domains = sources.domains_of(source, made, nodes)
            report["applied"] = await _apply(Realiser(transport), source, nodes, domains, planner)
    finally:
        if transport is not None:
            await transport.close()
    if picture_path is not None:
        picture_path.write_text(pictures.picture(reports.node_loads(view, made), made))  # noqa: ASYNC240 - all is done
    if output is Output.JSON:
        typer.echo(json.dumps(report, indent=2))
    else:
        _print(report)


async def _apply(
    realiser: Any, source: Any, node_of: dict[str, str], domains: dict[str, dict[str, str]], planner: str
) -> list[str]:
    """Nominate and open, in the order of the plan; pods of files are created first. Returns what was nominated."""
    applied: list[str] = []
    waiting = {pod.key: pod for pod in source.waiting}
    for key, manifest in source.manifests.items():
        if key in waiting:
            waiting[key] = await realiser.create(manifest)  # one without a node stays pending behind its gate
    for key, node in node_of.items():
        pod = waiting[key]
        placed = await (realiser.place(pod, node, planner, domains[key]) if pod.gated else realiser.nominate(pod, node))
        if placed:
            applied.append(key)
    return applied


def _print(report: dict[str, Any]) -> None:
    console = Console()
    if not console.is_terminal:
        console = Console(width=110)
    table = Table(title=f"{report['planner']}: {report['placed']} of {report['pods']} pods", title_justify="left")
    table.add_column("node")
    for name in ("pods", "CPU %", "memory %", "GPU %", "GPUs"):
        table.add_column(name, justify="right")
    for node in report["nodes"]:
        table.add_row(
            node["node"],
            str(len(node["pods"])),
            *(f"{node[key]:.1f}" for key in ("cpuPercent", "memoryPercent", "gpuPercent")),
            f"{node['gpusUsed']}/{node['gpus']}",
        )
    console.print(table)
    for entry in report["unassigned"]:
        console.print(f"unassigned {entry['pod']}: {entry['reason']}", markup=False, highlight=False, soft_wrap=True)
    if "applied" in report:
        console.print(f"applied to {len(report['applied'])} pods", highlight=False)


def _fail(faults: Sequence[str], status: int) -> None:
    for fault in faults:
        _errors.print(fault, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(status)
