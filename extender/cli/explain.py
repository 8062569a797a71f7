"""`kerf explain`: why a pod is on its node, or why it is pending and what would make it fit."""

import time
from typing import Annotated, Any
from urllib.parse import quote

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from extender.cli.client.kerf import (
    PENDING,
    UNKNOWN,
    USAGE,
    AnswerError,
    Kerf,
    Output,
    OutputOption,
    asks_kerf,
    fail,
    show,
)
from extender.cli.consoles import age, columns
from extender.core.texts import decimals_of, figure, printable
from extender.explain.answers import Explanation

_NOT_FOUND = 404
_NOT_OFFERED = (
    "kube-scheduler has not offered it to Kerf recently: its own plugins rule out every node (GPUs, CPU, "
    "taints, affinity: see the pod's events), the pod is gated, or its scheduler does not call Kerf. Of all nodes now:"
)
_WAITS = "it waits in Kerf's queue: {}. Of all nodes now:"
_MAX_NODES = 15
_MAX_COMPARED = 3
_LEAST_DECIMALS = 2


@asks_kerf
def explain(
    kerf: Kerf,
    pod: Annotated[str, typer.Argument(help="NAMESPACE/NAME, or NAME with -n.", metavar="POD")],
    namespace: Annotated[
        str | None, typer.Option("--namespace", "-n", help="Namespace of the pod; default: default.")
    ] = None,
    policy: Annotated[str, typer.Option("--policy", help="Another policy to compare with.", metavar="NAME")] = "",
    output: OutputOption = Output.TABLE,
) -> None:
    """Explain why a pod is on its node or pending, and what would make it fit. Asks a running Kerf.

    Exit status 0 for a placed pod, 3 for a pending one, 4 for one that neither has nor requests GPUs, 2 for wrong
    usage, 1 if Kerf can't be reached or refuses.
    """
    before, slash, name = pod.rpartition("/")
    if not name or "/" in before or (slash and not before) or (slash and namespace not in (None, before)):
        fail(f"{pod}: use NAMESPACE/NAME, or NAME with -n NAMESPACE", USAGE)
    path = f"/explain/pod/{quote(before or namespace or kerf.namespace, safe='')}/{quote(name, safe='')}"
    path += f"?policy={quote(policy, safe='')}" if policy else ""
    try:
        answer: Explanation = kerf.ask(path, wrong=lambda why: f"--policy {policy}: {why}")
    except AnswerError as error:
        fail(str(error), UNKNOWN if error.status == _NOT_FOUND else error.ends_with)
    shown = _print_running if answer.get("workload") else _print
    show(answer, output, lambda console: shown(answer, console))
    if answer["verdict"] != "placed":
        raise typer.Exit(PENDING)


def _print_running(answer: Explanation, console: Console) -> None:
    """Print a pod that has GPUs but no kept decision."""
    work = answer["workload"]
    gpus = f", GPU {', '.join(map(str, answer['gpus']))}" if answer["gpus"] else ""
    where = f"[green]{work['state']}[/green] on {escape(str(answer['node']))}{gpus}"
    console.print(f"[bold]{escape(answer['pod'])}[/bold]: {where}", soft_wrap=True)
    has = [f"{work['gpus']:.10g} x {work['model'] or 'GPU of unknown model'}"]
    has += [] if work["load"] is None else [f"load {100 * work['load']:.0f} %"]
    has += [] if work["since"] is None else [f"{age(time.time() - work['since'])} old"]
    console.print(escape(printable(", ".join([*has, f"of {work['owner']}"]))), soft_wrap=True)
    console.print(escape(answer["sentence"]), soft_wrap=True)


def _print(answer: Explanation, console: Console) -> None:
    placed = answer["verdict"] == "placed"
    verdict = f"[green]placed[/green] on {escape(str(answer['node']))}" if placed else "[red]pending[/red]"
    gpus = f", GPU {', '.join(map(str, answer['gpus']))}" if placed and answer["gpus"] else ""
    console.print(f"[bold]{escape(answer['pod'])}[/bold]: {verdict}{gpus}")
    _print_sentence(answer, console)
    if answer["policy"] is None:  # its request is invalid, so there is no decision
        return
    request = f"requests {answer['request']}; policy {answer['policy']}; decided {answer['decidedAt']}"
    console.print(escape(request), soft_wrap=True)
    if not answer["offered"]:
        console.print(_WAITS.format(escape(queue)) if (queue := answer.get("queue")) else _NOT_OFFERED, soft_wrap=True)
    if lacks := answer.get("lacks"):
        console.print(f"[bold]nearest[/bold]: {escape(lacks)}", soft_wrap=True)
    fit = sum(node["reason"] == "FITS" for node in answer["nodes"])
    had = (
        f"{len(answer['nodes'])} candidates had room"
        if answer["offered"]
        else f"{len(answer['nodes'])} nodes have room"
    )
    console.print(f"{fit} of {had}" + (":" if answer["nodes"] else ""))
    for reason, count in answer["reasons"].items():
        console.print(f"  {count:>5} x {escape(reason)}", soft_wrap=True)
    if answer["nodes"]:
        console.print(_candidates(answer["nodes"]))
    if len(answer["nodes"]) > _MAX_NODES:
        console.print(f"and {len(answer['nodes']) - _MAX_NODES} more nodes (-o json has all)")
    _print_score(answer, console)
    _print_suggestions(answer, console)
    _print_now(answer, console)


