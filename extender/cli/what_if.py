"""`kerf what-if`: where a batch of pods would go on the cluster as it is, and what would stay pending."""

from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from extender.cli.client.kerf import (
    FAILED,
    PENDING,
    USAGE,
    AnswerError,
    Kerf,
    Output,
    OutputOption,
    asks_kerf,
    fail,
    show,
)

_BAD_QUESTION = 400
_MAX_NAMES = 4
_AUTO = "auto"
_TIMEOUT_S = 150.0
"""Questions wait for each other, and a search takes its time."""


@asks_kerf
def what_if(
    kerf: Kerf,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            "--file",
            "-f",
            help="Manifests of pods, their ResourceClaims and templates, and nodes to add (beside `--add-node auto`: "
            "that new ones may be like); repeatable.",
        ),
    ] = None,
    replicas: Annotated[int, typer.Option(min=1, help="How many of each pod.")] = 1,
    drain: Annotated[list[str] | None, typer.Option(help="A node to drain: its pods go elsewhere; repeatable.")] = None,
    add_node: Annotated[
        list[str] | None,
        typer.Option(
            help="Add a node like this one, or three with NODE=3; or find the fewest that are missing with `auto`."
        ),
    ] = None,
    waiting: Annotated[bool, typer.Option("--waiting", help="Ask about the pods that wait for a node now.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Where pods would go in the cluster as it is, and which would stay pending. Changes nothing.

    Exit status 0 if all pods find a node, 3 if some stay pending, 2 for wrong usage, 1 if Kerf can't be reached.
    """
    pods, nodes, claims, templates = read_manifests(files or [])
    finds = _AUTO in (add_node or ())
    added = [_template(text) for text in add_node or () if text != _AUTO]
    if not (pods or drain or waiting):
        fail("nothing to place: give pod manifests with -f, a node with --drain, or --waiting", USAGE)
    question = {"pods": pods, "replicas": replicas, "drain": drain or [], "claims": claims, "claimTemplates": templates}
    question |= {"waiting": waiting, "findNodes": finds, "candidates": nodes if finds else []}
    question["addNodes"] = added if finds else [*({"manifest": node} for node in nodes), *added]
    try:
        answer = kerf.ask("/what-if", question, _TIMEOUT_S)
    except AnswerError as error:
        fail(str(error), USAGE if error.status == _BAD_QUESTION else FAILED)
    show(answer, output, lambda console: _print(answer, console))
    if answer["unassigned"]:
        raise typer.Exit(PENDING)


def read_manifests(files: list[Path]) -> tuple[list[Any], list[Any], list[Any], list[Any]]:
    """The pods of the files, the nodes, ResourceClaims and their templates."""
    pods: list[Any] = []
    nodes: list[Any] = []
    claims: list[Any] = []
    templates: list[Any] = []
    for path in files:
        try:
            documents = list(yaml.safe_load_all(path.read_text()))
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            fail(f"{path}: {error}", USAGE)
        for document in documents:
            kind = document.get("kind") if isinstance(document, dict) else type(document).__name__
            if kind == "Pod":
                pods.append(document)
            elif kind == "Node":
                nodes.append(document)
            elif kind == "ResourceClaim":
                claims.append(document)
            elif kind == "ResourceClaimTemplate":
                templates.append(document)
            elif document is not None:
                fail(f"{path}: {kind} can't be placed; write pods, their claims, and nodes to add", USAGE)
    return pods, nodes, claims, templates


def _template(text: str) -> dict[str, Any]:
    name, _, count = text.partition("=")
    if not name or not (count or "1").isdecimal() or not int((count or "1")[:9]) >= 1:
        fail(f"--add-node {text}: write a node's name, or NODE=3 for three like it", USAGE)
    return {"template": name, "count": int(count or "1")}


def _print(answer: Any, console: Console) -> None:
    console.print(
        f"[bold]{answer['placed']} of {answer['pods']} pods[/bold] would find a node, "
        f"with {answer['gpus']} GPUs, a share counted as one"
    )
    if (missing := answer.get("missing")) is not None:
        console.print(f"[bold]missing:[/bold] {escape(missing['sentence'])}", soft_wrap=True)
    if answer["moved"]:
        console.print(f"{len(answer['moved'])} of them are moved from drained nodes")
    if answer["nodes"]:
        table = Table("NODE", "PODS", "GPUS", "WHICH", box=None, pad_edge=False)
        for node in answer["nodes"]:
            names = ", ".join(node["pods"][:_MAX_NAMES])
            more = len(node["pods"]) - _MAX_NAMES
            which = names + (f" and {more} more" if more > 0 else "")
            used = f"{node['gpusUsed']}/{node['gpus']}"
            table.add_row(escape(node["node"]), str(len(node["pods"])), used, escape(which))
        console.print(table)
    if answer["unassigned"]:
        console.print(f"[red]{len(answer['unassigned'])} would stay pending[/red]:")
    for reason, count in answer["reasons"].items():
        console.print(f"  {count:>5} x {escape(reason)}", soft_wrap=True)
    before, after = (f"{100 * answer[key]:.1f} %" for key in ("fragmentsBefore", "fragments"))
    console.print(f"in fragments: {before} of all GPU units now, {after} then")
