"""The bytes on the wire, as kube-scheduler sends them and as Go has to read them."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from extender.api import wire
from tests.api import bodies
from tests.api.bodies import node, pod
from tests.api.services import Kerf, Shared, running

REFERENCE = Path(os.environ.get("KERF_REFERENCE", "/nowhere"))
needs_reference = pytest.mark.skipif(not REFERENCE.is_dir(), reason="KERF_REFERENCE names no folder")


@pytest.fixture
def kerf(shared: Shared) -> Kerf:
    return shared()


def renamed(body: bytes, change: Callable[[str], str]) -> bytes:
    """The same request with its outer keys written differently."""
    return json.dumps({change(key): value for key, value in json.loads(body).items()}).encode()


# What Kerf sends


def test_filter_answers_with_the_keys_of_the_go_types(kerf: Kerf) -> None:
    answer = kerf.post("/filter", bodies.args(pod(gpus=2), ["t4-1", "t4-0", "cpu-0"]))
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.headers["content-length"] == str(len(answer.content))
    assert answer.content == (
        b'{"Nodes":null,"NodeNames":["t4-0"],"FailedNodes":{},'
        b'"FailedAndUnresolvableNodes":{"cpu-0":"needs 2 GPUs, no GPUs here"},"Error":""}'
    )


def test_filter_that_finds_nothing_answers_an_empty_list_and_not_null(kerf: Kerf) -> None:
    # A null NodeNames would make kube-scheduler look at Nodes.
    assert b'"NodeNames":[]' in kerf.post("/filter", bodies.args(pod(gpus=9), ["t4-0"])).content


def test_prioritize_answers_a_bare_array_with_integer_literals(kerf: Kerf) -> None:
    answer = kerf.post("/prioritize", bodies.args(pod(gpus=1), ["t4-0", "a100-0", "nowhere"]))
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    # t4-0 would have 2-1 = 1 GPU left, a100-0 8-1 = 7: best and next best. `5.0` would be a decode error in Go.
    assert answer.content == (b'[{"Host":"t4-0","Score":10},{"Host":"a100-0","Score":9},{"Host":"nowhere","Score":0}]')


def test_bind_answers_error_alone() -> None:
    with running() as kerf:
        body = bodies.binding_args(kerf.create(pod(gpus=1)), "t4-0")
        assert kerf.post("/bind", body).content == b'{"Error":""}'


@pytest.mark.parametrize("gpus", [None, 1], ids=["without GPUs", "with GPUs"])
def test_scores_are_integer_literals_from_0_to_10(kerf: Kerf, gpus: int | None) -> None:
    content = kerf.post("/prioritize", bodies.args(pod(gpus=gpus), bodies.NAMES)).content
    literals = re.findall(rb'"Score":([^,}]*)[,}]', content)
    assert len(literals) == len(bodies.NAMES)
    assert all(re.fullmatch(rb"[0-9]|10", literal) for literal in literals)


# What Kerf reads


@pytest.mark.parametrize(
    "change", [str.lower, str.upper, str.swapcase, str.title], ids=["lower", "UPPER", "sWAPPED", "Title"]
)
def test_keys_are_read_in_any_case(change: Callable[[str], str]) -> None:
    names = ["t4-0", "a100-0", "cpu-0"]
    by_names = bodies.args(pod(gpus=2), names)
    by_nodes = bodies.args(pod(gpus=2), None, [node(name, 2) for name in names])
    with running() as kerf:
        binding = bodies.binding_args(kerf.create(pod(gpus=2)), "t4-0")
        for path, body in (("/filter", by_names), ("/filter", by_nodes), ("/prioritize", by_names), ("/bind", binding)):
            exact = kerf.post(path, body).content
            assert b'"Error":"' not in exact.replace(b'"Error":""', b"")
            assert kerf.post(path, renamed(body, change)).content == exact


def test_whole_nodes_are_returned_unchanged(kerf: Kerf) -> None:
    items = [{**bodies.sent(node(name, 8)), "future": [1.5, "é"]} for name in ("a100-0", "t4-1", "t4-0", "t4-0")]
    answer = kerf.post("/filter", bodies.args(pod(gpus=1), None, items))
    assert answer.json()["NodeNames"] is None
    # t4-0 and t4-1 are equally good: the smaller name wins, and of two nodes of one name the first is taken.
    assert answer.json()["Nodes"]["items"] == [items[2]]
    assert b'{"items":[' + json.dumps(items[2]).encode() + b"]}" in answer.content  # not even spaces are touched


def test_names_go_before_nodes(kerf: Kerf) -> None:
    answer = kerf.post("/filter", bodies.args(pod(gpus=1), ["a100-0"], [node("t4-0", 2)])).json()
    assert (answer["NodeNames"], answer["Nodes"]) == (["a100-0"], None)


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        pytest.param({"NodeNames": ["a100-0"]}, {"NodeNames": ["a100-0"], "Nodes": None}, id="names"),
        pytest.param({"NodeNames": [], "Nodes": None}, {"NodeNames": [], "Nodes": None}, id="no names"),
        pytest.param({"NodeNames": None, "Nodes": None}, {"NodeNames": [], "Nodes": None}, id="both null"),
        pytest.param({}, {"NodeNames": [], "Nodes": None}, id="neither"),
        pytest.param({"Nodes": {"items": []}}, {"NodeNames": None, "Nodes": {"items": []}}, id="no nodes"),
        pytest.param({"Nodes": {"items": None}}, {"NodeNames": None, "Nodes": {"items": []}}, id="null items"),
        pytest.param({"Nodes": {}}, {"NodeNames": None, "Nodes": {"items": []}}, id="no items"),
    ],
)
def test_a_pod_without_gpus_gets_its_candidates_back(kerf: Kerf, nodes: Any, expected: Any) -> None:
    body = json.dumps({"Pod": bodies.sent(pod()), **nodes}).encode()
    answer = kerf.post("/filter", body).json()
    assert answer == {**expected, "FailedNodes": {}, "FailedAndUnresolvableNodes": {}, "Error": ""}


@pytest.mark.parametrize(
    "path",
    [
        "metadata.annotations",
        "metadata.labels",
        "metadata.deletionTimestamp",
        "spec.containers",
        "spec.containers.0.resources",
        "spec.containers.0.resources.limits",
        "spec.containers.0.resources.requests",
        "spec.containers.0.restartPolicy",
        "spec.initContainers",
        "spec.overhead",
        "spec.affinity",
        "spec.topologySpreadConstraints",
        "spec.nodeName",
    ],
)
def test_null_means_absent(kerf: Kerf, path: str) -> None:
    manifest = pod(gpus=1)
    *parents, last = path.split(".")
    holder: Any = manifest
    for key in parents:
        holder = holder[int(key) if key.isdigit() else key]
    holder[last] = None
    answer = kerf.filter(manifest, ["t4-0"])
    assert (answer["NodeNames"], answer["Error"]) == (["t4-0"], "")


def test_bind_names_every_missing_field() -> None:
    with pytest.raises(wire.WireError, match="the request has no PodNamespace, Node"):
        wire.read_binding_args(b'{"podname": "a", "PodUID": "u", "NODE": ""}')


# The real thing, where it is at hand


@needs_reference
def test_builders_have_the_form_of_real_requests() -> None:
    def shape(value: Any) -> Any:
        return {key: shape(child) for key, child in value.items()} if isinstance(value, dict) else type(value)

    real = json.loads((REFERENCE / "samples/filter.json").read_text())
    built = json.loads(bodies.args(pod(gpus=2), ["a"]))
    assert list(real) == list(built)
    for part in ("metadata", "spec", "status"):
        assert real["Pod"][part].keys() == built["Pod"][part].keys()
    assert shape(real["Pod"]["spec"]["containers"][0]) == shape(built["Pod"]["spec"]["containers"][0])
    assert list(json.loads((REFERENCE / "samples/bind.json").read_text())) == list(
        json.loads(bodies.binding_args(pod(), "a"))
    )


@needs_reference
def test_real_requests_are_understood() -> None:
    samples = {verb: (REFERENCE / f"samples/{verb}.json").read_bytes() for verb in ("filter", "prioritize", "bind")}
    manifest = {"apiVersion": "v1", "kind": "Pod", **json.loads(samples["filter"])["Pod"]}
    names = json.loads(samples["filter"])["NodeNames"]
    chosen = json.loads(samples["bind"])["Node"]
    with running([manifest, *(node(name, 2 if name == chosen else 8) for name in names)]) as kerf:
        assert kerf.post("/filter", samples["filter"]).json()["NodeNames"] == [chosen]
        scores = {line["Host"]: line["Score"] for line in kerf.post("/prioritize", samples["prioritize"]).json()}
        assert scores == {name: 10 if name == chosen else 9 for name in names}
        assert kerf.post("/bind", samples["bind"]).json() == {"Error": ""}
        assert kerf.gpus_of(manifest) == "0,1"


@needs_reference
def test_a_real_request_of_preempt_is_understood() -> None:
    sample = (REFERENCE / "samples/preempt.json").read_bytes()
    proposals = json.loads(sample)["NodeNameToMetaVictims"]
    holders = []
    for number, (name, victims) in enumerate(proposals.items()):
        manifest = pod(f"holder-{number}", 2, node_name=name)
        manifest["metadata"]["uid"] = victims["Pods"][0]["UID"]
        holders.append(manifest)
    with running([*holders, *(node(name, 2) for name in proposals)]) as kerf:
        assert kerf.post("/preempt", sample).json()["NodeNameToMetaVictims"] == proposals


def test_whole_nodes_that_are_not_text_are_refused_since_the_answer_repeats_them() -> None:
    body = b'{"Pod": {}, "Nodes": {"items": [{"metadata": {"name": "n"}, "unread": "%b"}]}}'
    assert wire.read_args(body % "größe".encode()).candidates() == ["n"]
    with pytest.raises(wire.WireError, match="it is not UTF-8"):
        wire.read_args(body % b"\x80")
