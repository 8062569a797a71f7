"""Objects as deep and as large as an API server takes them."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.kube import objects
from extender.kube.decoding import Decoder, outline, shallow

TEXT = st.text(alphabet='ab{}[]"\\,:\n é', max_size=6)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=25,
)


def nested(levels: int) -> bytes:
    """A JSON value of so many levels, strings with brackets and escapes in it included."""
    return b'{"f:\\\\\\"}]":["{",' * (levels // 2) + b"7" + b"]}" * (levels // 2)


def pod_text(levels: int, **spec: Any) -> bytes:
    """A pod whose managedFields are as deep."""
    rest = json.dumps({"spec": {"nodeName": "n", **spec}})[1:].encode()
    managed = b'[{"manager":"me","fieldsV1":%b}]' % nested(levels)
    return b'{"metadata":{"name":"p","uid":"u","managedFields":%b,"resourceVersion":"7"},%b' % (managed, rest)


def cut(value: Any, depth: int) -> Any:
    """The slow oracle of `shallow`: containers at one level more than `depth` are empty."""
    if isinstance(value, dict):
        return {key: cut(inner, depth - 1) for key, inner in value.items()} if depth > 0 else {}
    if isinstance(value, list):
        return [cut(inner, depth - 1) for inner in value] if depth > 0 else []
    return value


@settings(max_examples=3 * settings().max_examples)
@given(JSON, st.integers(0, 5), st.integers(1, 40), st.booleans())
def test_what_lies_too_deep_is_left_out(value: Any, depth: int, chunk: int, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    # Chunks end within strings and escapes.
    assert json.loads(shallow(text, depth, chunk)) == cut(value, depth)


@pytest.mark.parametrize("levels", [10, 900, 1_100, 9_000, 60_000])
def test_a_pod_is_read_however_deep_what_nobody_reads_is(levels: int) -> None:
    containers = [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]
    pod = Decoder(objects.Pod).decode(pod_text(levels, containers=containers))
    assert (pod.metadata.uid, pod.metadata.resource_version, pod.spec.node_name) == ("u", "7", "n")
    assert pod.spec.containers == [objects.Container(objects.Resources(limits={"nvidia.com/gpu": "2"}))]


def test_of_what_goes_back_nothing_is_left_out() -> None:
    with pytest.raises(msgspec.DecodeError, match="too deep"):
        Decoder(objects.Pod, whole=True).decode(pod_text(1_100))


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"[" * 5_000, id="never closed"),
        pytest.param(b"]" * 5_000, id="never opened"),
        pytest.param(b'{"metadata":{"name":"\xff"}}', id="no UTF-8"),
        pytest.param(b'{"metadata":{"name":"\xff","x":%b}}' % nested(2_000), id="no UTF-8, and deep"),
        pytest.param(b'{"metadata":7,"x":%b}' % nested(2_000), id="of another type, and deep"),
    ],
)
def test_what_can_not_be_read_is_one_kind_of_error(content: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        Decoder(objects.Pod).decode(content)
    outline(content)


def test_an_object_of_wrong_types_is_told_by_what_can_be_read_of_it() -> None:
    found = outline(
        b'{"metadata":{"name":"p","namespace":"d","uid":"u","resourceVersion":"7","labels":3,"x":%b},'
        b'"spec":{"nodeName":"n","containers":"none"},"status":{"phase":4}}' % nested(2_000)
    )
    assert (found.key, found.uid, found.resource_version, found.node, found.phase) == ("d/p", "u", "7", "n", "")
