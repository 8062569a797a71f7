"""`kerf top`: a live view of nodes, GPUs, bookings, load, stranded capacity, reservations and pending pods."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Final
from urllib.parse import quote, urlencode

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from extender.cli.client.kerf import Kerf, Output, OutputOption, asks_kerf, show
from extender.cli.consoles import columns, console, shortened
from extender.core.resources.quantities import format_mib
from extender.core.texts import printable
from extender.explain.answers import ClusterNode, ClusterTotals, GpuSums, NodeDetails, NodesPage

_PAGE = 500
_HEADINGS: Final = {
    **{"NODE": "NODE", "MODEL": "MODEL", "GPUS": "GPUS", "BOOKED": "BOOK", "FREE": "FREE", "STRANDED": "STRAND"},
    **{"MEMORY": "MEM", "LOAD": "LOAD", "PODS": "PODS", "RESERVED": "RES"},
}
"""Column headings, and their short forms for narrow terminals."""
_MIN_NAME: Final = 7
_MIN_DEVICES: Final = 12


@asks_kerf
def top(
    kerf: Kerf,
    node: Annotated[str, typer.Argument(help="Only this node, GPU by GPU.", metavar="[NODE]")] = "",
    once: Annotated[bool, typer.Option("--once", help="Print once and exit.")] = False,
    interval: Annotated[float, typer.Option(min=0.5, help="Seconds between refreshes.")] = 2.0,
    all_nodes: Annotated[bool, typer.Option("--all", "-A", help="Include nodes without GPUs.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Show the cluster as a running Kerf sees it. Prints once if the output is not a terminal, or is JSON or YAML."""

    if node:
        one: NodeDetails = kerf.ask(f"/nodes/{quote(node, safe='')}")
        show(one, output, lambda console: console.print(_node_picture(one)))
        return

    look = partial(_read, kerf, gpus_only=not all_nodes)
    out = console()
    if once or output is not Output.TABLE or not out.is_terminal:
        answer = look()
        show(answer, output, lambda console: console.print(_picture(answer, console.width)))
    else:
        kerf.shows_blind = True
        _watch(kerf, look, interval, out)


def _watch(kerf: Kerf, look: Callable[[], NodesPage], interval_s: float, out: Console) -> None:
    def shown() -> Group:
        kerf.blind = ""
        return _cropped(look(), out, kerf.blind)

    with Live(shown(), console=out, auto_refresh=False, screen=True) as live:
        try:
            while True:
                time.sleep(interval_s)
                live.update(shown(), refresh=True)
        except KeyboardInterrupt:
            return


def _read(kerf: Kerf, *, gpus_only: bool) -> NodesPage:
    """All pages as one. Raises AnswerError."""

    def page(after: str) -> Any:
        query = urlencode({"limit": _PAGE, "after": after, "gpus": str(gpus_only).lower()})
        return kerf.ask(f"/nodes?{query}")

    answer: NodesPage = page("")
    while answer["next"]:
        more: NodesPage = page(answer["next"])
        answer = {**answer, "items": [*answer["items"], *more["items"]], "next": more["next"]}
    return answer


def _cropped(answer: NodesPage, out: Console, blind: str) -> Group:
    """As much as fits on the screen."""
    if not blind:
        return _picture(answer, out.size.width, max(out.size.height - 6, 1))
    rest = _picture(answer, out.size.width, max(out.size.height - 8, 1))
    return Group(Text(blind, style="red"), rest)


def _picture(answer: NodesPage, width: int, most: int | None = None) -> Group:
    totals = answer["totals"]
    load = "" if totals["load"] is None else f", load {100 * totals['load']:.0f} %"
    head = Text(
        f"{totals['nodes']} nodes, {totals['gpuNodes']} with GPUs; "
        f"{totals['gpusBooked']:g} of {totals['gpus']} GPUs booked{_reserved(totals)}{_stranded(totals)}{load}\n"
        f"{totals['unhealthy']} GPUs unhealthy{_aside(totals)}; "
        f"reservations: {totals['reservations']}, bindings in progress: {totals['bindings']}\n"
        f"pods without a node: {totals['pendingPods']}, of which Kerf rejected {totals['waitingPods']}"
    )
    items = answer["items"]
    hidden = len(items) - len(items[:most])
    more = [Text(f"and {hidden} more nodes (--once prints all)")] if hidden else []
    return Group(head, _node_table(items[:most], width), *more)


