"""Any input: no crash, no undocumented status, no reservation without an answer that offers a node."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.api import bodies
from tests.api.bodies import node, pod
from tests.api.damage import TEXTS, VALUES, mutated
from tests.api.services import Answer, Kerf, running

EXAMPLES = settings(deadline=None)


ASKING = pod(
    "asking",
    2,
    annotations={"kerf.dev/gpu-memory-each": "10Gi", "kerf.dev/gpu-model": "a100|t4", "kerf.dev/policy": "spread"},
    labels={"genius/priority": "3"},
    initContainers=[{"name": "i", "restartPolicy": "Always"}],
    affinity={"nodeAffinity": {}},
)


REQUESTS = {
    "names": json.loads(bodies.args(ASKING, ["t4-0", "a100-0", "unknown"])),
    "nodes": json.loads(bodies.args(ASKING, None, [node("t4-0", 2), node("a100-0", 8)])),
    "many": json.loads(bodies.args(ASKING, [*(f"unknown-{number}" for number in range(300)), "t4-0"])),
    "memory": json.loads(bodies.args(pod("total", annotations={"kerf.dev/gpu-memory-total": "100Gi"}), ["a100-0"])),
}


PREEMPTIONS = {
    "UIDs": json.loads(bodies.preemption_args(ASKING, {"t4-0": ["uid-of-a", "uid-of-b"], "a100-0": [], "unknown": []})),
    "pods": json.loads(bodies.whole_preemption_args(ASKING, {"t4-0": [pod("a", 1, node_name="t4-0")], "a100-0": []})),
}


BINDING = json.loads(bodies.binding_args(ASKING, "t4-0"))


@pytest.fixture(scope="module")
def kerf() -> Iterator[Kerf]:
    """One service for all examples; each finds it without reservations."""
    with running([*bodies.CLUSTER, ASKING]) as service:
        yield service


def check(kerf: Kerf, verb: str, body: bytes) -> None:
    """Send a request, and assert what holds for any."""
    kerf.clock.now += 1000  # longer than the TTL
    answer = kerf.post(f"/{verb}", body)
    assert answer.status in ({200, 400} if verb in ("prioritize", "preempt") else {200})
    decoded = answer.json()
    if answer.status == 400:
        assert decoded.keys() == {"Error"}
        assert decoded["Error"]
    elif verb == "prioritize":
        assert all(line.keys() == {"Host", "Score"} and 0 <= line["Score"] <= 10 for line in decoded)
    elif verb == "preempt":
        assert decoded.keys() == {"NodeNameToMetaVictims"}
        for victims in decoded["NodeNameToMetaVictims"].values():
            assert victims.keys() == {"Pods", "NumPDBViolations"}
            assert all(victim["UID"] for victim in victims["Pods"])
            assert victims["NumPDBViolations"] >= 0
    reserved = kerf.num_reservations
    assert reserved <= 1
    if reserved:
        assert verb not in ("bind", "preempt")
        assert json.loads(body.decode(errors="replace"))["Pod"]["metadata"]["uid"]
        assert is_placed(verb, answer)


def is_placed(verb: str, answer: Answer) -> bool:
    """Whether an answer offers the pod some node."""
    decoded = answer.json()
    if verb == "prioritize":
        return any(line["Score"] > 0 for line in decoded)
    return not decoded["Error"] and bool(decoded["NodeNames"] or (decoded["Nodes"] or {}).get("items"))


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "bind"])
@EXAMPLES
@given(body=st.binary(max_size=200))
def test_any_bytes(kerf: Kerf, verb: str, body: bytes) -> None:
    check(kerf, verb, body)


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt", "bind"])
@EXAMPLES
@given(body=VALUES.map(json.dumps).map(str.encode))
def test_any_json(kerf: Kerf, verb: str, body: bytes) -> None:
    check(kerf, verb, body)


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
@pytest.mark.parametrize("valid", REQUESTS.values(), ids=REQUESTS.keys())
@EXAMPLES
@given(data=st.data())
def test_any_request_that_is_nearly_right(kerf: Kerf, verb: str, valid: dict[str, Any], data: st.DataObject) -> None:
    check(kerf, verb, data.draw(mutated(valid)))


@EXAMPLES
@given(body=mutated(BINDING))
def test_any_binding_that_is_nearly_right(kerf: Kerf, body: bytes) -> None:
    check(kerf, "bind", body)


@pytest.mark.parametrize("valid", PREEMPTIONS.values(), ids=PREEMPTIONS.keys())
@EXAMPLES
@given(data=st.data())
def test_any_preemption_that_is_nearly_right(kerf: Kerf, valid: dict[str, Any], data: st.DataObject) -> None:
    check(kerf, "preempt", data.draw(mutated(valid)))


@EXAMPLES
@given(text=TEXTS, key=st.sampled_from(["gpu-count", "gpu-memory-each", "gpu-memory-total", "gpu-model", "policy"]))
def test_any_annotation(kerf: Kerf, text: str, key: str) -> None:
    check(kerf, "filter", bodies.args(pod("asking", 1, annotations={f"kerf.dev/{key}": text}), list(bodies.NAMES)))
