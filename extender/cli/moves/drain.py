"""`kerf drain`: which pods have to move, and where, so that nodes be empty; or to have them moved."""

from typing import Annotated, Any

import typer

from extender.cli.client.kerf import Kerf, Output, OutputOption, asks_kerf
from extender.cli.moves.plans import make_room


@asks_kerf
def drain(
    kerf: Kerf,
    nodes: Annotated[list[str], typer.Argument(help="Nodes to empty; repeatable.", metavar="NODE...")],
    max_moves: Annotated[int | None, typer.Option(min=0, help="Most pods to move.")] = None,
    priority: Annotated[
        int | None, typer.Option(help="Don't move pods of higher priority; default: any may move.")
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Have the plan that is shown carried out.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """The cheapest moves after which nodes have no pods with GPUs; kubectl drain does the rest. Changes nothing without
    --apply.

    Exit status 0 if they can be emptied, 3 if not, 2 for wrong usage, 1 if Kerf can't be reached, or stops.
    """
    question: dict[str, Any] = {"empty": nodes}
    numbers = {"maxMoves": max_moves, "priority": priority}
    make_room(
        kerf, question | {name: number for name, number in numbers.items() if number is not None}, output, apply=apply
    )