def _node_table(items: Sequence[ClusterNode], width: int) -> Table:
    """A row for each node. Headings and names are shortened to fit the width, numbers never."""
    lines = [_line(node) for node in items]
    with_devices = any(node.get("devices") for node in items)
    headings, gap = list(_HEADINGS), 2
    rest = _MIN_DEVICES + 2 if with_devices else 0
    longest = _longest(lines, headings)
    if sum(longest) + gap * len(headings) + rest > width:
        headings, gap = list(_HEADINGS.values()), 1
        lines = [[cell.replace(" slices)", ")") for cell in line] for line in lines]
        longest = _longest(lines, headings)
    left = width - sum(longest[2:]) - gap * len(headings) - rest
    for_model = longest[1] if longest[0] + longest[1] <= left else max(min(longest[1], left // 3), _MIN_NAME)
    for_node = max(min(longest[0], left - for_model), _MIN_NAME)
    table = Table(box=None, pad_edge=False, padding=(0, gap, 0, 0))
    # Rich would shrink the wrong column for marks and devices: they get the remaining width.
    table.add_column(headings[0], overflow="fold", min_width=for_node, max_width=for_node if with_devices else None)
    table.add_column(headings[1], no_wrap=True, min_width=for_model)
    for name, size in zip(headings[2:], longest[2:], strict=True):
        table.add_column(name, justify="right", no_wrap=True, min_width=size)
    if with_devices:
        spare = left + rest - for_node - for_model
        table.add_column("DEVICES FREE", overflow="fold", max_width=max(spare, _MIN_DEVICES))
    for node, line in zip(items, lines, strict=True):
        name, model = escape(shortened(line[0], for_node)), escape(shortened(line[1], for_model))
        marks = f" [red]({escape(_marks(node))})[/red]" if _marks(node) else ""
        devices = [_devices(node.get("devices"))] if with_devices else []
        table.add_row(name + marks, model, *line[2:], *devices)
    return table


def _reserved(answer: GpuSums) -> str:
    """GPUs reserved for unbound pods, in words; older versions of Kerf count them as booked."""
    return f", {answer['gpusReserved']:g} reserved" if answer.get("gpusReserved") else ""


def _stranded(totals: ClusterTotals) -> str:
    """Stranded GPUs in words; standbys and older versions of Kerf report none."""
    stranded = totals.get("gpusStranded")
    if stranded is None:
        return ""
    part = totals.get("strandedPart")
    return f", {stranded:.1f} stranded" + (f" ({100 * part:.1f} %)" if part else "")


def _aside(totals: ClusterTotals) -> str:
    """Numbers of quarantined and failing nodes, in words; older versions of Kerf report none."""
    counts = (totals.get("nodesSetAside", 0), "quarantined"), (totals.get("nodesFailing", 0), "on which pods fail")
    return "".join(f", {count} node{'s' if count > 1 else ''} {what}" for count, what in counts if count)


def _longest(lines: Sequence[Sequence[str]], headings: Sequence[str]) -> list[int]:
    """Characters of the longest cell of each column."""
    return [max(map(len, column)) for column in zip(headings, *lines, strict=True)]


def _marks(node: ClusterNode) -> str:
    """What is wrong with a node, in a few words."""
    unhealthy = [f"{node['unhealthy']} unhealthy"] if node["unhealthy"] else []
    aside = [aside.partition(":")[0]] if (aside := node.get("setAside")) else []
    return "; ".join([*unhealthy, *aside])


def _line(node: ClusterNode) -> list[str]:
    booked = 1 - node["memoryFreeMiB"] / node["memoryMiB"] if node["memoryMiB"] else None
    gpus = str(node["gpus"]) if node["units"] == node["gpus"] else f"{node['gpus']} ({node['units']} slices)"
    return [
        printable(node["node"]),
        printable(", ".join(node["models"])) or "-",
        gpus,
        f"{node['gpusBooked']:g}",
        str(node["unitsFree"]),
        f"{node['gpusStranded']:.1f}" if node.get("gpusStranded") else "-",
        "-" if booked is None else f"{100 * booked:.0f} %",
        "-" if node["load"] is None else f"{100 * node['load']:.0f} %",
        str(node["pods"]),
        str(node["reservations"]) if node["reservations"] else "-",
    ]


def _devices(answer: Any) -> str:
    """A node's devices that Kerf can allocate to ResourceClaims, and the faults of its pools."""
    if not answer:
        return "-"
    faults = [
        f"[red]{escape(pool['pool'])}: {escape(pool['fault'])}[/red]" for pool in answer["pools"] if pool["fault"]
    ]
    free = [escape(answer["free"])] if answer["owned"] else [] if faults else ["kube-scheduler's"]
    return "; ".join([*free, *faults])


def _node_picture(answer: NodeDetails) -> Group:
    """One node: bookings, holders and free devices of each GPU."""
    devices = answer["devices"]
    booked = f"{answer['gpusBooked']:g} of {answer['gpus']} GPUs booked"
    head = Text(f"{answer['node']}: {booked}{_reserved(answer)}{_of_slices(answer)}")
    lines = [node_aside] if (node_aside := answer.get("setAside")) else []
    for pool in devices["pools"] if devices else ():
        owner = {"kerf": "Kerf"}.get(pool["owner"], pool["owner"])
        fault = f": {pool['fault']}" if pool["fault"] else ""
        lines.append(f"pool {pool['pool']} of {pool['driver']}: {pool['devices']} devices, allocated by {owner}{fault}")
    if devices and devices["owned"]:
        lines.append(f"free: {devices['free']}")
    table = columns("|GPU", "|MODEL", "|BOOKED", ">LOAD", "HELD BY", "FREE")
    for gpu in answer["gpuDetails"]:
        holders = [holder for holder in answer["holders"] if gpu["index"] in holder["gpus"] and "claim" not in holder]
        held = [*map(_use, gpu.get("uses", ())), *map(_holder, holders), *_unknown(gpu)]
        load = gpu.get("observed", {}).get("load")
        table.add_row(
            str(gpu["index"]),
            escape(gpu["model"] or "-"),
            _booked(gpu),
            "-" if load is None else f"{100 * load:.0f} %",
            escape("\n".join(held) or "-"),
            escape(gpu.get("freeDevices") or _free(gpu)),
        )
    others = [Text(_use(use)) for use in answer["deviceUses"] if use["gpu"] is None]
    return Group(head, *map(Text, lines), table, *others)


def _of_slices(answer: NodeDetails) -> str:
    """Free time slices of a node in words, and those held on unknown GPUs; "" for a node without slices."""
    gpus = [gpu for gpu in answer["gpuDetails"] if "slices" in gpu]
    if not gpus:
        return ""
    known = sum(gpu["slices"] - gpu["slicesHeld"] for gpu in gpus if gpu["idle"])
    hidden = max(known - answer["unitsFree"], 0)
    somewhere = f", {hidden} held on unknown GPUs" if hidden else ""
    return f"; {answer['unitsFree']} of {answer['units']} time slices free{somewhere}"


def _booked(gpu: Any) -> str:
    if not gpu["healthy"]:
        return "unhealthy"
    if "slices" in gpu:
        return f"{gpu['slicesHeld']} of {gpu['slices']} slices"
    return f"{(1000 - gpu['freeMilli']) / 10:g} %"


def _free(gpu: Any) -> str:
    """What of a GPU is free as whole units; older versions of Kerf don't send `idle`."""
    if not gpu.get("idle", gpu["free"]):
        return "-"
    if "slices" not in gpu:
        return "GPU"
    left = gpu["slices"] - gpu["slicesHeld"]
    return f"{left} slice{'' if left == 1 else 's'}" if left > 0 else "-"


def _unknown(gpu: Any) -> list[str]:
    """Memory in use that no pod has booked."""
    mib = gpu.get("unmanagedMiB", 0)
    return [f"{format_mib(mib)} by unknown processes"] if mib else []


def _use(use: Any) -> str:
    """A device with its claim and pods."""
    pods = f" of {', '.join(use['pods'])}" if use["pods"] else ""
    state = "" if use["state"] == "allocated" else f" ({use['state']})"
    by = ", admin access by" if use["admin"] else ":"
    return f"{use['device']}{by} claim {use['claim']}{pods}{state}"


def _holder(holder: Any) -> str:
    state = "" if holder["state"] == "BOUND" else f" ({holder['state'].lower()})"
    return f"{holder['pod'] or 'a pod'}{state}"
