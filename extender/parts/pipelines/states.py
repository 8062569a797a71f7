"""The next actions for a pipeline and its status, as pure functions of its spec, status and Jobs.

The Jobs record what was started. The status records what succeeded, so that a Job that is deleted afterwards is not
repeated.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from msgspec.structs import replace

from extender.parts.pipelines.jobs import JobPhase, Run, job_name
from extender.parts.pipelines.specs import (
    ACCEPTED,
    SUCCEEDED,
    Condition,
    Pipeline,
    Stage,
    StageStatus,
    Status,
    Step,
    StepStatus,
    needs,
)


class Phase(StrEnum):
    """Phase of a pipeline, a stage or a step."""

    WAITING = "Waiting"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    CANCELLED = "Cancelled"


@dataclass(frozen=True, slots=True)
class Start:
    """A Job to create."""

    stage: Stage
    step: Step
    attempt: int


@dataclass(frozen=True, slots=True)
class NextActions:
    """The new status and the next actions."""

    status: Status
    start: tuple[Start, ...] = ()
    stop: tuple[Run, ...] = ()
    """Jobs to suspend, which ends their pods and keeps the Jobs for inspection."""


def refused(pipeline: Pipeline, reason: str, message: str, now: str) -> Status:
    """The status of a pipeline that can't be run."""
    conditions = [Condition(ACCEPTED, "False", reason, message), Condition(SUCCEEDED, "False", "NotAccepted", message)]
    return Status(
        phase=Phase.FAILED,
        observed_generation=pipeline.metadata.generation,
        start_time=pipeline.status.start_time or now,
        completion_time=now,
        conditions=_with_transition_times(conditions, pipeline.status, now),
    )


def next_actions(pipeline: Pipeline, runs: Iterable[Run], now: str) -> NextActions:
    """The status and next actions for an accepted pipeline; `now` is in the API server's format."""
    before, known = pipeline.status, list(runs)
    started: list[Start] = []
    stages: list[StageStatus] = []
    required = needs(pipeline.spec.stages)
    past = {stage.name: stage for stage in before.stages}
    done = {name for name, stage in past.items() if stage.phase == Phase.SUCCEEDED}
    for stage in pipeline.spec.stages:
        last = past.get(stage.name)
        if last is not None and (last.phase == Phase.SUCCEEDED or before.completion_time):
            stages.append(last)
        elif all(name in done for name in required[stage.name]):
            begun, start = _stage(pipeline, stage, known, last, now)
            stages.append(begun)
            started += start
        else:
            steps = [StepStatus(step.name, Phase.WAITING) for step in stage.steps]
            stages.append(StageStatus(stage.name, Phase.WAITING, steps=steps))
    phase = _phase(pipeline, [stage.phase for stage in stages])
    ended = phase in (Phase.SUCCEEDED, Phase.FAILED, Phase.CANCELLED)
    if ended:
        started = []
        stages = [_ended(stage, now) for stage in stages]
    current = {(stage.name, step.name): step.attempt for stage in stages for step in stage.steps}
    stop = tuple(
        run
        for run in known
        if run.phase is JobPhase.ACTIVE
        and not run.stopped
        and (ended or current.get((run.stage, run.step), 0) > run.attempt)
    )
    why = next((f"stage {stage.name}: {stage.message}" for stage in stages if stage.phase == Phase.FAILED), "")
    outcome = {Phase.SUCCEEDED: "True", Phase.FAILED: "False", Phase.CANCELLED: "False"}.get(phase, "Unknown")
    status = Status(
        phase=phase,
        stage=", ".join(stage.name for stage in stages if stage.phase == Phase.RUNNING),
        observed_generation=pipeline.metadata.generation,
        start_time=before.start_time or now,
        completion_time=(before.completion_time or now) if ended else None,
        conditions=_with_transition_times(
            [Condition(ACCEPTED, "True", "Valid"), Condition(SUCCEEDED, outcome, phase.value, why)], before, now
        ),
        stages=stages,
    )
    return NextActions(status, tuple(started), stop)


