import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.plugins.kerf import _GIVEN, _read_given


def test_what_the_kubelet_gave_by_pod() -> None:
    given, warnings = _read_given({_GIVEN: '{"default/a": ["GPU-b", "GPU-a"], "ml/b": [], "ml/c": ["GPU-c"]}'})

    assert given == {"default/a": ("GPU-a", "GPU-b"), "ml/c": ("GPU-c",)}
    assert not warnings


def test_a_node_without_it() -> None:
    assert _read_given({}) == ({}, ())


@pytest.mark.parametrize("text", ["", "[]", "{", '{"default/a": "GPU-a"}', '{"default/a": [1]}', "null"])
def test_garbage_says_nothing(text: str) -> None:
    given, warnings = _read_given({_GIVEN: text})

    assert given == {}
    assert len(warnings) == 1


@pytest.mark.parametrize(
    "text", ['{"": ["GPU-a"]}', '{"default/a": ["GPU-a", "GPU-a"]}', '{"default/a": [""]}', '{"x/y/z": ["GPU-a"]}']
)
def test_an_entry_that_can_not_be_is_left_out(text: str) -> None:
    given, warnings = _read_given({_GIVEN: text[:-1] + ', "default/b": ["GPU-b"]}'})

    assert given == {"default/b": ("GPU-b",)}
    assert len(warnings) == 1


@given(st.text())
def test_any_text_is_survived(text: str) -> None:
    _read_given({_GIVEN: text})
