"""`kerf plan`: plans a batch of pods jointly, as a table, JSON or picture, and can apply the plan."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from extender.cli.client.kerf import FAILED, USAGE, Output, OutputOption, fail, show
from extender.cli.settings import ContextOption, KubeconfigOption, cluster


def plan(  # noqa: PLR0913, PLR0917 - options of a command
    files: Annotated[
        list[Path] | None, typer.Option("--file", "-f", help="Manifests of pods and nodes; repeatable.")
    ] = None,
    planner: Annotated[str, typer.Option(help="Planner: greedy, genetic, q-learning or exact.")] = "greedy",
    apply: Annotated[bool, typer.Option("--apply", help="Apply the plan: nominate nodes and remove gates.")] = False,
    output: OutputOption = Output.TABLE,
    picture: Annotated[Path | None, typer.Option(help="Also write the plan as an SVG file.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of randomized planners.")] = 0,
    reserve: Annotated[
        float, typer.Option(min=0, max=0.95, help="Fraction of each node's CPU and memory to keep free.")
    ] = 0.0,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Only waiting pods of this namespace.")
    ] = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
) -> None:
    """Plan pods jointly: pods from -f or the cluster's pending ones, on nodes from -f or the cluster's.

    Exit status 0 even if pods are left unassigned; the report lists each with its reason.
    """
    from extender.kube.client import ClusterError
    from extender.planning.pictures import picture as drawn
    from extender.planning.planners import PLANNERS
    from extender.planning.plans import PlanError
    from extender.planning.reports import node_loads, report
    from extender.queueing import sources
    from extender.queueing.pods.nominations import PodWriter

    if planner not in PLANNERS:
        fail(f"no planner named {planner!r}; use one of {', '.join(PLANNERS)}", USAGE)

    async def planned() -> dict[str, Any]:
        given = sources.read_files(files or [])
        if given.nodes and apply:
            raise sources.SourceError(["--apply places pods on the cluster's own nodes; leave nodes out of -f"])
        async with _source(given, kubeconfig, context, writes=apply) as (source, transport):
            source.waiting = [pod for pod in source.waiting if namespace in (None, pod.metadata.namespace)]
            view, pods, faults = sources.batch_of(source, reserve)
            made = PLANNERS[planner].make(view, pods, seed)
            result: dict[str, Any] = {**report(view, made)}
            result["unassigned"] += [{"pod": key, "reason": why} for key, why in faults.items()]
            if transport is not None and apply:
                nodes = sources.node_of(view, made)
                domains = sources.domains_of(source, made, nodes)
                result["applied"] = await _apply(PodWriter(transport), source, nodes, domains, planner)
        if picture is not None:
            picture.write_text(drawn(node_loads(view, made), made))
        return result

    try:
        result = asyncio.run(planned())
    except sources.SourceError as error:
        fail("\n".join(error.faults), USAGE)
    except (PlanError, ClusterError, OSError) as error:
        fail(str(error), FAILED)
    show(result, output, lambda console: _print(result, console))


@asynccontextmanager
async def _source(
    given: Any, kubeconfig: str | None, context: str | None, *, writes: bool
) -> AsyncIterator[tuple[Any, Any]]:
    """The nodes to plan on, and where to write: the files' nodes and None, or the cluster's and its API server."""
    from extender.queueing import sources

    if given.nodes:
        yield given, None
        return
    async with cluster(kubeconfig, context, writes=writes) as transport:
        source = await sources.read_cluster(transport)
        if given.waiting:
            source.waiting, source.manifests = given.waiting, given.manifests
        yield source, transport


async def _apply(
    writer: Any, source: Any, node_of: dict[str, str], domains: dict[str, dict[str, str]], planner: str
) -> list[str]:
    """Nominate nodes and remove gates in plan order, after creating the pods of files. Returns the nominated pods."""
    from extender.queueing.pods.objects import is_gated

    applied: list[str] = []
    waiting = {pod.key: pod for pod in source.waiting}
    for key, manifest in source.manifests.items():
        if key in waiting:
            waiting[key] = await writer.create(manifest)  # an unassigned one stays behind its gate
    for key, node in node_of.items():
        pod = waiting[key]
        placed = await (writer.place(pod, node, planner, domains[key]) if is_gated(pod) else writer.nominate(pod, node))
        if placed:
            applied.append(key)
    return applied


def _print(report: dict[str, Any], console: Console) -> None:
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
