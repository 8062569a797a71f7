"""Decoding of objects as deep as an API server accepts."""

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
    """A JSON value of `levels` levels, with brackets and escapes in strings."""
    return b'{"f:\\\\\\"}]":["{",' * (levels // 2) + b"7" + b"]}" * (levels // 2)


def pod_text(levels: int, **spec: Any) -> bytes:
    """A pod whose managedFields have `levels` levels."""
    rest = json.dumps({"spec": {"nodeName": "n", **spec}})[1:].encode()
    managed = b'[{"manager":"me","fieldsV1":%b}]' % nested(levels)
    return b'{"metadata":{"name":"p","uid":"u","managedFields":%b,"resourceVersion":"7"},%b' % (managed, rest)


def cut(value: Any, depth: int) -> Any:
    """The slow oracle of `shallow`: containers below `depth` levels are empty."""
    if isinstance(value, dict):
        return {key: cut(inner, depth - 1) for key, inner in value.items()} if depth > 0 else {}
    if isinstance(value, list):
        return [cut(inner, depth - 1) for inner in value] if depth > 0 else []
    return value


@settings(max_examples=3 * settings().max_examples)
@given(JSON, st.integers(0, 5), st.integers(1, 40), st.booleans())
def test_what_lies_too_deep_is_left_out(value: Any, depth: int, chunk: int, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    assert json.loads(shallow(text, depth, chunk)) == cut(value, depth)


def test_a_pod_is_decoded_however_deep_the_rest_of_it_is() -> None:
    containers = [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]
    for levels in (10, 900, 1_100, 9_000, 60_000):
        pod = Decoder(objects.Pod).decode(pod_text(levels, containers=containers))
        assert (pod.metadata.uid, pod.metadata.resource_version, pod.spec.node_name) == ("u", "7", "n")
        assert pod.spec.containers == [objects.Container(objects.Resources(limits={"nvidia.com/gpu": "2"}))]
    with pytest.raises(msgspec.DecodeError, match="too deep"):
        Decoder(objects.Pod, whole=True).decode(pod_text(1_100))


def test_what_can_not_be_decoded_raises_one_kind_of_error() -> None:
    for content in (
        b"",
        b"[" * 5_000,
        b"]" * 5_000,
        b'{"metadata":{"name":"\xff"}}',
        b'{"metadata":{"name":"\xff","x":%b}}' % nested(2_000),
        b'{"metadata":7,"x":%b}' % nested(2_000),
    ):
        with pytest.raises(msgspec.DecodeError):
            Decoder(objects.Pod).decode(content)
        outline(content)


def test_the_outline_of_an_object_has_what_can_be_decoded() -> None:
    found = outline(
        b'{"metadata":{"name":"p","namespace":"d","uid":"u","resourceVersion":"7","labels":3,"x":%b},'
        b'"spec":{"nodeName":"n","containers":"none"},"status":{"phase":4}}' % nested(2_000)
    )
    assert (found.key, found.uid, found.resource_version, found.node, found.phase) == ("d/p", "u", "7", "n", "")
