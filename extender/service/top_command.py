"""`kerf top`: nodes, GPUs, what is booked and used, fragments, reservations and waiting pods, live."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from extender.service.clients import (
    DEFAULT_SERVER,
    FAILED,
    AnswerError,
    CaOption,
    Output,
    OutputOption,
    ServerOption,
    ask,
    console,
    fail,
    show,
)

_PAGE = 500


def top(
    once: Annotated[bool, typer.Option("--once", help="Print it once instead of again and again.")] = False,
    interval: Annotated[float, typer.Option(min=0.5, help="Seconds between two looks.")] = 2.0,
    all_nodes: Annotated[bool, typer.Option("--all", "-A", help="Nodes without GPUs too.")] = False,
    server: ServerOption = DEFAULT_SERVER,
    output: OutputOption = Output.TABLE,
    ca_file: CaOption = None,
) -> None:
    """The cluster as a running Kerf sees it; once where the output is no terminal, or is JSON or YAML."""

    def look() -> Any:
        try:
            return _read(server, ca_file, gpus_only=not all_nodes)
        except AnswerError as error:
            fail(str(error), FAILED)

    out = console()
    if once or output is not Output.TABLE or not out.is_terminal:
        told = look()
        show(told, output, lambda console: console.print(_picture(told)))
    else:
        _watch(look, interval, out)


def _watch(look: Callable[[], Any], interval_s: float, out: Console) -> None:
    with Live(_cropped(look(), out), console=out, auto_refresh=False, screen=True) as live:
        try:
            while True:
                time.sleep(interval_s)
                live.update(_cropped(look(), out), refresh=True)
        except KeyboardInterrupt:
            return


def _read(server: str, ca_file: Path | None, *, gpus_only: bool) -> Any:
    """All pages as one. Raises AnswerError."""
    told: Any = None
    after = ""
    while True:
        query = urlencode({"limit": _PAGE, "after": after, "gpus": str(gpus_only).lower()})
        page = ask(server, f"/nodes?{query}", ca_file)
        told = page if told is None else told | {"items": [*told["items"], *page["items"]]}
        after = page["next"]
        if not after:
            return told | {"next": None}


def _cropped(told: Any, out: Console) -> Group:
    """As much as the screen holds."""
    return _picture(told, max(out.size.height - 5, 1))


def _picture(told: Any, most: int | None = None) -> Group:
    totals = told["totals"]
    load = "" if totals["load"] is None else f", load {100 * totals['load']:.0f} %"
    head = Text(
        f"{totals['nodes']} nodes, {totals['gpuNodes']} with GPUs; "
        f"{totals['gpusBooked']:g} of {totals['gpus']} GPUs booked{load}; "
        f"{totals['fragments']} units in fragments, {totals['unhealthy']} GPUs unhealthy\n"
        f"reservations: {totals['reservations']}, bindings under way: {totals['bindings']}, "
        f"pods without a node: {totals['pendingPods']}, of which Kerf rejected {totals['waitingPods']}"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("NODE", no_wrap=True)
    table.add_column("MODEL", no_wrap=True)
    for name in ("GPUS", "BOOKED", "FREE", "FRAGMENT", "MEMORY", "LOAD", "PODS", "RESERVED"):
        table.add_column(name, justify="right", no_wrap=True)
    items = told["items"]
    for node in items[:most]:
        table.add_row(*_line(node))
    hidden = len(items) - len(items[:most])
    return Group(head, table, *([Text(f"and {hidden} more nodes (--once prints all)")] if hidden else []))


def _line(node: Any) -> list[str]:
    booked = 1 - node["memoryFreeMiB"] / node["memoryMiB"] if node["memoryMiB"] else None
    gpus = str(node["gpus"]) if node["units"] == node["gpus"] else f"{node['gpus']} ({node['units']} units)"
    return [
        escape(node["node"]) + (f" [red]({node['unhealthy']} unhealthy)[/red]" if node["unhealthy"] else ""),
        escape(", ".join(node["models"]) or "-"),
        gpus,
        f"{node['gpusBooked']:g}",
        str(node["unitsFree"]),
        str(node["fragments"]) if node["fragments"] else "-",
        "-" if booked is None else f"{100 * booked:.0f} %",
        "-" if node["load"] is None else f"{100 * node['load']:.0f} %",
        str(node["pods"]),
        str(node["reservations"]) if node["reservations"] else "-",
    ]
