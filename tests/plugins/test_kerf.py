"""What the kubelet gave to pods, by a node's annotation."""

from hypothesis import given
from hypothesis import strategies as st

from extender.plugins.kerf import _GIVEN, _read_given


def test_given_gpus_by_pod() -> None:
    assert _read_given({}) == ({}, ())
    given, warnings = _read_given({_GIVEN: '{"default/a": ["GPU-b", "GPU-a"], "ml/b": [], "ml/c": ["GPU-c"]}'})
    assert (given, warnings) == ({"default/a": ("GPU-a", "GPU-b"), "ml/c": ("GPU-c",)}, ())
    for text in ("", "[]", "{", '{"default/a": "GPU-a"}', '{"default/a": [1]}', "null"):
        given, warnings = _read_given({_GIVEN: text})
        assert (given, len(warnings)) == ({}, 1)
    for entry in ('"": ["GPU-a"]', '"default/a": ["GPU-a", "GPU-a"]', '"default/a": [""]', '"x/y/z": ["GPU-a"]'):
        given, warnings = _read_given({_GIVEN: f'{{{entry}, "default/b": ["GPU-b"]}}'})
        assert (given, len(warnings)) == ({"default/b": ("GPU-b",)}, 1)


@given(st.text())
def test_any_text_is_survived(text: str) -> None:
    _read_given({_GIVEN: text})
