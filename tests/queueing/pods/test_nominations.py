"""The exact writes to pods of the queue, and what is trusted when they are read back."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from extender.kube.client import ApiError, Query
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
from tests.queueing.watches import GATES, Answers, nominated, pod, refused

PATH, STATUS = "/api/v1/namespaces/ns/pods/p", "/api/v1/namespaces/ns/pods/p/status"
UID = {"uid": "uid-p"}
SKIPPED = {"kerf.dev/skipped": None, "kerf.dev/skipped-count": None}
GATE, OTHER = {"name": "kerf.dev/queue"}, {"name": "other"}
THERE = {"metadata": {"name": "p", "namespace": "ns", "uid": "uid-p"}, "spec": GATES}
INVALID = ApiError(422, "Invalid", "only deletion is allowed")


def call(api: Answers, write: Callable[[PodWriter], Coroutine[Any, Any, bool]]) -> bool:
    return asyncio.run(write(PodWriter(api)))  # type: ignore[arg-type]


def writes(write: Callable[[PodWriter], Coroutine[Any, Any, bool]]) -> list[tuple[str, Any]]:
    """What a method of a writer writes."""
    api = Answers()
    assert call(api, write)
    return api.written


def test_a_pod_gets_its_nomination_and_then_its_gate_is_opened() -> None:
    placed = writes(lambda writer: writer.place(pod(), "n", "greedy", {"rack": "a"}))
    opened = {
        "metadata": UID | {"annotations": SKIPPED | {"kerf.dev/planned-by": "greedy", "kerf.dev/planned-node": "n"}},
        "spec": {"schedulingGates": None, "nodeSelector": {"rack": "a"}},
    }
    assert placed == [(STATUS, {"metadata": UID, "status": {"nominatedNodeName": "n"}}), (PATH, opened)]
    assert writes(lambda writer: writer.open(pod(), "n", "greedy", {"rack": "a"})) == [(PATH, opened)]
    two = pod(spec={"schedulingGates": [GATE, OTHER]})
    alone = {**opened, "spec": {"schedulingGates": [OTHER]}}
    assert writes(lambda writer: writer.open(two, "n", "greedy")) == [(PATH, alone)]
    withdrawn = {"metadata": UID, "status": {"nominatedNodeName": None}}
    assert writes(lambda writer: writer.nominate(pod(), "")) == [(STATUS, withdrawn)]


@pytest.mark.parametrize(
    ("manifest", "version", "unsaid"),
    [(pod(gated=False), None, {}), (refused(pod(gated=False, resourceVersion="7")), "7", {"conditions": None})],
    ids=["", "refused"],
)
def test_a_pod_that_lost_its_node_is_nominated_again_and_the_loss_noted_in_one_write(
    manifest: Pod, version: str | None, unsaid: dict[str, None]
) -> None:
    notes = {"kerf.dev/planned-node": "m", "kerf.dev/nomination-lost": "1. n: " + "x" * 494}
    metadata = UID | {"annotations": notes | SKIPPED, "resourceVersion": version}
    body = {"metadata": metadata, "status": {"nominatedNodeName": "m", **unsaid}}
    assert writes(lambda writer: writer.nominate_anew(manifest, "m", "1. n: " + "x" * 600)) == [(STATUS, body)]


@pytest.mark.parametrize("first", [0, 1])
def test_a_refusal_beside_other_conditions_and_those_alone_are_left_as_they_are(first: int) -> None:
    found = refused(pod(gated=False))
    conditions = [*(found.status.conditions or ()), Condition(type="Ready")][first:]
    found = msgspec.structs.replace(found, status=msgspec.structs.replace(found.status, conditions=conditions))
    [(_, body)] = writes(lambda writer: writer.nominate_anew(found, "m", ""))
    assert body["status"] == {"nominatedNodeName": "m"}


def test_why_a_pod_waits_is_written_with_how_often_it_was_passed_over() -> None:
    notes = {"kerf.dev/skipped": "no room", "kerf.dev/skipped-count": "3"}
    written = writes(lambda writer: writer.note(pod(), "no room", 3))
    assert written == [(STATUS, {"metadata": UID | {"annotations": notes}})]


def test_a_gate_of_another_that_was_opened_meanwhile_is_not_written_again() -> None:
    """The API server forbids adding it, so the pod is read again."""
    two = pod(spec={"schedulingGates": [GATE, OTHER]})
    api = Answers({PATH: THERE}, [INVALID])
    assert call(api, lambda writer: writer.open(two, "n", "greedy"))
    assert api.written[-1][1]["spec"] == {"schedulingGates": None}


def test_a_pod_that_is_gone_or_another_one_is_not_written_on() -> None:
    for status in (404, 409):
        assert not call(Answers(refuse=[ApiError(status, "", "")]), lambda writer: writer.place(pod(), "n", "greedy"))
    another = {PATH: {**THERE, "metadata": {"name": "p", "namespace": "ns", "uid": "another"}}}
    for write in (PodWriter.open, PodWriter.place):
        api = Answers(another, [ApiError(422, "Invalid", "field is immutable")])  # its UID
        assert not asyncio.run(write(PodWriter(api), pod(), "n", "greedy"))  # type: ignore[arg-type]
        assert len(api.written) == 1
    with pytest.raises(ApiError):
        call(Answers(refuse=[ApiError(500, "", "")]), lambda writer: writer.nominate(pod(), "n"))


def test_a_pod_that_is_deleted_while_a_refusal_is_looked_into_is_gone() -> None:
    class Fleeting(Answers):
        async def get(self, path: str, query: Query | None = None) -> bytes:
            found = await super().get(path, query)
            self.answers.clear()
            return found

    api = Fleeting({PATH: THERE}, [INVALID])
    assert not call(api, lambda writer: writer.open(pod(), "n", "greedy"))
    assert len(api.asked) == 2


class Creates(Answers):
    """An API server that creates what it is given."""

    async def post(self, path: str, body: bytes) -> bytes:
        await super().post(path, body)
        return body


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


def test_what_is_read_of_what_is_written() -> None:
    planned = pod(annotations={"kerf.dev/planned-node": "n"})
    for manifest, node, stands in (
        (nominated(pod(gated=False), "n"), "", ""),  # nominated by others
        (planned, "n", ""),  # refused, or forged
        (nominated(planned, "n"), "n", "n"),
    ):
        assert (planned_node(manifest), nominated_node(manifest)) == (node, stands)
    for by, for_autoscalers in ((FOR_AUTOSCALERS, True), ("greedy", False)):
        assert is_for_autoscalers(pod(annotations={"kerf.dev/planned-by": by})) is for_autoscalers
    assert not is_for_autoscalers(pod())
    given = {"kerf.dev/skipped": "no room", "kerf.dev/skipped-count": "3", "kerf.dev/gpu-count": "1", "a": "b"}
    assert written_by_author(given) == {"kerf.dev/gpu-count": "1", "a": "b"}
    assert written_by_author(None) == {}
