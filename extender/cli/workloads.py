"""`kerf workloads`: every pod that has GPUs or asks for some, pod by pod or summed up by owner or namespace."""

import time
from collections.abc import Sequence
from typing import Annotated, Final, get_args, get_type_hints
from urllib.parse import urlencode

import typer
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from extender.cli.client.kerf import Form, FormOption, Kerf, asks_kerf, show
from extender.cli.consoles import age, as_csv, columns
from extender.core.texts import printable
from extender.explain.answers import By, Sort, State, WorkloadGroup, WorkloadList, WorkloadPod

_WIDE: Final = 120
"""Columns from which on owners are shown beside their pods."""
_STATES: Final = get_args(State)
_SUMS: Final = tuple(
    name for name in get_type_hints(WorkloadGroup) if name not in ("pods", "states", "namespace", "owner")
)
_OF_PODS: Final = tuple(name for name in get_type_hints(WorkloadPod) if name != "explain")


@asks_kerf
def workloads(  # noqa: PLR0913, PLR0917 - options of a command
    kerf: Kerf,
    text: Annotated[
        str, typer.Argument(help="Filter text: words of a pod, its owner, its node, ...", metavar="[TEXT]")
    ] = "",
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Only pods of this namespace; default: all.")
    ] = None,
    owner: Annotated[str, typer.Option(help="Only pods of this owner, as in Job/train.", metavar="KIND/NAME")] = "",
    node: Annotated[str, typer.Option(help="Only pods on this node.")] = "",
    state: Annotated[State | None, typer.Option(help="Only pods in this state.")] = None,
    idle: Annotated[bool, typer.Option("--idle", help="Only pods that have been idle for long.")] = False,
    by: Annotated[By, typer.Option(help="What a row is of.")] = "pod",
    sort: Annotated[Sort, typer.Option(help="What comes first: idle pods, most GPUs, least load, ...")] = "idle",
    reverse: Annotated[bool, typer.Option("--reverse", "-r", help="The other way round.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum rows.")] = 100,
    output: FormOption = Form.TABLE,
) -> None:
    """Every pod that has GPUs or asks for some: how it is, where, since when, and how its GPUs are used. Idle ones come
    first. Asks a running Kerf."""
    query = {
        **{"q": text, "namespace": namespace, "owner": owner, "node": node, "state": state},
        **{"idle": idle, "by": by, "sort": sort, "reverse": reverse, "limit": limit},
    }
    told: WorkloadList = kerf.ask(
        f"/workloads?{urlencode({name: value for name, value in query.items() if value})}",
        wrong=lambda _: "TEXT, --namespace, --owner or --node is too long",
    )
    show(told, output, lambda console: _print(told, console), lambda: _sheet(told))


def _sheet(told: WorkloadList) -> str:
    if told["by"] == "pod":
        return as_csv(_OF_PODS, [{**pod, "indices": " ".join(map(str, pod["indices"]))} for pod in told["pods"]])
    names = ("namespace", "owner") if told["by"] == "owner" else ("namespace",)
    return as_csv((*names, "pods", *_STATES, *_SUMS), [{**group, **group["states"]} for group in told["groups"]])


def _print(told: WorkloadList, console: Console) -> None:
    if not told["total"]:
        console.print(Text("no such pod has GPUs or asks for some"))
        return
    foot = [Text(f"and {told['more']} more (--limit, -n NAMESPACE)")] if told["more"] else []
    table: Table | Text = _of_pods(told["pods"], wide=console.width >= _WIDE) if told["pods"] else Text()
    if told["groups"]:
        table = _of_groups(told["groups"], told["by"])
    console.print(Group(_head(told), table, *foot))


def _head(told: WorkloadList) -> Text:
    """How many pods of which states, what they have, and what of that is idle."""
    totals = told["totals"]
    states = ", ".join(f"{count} {name}" for name, count in totals["states"].items() if count)
    pods = f"{totals['pods']} pod{'s' if totals['pods'] != 1 else ''}"
    words = f"{pods}{states and f' ({states})'}: {totals['gpusBooked']:.10g} GPUs booked"
    if totals["load"] is not None:
        words += f", load {100 * totals['load']:.0f} %"
    if totals["gpusAsked"]:
        words += f", {totals['gpusAsked']:.10g} asked for"
    if totals["idlePods"] and told["idleAfterSeconds"]:
        minutes = told["idleAfterSeconds"] / 60
        words += f"; {totals['idlePods']} with {totals['idleGpus']:.10g} GPUs idle for {minutes:g} min or more (--idle)"
    return Text(words)


def _of_pods(pods: Sequence[WorkloadPod], *, wide: bool) -> Table:
    with_gangs = any(pod["gang"] for pod in pods)
    table = _table(["POD", *(["OWNER"] if wide else []), *(["GANG"] if with_gangs else [])])
    table.add_column("STATE", no_wrap=True)
    table.add_column("NODE", overflow="fold", min_width=8)
    _add_numbers(table, "GPUS", "LOAD", "IDLE", "AGE")
    now = time.time()
    for pod in pods:
        names = [pod["pod"], *([pod["owner"]] if wide else []), *([pod["gang"] or "-"] if with_gangs else [])]
        cells = [*names, pod["state"], pod["node"] or "-", _number(pod["gpus"]), *_used(pod), _age(pod, now)]
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def _of_groups(groups: Sequence[WorkloadGroup], by: By) -> Table:
    table = _table(["NAMESPACE", *(["OWNER"] if by == "owner" else [])])
    _add_numbers(table, "PODS", "RUN", "WAIT", "GPUS", "ASKED", "LOAD", "IDLE", "AGE")
    now = time.time()
    for group in groups:
        states = group["states"]
        waiting = states["placing"] + states["pending"] + states["gated"]
        names = [group["namespace"], *([group["owner"] or "-"] if by == "owner" else [])]
        counts = [str(group["pods"]), str(group["pods"] - waiting), str(waiting)]
        idle = f"{group['idleGpus']:.10g}" if group["idlePods"] else "-"
        numbers = [_number(group["gpusBooked"]), _number(group["gpusAsked"]), _used(group)[0], idle, _age(group, now)]
        table.add_row(*(Text(printable(cell)) for cell in (*names, *counts, *numbers)))
    return table


def _table(names: Sequence[str]) -> Table:
    return columns(*names, min_width=8, ratio=1 if len(names) > 1 else None)


def _add_numbers(table: Table, *names: str) -> None:
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)


def _used(row: WorkloadPod | WorkloadGroup) -> list[str]:
    """Load, and for how long it has been idle."""
    load = "-" if row["load"] is None else f"{100 * row['load']:.0f} %"
    return [load, "-" if row["idleSeconds"] is None else age(row["idleSeconds"])]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.10g}"


def _age(row: WorkloadPod | WorkloadGroup, now: float) -> str:
    return "-" if row["since"] is None else age(now - row["since"])
