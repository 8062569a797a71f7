"""Order of stages, and what is wrong with one."""

from extender.parts.pipelines.specs import Spec, Stage, fault, needs


def stage(name: str, *after: str) -> Stage:
    return Stage(name, after=list(after))


def test_stages_follow_each_other_unless_they_say_what_they_follow() -> None:
    stages = [Stage("a"), Stage("b"), stage("c", "a"), stage("d"), Stage("e")]
    assert needs(stages) == {"a": (), "b": ("a",), "c": ("a",), "d": (), "e": ("d",)}
    assert fault(Spec(stages=stages)) is None
    assert fault(Spec(stages=[stage("last", "first"), stage("first")])) is None, "in whatever order they are listed"


def test_what_can_never_begin_is_named() -> None:
    for stages, reason, words in (
        ([stage("a", "nobody")], "UnknownStage", ["spec.stages[0].after: no stage is named 'nobody'"]),
        ([stage("a", "a")], "Cycle", ["a after a"]),
        ([stage("a", "b"), Stage("b")], "Cycle", ["a after b", "b after a"]),  # by the list's order
        ([stage("a", "c"), stage("b", "a"), stage("c", "b")], "Cycle", ["a after c", "c after b", "b after a"]),
    ):
        found = fault(Spec(stages=stages))
        assert found is not None
        assert found[0] == reason
        assert all(word in found[1] for word in words), "a cycle may begin anywhere"
