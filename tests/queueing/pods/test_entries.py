"""Stages of a pod in the queue: each transition from each stage, and what it leaves behind."""

from collections.abc import Callable

import pytest

from extender.queueing.pods.entries import Entry, Stage, StageError
from tests.queueing.watches import nominated, pod, refused

GATED, NOMINATING, OPENING, WITHDRAWING, OPENED, LOST, RENOMINATING, UNSETTLED = Stage
TRANSITIONS: dict[str, tuple[Callable[[Entry], None], dict[Stage, Stage]]] = {
    "reserve": (lambda entry: entry.reserve("n"), {GATED: NOMINATING, LOST: RENOMINATING}),
    "open": (lambda entry: entry.open(1.0), {GATED: OPENING, NOMINATING: OPENING}),
    "was_opened": (lambda entry: entry.was_opened(), {OPENING: OPENED}),
    "withdraw": (lambda entry: entry.withdraw(), {GATED: WITHDRAWING}),
    "put_back": (lambda entry: entry.put_back(1.0), {NOMINATING: GATED, OPENING: GATED, WITHDRAWING: GATED}),
    "find_open": (lambda entry: entry.find_open(1.0), {GATED: OPENED}),
    "lose": (lambda entry: entry.lose("n"), {OPENED: LOST}),
    "renominated": (lambda entry: entry.renominated(1.0), {RENOMINATING: OPENED}),
    "stay_lost": (lambda entry: entry.stay_lost(), {RENOMINATING: LOST}),
    "recall": (lambda entry: entry.recall(), {OPENED: GATED}),
    "doubt": (
        lambda entry: entry.doubt(),
        dict.fromkeys((GATED, NOMINATING, OPENING, OPENED, LOST, RENOMINATING), UNSETTLED),
    ),
    "settle_open": (lambda entry: entry.settle_open(entry.pod, 1.0), {UNSETTLED: OPENED}),
    "settle_shut": (lambda entry: entry.settle_shut(entry.pod), {UNSETTLED: GATED}),
    "settle_lost": (lambda entry: entry.settle_lost(entry.pod), {UNSETTLED: LOST}),
    "give_up": (lambda entry: entry.give_up(), {LOST: OPENED}),
}


def entry(stage: Stage = GATED, *, gated: bool = True) -> Entry:
    return Entry(pod(gated=gated), created=0.0, seen=0.0, stage=stage)


@pytest.mark.parametrize("stage", list(Stage))
@pytest.mark.parametrize("name", list(TRANSITIONS))
def test_every_other_transition_is_refused_and_changes_nothing(name: str, stage: Stage) -> None:
    make, allowed = TRANSITIONS[name]
    found = entry(stage)
    if stage in allowed:
        make(found)
        assert found.stage is allowed[stage]
    else:
        with pytest.raises(StageError, match=stage.value):
            make(found)
        assert (found.stage, found.node, found.num_lost) == (stage, "", 0)


@pytest.mark.parametrize("stage", [NOMINATING, OPENING, WITHDRAWING])
def test_what_somebody_else_has_opened_meanwhile_is_not_put_back_behind_its_gate(stage: Stage) -> None:
    found = entry(stage, gated=False)
    found.put_back(5.0)
    assert (found.stage, found.opened, found.node, found.by_kerf) == (OPENED, 5.0, "", False)


def test_a_pod_found_open_is_known_by_what_is_written_on_it() -> None:
    planned = pod(gated=False, annotations={"kerf.dev/planned-node": "n"})
    for manifest, stage, node, by_kerf in (
        (nominated(planned, "n"), OPENED, "n", True),
        (nominated(planned, "m"), OPENED, "", False),
        (refused(planned), LOST, "", False),
    ):
        found = Entry(manifest, created=0.0, seen=0.0)
        found.find_open(1.0)
        assert (found.stage, found.node, found.by_kerf) == (stage, node, by_kerf)


def test_a_pod_is_on_its_way_from_its_reservation_until_a_while_after_it_was_opened() -> None:
    found = entry()
    found.reserve("n")
    assert found.on_its_way(1000.0, within_s=30.0)
    found.open(1000.0)
    found.was_opened()
    assert found.on_its_way(1029.9, within_s=30.0)
    assert not found.on_its_way(1030.0, within_s=30.0)
    found.lose("n")
    assert not found.on_its_way(1000.0, within_s=30.0)
