"""The in-memory cluster responds as an API server does; tests/queueing/contract.py has what writes rest on."""

import asyncio
from typing import Any

import msgspec
import pytest

from extender.kube.client import ApiError
from extender.kube.memory import MemoryCluster
from extender.kube.transport import NODES_PATH, PODS_PATH
from tests.kube.loops import in_loop
from tests.ledger.builders import node_manifest, pod_manifest

POD = "/api/v1/namespaces/default/pods/p"


def get(cluster: MemoryCluster, path: str) -> Any:
    return msgspec.json.decode(asyncio.run(cluster.get(path)))


def test_objects_are_copied_listed_and_keep_their_uid_until_they_are_deleted() -> None:
    manifest: dict[str, Any] = {"kind": "Pod", "metadata": {"name": "p"}, "spec": {}}
    cluster = MemoryCluster([node_manifest("n", 2), manifest])
    manifest["spec"]["nodeName"] = "elsewhere"
    assert "nodeName" not in get(cluster, POD)["spec"]
    nodes, uids = get(cluster, NODES_PATH), [get(cluster, POD)["metadata"]["uid"]]
    assert [item["metadata"]["name"] for item in nodes["items"]] == ["n"]
    cluster.apply(manifest)
    uids.append(get(cluster, POD)["metadata"]["uid"])
    assert int(get(cluster, PODS_PATH)["metadata"]["resourceVersion"]) > int(nodes["metadata"]["resourceVersion"])
    cluster.delete(manifest)
    cluster.apply(manifest)
    assert uids[0] == uids[1] != get(cluster, POD)["metadata"]["uid"]


def test_what_does_not_exist_is_not_found_and_a_uid_is_immutable() -> None:
    cluster, secrets = MemoryCluster([pod_manifest("p")]), "/api/v1/secrets"
    for call, status in (
        (cluster.get(secrets), 404),
        (cluster.post(secrets, b"{}"), 404),
        (cluster.post(f"{POD}q/binding", b"{}"), 404),
        (cluster.patch(f"{POD}q/status", b"{}"), 404),
        (cluster.patch(f"{POD}/status", b'{"metadata":{"uid":"another"}}'), 422),
    ):
        with pytest.raises(ApiError) as raised:
            asyncio.run(call)
        assert raised.value.status == status


@in_loop
async def test_a_watch_opens_at_once_and_yields_batches() -> None:
    cluster = MemoryCluster([pod_manifest("p")])
    watch = cluster.watch(PODS_PATH, {})
    assert await anext(watch) == []
    cluster.apply(pod_manifest("q"))
    cluster.apply(node_manifest("n"))
    cluster.apply(pod_manifest("p"))
    cluster.delete(pod_manifest("q"))
    events = [msgspec.json.decode(line) for line in await anext(watch)]
    assert [(event["type"], event["object"]["metadata"]["name"]) for event in events] == [
        *(("ADDED", "q"), ("MODIFIED", "p"), ("DELETED", "q"))
    ]
