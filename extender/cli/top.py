"""`kerf top`: nodes, GPUs, what is booked and used, fragments, reservations and waiting pods, live."""

import time
from collections.abc import Callable
from typing import Annotated, Any
from urllib.parse import quote, urlencode

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from extender.cli.client.kerf import FAILED, AnswerError, Kerf, Output, OutputOption, asks_kerf, console, fail, show

_PAGE = 500


@asks_kerf
def top(
    kerf: Kerf,
    node: Annotated[str, typer.Argument(help="Only this node, GPU by GPU.", metavar="[NODE]")] = "",
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    interval: Annotated[float, typer.Option(min=0.5, help="Seconds between refreshes.")] = 2.0,
    all_nodes: Annotated[bool, typer.Option("--all", "-A", help="Include nodes without GPUs.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """The cluster as a running Kerf sees it. Prints once if the output is not a terminal, or is JSON or YAML."""

    if node:
        _one(kerf, node, output)
        return

    def look() -> Any:
        try:
            return _read(kerf, gpus_only=not all_nodes)
        except AnswerError as error:
            fail(str(error), FAILED)

    out = console()
    if once or output is not Output.TABLE or not out.is_terminal:
        told = look()
        show(told, output, lambda console: console.print(_picture(told)))
    else:
        _watch(look, interval, out)


def _one(kerf: Kerf, node: str, output: Output) -> None:
    try:
        told = kerf.ask(f"/nodes/{quote(node, safe='')}")
    except AnswerError as error:
        fail(str(error), FAILED)
    show(told, output, lambda console: console.print(_node_picture(told)))


def _watch(look: Callable[[], Any], interval_s: float, out: Console) -> None:
    with Live(_cropped(look(), out), console=out, auto_refresh=False, screen=True) as live:
        try:
            while True:
                time.sleep(interval_s)
                live.update(_cropped(look(), out), refresh=True)
        except KeyboardInterrupt:
            return


def _read(kerf: Kerf, *, gpus_only: bool) -> Any:
    """All pages as one. Raises AnswerError."""
    told: Any = None
    after = ""
    while True:
        query = urlencode({"limit": _PAGE, "after": after, "gpus": str(gpus_only).lower()})
        page = kerf.ask(f"/nodes?{query}")
        told = page if told is None else told | {"items": [*told["items"], *page["items"]]}
        after = page["next"]
        if not after:
            return told | {"next": None}


def _cropped(told: Any, out: Console) -> Group:
    """As much as the screen holds."""
    return _picture(told, max(out.size.height - 6, 1))


def _picture(told: Any, most: int | None = None) -> Group:
    totals = told["totals"]
    load = "" if totals["load"] is None else f", load {100 * totals['load']:.0f} %"
    head = Text(
        f"{totals['nodes']} nodes, {totals['gpuNodes']} with GPUs; "
        f"{totals['gpusBooked']:g} of {totals['gpus']} GPUs booked{load}\n"
        f"{totals['fragments']} units in fragments, {totals['unhealthy']} GPUs unhealthy{_aside(totals)}; "
        f"reservations: {totals['reservations']}, bindings under way: {totals['bindings']}\n"
        f"pods without a node: {totals['pendingPods']}, of which Kerf rejected {totals['waitingPods']}"
    )
    table = Table(box=None, pad_edge=False)
    table.add_column("NODE", no_wrap=True)
    table.add_column("MODEL", no_wrap=True)
    for name in ("GPUS", "BOOKED", "FREE", "FRAGMENT", "MEMORY", "LOAD", "PODS", "RESERVED"):
        table.add_column(name, justify="right", no_wrap=True)
    items = told["items"]
    with_devices = any(node.get("devices") for node in items)
    if with_devices:
        table.add_column("DEVICES FREE", overflow="fold")
    for node in items[:most]:
        table.add_row(*_line(node), *([_devices(node.get("devices"))] if with_devices else []))
    hidden = len(items) - len(items[:most])
    return Group(head, table, *([Text(f"and {hidden} more nodes (--once prints all)")] if hidden else []))


def _aside(totals: Any) -> str:
    """How many nodes are set aside, or are to be, where there are any; a Kerf of before tells none."""
    counts = (totals.get("nodesSetAside", 0), "set aside"), (totals.get("nodesFailing", 0), "on which pods fail")
    return "".join(f", {count} node{'s' if count > 1 else ''} {what}" for count, what in counts if count)


def _line(node: Any) -> list[str]:
    booked = 1 - node["memoryFreeMiB"] / node["memoryMiB"] if node["memoryMiB"] else None
    marks = [f"{node['unhealthy']} unhealthy"] if node["unhealthy"] else []
    marks += [aside.partition(":")[0]] if (aside := node.get("setAside")) else []
    gpus = str(node["gpus"]) if node["units"] == node["gpus"] else f"{node['gpus']} ({node['units']} units)"
    return [
        escape(node["node"]) + (f" [red]({escape('; '.join(marks))})[/red]" if marks else ""),
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


def _devices(told: Any) -> str:
    """What of a node's devices Kerf can give to ResourceClaims, and the faults of its pools."""
    if not told:
        return "-"
    faults = [f"[red]{escape(pool['pool'])}: {escape(pool['fault'])}[/red]" for pool in told["pools"] if pool["fault"]]
    free = [escape(told["free"])] if told["owned"] else [] if faults else ["kube-scheduler's"]
    return "; ".join([*free, *faults])


def _node_picture(told: Any) -> Group:
    """One node: GPU by GPU what is booked, who has it, and which devices are free."""
    devices = told["devices"]
    head = Text(f"{told['node']}: {told['gpusBooked']:g} of {told['gpus']} GPUs booked")
    lines = [node_aside] if (node_aside := told.get("setAside")) else []
    for pool in devices["pools"] if devices else ():
        owner = {"kerf": "Kerf", "nobody": "nobody"}.get(pool["owner"], pool["owner"])
        fault = f": {pool['fault']}" if pool["fault"] else ""
        lines.append(f"pool {pool['pool']} of {pool['driver']}: {pool['devices']} devices, allocated by {owner}{fault}")
    if devices and devices["owned"]:
        lines.append(f"free: {devices['free']}")
    table = Table(box=None, pad_edge=False)
    for name in ("GPU", "MODEL", "BOOKED"):
        table.add_column(name, no_wrap=True)
    table.add_column("HELD BY", overflow="fold")
    table.add_column("FREE", overflow="fold")
    for gpu in told["gpuDetails"]:
        holders = [holder for holder in told["holders"] if gpu["index"] in holder["gpus"] and "claim" not in holder]
        held = [*map(_use, gpu.get("uses", ())), *map(_holder, holders)]
        table.add_row(
            str(gpu["index"]),
            escape(gpu["model"] or "-"),
            "unhealthy" if not gpu["healthy"] else f"{(1000 - gpu['freeMilli']) / 10:g} %",
            escape("\n".join(held) or "-"),
            escape(gpu.get("freeDevices") or ("-" if not gpu["free"] else "GPU")),
        )
    others = [Text(_use(use)) for use in told["deviceUses"] if use["gpu"] is None]
    return Group(head, *map(Text, lines), table, *others)


def _use(use: Any) -> str:
    """A device, who has it, and what for."""
    pods = f" of {', '.join(use['pods'])}" if use["pods"] else ""
    state = "" if use["state"] == "allocated" else f" ({use['state']})"
    looks = ", only looked at by" if use["admin"] else ":"
    return f"{use['device']}{looks} claim {use['claim']}{pods}{state}"


def _holder(holder: Any) -> str:
    state = "" if holder["state"] == "BOUND" else f" ({holder['state'].lower()})"
    return f"{holder['pod'] or 'a pod'}{state}"