def _print_sentence(answer: Explanation, console: Console) -> None:
    """Print the sentence and remedies; older versions of Kerf send neither."""
    if "sentence" not in answer:
        return
    console.print(escape(printable(answer["sentence"])), soft_wrap=True)
    if answer["remedies"]:
        console.print("[bold]What helps[/bold]")
    for remedy in answer["remedies"]:
        command = f": {remedy['command']}" if remedy["command"] else ""
        console.print(f"  - {escape(printable(remedy['text'] + command))}", soft_wrap=True)
    if answer["ahead"]:
        before = "1 pod comes" if answer["ahead"] == 1 else f"{answer['ahead']} pods come"
        console.print(f"{before} before it in Kerf's queue, by priority, then age")
    console.print()


def _print_score(answer: Explanation, console: Console) -> None:
    """Print the parts of the best nodes' scores, by the pod's policy and the compared one."""
    nodes = [node for node in answer["nodes"] if node.get("scoreTerms")]
    if len(nodes) > 1:
        console.print(_scores(answer["scoreTerms"], nodes))
    if other := answer.get("byPolicy"):
        console.print(f"\n[bold]By policy {escape(other['policy'])}[/bold]: {escape(other['sentence']) or 'no room'}")
        if other["nodes"]:
            console.print(_scores(other["scoreTerms"], other["nodes"]))


def _scores(terms: Any, nodes: list[Any]) -> Table:
    """A row for each part of the score that is not zero, a column for each of the best nodes."""
    best = sorted(nodes, key=lambda node: node["rank"])[:_MAX_COMPARED]
    table = columns("|PART")
    for node in best:
        table.add_column(escape(node["node"]), justify="right", overflow="fold")
    table.add_column("OF", overflow="fold")
    decimals = decimals_of([node["score"] for node in best], _LEAST_DECIMALS)
    for name, meaning in terms.items():
        adds = [figure(node["scoreTerms"][name], decimals) for node in best]
        if set(adds) != {"0"}:  # zero for all of them
            table.add_row(name, *adds, escape(meaning))
    table.add_row("score", *(figure(node["score"], decimals) for node in best), "")
    return table


def _candidates(nodes: list[Any]) -> Table:
    """Nodes that fit by rank, then those nearest to fitting."""
    table = columns("|NODE", ">RANK", ">SCORE", ">FREE", "GPUS")
    for node in sorted(nodes, key=_nearest_first)[:_MAX_NODES]:
        score = node.get("score")
        gpus = node.get("gpus", [])
        table.add_row(
            escape(node["node"]),
            str(node.get("rank") or "-"),
            "-" if score is None else figure(score, _LEAST_DECIMALS),
            f"{sum(gpu.get('idle', gpu['free']) for gpu in gpus)}/{len(gpus)}",
            escape(node.get("lacks") or _gpus(gpus) or node["text"]),
        )
    return table


def _nearest_first(node: Any) -> tuple[float, bool, int]:
    """Sort key: rank, then nodes where pods are in the way before nodes that can never fit."""
    return node.get("rank") or float("inf"), not node.get("busy"), -node["available"]


def _gpus(gpus: list[Any]) -> str:
    """GPUs grouped by state: "3 x a100-sxm4-80gb in use, 5 x a100-sxm4-80gb ok"."""
    alike: dict[str, int] = {}
    for gpu in gpus:
        words = f"{gpu['model'] or 'unknown model'} {gpu['obstacle'] or 'ok'}"
        if gpu.get("unmanagedMiB"):
            words += ", used by unknown processes"
        alike[words] = alike.get(words, 0) + 1
    return ", ".join(f"{count} x {words}" for words, count in alike.items())


def _print_suggestions(answer: Explanation, console: Console) -> None:
    suggestions = answer.get("wouldFit")
    if suggestions is None:
        return
    if suggestions:
        console.print("[bold]It would fit with[/bold]")
    elif answer["now"]["nodesThatFit"]:
        again = " again" if answer["offered"] else ""
        waits = f"kube-scheduler has not offered it to Kerf{again} yet"
        console.print(f"It fits now, on {escape(str(answer['now']['bestNode']))}: {waits}")
    else:
        console.print("No smaller request would fit on any of its candidates")
    for suggestion in suggestions:
        more = ""
        if suggestion["change"] != "room":
            shown = ", ".join(suggestion["nodes"][:3])
            others = suggestion["numNodes"] - len(suggestion["nodes"][:3])
            more = f": {shown}" + (f" and {others} more nodes" if others > 0 else "")
        elif suggestion["who"]:
            more = f": {suggestion['who']}"
        console.print(f"  - {escape(suggestion['text'] + more)}", soft_wrap=True)


def _print_now(answer: Explanation, console: Console) -> None:
    now = answer["now"]
    held = now["held"]
    if held:
        gpus = f", GPU {', '.join(map(str, held['gpus']))}" if held["gpus"] else ""
        console.print(f"now: {held['state'].lower()} on {escape(held['node'])}{gpus}")
    elif answer["verdict"] == "placed":
        console.print("now: nothing is held for it: its reservation has ended, or the pod is gone")
    changed = [f"{entry['node']} {entry['freeGPUsThen']}->{entry['freeGPUsNow']}" for entry in now["changed"][:5]]
    if now["numChanged"] or now["gone"]:
        gone = f", {len(now['gone'])} gone" if now["gone"] else ""
        details = f" (free GPUs: {', '.join(changed)})" if changed else ""
        candidates = "1 candidate" if now["numChanged"] == 1 else f"{now['numChanged']} candidates"
        console.print(escape(f"since then {candidates} changed{details}{gone}"), soft_wrap=True)
