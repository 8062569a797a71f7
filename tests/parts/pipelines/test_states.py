"""What is done next for a pipeline: order, retries, gangs, ends, and that nothing is done twice or forgotten."""

from dataclasses import replace
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.parts.pipelines.jobs import JobPhase, Run, job_name
from extender.parts.pipelines.specs import Metadata, Pipeline, Spec, Stage, Status, Step
from extender.parts.pipelines.states import Phase, next_actions, refused

T = "2026-01-01T00:00:00Z"
LATER = "2026-01-01T01:00:00Z"


def pipeline(*stages: Stage, **spec: Any) -> Pipeline:
    return Pipeline(Metadata(name="p", namespace="ns", uid="u", generation=1), Spec(stages=list(stages), **spec))


def stage(name: str, *steps: str, **options: Any) -> Stage:
    return Stage(name, steps=[Step(step) for step in steps], **options)


class World:
    """A pipeline, and Jobs that go as the test says."""

    def __init__(self, given: Pipeline) -> None:
        self.pipeline = given
        self.runs: dict[str, Run] = {}

    def settle(self, now: str = T) -> Status:
        """Follow verdicts until there is nothing more to do."""
        for _ in range(100):
            found = next_actions(self.pipeline, self.runs.values(), now)
            for run in found.stop:
                self.runs[run.job] = replace(self.runs[run.job], stopped=True)
            for start in found.start:
                name = job_name(self.pipeline, start.stage.name, start.step.name, start.attempt)
                assert name not in self.runs
                self.runs[name] = Run(start.stage.name, start.step.name, start.attempt, name)
            done = found.status == self.pipeline.status and not found.start and not found.stop
            self.pipeline.status = found.status
            if done:
                return found.status
        raise AssertionError("there is always something more to do")

    def end(self, job: str, phase: JobPhase = JobPhase.COMPLETE, message: str = "") -> Status:
        self.runs[job] = replace(self.runs[job], phase=phase, message=message)
        return self.settle()

    @property
    def active(self) -> set[str]:
        return {name for name, run in self.runs.items() if run.phase is JobPhase.ACTIVE and not run.stopped}


def phases(status: Status) -> dict[str, str]:
    return {stage.name: stage.phase for stage in status.stages}


def test_stages_begin_once_all_that_they_follow_have_succeeded_and_each_once() -> None:
    world = World(pipeline(stage("a", "x", "y"), stage("b", "x", after=[]), stage("c", "z", after=["a", "b"])))
    assert world.settle().phase == Phase.RUNNING
    assert world.active == {"p-a-x-1", "p-a-y-1", "p-b-x-1"}
    assert phases(world.end("p-a-x-1")) == {"a": "Running", "b": "Running", "c": "Waiting"}
    world.end("p-a-y-1")
    assert world.active == {"p-b-x-1"}
    world.end("p-b-x-1")
    assert world.active == {"p-c-z-1"}
    status = world.end("p-c-z-1")
    assert (status.phase, status.completion_time) == ("Succeeded", T)
    condition = status.condition("Succeeded")
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "Succeeded")
    assert msgspec.json.decode(msgspec.json.encode(status), type=Status) == status, "it survives the API server"


def test_a_step_that_failed_is_repeated_and_the_others_are_not() -> None:
    world = World(pipeline(stage("a", "x", "y", retries=1)))
    world.settle()
    world.end("p-a-y-1")
    world.end("p-a-x-1", JobPhase.FAILED, "boom")
    assert world.active == {"p-a-x-2"}
    status = world.end("p-a-x-2", JobPhase.FAILED, "boom again")
    assert status.phase == Phase.FAILED
    assert status.stages[0].message == "step x failed 2 times: boom again"
    condition = status.condition("Succeeded")
    assert condition is not None
    assert condition.message == "stage a: step x failed 2 times: boom again"


def test_a_gang_is_repeated_whole_and_what_is_left_of_it_is_stopped() -> None:
    world = World(pipeline(stage("a", "x", "y", "z", gang=True, retries=1)))
    world.settle()
    world.end("p-a-x-1")
    world.end("p-a-y-1", JobPhase.FAILED, "boom")
    assert world.active == {"p-a-x-2", "p-a-y-2", "p-a-z-2"}
    assert world.runs["p-a-z-1"].stopped
    for name in "xyz":
        world.end(f"p-a-{name}-2")
    assert world.pipeline.status.phase == Phase.SUCCEEDED


