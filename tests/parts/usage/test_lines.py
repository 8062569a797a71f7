"""Lines of an account are bounded, whoever makes up names."""

from hypothesis import given
from hypothesis import strategies as st

from extender.parts.usage.lines import OTHER, Key, Lines


def test_who_finds_no_line_counts_under_other_of_its_namespace_and_then_of_all() -> None:
    lines = Lines(2, 2)
    for namespace in "abcde":
        lines.number(Key(namespace, "x", "t4"))
    assert lines.keys == [
        *(Key("a", "x", "t4"), Key("b", "x", "t4")),  # all the lines of owners
        Key("c", OTHER, "t4"),  # all those of namespaces
        Key(OTHER, OTHER, "t4"),
    ]


def test_busy_namespaces_have_no_more_than_a_part_and_do_not_take_the_names_of_others() -> None:
    lines = Lines(40, 4)
    for busy in range(10):
        for owner in "pqrst":
            lines.number(Key(f"busy-{busy}", owner, "t4"))
    assert lines.keys[:5] == [Key("busy-0", owner, "t4") for owner in (*"pqrs", OTHER)]
    for namespace in ("late", "later"):
        assert lines.keys[lines.number(Key(namespace, "x", "t4"))] == Key(namespace, OTHER, "t4")


def test_a_namespace_whose_others_came_first_has_all_its_lines() -> None:
    lines = Lines(2, 2)
    for namespace in "abc":
        lines.number(Key(namespace, "x", "t4"))
    lines.close(0)
    lines.close(1)
    for owner in "yz":
        assert lines.keys[lines.number(Key("c", owner, "t4"))] == Key("c", owner, "t4")


def test_a_namespace_with_a_budget_has_its_lines_however_many_there_are() -> None:
    lines = Lines(1, 1, frozenset({"paid"}))
    lines.number(Key("a", "x", "t4"))
    for owner in "xy":
        lines.number(Key("paid", owner, "t4"))
    assert [key for key in lines.keys if key and key.namespace == "paid"] == [
        Key("paid", "x", "t4"),
        Key("paid", OTHER, "t4"),
    ]


def test_equal_keys_have_one_line_and_closed_lines_make_room() -> None:
    lines = Lines(2, 2)
    assert [lines.number(Key("a", owner, "t4")) for owner in "xyx"] == [0, 1, 0]
    lines.close(0)
    assert lines.number(Key("b", "y", "t4")) == 0
    assert lines.keys == [Key("b", "y", "t4"), Key("a", "y", "t4")]
    assert lines.opened == [0, 1, 0]


NAMES = st.sampled_from("abcdefghijkl")


@given(st.lists(st.tuples(NAMES, NAMES, st.sampled_from(["t4", "a100"]), st.integers(0, 30)), max_size=120))
def test_there_are_never_more_lines_than_allowed(asked: list[tuple[str, str, str, int]]) -> None:
    lines = Lines(12, 3)
    for namespace, owner, model, closed in asked:
        number = lines.number(Key(namespace, owner, model))
        key = lines.keys[number]
        assert key is not None and key.gpu_model == model
        assert key.namespace in (namespace, OTHER) and key.owner in (owner, OTHER)
        if closed < len(lines.keys):
            lines.close(closed)
        assert sum(key is not None for key in lines.keys) <= 12 + 6 + 2