def _phase(pipeline: Pipeline, phases: Sequence[str]) -> Phase:
    if pipeline.status.completion_time:
        return Phase(pipeline.status.phase)
    if all(phase == Phase.SUCCEEDED for phase in phases):
        return Phase.SUCCEEDED
    if Phase.FAILED in phases:
        return Phase.FAILED
    return Phase.CANCELLED if pipeline.spec.cancel else Phase.RUNNING


def _stage(
    pipeline: Pipeline, stage: Stage, runs: Sequence[Run], last: StageStatus | None, now: str
) -> tuple[StageStatus, list[Start]]:
    """Status and steps to start of a stage that has begun or begins now."""
    past = {step.name: step for step in last.steps} if last is not None else {}
    known = {(run.step, run.attempt): run for run in runs if run.stage == stage.name}
    attempts = {
        step.name: max(
            1, past[step.name].attempt if step.name in past else 0, *(n for name, n in known if name == step.name)
        )
        for step in stage.steps
    }
    if stage.gang:  # if one fails, all are repeated
        attempts = dict.fromkeys(attempts, max(attempts.values()))
    failed = {
        name: known[name, attempt]
        for name, attempt in attempts.items()
        if (name, attempt) in known and known[name, attempt].phase is JobPhase.FAILED
    }
    for name in attempts if stage.gang and failed else failed:
        if attempts[name] <= stage.retries:
            attempts[name] += 1
    steps: list[StepStatus] = []
    start: list[Start] = []
    for step in stage.steps:
        attempt = attempts[step.name]
        run, was = known.get((step.name, attempt)), past.get(step.name)
        if run is None and was is not None and (was.phase, was.attempt) == (Phase.SUCCEEDED, attempt):
            steps.append(was)
            continue
        if run is None:
            start.append(Start(stage, step, attempt))
        phase = _PHASES[run.phase] if run is not None else Phase.RUNNING
        message = run.message if run is not None else failed[step.name].message if step.name in failed else ""
        job = job_name(pipeline, stage.name, step.name, attempt)
        steps.append(StepStatus(step.name, phase, attempt, job, message))
    began = (last.start_time if last is not None else None) or now
    out_of_retries = next((step for step in steps if step.phase == Phase.FAILED), None)
    if out_of_retries is not None:
        times = "once" if out_of_retries.attempt == 1 else f"{out_of_retries.attempt} times"
        why = f"step {out_of_retries.name} failed {times}: {out_of_retries.message}"
        return StageStatus(stage.name, Phase.FAILED, began, now, why, steps), []
    if all(step.phase == Phase.SUCCEEDED for step in steps):
        return StageStatus(stage.name, Phase.SUCCEEDED, began, now, "", steps), []
    return StageStatus(stage.name, Phase.RUNNING, began, None, "", steps), start


_OPEN = (Phase.RUNNING, Phase.WAITING)
_PHASES = {JobPhase.ACTIVE: Phase.RUNNING, JobPhase.COMPLETE: Phase.SUCCEEDED, JobPhase.FAILED: Phase.FAILED}


def _ended(stage: StageStatus, now: str) -> StageStatus:
    """A stage of an ended pipeline: what has not finished is cancelled."""
    steps = [replace(step, phase=Phase.CANCELLED) if step.phase in _OPEN else step for step in stage.steps]
    if stage.phase in _OPEN:
        return replace(stage, phase=Phase.CANCELLED, completion_time=now, steps=steps)
    return replace(stage, steps=steps)


def _with_transition_times(conditions: list[Condition], before: Status, now: str) -> list[Condition]:
    """Conditions with the time at which the status of each last changed."""
    result = []
    for item in conditions:
        last = before.condition(item.type)
        since = last.last_transition_time if last is not None and last.status == item.status else now
        result.append(replace(item, last_transition_time=since))
    return result
