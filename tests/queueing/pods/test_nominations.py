"""What is written on pods of the queue, to the byte, and what of it is believed when it is read."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from extender.kube.objects import Condition, Pod
from extender.queueing.pods.nominations import (
    FOR_AUTOSCALERS,
    PodWriter,
    gated_by_kerf,
    is_for_autoscalers,
    nominated_node,
    planned_node,
    written_by_author,
)
from tests.queueing.watches import Answers, nominated, pod, refused

PATH = "/api/v1/namespaces/ns/pods/p"
UID = {"uid": "uid-p"}
OPENED = {"kerf.dev/planned-by": "greedy", "kerf.dev/skipped": None, "kerf.dev/skipped-count": None}


class Creates(Answers):
    """An API server that creates what it is given."""

    async def post(self, path: str, body: bytes) -> bytes:
        await super().post(path, body)
        return body


def writes(call: Callable[[PodWriter], Coroutine[Any, Any, bool]]) -> list[tuple[str, Any]]:
    """What a call of a writer writes."""
    api = Answers()
    assert asyncio.run(call(PodWriter(api)))  # type: ignore[arg-type]
    return api.written


def test_a_pod_gets_its_nomination_and_then_its_gate_is_opened() -> None:
    placed = writes(lambda writer: writer.place(pod(), "n", "greedy", {"rack": "a"}))
    opened = {
        "metadata": UID | {"annotations": OPENED | {"kerf.dev/planned-node": "n"}},
        "spec": {"schedulingGates": None, "nodeSelector": {"rack": "a"}},
    }
    assert placed == [(f"{PATH}/status", {"metadata": UID, "status": {"nominatedNodeName": "n"}}), (PATH, opened)]
    assert writes(lambda writer: writer.open(pod(), "n", "greedy", {"rack": "a"})) == [(PATH, opened)]
    alone = {**opened, "spec": {"schedulingGates": None}}
    assert writes(lambda writer: writer.open(pod(), "n", "greedy")) == [(PATH, alone)]


def test_a_nomination_is_taken_back_by_writing_none() -> None:
    assert writes(lambda writer: writer.nominate(pod(), "")) == [
        (f"{PATH}/status", {"metadata": UID, "status": {"nominatedNodeName": None}})
    ]


@pytest.mark.parametrize(
    ("manifest", "version", "unsaid"),
    [
        pytest.param(pod(gated=False), None, {}, id="nothing was said"),
        pytest.param(refused(pod(gated=False, resourceVersion="7")), "7", {"conditions": None}, id="refused"),
    ],
)
def test_a_pod_that_lost_its_node_is_nominated_anew_and_told_why_in_one_write(
    manifest: Pod, version: str | None, unsaid: dict[str, None]
) -> None:
    assert writes(lambda writer: writer.nominate_anew(manifest, "m", "1. n: " + "x" * 600)) == [
        (
            f"{PATH}/status",
            {
                "metadata": UID
                | {
                    "annotations": {
                        "kerf.dev/planned-node": "m",
                        "kerf.dev/nomination-lost": "1. n: " + "x" * 494,
                        "kerf.dev/skipped": None,
                        "kerf.dev/skipped-count": None,
                    },
                    "resourceVersion": version,
                },
                "status": {"nominatedNodeName": "m", **unsaid},
            },
        )
    ]


@pytest.mark.parametrize("first", ["PodScheduled", "Ready"])
def test_a_refusal_beside_what_others_say_is_left_as_it_is(first: str) -> None:
    found = refused(pod(gated=False))
    conditions = [*(found.status.conditions or ()), Condition(type="Ready")]
    found = msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, conditions=conditions))
    if first == "Ready":
        found = msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, conditions=conditions[1:]))
    [(_, body)] = writes(lambda writer: writer.nominate_anew(found, "m", ""))
    assert body["status"] == {"nominatedNodeName": "m"}


def test_why_a_pod_waits_is_written_with_how_often_it_was_passed_over() -> None:
    assert writes(lambda writer: writer.note(pod(), "no room", 3)) == [
        (
            f"{PATH}/status",
            {"metadata": UID | {"annotations": {"kerf.dev/skipped": "no room", "kerf.dev/skipped-count": "3"}}},
        )
    ]


GATE, OTHER = {"name": "kerf.dev/queue"}, {"name": "other"}


@pytest.mark.parametrize(
    ("manifest", "namespace", "spec"),
    [
        ({"metadata": None, "spec": None}, "default", {"schedulingGates": [GATE]}),
        ({}, "default", {"schedulingGates": [GATE]}),
        (
            {"metadata": {"name": "p", "namespace": "ns"}, "spec": {"priority": 1, "schedulingGates": [GATE, OTHER]}},
            "ns",
            {"priority": 1, "schedulingGates": [OTHER, GATE]},
        ),
    ],
)
def test_a_pod_is_created_behind_the_gate(manifest: Any, namespace: str, spec: dict[str, Any]) -> None:
    api = Creates()
    created = asyncio.run(PodWriter(api).create({"kind": "Pod"} | manifest))  # type: ignore[arg-type]
    assert api.written == [(f"/api/v1/namespaces/{namespace}/pods", {"kind": "Pod"} | manifest | {"spec": spec})]
    assert created.metadata.name == (manifest.get("metadata") or {}).get("name", "")
    assert [gate.name for gate in created.spec.scheduling_gates or ()] == [gate["name"] for gate in gated_by_kerf(spec)]


@pytest.mark.parametrize(
    ("manifest", "planned", "stands", "for_autoscalers"),
    [
        pytest.param(pod(gated=False), "", "", False, id="nothing is written"),
        pytest.param(nominated(pod(gated=False), "n"), "", "", False, id="nominated by others"),
        pytest.param(pod(annotations={"kerf.dev/planned-node": "n"}), "n", "", False, id="refused, or forged"),
        pytest.param(nominated(pod(annotations={"kerf.dev/planned-node": "n"}), "n"), "n", "n", False, id="let go"),
        pytest.param(pod(annotations={"kerf.dev/planned-by": FOR_AUTOSCALERS}), "", "", True, id="for autoscalers"),
        pytest.param(pod(annotations={"kerf.dev/planned-by": "greedy"}), "", "", False, id="by a planner"),
    ],
)
def test_what_is_read_of_what_is_written(manifest: Pod, planned: str, stands: str, for_autoscalers: bool) -> None:
    assert (planned_node(manifest), nominated_node(manifest)) == (planned, stands)
    assert is_for_autoscalers(manifest) is for_autoscalers


def test_of_annotations_those_are_the_authors_that_kerf_does_not_write_while_a_pod_waits() -> None:
    given = {"kerf.dev/skipped": "no room", "kerf.dev/skipped-count": "3", "kerf.dev/gpu-count": "1", "a": "b"}
    assert written_by_author(given) == {"kerf.dev/gpu-count": "1", "a": "b"}
    assert written_by_author(None) == {}
