"""`kerf workloads`: every pod that has or requests GPUs, listed by pod or summed by owner or namespace."""

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
"""Terminal width from which owners are shown with their pods."""
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
    idle: Annotated[bool, typer.Option("--idle", help="Only pods idle for at least usage.idle_after_s.")] = False,
    by: Annotated[By, typer.Option(help="What each row stands for.")] = "pod",
    sort: Annotated[Sort, typer.Option(help="Sort key.")] = "idle",
    reverse: Annotated[bool, typer.Option("--reverse", "-r", help="Reverse the order.")] = False,
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum rows.")] = 100,
    output: FormOption = Form.TABLE,
) -> None:
    """List pods that have or request GPUs, with state, node, age and GPU load; idle ones first. Asks a running Kerf."""
    query = {
        **{"q": text, "namespace": namespace, "owner": owner, "node": node, "state": state},
        **{"idle": idle, "by": by, "sort": sort, "reverse": reverse, "limit": limit},
    }
    answer: WorkloadList = kerf.ask(
        f"/workloads?{urlencode({name: value for name, value in query.items() if value})}",
        wrong=lambda _: "TEXT, --namespace, --owner or --node is too long",
    )
    show(answer, output, lambda console: _print(answer, console), lambda: _sheet(answer))


def _sheet(answer: WorkloadList) -> str:
    if answer["by"] == "pod":
        return as_csv(_OF_PODS, [{**pod, "indices": " ".join(map(str, pod["indices"]))} for pod in answer["pods"]])
    names = ("namespace", "owner") if answer["by"] == "owner" else ("namespace",)
    return as_csv((*names, "pods", *_STATES, *_SUMS), [{**group, **group["states"]} for group in answer["groups"]])


def _print(answer: WorkloadList, console: Console) -> None:
    if not answer["total"]:
        console.print(Text("no matching pod has or requests GPUs"))
        return
    foot = [Text(f"and {answer['more']} more (--limit, -n NAMESPACE)")] if answer["more"] else []
    table: Table | Text = _of_pods(answer["pods"], wide=console.width >= _WIDE) if answer["pods"] else Text()
    if answer["groups"]:
        table = _of_groups(answer["groups"], answer["by"])
    console.print(Group(_head(answer), table, *foot))


def _head(answer: WorkloadList) -> Text:
    """Totals in words: pods by state, their GPUs, and how many are idle."""
    totals = answer["totals"]
    states = ", ".join(f"{count} {name}" for name, count in totals["states"].items() if count)
    pods = f"{totals['pods']} pod{'s' if totals['pods'] != 1 else ''}"
    words = f"{pods}{states and f' ({states})'}: {totals['gpusBooked']:.10g} GPUs booked"
    if totals["load"] is not None:
        words += f", load {100 * totals['load']:.0f} %"
    if totals["gpusAsked"]:
        words += f", {totals['gpusAsked']:.10g} requested"
    if totals["idlePods"] and answer["idleAfterSeconds"]:
        minutes = answer["idleAfterSeconds"] / 60
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
    """Load, and idle time."""
    load = "-" if row["load"] is None else f"{100 * row['load']:.0f} %"
    return [load, "-" if row["idleSeconds"] is None else age(row["idleSeconds"])]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.10g}"


def _age(row: WorkloadPod | WorkloadGroup, now: float) -> str:
    return "-" if row["since"] is None else age(now - row["since"])
