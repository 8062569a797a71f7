"""Order of stages, and what is wrong with one."""

import pytest

from extender.parts.pipelines.specs import Spec, Stage, fault, needs


def stage(name: str, *after: str) -> Stage:
    return Stage(name, after=list(after))


def test_stages_follow_each_other_unless_they_say_what_they_follow() -> None:
    stages = [Stage("a"), Stage("b"), stage("c", "a"), stage("d"), Stage("e")]
    assert needs(stages) == {"a": (), "b": ("a",), "c": ("a",), "d": (), "e": ("d",)}
    assert fault(Spec(stages=stages)) is None


def test_the_order_of_the_list_is_not_that_of_the_stages() -> None:
    assert fault(Spec(stages=[stage("last", "first"), stage("first")])) is None


@pytest.mark.parametrize(
    ("stages", "reason", "words"),
    [
        pytest.param(
            [stage("a", "nobody")], "UnknownStage", "spec.stages[0].after: no stage is named 'nobody'", id="?"
        ),
        pytest.param([stage("a", "a")], "Cycle", "a after a", id="itself"),
        pytest.param([stage("a", "b"), Stage("b")], "Cycle", "a after b after a", id="by the list's order"),
        pytest.param([stage("a", "c"), stage("b", "a"), stage("c", "b")], "Cycle", "a after c after b after a", id="3"),
    ],
)
def test_what_can_never_begin_is_named(stages: list[Stage], reason: str, words: str) -> None:
    found = fault(Spec(stages=stages))
    assert found is not None
    assert found[0] == reason
    assert _turned(words, found[1])


def _turned(words: str, message: str) -> bool:
    """Whether a message has the words, a cycle from whichever of its stages it begins."""
    if " after " not in words:
        return words in message
    names = words.split(" after ")[:-1]
    return any(" after ".join([*names[n:], *names[:n], names[n]]) in message for n in range(len(names)))
