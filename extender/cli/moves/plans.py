"""Making room, as commands tell it: a plan as a table, and how far it is while it is carried out."""

import time
from collections.abc import Sequence
from typing import Any, Final

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from extender.cli.client.kerf import FAILED, PENDING, AnswerError, Kerf, Output, fail, show
from extender.cli.client.manifests import with_file
from extender.cli.printing import echo

_ANSWER_S: Final = 300.0
"""For which an answer is waited for: others may have their turn first."""
_LOOK_S: Final = 2.0
_MAX_NAMED: Final = 4
_UNDER_WAY: Final = ("moving", "placing")
_HOUR_S: Final = 3600.0
_TYPED: Final = {"for": "--for", "empty": "NODE", "nodes": "--nodes", "priority": "--priority"}
"""Of a question's keys that an answer may blame, what was typed."""


def make_room(kerf: Kerf, question: dict[str, Any], output: Output, *, apply: bool, files: Sequence[str] = ()) -> None:
    """Ask how room could be made, print it, and have it made where that is wanted; `files` hold manifests of it."""
    if apply:
        kerf.announce()
    answer = kerf.ask("/defrag", question, _ANSWER_S, wrong=lambda why: _as_typed(with_file(why, files)))
    show(answer, output, lambda console: _print(question, answer, console))
    if not answer["fits"]:
        raise typer.Exit(PENDING)
    if apply:
        _have_made(kerf, answer)
    if answer["impossible"]:  # some can leave sick GPUs, others can't
        raise typer.Exit(PENDING)


def _as_typed(text: str) -> str:
    """A fault that begins with a question's key, with what was typed in its stead."""
    key, colon, rest = text.partition(": ")
    return f"{_TYPED[key]}: {rest}" if colon and key in _TYPED else text


def _have_made(kerf: Kerf, answer: Any) -> None:
    if not answer["id"]:
        echo("nobody has to move", err=True)
        return
    try:
        begun = kerf.ask("/defrag/apply", {"id": answer["id"]})["id"]
    except AnswerError as error:
        fail(f"not carried out: {error}", FAILED)
    _follow(kerf, begun)


def _follow(kerf: Kerf, plan: str) -> None:
    """Tell how far a plan is until it is over. It goes on when this command ends."""
    told: dict[str, str] = {}
    echo(f"carrying out plan {plan}; it goes on if you leave (kerf defrag --stop stops it)", err=True)
    while True:
        try:
            state = kerf.ask("/defrag")
        except AnswerError as error:
            fail(f"how far it is can't be told: {error}", FAILED)
        if state["id"] != plan:
            fail(f"Kerf knows nothing of plan {plan} any more: {state['fault'] or 'another one has begun'}", FAILED)
        for move in state["moves"]:
            stage = f"{move['stage']}{f' ({why})' if (why := move['why']) else ''}"
            if told.get(move["pod"], "planned") != stage:
                echo(f"{move['pod']} to {move['to']}: {stage}", err=True)
                told[move["pod"]] = stage
        if state["phase"] not in _UNDER_WAY:
            break
        time.sleep(_LOOK_S)
    if state["why"]:
        fail(f"stopped: {state['why']}", FAILED)
    echo("done", err=True)


def stop(kerf: Kerf) -> None:
    """Have nobody evicted any more."""
    kerf.announce()
    stopped = kerf.ask("/defrag/stop", {"why": "kerf defrag --stop"})["stopped"]
    echo("stopped: the move under way is finished" if stopped else "nothing was under way")


def _print(question: Any, answer: Any, console: Console) -> None:
    target, moves = answer["target"], answer["moves"]
    names = [pod["pod"] for pod in target] or answer["emptied"]
    if not answer["fits"]:
        heading = _refused(question, names or answer.get("on_sick", []))
        console.print(f"[red]{escape(heading)}[/red]:")
        for sentence in answer["impossible"]:
            console.print(f"  {escape(sentence.removeprefix(f'{heading}: '))}", soft_wrap=True)
        return
    if not (moves or target or answer["emptied"]):
        console.print("[green]no pod is on a sick GPU[/green]")
        return
    if not moves:
        one = len(names) == 1
        does = ("fits" if one else "fit") if target else f"{'is' if one else 'are'} free"
        console.print(f"[green]{escape(_named(names))} {does} as {'it is' if one else 'they are'}[/green]")
    else:
        pods = f"{len(moves)} pod{'' if len(moves) == 1 else 's'}"
        console.print(f"[bold]{pods} would move[/bold], which loses {_gpu_time(answer['cost_gpu_s'])} of work")
        console.print(_table(moves))
    for node, names in _by_node(target).items():
        console.print(f"{escape(_named(names))} then {'goes' if len(names) == 1 else 'go'} to {escape(node)}")
    if answer["emptied"]:
        but = ", but for what is left to kubectl drain" if answer.get("left") else ""
        console.print(f"empty then{but}: {escape(_named(answer['emptied'], 20))}")
    _print_rest(answer, console)
    before, after = answer["before"], answer["after"]
    console.print(f"whole nodes free: {before['freeNodes']} now, {after['freeNodes']} then")
    if before["usableGpus"] is not None:
        which = "the first of them" if len(target) > 1 else "it"
        console.print(f"free GPUs on nodes where {which} fits: {before['usableGpus']} now, {after['usableGpus']} then")


def _refused(question: Any, names: list[str]) -> str:
    """That what is asked can't be had; why comes below."""
    if nodes := question.get("empty"):
        return f"{_named(nodes)} can't{'' if len(nodes) == 1 else ' all'} be emptied"
    if count := question.get("freeNodes"):
        return f"{count} node{'' if count == 1 else 's'} can't be emptied"
    return f"no room can be made for {_named(names) or 'it'}"


def _print_rest(answer: Any, console: Console) -> None:
    """What is to be done besides."""
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
        names = (escape(move[key]) for key in ("pod", "from", "to"))
        table.add_row(str(move["step"] + 1), *names, gpus, _gpu_time(move["cost_gpu_s"]))
    return table


def _gpu_time(gpu_s: float) -> str:
    return f"{gpu_s / _HOUR_S:,.1f} GPU h" if gpu_s >= _HOUR_S else f"{gpu_s / 60:.1f} GPU min"


def _by_node(target: list[Any]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for pod in target:
        found.setdefault(pod["node"], []).append(pod["pod"])
    return found


def _named(names: list[str], most: int = _MAX_NAMED) -> str:
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
