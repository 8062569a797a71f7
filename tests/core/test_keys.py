"""Every key of `kerf.dev/` is in one table, and what is none of them is told, with what it was meant to be."""

import ast
from pathlib import Path

import pytest

import extender
from extender.core.keys import _KEYS, _PREFIX, _WRITTEN_BEGIN, _Kind, _names_on, _On, stray_keys
from extender.parts import NAMES
from tests.spending import at_most

_NOT_KEYS = {"kerf.dev/v1alpha1"}
"""The version of the API group."""


def texts_of(source: Path) -> set[str]:
    """Texts of a module that are keys as a whole."""
    written = source.read_text()
    nodes = ast.walk(ast.parse(written)) if _PREFIX in written else ()
    found = (node.value for node in nodes if isinstance(node, ast.Constant))
    return {
        text
        for text in found
        if isinstance(text, str) and text.startswith(_PREFIX) and text != _PREFIX and " " not in text
    }


def told(annotations: dict[str, str] | None = None, labels: dict[str, str] | None = None) -> list[str]:
    return [str(stray) for stray in stray_keys(annotations or {}, labels or {})]


def test_the_table_has_the_keys_of_the_code_and_no_others() -> None:
    rooms = Path(extender.__file__).parent
    table = rooms / "core" / "keys.py"
    named = {key for module in rooms.rglob("*.py") if module != table for key in texts_of(module)} - _NOT_KEYS
    named = {key for key in named if not key.endswith("-")}
    assert named == {key.name for key in _KEYS if not key.of or key.of in NAMES}


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("gpu-modle", "gpu-model"),
        ("gpumodel", "gpu-model"),
        ("gpu_model", "gpu-model"),
        ("GPU-Model", "gpu-model"),
        ("gpu-memmory-each", "gpu-memory-each"),
        ("gpu-memory", "gpu-memory-each"),
        ("gpu-coutn", "gpu-count"),
        ("gpu-number", "gpu-count"),
        ("model", "gpu-model"),
        ("memory", "gpu-memory-each"),
        ("gpu-uuids", "gpu-uuid"),
        ("gang-sise", "gang-size"),
        ("moveable", "movable"),
        ("polcy", "policy"),
        ("qeue", "queue"),
        ("foo", ""),
        ("team", ""),
        ("cost-center", ""),
        ("x" * 63, ""),
    ],
)
@pytest.mark.parametrize("kind", [_Kind.ANNOTATION, _Kind.LABEL])
def test_a_key_that_does_not_exist_is_told_with_the_one_that_is_close(word: str, meant: str, kind: _Kind) -> None:
    said = {f"kerf.dev/{word}": "x"}
    sentence = f"kerf.dev/{word}: no such key{f'; do you mean kerf.dev/{meant}?' if meant else ''}"
    assert (told(said) if kind is _Kind.ANNOTATION else told(labels=said)) == [sentence]


def test_a_key_in_the_wrong_place_is_told_where_it_belongs() -> None:
    assert told(labels={"kerf.dev/gpu-model": "h100"}) == [
        "kerf.dev/gpu-model: is read as an annotation, not as a label"
    ]
    assert told({"kerf.dev/inject": "enabled"}) == ["kerf.dev/inject: is read as a label, not as an annotation"]
    assert told({"kerf.dev/set-aside": "never"}) == ["kerf.dev/set-aside: is read on nodes, not on pods"]
    assert told({"kerf.dev/gpus": "2"}) == [
        "kerf.dev/gpus: is read on nodes, not on pods; do you mean kerf.dev/gpu-count?"
    ]
    assert told({"kerf.dev/gpu": "1"}) == [
        'kerf.dev/gpu: is a resource: write it under resources.limits, as kerf.dev/gpu: "1"'
    ]


@pytest.mark.parametrize("domain", ["kref.dev", "Kerf.dev", "kerf.io", "kerf", "kerf-dev"])
def test_a_domain_that_is_misspelt_is_told_too(domain: str) -> None:
    assert told({f"{domain}/gpu-model": "h100"}) == [
        f"{domain}/gpu-model: no such key; do you mean kerf.dev/gpu-model?"
    ]


def test_nothing_is_said_of_kerfs_own_keys_nor_of_others() -> None:
    annotations, labels = _names_on(_On.POD, _Kind.ANNOTATION), _names_on(_On.POD, _Kind.LABEL)
    later = [f"{begin}anything" for begin in _WRITTEN_BEGIN]
    others = [
        "gpu-model",
        "example.com/gpu-model",
        "knative.dev/policy",
        "k8s.dev/queue",
        "kserve.dev/inject",
        "nvidia.com/gpu-count",
        "genius/gpu-model",
        "load.kerf.dev/run",
    ]
    assert told(dict.fromkeys([*annotations, *later, *others], "x"), dict.fromkeys([*labels, *others], "x")) == []


def test_thousands_of_keys_take_no_time() -> None:
    many = {f"example-{number}.com/gpu-model": "" for number in range(10_000)} | {"kerf.dev/gpu-modle": "h100"}
    with at_most(2.0):
        assert len(told(many)) == 1
        first = next(stray_keys({f"kerf.dev/gpu-modle-{number}": "" for number in range(10_000)}, {}))
    assert str(first).startswith("kerf.dev/gpu-modle-0: no such key")
