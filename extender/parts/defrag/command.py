"""`kerf defrag` and `kerf drain`: plan and make moves so that pods fit, or nodes or unhealthy GPUs become free."""

import time
from collections.abc import Sequence
from typing import Annotated, Any, Final

import typer
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
from extender.cli.consoles import names
from extender.cli.printing import echo

_ANSWER_S: Final = 300.0
"""Timeout of a question: other questions may run first."""
_LOOK_S: Final = 2.0
_MAX_NAMED, _MAX_EMPTIED = 4, 20
_UNDER_WAY: Final = ("moving", "placing")
_HOUR_S: Final = 3600.0
_TYPED: Final = {"for": "--for", "empty": "NODE", "nodes": "--nodes", "priority": "--priority"}
"""Command-line names of the question's keys that an error may begin with."""


@asks_kerf
def defrag(  # noqa: PLR0913, PLR0917 - options of a command
    kerf: Kerf,
    waiting: Annotated[str | None, typer.Option("--for", help="A waiting pod or gang: NAME or NAMESPACE/NAME.")] = None,
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--file", "-f", help="Manifests of pods, or of objects that create pods; `-` reads standard input."
        ),
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="Number of free GPUs on a node.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="With --gpus: number of such nodes.")] = None,
    free_nodes: Annotated[int | None, typer.Option(min=1, help="Number of GPU nodes without pods.")] = None,
    heal: Annotated[bool, typer.Option("--heal", help="Move pods off unhealthy GPUs.")] = False,
    max_moves: Annotated[int | None, typer.Option(min=0, help="Most pods to move.")] = None,
    priority: Annotated[
        int | None, typer.Option(help="Don't move pods of higher priority; default: that of the pods to make room for.")
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Carry out the plan shown.")] = False,
    stops: Annotated[bool, typer.Option("--stop", help="Stop moving pods.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """The cheapest moves that make pods fit, or nodes or unhealthy GPUs free.

    Changes nothing without --apply.

    Exit status 0 if there is room, or can be made; 3 if not; 2 for wrong usage; 1 if Kerf can't be reached, or stops.
    """
    if stops:
        _stop(kerf)
        return
    question: dict[str, Any] = {}
    if waiting:
        question["for"] = waiting if "/" in waiting else f"{kerf.namespace}/{waiting}"
    question |= kerf.manifests(files or ())
    numbers = {"gpus": gpus, "nodes": nodes, "freeNodes": free_nodes, "maxMoves": max_moves, "priority": priority}
    question |= {name: number for name, number in numbers.items() if number is not None}
    if heal:
        question["heal"] = True
    if not question.keys() & {"for", "manifest", "gpus", "nodes", "freeNodes", "heal"}:
        fail("room for what? Write --for POD, -f FILE, --gpus 8 --nodes 2, --free-nodes 2 or --heal", USAGE)
    _make_room(kerf, question, output, apply=apply, files=files or ())


@asks_kerf
def drain(
    kerf: Kerf,
    nodes: Annotated[list[str], typer.Argument(help="Nodes to empty; repeatable.", metavar="NODE...")],
    max_moves: Annotated[int | None, typer.Option(min=0, help="Most pods to move.")] = None,
    priority: Annotated[
        int | None, typer.Option(help="Don't move pods of higher priority; default: any may move.")
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Carry out the plan shown.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """The cheapest moves after which nodes have no pods with GPUs; kubectl drain does the rest. Changes nothing without
    --apply.

    Exit status 0 if they can be emptied, 3 if not, 2 for wrong usage, 1 if Kerf can't be reached, or stops.
    """
    question: dict[str, Any] = {"empty": nodes}
    numbers = {"maxMoves": max_moves, "priority": priority}
    _make_room(
        kerf, question | {name: number for name, number in numbers.items() if number is not None}, output, apply=apply
    )


def _make_room(kerf: Kerf, question: dict[str, Any], output: Output, *, apply: bool, files: Sequence[str] = ()) -> None:
    """Plan moves, print the plan, and carry it out with `apply`; `files` are the question's manifest files."""
    if apply:
        kerf.announce()
    answer = kerf.ask("/defrag", question, _ANSWER_S, _as_typed, files)
    show(answer, output, lambda console: _print(question, answer, console))
    if not answer["fits"]:
        raise typer.Exit(PENDING)
    if apply:
        _apply(kerf, answer)
    if answer["impossible"]:  # with --heal some pods may stay
        raise typer.Exit(PENDING)


def _as_typed(text: str) -> str:
    """An error with its leading question key replaced by the command-line name."""
    key, colon, rest = text.partition(": ")
    return f"{_TYPED[key]}: {rest}" if colon and key in _TYPED else text


def _apply(kerf: Kerf, answer: Any) -> None:
    if not answer["id"]:
        echo("no pod has to move", err=True)
        return
    try:
        begun = kerf.ask("/defrag/apply", {"id": answer["id"]})["id"]
    except AnswerError as error:
        fail(f"not carried out: {error}", FAILED)
    _follow(kerf, begun)


def _follow(kerf: Kerf, plan: str) -> None:
    """Print a plan's progress until it ends. The plan continues if this command is interrupted."""
    shown: dict[str, str] = {}
    echo(f"carrying out plan {plan}; it goes on if you leave (kerf defrag --stop stops it)", err=True)
    while True:
        try:
            state = kerf.ask("/defrag")
        except AnswerError as error:
            fail(f"the plan's state can't be read: {error}", FAILED)
        if state["id"] != plan:
            fail(f"Kerf no longer has plan {plan}: {state['fault'] or 'another one has begun'}", FAILED)
        for move in state["moves"]:
            stage = f"{move['stage']}{f' ({why})' if (why := move['why']) else ''}"
            if shown.get(move["pod"], "planned") != stage:
                echo(f"{move['pod']} to {move['to']}: {stage}", err=True)
                shown[move["pod"]] = stage
        if state["phase"] not in _UNDER_WAY:
            break
        time.sleep(_LOOK_S)
    if state["why"]:
        fail(f"stopped: {state['why']}", FAILED)
    echo("done", err=True)


def _stop(kerf: Kerf) -> None:
    """Stop evictions."""
    kerf.announce()
    stopped = kerf.ask("/defrag/stop", {"why": "kerf defrag --stop"})["stopped"]
    echo("stopped: the move under way is finished" if stopped else "nothing was under way")


def _print(question: Any, answer: Any, console: Console) -> None:
    target, moves = answer["target"], answer["moves"]
    subjects = [pod["pod"] for pod in target] or answer["emptied"]
    if not answer["fits"]:
        heading = _refusal(question, subjects or answer.get("on_sick", []))
        console.print(f"[red]{escape(heading)}[/red]:")
        for sentence in answer["impossible"]:
            console.print(f"  {escape(sentence.removeprefix(f'{heading}: '))}", soft_wrap=True)
        return
    if not (moves or target or answer["emptied"]):
        console.print("[green]no pod is on an unhealthy GPU[/green]")
        return
    if not moves:
        one = len(subjects) == 1
        verb = ("fits" if one else "fit") if target else f"{'is' if one else 'are'} free"
        console.print(f"[green]{escape(names(subjects, _MAX_NAMED))} {verb} without moves[/green]")
    else:
        count = f"{len(moves)} pod{'' if len(moves) == 1 else 's'}"
        console.print(f"[bold]{count} would move[/bold], which loses {_gpu_time(answer['cost_gpu_s'])} of work")
        console.print(_table(moves))
    for node, pods in _by_node(target).items():
        console.print(f"{escape(names(pods, _MAX_NAMED))} then {'goes' if len(pods) == 1 else 'go'} to {escape(node)}")
    if answer["emptied"]:
        except_for = ", except for what is left to kubectl drain" if answer.get("left") else ""
        console.print(f"empty then{except_for}: {escape(names(answer['emptied'], _MAX_EMPTIED))}")
    _print_rest(answer, console)
    before, after = answer["before"], answer["after"]
    console.print(f"whole nodes free: {before['freeNodes']} now, {after['freeNodes']} then")
    if before["usableGpus"] is not None:
        which = "the first of them" if len(target) > 1 else "it"
        console.print(f"free GPUs on nodes where {which} fits: {before['usableGpus']} now, {after['usableGpus']} then")


def _refusal(question: Any, subjects: list[str]) -> str:
    """Heading above the reasons why no room can be made."""
    if nodes := question.get("empty"):
        return f"{names(nodes, _MAX_NAMED)} can't{'' if len(nodes) == 1 else ' all'} be emptied"
    if count := question.get("freeNodes"):
        return f"{count} node{'' if count == 1 else 's'} can't be emptied"
    return f"no room can be made for {names(subjects, _MAX_NAMED) or 'it'}"


def _print_rest(answer: Any, console: Console) -> None:
    """Print what the operator has to do in addition."""
    for sentence in answer["impossible"]:
        console.print(f"[red]{escape(sentence)}[/red]", soft_wrap=True)
    for pod in answer.get("left", []):
        console.print(
            f"left to kubectl drain: {escape(pod['pod'])} on {escape(pod['node'])}: {escape(pod['why'])}",
            soft_wrap=True,
        )
    for node in answer.get("open", []):
        console.print(
            f"{escape(node)} takes pods again afterwards unless you cordon it: kubectl cordon {escape(node)}",
            soft_wrap=True,
        )


def _table(moves: list[Any]) -> Table:
    table = Table("STEP", "POD", "FROM", "TO", box=None, pad_edge=False)
    table.add_column("GPUS", justify="right")
    table.add_column("LOSES", justify="right")
    for move in moves:
        gpus = ",".join(map(str, move["gpus"])) or "-"
        where = (escape(move[key]) for key in ("pod", "from", "to"))
        table.add_row(str(move["step"] + 1), *where, gpus, _gpu_time(move["cost_gpu_s"]))
    return table


def _gpu_time(gpu_s: float) -> str:
    return f"{gpu_s / _HOUR_S:,.1f} GPU h" if gpu_s >= _HOUR_S else f"{gpu_s / 60:.1f} GPU min"


def _by_node(target: list[Any]) -> dict[str, list[str]]:
    pods: dict[str, list[str]] = {}
    for pod in target:
        pods.setdefault(pod["node"], []).append(pod["pod"])
    return pods
