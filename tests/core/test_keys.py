"""The table of `kerf.dev/` keys, and reports of keys that have no effect."""

import ast
from pathlib import Path

import extender
from extender.core.keys import _KEYS, _PREFIX, _WRITTEN_BEGIN, _Kind, _names_on, _On, stray_keys
from extender.parts import NAMES
from tests.golden import Golden
from tests.spending import at_most

_NOT_KEYS = {"kerf.dev/v1alpha1"}
"""The version of the API group."""


def texts_of(source: Path) -> set[str]:
    """String constants of a module that are keys."""
    written = source.read_text()
    nodes = ast.walk(ast.parse(written)) if _PREFIX in written else ()
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for text in texts if text.startswith(_PREFIX) and text != _PREFIX and " " not in text}


def test_the_table_has_the_keys_of_the_code_and_no_others() -> None:
    rooms = Path(extender.__file__).parent
    table = rooms / "core" / "keys.py"
    named = {key for module in rooms.rglob("*.py") if module != table for key in texts_of(module)} - _NOT_KEYS
    named = {key for key in named if not key.endswith("-")}
    assert named == {key.name for key in _KEYS if not key.of or key.of in NAMES}


def test_an_unknown_key_is_reported_with_the_closest_known_one() -> None:
    for meant, words in {
        "gpu-model": ["gpu-modle", "gpumodel", "gpu_model", "GPU-Model", "model"],
        "gpu-memory-each": ["gpu-memmory-each", "gpu-memory", "memory"],
        "gpu-count": ["gpu-coutn", "gpu-number"],
        "gpu-uuid": ["gpu-uuids"],
        "gang-size": ["gang-sise"],
        "movable": ["moveable"],
        "policy": ["polcy"],
        "queue": ["qeue"],
        "": ["foo", "team", "cost-center", "x" * 63],
    }.items():
        for key in (f"kerf.dev/{word}" for word in words):
            strays = [*stray_keys({key: "x"}, {}), *stray_keys({}, {key: "x"})]
            assert [(stray.key, stray.meant) for stray in strays] == [(key, meant and f"kerf.dev/{meant}")] * 2
    for domain in ("kref.dev", "Kerf.dev", "kerf.io", "kerf", "kerf-dev"):
        (stray,) = stray_keys({f"{domain}/gpu-model": "h100"}, {})
        assert stray.meant == "kerf.dev/gpu-model"


def test_what_is_said_of_a_key_without_effect(golden: Golden) -> None:
    annotations = dict.fromkeys(
        ("gpu-modle", "foo", "inject", "set-aside", "gpus", "gpu", "odd\n\x1b[31m", "x" * 200), "x"
    )
    strays = stray_keys({f"kerf.dev/{word}": text for word, text in annotations.items()}, {"kerf.dev/gpu-model": "x"})
    golden("core/keys.txt", map(str, strays))


def test_known_keys_and_those_of_other_projects_are_not_reported() -> None:
    annotations, labels = _names_on(_On.POD, _Kind.ANNOTATION), _names_on(_On.POD, _Kind.LABEL)
    later = [f"{begin}anything" for begin in _WRITTEN_BEGIN]
    others = [
        *("gpu-model", "example.com/gpu-model", "knative.dev/policy", "k8s.dev/queue", "kserve.dev/inject"),
        *("nvidia.com/gpu-count", "genius/gpu-model", "load.kerf.dev/run"),
    ]
    strays = stray_keys(dict.fromkeys([*annotations, *later, *others], "x"), dict.fromkeys([*labels, *others], "x"))
    assert list(strays) == []


def test_thousands_of_keys_take_no_time() -> None:
    many = {f"example-{number}.com/gpu-model": "" for number in range(10_000)} | {"kerf.dev/gpu-modle": "h100"}
    with at_most(2.0):
        assert len(list(stray_keys(many, {}))) == 1
        first = next(stray_keys({f"kerf.dev/gpu-modle-{number}": "" for number in range(10_000)}, {}))
    assert first.key == "kerf.dev/gpu-modle-0"