def test_when_a_stage_has_failed_all_that_runs_is_stopped() -> None:
    world = World(pipeline(stage("a", "x", "y"), stage("b", "z"), stage("c", "z", after=[])))
    world.settle()
    status = world.end("p-a-x-1", JobPhase.FAILED, "boom")
    assert not world.active
    assert phases(status) == {"a": "Failed", "b": "Cancelled", "c": "Cancelled"}
    assert [step.phase for step in status.stages[0].steps] == ["Failed", "Cancelled"]
    assert world.end("p-a-y-1").phase == Phase.FAILED  # what ends afterwards changes nothing


def test_cancelled() -> None:
    world = World(pipeline(stage("a", "x"), stage("b", "x")))
    world.settle()
    world.end("p-a-x-1")
    world.pipeline.spec.cancel = True
    status = world.settle(LATER)
    assert not world.active
    assert (status.phase, status.completion_time) == ("Cancelled", LATER)
    assert phases(status) == {"a": "Succeeded", "b": "Cancelled"}


def test_what_succeeded_is_not_repeated_when_its_job_is_deleted_and_what_runs_is() -> None:
    world = World(pipeline(stage("a", "x", "y", retries=3), stage("b", "x")))
    world.settle()
    world.end("p-a-x-1")
    world.end("p-a-y-1", JobPhase.FAILED)
    for _ in range(2):
        world.runs.clear()
        world.settle()
        assert world.active == {"p-a-y-2"}, "as the same attempt"
    world.end("p-a-y-2")
    assert world.active == {"p-b-x-1"}


def test_times_of_conditions_are_those_of_their_last_change() -> None:
    world = World(pipeline(stage("a", "x")))
    world.settle(T)
    world.runs["p-a-x-1"] = replace(world.runs["p-a-x-1"], phase=JobPhase.COMPLETE)
    status = world.settle(LATER)
    times = {item.type: item.last_transition_time for item in status.conditions}
    assert times == {"Accepted": T, "Succeeded": LATER}


def test_a_pipeline_that_can_not_be_run_has_ended() -> None:
    status = refused(pipeline(stage("a", "x")), "Cycle", "a after a", T)
    assert (status.phase, status.completion_time) == ("Failed", T)
    assert {item.type: (item.status, item.message) for item in status.conditions} == {
        "Accepted": ("False", "a after a"),
        "Succeeded": ("False", "a after a"),
    }


_names = st.sampled_from("abcd")


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    names = draw(st.lists(_names, min_size=1, unique=True))
    stages = []
    for number, name in enumerate(names):
        steps = draw(st.lists(_names, min_size=1, max_size=3, unique=True))
        after = draw(st.none() | st.lists(st.sampled_from(names[:number]), unique=True)) if number else None
        stages.append(stage(name, *steps, gang=draw(st.booleans()), retries=draw(st.integers(0, 2)), after=after))
    return pipeline(*stages)


@settings(deadline=None)
@given(pipelines(), st.data())
def test_whatever_happens_it_ends_and_keeps_its_order(made: Pipeline, data: st.DataObject) -> None:
    """Jobs end in any order, well or not, and some are deleted: never a stage before those it needs, never forever."""
    from extender.parts.pipelines.specs import needs

    world, required = World(made), needs(made.spec.stages)
    retries = {stage.name: stage.retries for stage in made.spec.stages}
    deletions = 3
    while not world.settle().completion_time:
        done = {name for name, phase in phases(world.pipeline.status).items() if phase == Phase.SUCCEEDED}
        assert world.active, "it has not ended, and nothing runs"
        for name in world.active:
            run = world.runs[name]
            assert done.issuperset(required[run.stage])
            assert run.attempt <= retries[run.stage] + 1
        job = data.draw(st.sampled_from(sorted(world.active)))
        event = data.draw(st.sampled_from([JobPhase.COMPLETE, JobPhase.FAILED, *(["delete"] if deletions else [])]))
        if event == "delete":
            deletions -= 1
            del world.runs[job]
        else:
            world.runs[job] = replace(world.runs[job], phase=JobPhase(event))
    assert not world.active
    succeeded = all(phase == Phase.SUCCEEDED for phase in phases(world.pipeline.status).values())
    assert world.pipeline.status.phase == (Phase.SUCCEEDED if succeeded else Phase.FAILED)


def test_names_of_jobs_are_names_and_differ() -> None:
    made = pipeline()
    for name in ("p" * 63, "a.b", "x" * 40 + ".y"):
        made.metadata.name = name
        names = {job_name(made, "s" * 30, "t" * 30, attempt) for attempt in range(1, 11)}
        assert len(names) == 10
        assert all(len(item) <= 52 and "." not in item and item[0].isalnum() for item in names)
