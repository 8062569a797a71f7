"""`kerf pending`: every pending GPU pod, where it waits, since when, and why."""

import time
from collections.abc import Sequence
from typing import Annotated, Final
from urllib.parse import urlencode

import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from extender.cli.client.kerf import Kerf, Output, OutputOption, asks_kerf, show
from extender.cli.consoles import age, columns
from extender.core.texts import printable
from extender.explain.answers import PendingList, PendingPod

_WHERE: Final = {"queue": "Kerf's queue", "kerf": "rejected by Kerf", "scheduler": "kube-scheduler"}


@asks_kerf
def pending(
    kerf: Kerf,
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Only pods of this namespace; default: all.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum pods.")] = 100,
    output: OutputOption = Output.TABLE,
) -> None:
    """List pending GPU pods in scheduling order. Asks a running Kerf.

    Exit status 0 whether or not pods are pending, 2 for wrong usage, 1 if Kerf can't be reached or refuses.
    """
    query = urlencode({"limit": limit, "namespace": namespace or ""})
    answer: PendingList = kerf.ask(f"/pending?{query}", wrong=lambda _: f"--namespace {namespace}: not a namespace")
    show(answer, output, lambda console: _print(answer, console, namespace, kerf.program))


def _print(answer: PendingList, console: Console, namespace: str | None, program: str) -> None:
    if not answer["pods"]:
        where = f" in namespace {namespace}" if namespace else ""
        console.print(Text(f"no pod is waiting for GPUs{where}"))
        return
    count = f"{'at least ' if answer['atLeast'] else ''}{answer['total']}"
    head = Text(f"{count} pod{'s' if answer['total'] > 1 else ''} without a node, in scheduling order")
    more = [Text(f"and {answer['more']} more (--limit, -n NAMESPACE)")] if answer["more"] else []
    hint = Text(f"What would help: {program} explain {answer['pods'][0]['pod']}")
    console.print(Group(head, _table(answer["pods"]), *more, hint))


def _table(pods: Sequence[PendingPod]) -> Table:
    with_gangs = any(pod["gang"] for pod in pods)
    table = columns("POD", ">AGE", ">PRIORITY", min_width=12)
    table.add_column("WAITS IN", overflow="fold", min_width=10)
    if with_gangs:
        table.add_column("GANG", overflow="fold")
    table.add_column("WHY", overflow="fold", ratio=1)
    now = time.time()
    for pod in pods:
        cells = [pod["pod"], age(now - pod["since"]), f"{pod['priority']:d}", _WHERE.get(pod["where"], pod["where"])]
        gang = [printable(pod["gang"] or "-")] if with_gangs else []
        table.add_row(*map(Text, (*cells, *gang, _why(pod))))
    return table


def _why(pod: PendingPod) -> str:
    """Why it is pending, in one sentence."""
    return printable(pod.get("sentence") or pod["nearest"] or pod["why"] or f"requests {pod['request']}")
