"""Whatever is written, the answer is pods or an error: samples of all kinds with something else in some places."""

import json
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from extender.explain.manifests.documents import DocumentError, read_documents
from extender.parts.what_if.questions import WhatIfError, needs_of, read_question

SAMPLES = [
    document
    for path in sorted((Path(__file__).parents[2] / "explain" / "manifests" / "samples").glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text())
] + [
    {"apiVersion": "scheduling.x-k8s.io/v1", "kind": "PodGroup", "metadata": {"name": "g"}, "spec": {"minMember": 2}},
    {"apiVersion": "v1", "kind": "PriorityClass", "metadata": {"name": "g"}, "value": 2},
    {"kind": "List", "items": [{"kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}]},
]  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
    | st.sampled_from(["Job", "List", "x" * 300, "-", "0", 10**6, -1, "a/b", "kerf.dev/gang"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["spec", "name"]), inner, max_size=2),
    max_leaves=4,
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(place for key, one in inner for place in places(one, (*path, key)))]


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    copied = dict(value) if isinstance(value, dict) else list(value)
    copied[path[0]] = changed(value[path[0]], path[1:], new)
    return copied


@st.composite
def objects(draw: st.DrawFn) -> Any:
    manifest = draw(st.sampled_from(SAMPLES))
    for _ in range(draw(st.integers(1, 2))):
        manifest = changed(manifest, draw(st.sampled_from(places(manifest))), draw(VALUES))
    return manifest


@settings(max_examples=6 * settings().max_examples, suppress_health_check=list(HealthCheck))
@given(objects(), st.integers(1, 3))
def test_an_object_makes_pods_or_an_error(manifest: Any, replicas: int) -> None:
    text = json.dumps(manifest)
    for asked in ({"manifest": text}, {"manifest": [text, text]}, {"objects": [manifest]}):
        try:
            question = read_question(json.dumps(asked | {"replicas": replicas}).encode())
        except WhatIfError as error:
            assert str(error)
        else:
            needs_of(question)
            pods = [(pod.key, pod.metadata.uid) for pod in question.given.pods]
            assert len({uid for _, uid in pods}) == len(pods)


@settings(max_examples=3 * settings().max_examples)
@given(st.text(alphabet="ab:-&*[]{}<>!?|#'\"\n \t%@0", max_size=60))
def test_a_text_is_read_or_an_error(text: str) -> None:
    try:
        documents = read_documents(text)
    except DocumentError:
        return
    assert all(isinstance(document.manifest, dict) for document in documents)
