"""`kerf what-if`: where pods would go in the current cluster, and which would stay pending."""

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from extender.cli.client.kerf import (
    PENDING,
    UNCHECKED,
    USAGE,
    Kerf,
    Output,
    OutputOption,
    asks_kerf,
    fail,
    show,
    with_file,
)
from extender.cli.consoles import names

if TYPE_CHECKING:
    from extender.parts.what_if.questions import WhatIfResult  # not in kubectl's plugin

_MAX_NAMES = 4
_MAX_OBJECTS = 20
_AUTO = "auto"
_TIMEOUT_S = 150.0
"""Longer than access.what_if_s, as questions are answered one at a time."""


@asks_kerf
def what_if(
    kerf: Kerf,
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--file",
            "-f",
            help="Manifests of pods or of objects that create them (Job, Deployment, JobSet, ...), with PodGroups, "
            "claims and their templates, and nodes to add (with `--add-node auto`: nodes to copy); `-` reads "
            "standard input; repeatable.",
        ),
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, help="How many of each pod or object.")] = 1,
    drain: Annotated[list[str] | None, typer.Option(help="A node to drain: its pods go elsewhere; repeatable.")] = None,
    add_node: Annotated[
        list[str] | None,
        typer.Option(
            help="Add a node like this one, or three with NODE=3; `auto` finds the fewest that are missing. Without "
            "pods and drains, it is about the pending pods."
        ),
    ] = None,
    waiting: Annotated[bool, typer.Option("--waiting", help="Ask about the pods that are pending now.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Where pods would go in the current cluster, and which would stay pending. Changes nothing.

    Exit status 0 if all pods find a node, 5 if they do and not all that they ask for was checked, 3 if some stay
    pending, 2 for wrong usage, 1 if Kerf can't be reached.
    """
    added = [_template(text) for text in add_node or () if text != _AUTO]
    if not (files or drain or waiting or add_node):
        fail("nothing to place: give manifests with -f, a node with --drain or --add-node, or --waiting", USAGE)
    question: dict[str, Any] = {"replicas": replicas, "drain": drain or [], "addNodes": added, "waiting": waiting}
    question["findNodes"] = _AUTO in (add_node or ())
    body = question | kerf.manifests(files or ())
    answer: WhatIfResult = kerf.ask("/what-if", body, _TIMEOUT_S, files=files or ())
    for entry in answer["objects"]:
        entry["place"] = with_file(entry["place"], files or ())
    show(answer, output, lambda console: _print(answer, console))
    if answer["unassigned"]:
        raise typer.Exit(PENDING)
    if answer["notChecked"]:
        raise typer.Exit(UNCHECKED)


def _template(text: str) -> dict[str, Any]:
    name, _, count = text.partition("=")
    if not name or not (count or "1").isdecimal() or not int((count or "1")[:9]) >= 1:
        fail(f"--add-node {text}: write a node's name, or NODE=3 for three like it", USAGE)
    return {"template": name, "count": int(count or "1")}


def _print(answer: "WhatIfResult", console: Console) -> None:
    placed = f"[bold]{answer['placed']} of {answer['pods']} pods[/bold] would find a node, with {answer['gpus']} GPUs"
    nothing = "there are no pods to place: none is pending or on a drained node"
    console.print(f"{placed}, a share counted as one" if answer["pods"] else nothing, soft_wrap=True)
    if (missing := answer.get("missing")) is not None:
        console.print(f"[bold]missing:[/bold] {escape(missing['sentence'])}", soft_wrap=True)
    if answer["moved"]:
        console.print(f"{len(answer['moved'])} of them are moved from drained nodes")
    if answer["gained"]:
        console.print(f"{len(answer['gained'])} of them have room only with the new nodes: {_some(answer['gained'])}")
    _print_objects(answer, console)
    if answer["nodes"]:
        table = Table("NODE", "PODS", "GPUS", "WHICH", box=None, pad_edge=False)
        for node in answer["nodes"]:
            used = f"{node['gpusUsed']}/{node['gpus']}"
            table.add_row(escape(node["node"]), str(len(node["pods"])), used, _some(node["pods"]))
        console.print(table)
    if answer["unassigned"]:
        console.print(f"[red]{len(answer['unassigned'])} would stay pending[/red]:")
    for reason, count in answer["reasons"].items():
        console.print(f"  {count:>5} x {escape(reason)}", soft_wrap=True)
    for what, count in answer["notChecked"].items():
        console.print(
            f"[bold]not checked:[/bold] {escape(what)} ({count} pod{'' if count == 1 else 's'})", soft_wrap=True
        )
    before, after = answer.get("strandedBefore"), answer.get("stranded")
    if before is not None and after is not None:  # absent from older versions, or if GPU-hours are not counted
        console.print(f"stranded: {100 * before:.1f} % of all GPUs now, {100 * after:.1f} % then")


def _print_objects(answer: "WhatIfResult", console: Console) -> None:
    """Print a line for each object that creates pods, with its notes."""
    for entry in answer["objects"][:_MAX_OBJECTS]:
        where = _some([f"{node['node']} ({len(node['pods'])})" for node in entry["nodes"]])
        nowhere = ", ".join(escape(reason) for reason in entry["reasons"])
        words = [f"{entry['placed']} of {entry['pods']} pods"]
        words += [f"on {where}"] if where else []
        words += [f"pending: {nowhere}"] if nowhere else []
        console.print(f"{escape(entry['object'])}: {'; '.join(words)}", soft_wrap=True)
        for note in entry["notes"]:
            console.print(f"  note: {escape(note)}", soft_wrap=True)
    if (more := len(answer["objects"]) - _MAX_OBJECTS) > 0:
        console.print(f"and {more} more objects")
    if answer["skipped"]:
        console.print(f"left out, as they create no pods: {_some(answer['skipped'])}", soft_wrap=True)


def _some(given: list[str]) -> str:
    return escape(names(given, _MAX_NAMES))
