"""The cluster in memory answers as an API server does."""

import asyncio
from typing import Any

import msgspec
import pytest

from extender.kube.client import ApiError
from extender.kube.memory import MemoryCluster
from extender.kube.transport import NODES_PATH, PODS_PATH
from tests.ledger.builders import node_manifest, pod_manifest

POD = "/api/v1/namespaces/default/pods/p"


def get(cluster: MemoryCluster, path: str) -> Any:
    return msgspec.json.decode(asyncio.run(cluster.get(path)))


def post(cluster: MemoryCluster, path: str, manifest: dict[str, Any]) -> None:
    asyncio.run(cluster.post(path, msgspec.json.encode(manifest)))


def binding(uid: str = "uid-p", **annotations: str) -> dict[str, Any]:
    return {"metadata": {"name": "p", "uid": uid, "annotations": annotations}, "target": {"name": "n"}}


def status_of(error: pytest.ExceptionInfo[ApiError]) -> tuple[int, str]:
    return error.value.status, error.value.reason


def test_lists_have_items_and_a_version_that_grows() -> None:
    cluster = MemoryCluster([node_manifest("n", 2), pod_manifest("p")])
    nodes = get(cluster, NODES_PATH)
    assert [item["metadata"]["name"] for item in nodes["items"]] == ["n"]
    cluster.apply(pod_manifest("q"))
    assert int(get(cluster, PODS_PATH)["metadata"]["resourceVersion"]) > int(nodes["metadata"]["resourceVersion"])


def test_what_is_applied_is_copied() -> None:
    manifest = pod_manifest("p")
    cluster = MemoryCluster([manifest])
    manifest["spec"]["nodeName"] = "elsewhere"
    assert "nodeName" not in get(cluster, POD)["spec"]


def test_an_object_applied_again_keeps_its_uid_and_one_deleted_does_not() -> None:
    cluster = MemoryCluster()
    manifest: dict[str, Any] = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {}}
    cluster.apply(manifest)
    first = get(cluster, POD)["metadata"]["uid"]
    cluster.apply(manifest)
    assert get(cluster, POD)["metadata"]["uid"] == first
    cluster.delete(manifest)
    cluster.apply(manifest)
    assert get(cluster, POD)["metadata"]["uid"] != first


def test_a_binding_sets_node_and_annotations_in_one_write() -> None:
    cluster = MemoryCluster([pod_manifest("p", annotations={"kept": "1"})])
    post(cluster, f"{POD}/binding", binding(added="2"))
    pod = get(cluster, POD)
    assert (pod["spec"]["nodeName"], pod["metadata"]["annotations"]) == ("n", {"kept": "1", "added": "2"})


@pytest.mark.parametrize(
    ("pod", "asked", "status"),
    [
        pytest.param(pod_manifest("p"), binding(uid="another"), (409, "Conflict"), id="another UID"),
        pytest.param(pod_manifest("p", node="m"), binding(), (409, "Conflict"), id="bound already"),
        pytest.param(pod_manifest("q"), binding(), (404, "NotFound"), id="no such pod"),
    ],
)
def test_a_binding_that_is_refused_changes_nothing(
    pod: dict[str, Any], asked: dict[str, Any], status: tuple[int, str]
) -> None:
    cluster = MemoryCluster([pod])
    before = get(cluster, PODS_PATH)
    with pytest.raises(ApiError) as raised:
        post(cluster, f"{POD}/binding", asked)
    assert status_of(raised) == status
    assert get(cluster, PODS_PATH) == before


def test_a_patch_of_the_status_changes_annotations() -> None:
    cluster = MemoryCluster([pod_manifest("p")])
    asyncio.run(cluster.patch(f"{POD}/status", b'{"metadata":{"uid":"uid-p","annotations":{"a":"1"}}}'))
    assert get(cluster, POD)["metadata"]["annotations"] == {"a": "1"}
    with pytest.raises(ApiError) as raised:
        asyncio.run(cluster.patch(f"{POD}/status", b'{"metadata":{"uid":"another"}}'))
    assert status_of(raised) == (422, "Invalid")


def test_events_are_kept() -> None:
    cluster = MemoryCluster()
    post(cluster, "/api/v1/namespaces/default/events", {"reason": "GPUsAssigned"})
    assert cluster.events == [{"reason": "GPUsAssigned"}]


@pytest.mark.parametrize("verb", ["get", "post", "patch"])
def test_what_is_not_there_is_not_found(verb: str) -> None:
    cluster = MemoryCluster()
    calls = {
        "get": lambda: cluster.get("/api/v1/secrets"),
        "post": lambda: cluster.post("/api/v1/secrets", b"{}"),
        "patch": lambda: cluster.patch(POD, b"{}"),
    }
    with pytest.raises(ApiError) as raised:
        asyncio.run(calls[verb]())
    assert status_of(raised) == (404, "NotFound")


def test_a_watch_opens_at_once_and_brings_batches() -> None:
    cluster = MemoryCluster([pod_manifest("p")])

    async def run() -> list[list[bytes]]:
        watch = cluster.watch(PODS_PATH, {})
        batches = [await anext(watch)]
        cluster.apply(pod_manifest("q"))
        cluster.apply(node_manifest("n"))
        cluster.apply(pod_manifest("p"))
        cluster.delete(pod_manifest("q"))
        batches.append(await anext(watch))
        return batches

    opened, lines = asyncio.run(run())
    assert opened == []
    events = [msgspec.json.decode(line) for line in lines]
    assert [(event["type"], event["object"]["metadata"]["name"]) for event in events] == [
        ("ADDED", "q"),
        ("MODIFIED", "p"),
        ("DELETED", "q"),
    ]
