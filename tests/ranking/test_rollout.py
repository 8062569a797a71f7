"""The course of a fitted model: on by evidence alone, back by evidence, and never twice for the same model."""

import pytest

from extender.ranking import rollout as rollouts
from extender.ranking.rollout import _MAX_TRIALS, Rollout, Stage

A, B = "a" * 64, "b" * 64


def on_trial(stage: Stage = Stage.SHADOW) -> Rollout:
    course = rollouts.offered(Rollout(), A, 10.0)
    return course if stage is Stage.SHADOW else rollouts.judged(course, 0.5, 0.2, "kerf", 20.0)


def test_a_model_goes_from_shadow_to_canary_to_service() -> None:
    course = on_trial()
    assert (course.candidate, course.stage, course.since) == (A, Stage.SHADOW, 10.0)
    assert A[:12] in course.said and A not in course.said
    course = rollouts.judged(course, 0.5, 0.2, "kerf", 20.0)
    assert (course.stage, course.since, course.trials) == (Stage.CANARY, 20.0, 0)
    told = rollouts.judged(on_trial(), 0.5, 0.2, "kerf", 20.0, promised=0.75).said
    assert "+0.50 ± 0.20 points against kerf" in told and "+0.75" in told
    course = rollouts.judged(course, 0.1, 0.2, "kerf", 30.0)  # no worse is enough here: it was better before
    assert (course.serving, course.candidate, course.stage, course.promoted) == (A, "", Stage.NONE, 1)
    assert "serves: +0.10 ± 0.20" in course.said


@pytest.mark.parametrize("stage", [Stage.SHADOW, Stage.CANARY])
def test_worse_beyond_chance_takes_it_back_at_any_stage(stage: Stage) -> None:
    course = rollouts.judged(on_trial(stage), -0.3, 0.2, "fgd", 40.0)
    assert (course.candidate, course.stage, course.serving) == ("", Stage.NONE, "")
    assert (course.refused, course.taken_back) == ((A,), 1)
    assert f"withdrawn from {stage}: -0.30" in course.said
    assert rollouts.offered(course, A, 50.0) is course  # not again
    assert rollouts.offered(course, B, 50.0).candidate == B


def test_a_model_that_stays_no_better_in_shadow_is_withdrawn() -> None:
    course = on_trial()
    for trial in range(1, _MAX_TRIALS):
        course = rollouts.judged(course, 0.1, 0.2, "kerf", 20.0 + trial)
        assert (course.stage, course.trials) == (Stage.SHADOW, trial)
    course = rollouts.judged(course, 0.1, 0.2, "kerf", 90.0)
    assert course.candidate == "" and "no better in 7 trials" in course.said


def test_another_model_on_trial_leaves_the_one_that_serves() -> None:
    course = rollouts.judged(on_trial(Stage.CANARY), 0.5, 0.2, "kerf", 30.0)
    course = rollouts.offered(course, B, 40.0)
    assert (course.serving, course.candidate) == (A, B)
    assert rollouts.offered(course, A, 50.0) is course
    assert rollouts.withdrawn(course, "worse", 60.0).serving == A


def test_one_that_serves_goes_when_the_released_one_is_better() -> None:
    serving = rollouts.judged(on_trial(Stage.CANARY), 0.5, 0.2, "kerf", 30.0)
    for more, doubt in ((-0.09, 0.01), (-0.11, 0.2)):
        assert rollouts.watched(serving, more, doubt, 50.0) is serving
    course = rollouts.watched(serving, -0.11, 0.05, 50.0)
    assert (course.serving, course.refused, course.taken_back) == ("", (A,), 1)
    assert "no longer serves: -0.11 ± 0.05" in course.said


def test_refused_models_are_remembered_for_a_while() -> None:
    course = Rollout()
    for number in range(30):
        course = rollouts.withdrawn(rollouts.offered(course, f"{number:064d}", 0.0), "worse", 1.0)
    assert len(course.refused) == 20 and course.refused[-1] == f"{29:064d}"
    assert course.taken_back == 30


def test_non_finite_results_are_no_evidence() -> None:
    for more, doubt in ((float("nan"), 0.1), (0.1, float("nan")), (float("inf"), 0.1)):
        course = rollouts.judged(on_trial(Stage.CANARY), more, doubt, "kerf", 30.0)
        assert (course.candidate, course.serving) == ("", "")


def test_equal_models_stay_in_shadow() -> None:
    assert rollouts.judged(on_trial(), 0.0, 0.0, "kerf", 30.0).stage is Stage.SHADOW
    assert rollouts.judged(on_trial(Stage.CANARY), 0.0, 0.0, "kerf", 30.0).serving == A
