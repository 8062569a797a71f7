"""The command line of the benchmarks, `kerf bench`."""

from pathlib import Path
from typing import Annotated

import typer

from extender.ranking import files
from tests.tools.bench import (
    calls,
    defrags,
    guards,
    hostiles,
    idles,
    jobs,
    learned,
    ledgers,
    planners,
    reports,
    schedulers,
    starts,
    telemetry,
    wires,
)
from tests.tools.bench.consoles import progress, publish, show

app = typer.Typer(
    help="Measure Kerf beside a plain kube-scheduler and a bare echo, on a real control plane.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


JsonOption = Annotated[str | None, typer.Option("--json", help="File for the figures; - is standard output.")]
RepetitionsOption = Annotated[int, typer.Option(min=1, help="Repetitions.")]
NodesOption = Annotated[int, typer.Option(min=1, help="Nodes of 8 GPUs.")]
BatchNodesOption = Annotated[int, typer.Option(min=1, help="Its nodes of 8 GPUs.")]
ModelOption = Annotated[Path | None, typer.Option(help="Folder of a model; default: the released one.")]
_HALF_WITH_GPUS = "Running pods: half with one GPU, half with none."
_CALLS_OF_FILTER = "Calls of filter of each kind."


@app.command()
def scheduler(
    nodes: NodesOption = 5000,
    pods: Annotated[int, typer.Option(min=2, help="Pods of one run.")] = 1500,
    view: Annotated[schedulers.View, typer.Option(help="All nodes, or the default sample.")] = schedulers.View.FULL,
    modes: Annotated[
        str,
        typer.Option(
            help="Which of none, echo, best, decisive, scores, planned, planner, bare; none-unbatched; dra, "
            "dra-planned, dra-written."
        ),
    ] = ",".join(schedulers.COUNTING),
    pod_gpus: Annotated[int, typer.Option(min=1, max=8, help="GPUs of each pod.")] = 1,
    repetitions: RepetitionsOption = 5,
    *,
    backlog: Annotated[bool, typer.Option("--backlog", help="All pods exist before the first is placed.")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds until an unbound pod fails a run.")] = 600.0,
    templates: Annotated[
        bool, typer.Option("--templates", help="Claims are made from a template, by Kubernetes' controller.")
    ] = False,
    unlike: Annotated[
        bool, typer.Option("--nodes-unlike", help="CPU, memory, GPUs and models drawn; half of the nodes partly used.")
    ] = False,
    stream: Annotated[
        float, typer.Option(min=0, help="Seconds of a steady stream of pods, Events counted; 0: --pods at once.")
    ] = 0.0,
    json: JsonOption = None,
) -> None:
    """Pods per second of a real kube-scheduler: no extender, the bare Go echo, the best that can be, Kerf."""
    if stream and backlog:
        raise typer.BadParameter("a stream has no --backlog: it creates pods as others are bound")
    plan = schedulers.Plan(
        nodes=nodes,
        pods=pods,
        view=view,
        modes=_modes(modes),
        pod_gpus=pod_gpus,
        repetitions=repetitions,
        backlog=backlog,
        timeout_s=timeout,
        templates=templates,
        unlike=unlike,
        stream_s=stream,
    )
    show(schedulers.measure, plan, reports.scheduler_table, json)


@app.command(name="calls")
def time_calls(
    nodes: NodesOption = 5000,
    requests: Annotated[int, typer.Option(min=2, help="Requests per repetition, verb and number of names.")] = 300,
    repetitions: RepetitionsOption = 5,
    mode: Annotated[str, typer.Option(help="decisive or scores.")] = "decisive",
    pods: Annotated[int, typer.Option(min=0, help=_HALF_WITH_GPUS)] = 0,
    json: JsonOption = None,
) -> None:
    """Time of filter and prioritize beside a loopback echo of the same bytes."""
    plan = calls.Plan(nodes, requests, repetitions, mode, pods)
    show(calls.measure, plan, reports.calls_table, json)


@app.command(name="jobs")
def complete_jobs(  # noqa: PLR0917 - options, none of them positional
    jobs_file: Annotated[Path | None, typer.Option("--jobs", help="Jobs in Philly's form; default: drawn.")] = None,
    num_jobs: Annotated[int, typer.Option("--number", min=2, help="Jobs of a run.")] = 200,
    nodes: NodesOption = 2,
    load: Annotated[float, typer.Option(min=0.1, help="Work submitted, by capacity.")] = 1.5,
    span: Annotated[float, typer.Option(min=1, help="Seconds from first to last submission.")] = 60.0,
    skip_days: Annotated[float, typer.Option(min=0, help="Days to leave out: those that lists were chosen on.")] = 0.0,
    seeds: Annotated[int, typer.Option(min=1, help="Lists of jobs.")] = 3,
    first_seed: Annotated[int, typer.Option(min=0, help="Of the first list; the others follow.")] = 42,
    at_once: Annotated[int, typer.Option(min=1, help="Runs side by side, two to a list.")] = 1,
    json: JsonOption = None,
) -> None:
    """Job completion under kube-scheduler alone and under Kerf's queue, beside the simulator's prediction."""
    listed = tuple(range(first_seed, first_seed + seeds))
    plan = jobs.Plan(jobs_file, num_jobs, nodes, load, span, skip_days, listed, at_once)
    show(jobs.measure, plan, reports.jobs_table, json)


@app.command(name="planners")
def compare_planners(
    pods: Annotated[int, typer.Option(min=1, help="Pods of the batch that all planners get.")] = 200,
    nodes: BatchNodesOption = 500,
    many_pods: Annotated[int, typer.Option(min=1, help="Pods of the batch that only greedy gets.")] = 10_000,
    many_nodes: BatchNodesOption = 5000,
    repetitions: RepetitionsOption = 3,
    json: JsonOption = None,
) -> None:
    """Quality and time of the planners on the same batches."""
    plan = planners.Plan(pods, nodes, many_pods, many_nodes, repetitions)
    show(planners.measure, plan, reports.planners_table, json)


@app.command(name="defrag")
def make_room(
    nodes: NodesOption = 500,
    pods: Annotated[int, typer.Option(min=1, help="Running pods, of 1 to 8 GPUs and of none.")] = 4000,
    gang: Annotated[int, typer.Option(min=1, help="Whole nodes that room is made for.")] = 64,
    load: Annotated[float, typer.Option(min=0, max=1, help="Part of the GPUs in use.")] = 0.8,
    limit: Annotated[float, typer.Option(min=0, help="Seconds after which no better moves are sought.")] = 10.0,
    repetitions: RepetitionsOption = 3,
    json: JsonOption = None,
) -> None:
    """Moves that make room for a gang of whole nodes: time, cost, and how far from a lower bound."""
    plan = defrags.Plan(nodes, pods, gang, load, limit, repetitions)
    show(defrags.measure, plan, reports.defrag_table, json)


@app.command()
def start(
    nodes: NodesOption = 5000,
    pods: Annotated[int, typer.Option(min=2, help=_HALF_WITH_GPUS)] = 40000,
    repetitions: RepetitionsOption = 3,
    json: JsonOption = None,
) -> None:
    """Time from the start of the process to ready, and memory."""
    plan = starts.Plan(nodes, pods, repetitions)
    show(starts.measure, plan, reports.start_table, json)


@app.command()
def idle(
    nodes: NodesOption = 5000,
    seconds: Annotated[float, typer.Option(min=1, help="Seconds that each row is watched for.")] = 60.0,
    settle: Annotated[float, typer.Option(min=0, help="Seconds after ready until then.")] = 30.0,
    json: JsonOption = None,
) -> None:
    """Processor time and memory of `kerf serve` while nothing happens: as shipped, with the queue, and called."""
    show(idles.measure, idles.Plan(nodes, seconds, settle), reports.idle_table, json)


@app.command()
def ledger(
    nodes: NodesOption = 5000,
    pods: Annotated[int, typer.Option(min=1, help="Running pods with shares of GPUs.")] = 20000,
    events: Annotated[int, typer.Option(min=10, help="Events of the watch.")] = 20000,
    requests: Annotated[int, typer.Option(min=2, help="Calls of filter on each cluster.")] = 1000,
    json: JsonOption = None,
) -> None:
    """Time of one watch event, and of filter with device choice beside filter that counts."""
    plan = ledgers.Plan(nodes, pods, events, requests)
    show(ledgers.measure, plan, reports.ledger_table, json)


@app.command(name="hostile")
def measure_hostile(
    nodes: NodesOption = 500,
    pods: Annotated[int, typer.Option(min=10, help="Hostile pods, and as many ordinary ones that run.")] = 2000,
    repetitions: RepetitionsOption = 1,
    leave_out: Annotated[
        list[str] | None, typer.Option(help="A kind of hostile pods to leave out; repeatable.")
    ] = None,
    json: JsonOption = None,
) -> None:
    """Filter for others, and memory, while an author makes hostile pods of every kind, beside as many plain ones."""
    plan = hostiles.Plan(nodes, pods, repetitions, leave_out=tuple(leave_out or ()))
    show(hostiles.measure, plan, reports.hostile_table, json)


@app.command(name="learned")
def measure_learned(
    nodes: NodesOption = 5000,
    requests: Annotated[int, typer.Option(min=10, help=_CALLS_OF_FILTER)] = 300,
    model: ModelOption = None,
    json: JsonOption = None,
) -> None:
    """Filter with the learned rank beside best fit, in turn: with values cached, and for requests never seen before."""
    plan = learned.Plan(nodes, requests, model)
    show(learned.measure, plan, reports.learned_table, json)


@app.command()
def guard(
    nodes: NodesOption = 5000,
    requests: Annotated[int, typer.Option(min=10, help=_CALLS_OF_FILTER, hidden=True)] = 300,
    scheduler_nodes: Annotated[int, typer.Option(min=1, help="Nodes of kube-scheduler's runs.", hidden=True)] = 500,
    pods: Annotated[int, typer.Option(min=2, help="Pods of one of kube-scheduler's runs.", hidden=True)] = 300,
    repetitions: RepetitionsOption = 2,
    against: Annotated[Path | None, typer.Option(help="Figures of an earlier run to hold these against.")] = None,
    margin: Annotated[float, typer.Option(min=0, help="Percent by which a ratio may be larger than there.")] = 100
    * guards.MARGIN,
    json: JsonOption = None,
) -> None:
    """Ratios alone, in three minutes, to hold a change against; exit status 1 where one is worse than before."""
    plan = guards.Plan(nodes, requests, scheduler_nodes, pods, repetitions, against, margin / 100)
    if show(guards.measure, plan, reports.guard_table, json)["worse"]:
        raise typer.Exit(1)


@app.command()
def wire(
    traces: Annotated[Path, typer.Option(envvar="KERF_TRACES", help="Folder of the traces' files.")],
    trace: Annotated[str, typer.Option(help="Name of the trace.")] = "default",
    seed: Annotated[int, typer.Option(help="Of the order of arrivals.")] = 1,
    nodes: Annotated[int | None, typer.Option(min=1, help="So many of the nodes; default: all.")] = None,
    *,
    cpu_pods: Annotated[bool, typer.Option("--cpu-pods", help="With the pods that ask for no GPU.")] = False,
    oracle: Annotated[bool, typer.Option("--oracle", help="Kerf is told the mix of the pods beforehand.")] = False,
    model: ModelOption = None,
    pods_per_s: Annotated[
        float | None, typer.Option(min=0.1, help="How fast pods come; default: as fast as they are taken.")
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="Who asks for a part of a GPU asks for all of it.")] = False,
    planner: Annotated[bool, typer.Option("--planner", help="All pods wait in the queue; no extender.")] = False,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds that kube-scheduler may take for all pods.")] = 3600.0,
    json: JsonOption = None,
) -> None:
    """A trace through kube-scheduler and Kerf as shipped beside the simulator; exit status 1 beyond 0.2 points."""
    plan = wires.Plan(
        traces=traces,
        trace=trace,
        seed=seed,
        nodes=nodes,
        cpu_pods=cpu_pods,
        oracle=oracle,
        model=model or files.RELEASED,
        pods_per_s=pods_per_s,
        whole=whole,
        planner=planner,
        timeout_s=timeout,
    )
    if not wires.met(show(wires.measure, plan, reports.wire_table, json)):
        raise typer.Exit(1)


@app.command(name="telemetry")
def measure_telemetry(
    nodes: NodesOption = 5000,
    refreshes: Annotated[int, typer.Option(min=1, help="Refreshes.")] = 5,
    requests: Annotated[int, typer.Option(min=100, help="Calls of filter in each of three states.")] = 1000,
    json: JsonOption = None,
) -> None:
    """A refresh from a real Prometheus, and what telemetry does to filter."""
    plan = telemetry.Plan(nodes, refreshes, requests)
    show(telemetry.measure, plan, reports.telemetry_table, json)


@app.command(name="all")
def measure_all(
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes: shows that all works, no figures.")] = False,
    json: JsonOption = None,
) -> None:
    """Everything, kube-scheduler in modest sizes: what `make bench` runs."""
    time_calls_plan, start_plan, scheduler_plans = _quick_plans() if quick else _plans()
    ledger_plan = ledgers.Plan(nodes=100, pods=400, events=100, requests=20) if quick else ledgers.Plan()
    num_steps = ledger_plan.num_steps + time_calls_plan.num_steps + start_plan.num_steps
    num_steps += sum(plan.num_steps for plan in scheduler_plans)
    with progress(num_steps) as tell:
        report: reports.Report = {
            "ledger": ledgers.measure(ledger_plan, tell),
            "calls": calls.measure(time_calls_plan, tell),
            "start": starts.measure(start_plan, tell),
            "scheduler": [schedulers.measure(plan, tell) for plan in scheduler_plans],
        }
    tables = [
        reports.ledger_table(report["ledger"]),
        reports.calls_table(report["calls"]),
        reports.start_table(report["start"]),
    ]
    publish(report, tables + [reports.scheduler_table(part) for part in report["scheduler"]], json)


def _plans() -> tuple[calls.Plan, starts.Plan, list[schedulers.Plan]]:
    """One-GPU and whole-node pods both: plain kube-scheduler may batch the latter."""
    variants = [(view, pod_gpus) for view in schedulers.View for pod_gpus in (1, 8)]
    plans = [schedulers.Plan(1000, 500, view, pod_gpus=pod_gpus, repetitions=2) for view, pod_gpus in variants]
    few = (schedulers.Mode.NONE, schedulers.Mode.BEST, schedulers.Mode.DECISIVE)
    sample = schedulers.View.DEFAULT
    plans += [
        schedulers.Plan(1000, 500, sample, few, repetitions=2, unlike=True),
        schedulers.Plan(5000, 500, sample, few, repetitions=1, stream_s=60.0),
    ]
    return calls.Plan(), starts.Plan(), plans


def _quick_plans() -> tuple[calls.Plan, starts.Plan, list[schedulers.Plan]]:
    full, sample = schedulers.View
    few = (schedulers.Mode.NONE, schedulers.Mode.DECISIVE)
    return (
        calls.Plan(nodes=200, requests=20, repetitions=1),
        starts.Plan(nodes=100, pods=500, repetitions=1),
        [
            schedulers.Plan(120, 60, full, repetitions=1),
            schedulers.Plan(120, 60, sample, few, pod_gpus=8, repetitions=1),
            schedulers.Plan(120, 60, sample, (*few, schedulers.Mode.BEST), repetitions=1, unlike=True),
            schedulers.Plan(120, 60, sample, few, repetitions=1, stream_s=2.0),
        ],
    )


def _modes(text: str) -> tuple[schedulers.Mode, ...]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    try:
        modes = tuple(dict.fromkeys(schedulers.Mode(name) for name in names))
    except ValueError as error:
        raise typer.BadParameter(f"{error}; write some of {','.join(schedulers.Mode)}") from None
    if not modes:
        raise typer.BadParameter(f"write some of {','.join(schedulers.Mode)}")
    return modes
