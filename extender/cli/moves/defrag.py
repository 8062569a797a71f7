"""`kerf defrag`: which pods to move so that others fit, or nodes or sick GPUs become free; or to have them moved."""

from typing import Annotated, Any

import typer

from extender.cli.client.kerf import USAGE, Kerf, Output, OutputOption, asks_kerf, fail
from extender.cli.client.manifests import read_text
from extender.cli.moves.plans import make_room, stop


@asks_kerf
def defrag(  # noqa: PLR0913, PLR0917 - options of a command
    kerf: Kerf,
    waiting: Annotated[
        str | None, typer.Option("--for", help="A pod or gang that waits: NAME or NAMESPACE/NAME.")
    ] = None,
    files: Annotated[
        list[str] | None,
        typer.Option(
            "--file", "-f", help="Manifests of pods, or of what makes some, to make room for; `-` reads standard input."
        ),
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="So many free GPUs on a node.")] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="With --gpus: on so many nodes.")] = None,
    free_nodes: Annotated[int | None, typer.Option(min=1, help="So many GPU nodes without any pod.")] = None,
    heal: Annotated[bool, typer.Option("--heal", help="No pods on sick GPUs.")] = False,
    max_moves: Annotated[int | None, typer.Option(min=0, help="Most pods to move.")] = None,
    priority: Annotated[
        int | None, typer.Option(help="Don't move pods of higher priority; default: than the pods that wait have.")
    ] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Have the plan that is shown carried out.")] = False,
    stops: Annotated[bool, typer.Option("--stop", help="Stop moving pods.")] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """The cheapest moves by which pods would fit, or nodes or sick GPUs become free.

    Changes nothing without --apply.

    Exit status 0 if there is room, or can be made; 3 if not; 2 for wrong usage; 1 if Kerf can't be reached, or stops.
    """
    if stops:
        stop(kerf)
        return
    question: dict[str, Any] = {}
    if waiting:
        question["for"] = waiting if "/" in waiting else f"{kerf.namespace}/{waiting}"
    if files:
        question |= {"manifest": [read_text(name) for name in files], "namespace": kerf.namespace}
    numbers = {"gpus": gpus, "nodes": nodes, "freeNodes": free_nodes, "maxMoves": max_moves, "priority": priority}
    question |= {name: number for name, number in numbers.items() if number is not None}
    if heal:
        question["heal"] = True
    if not question.keys() & {"for", "manifest", "gpus", "nodes", "freeNodes", "heal"}:
        fail("room for what? Write --for POD, -f FILE, --gpus 8 --nodes 2, --free-nodes 2 or --heal", USAGE)
    make_room(kerf, question, output, apply=apply, files=files or ())
