"""Binding: one write with the GPUs in it, and a deliberate end for every way it can fail."""

import asyncio

import pytest

from extender import __version__
from extender.core.annotations import MEMORY_EACH, MEMORY_TOTAL, POLICY, SHARE, UUID
from extender.kube.memory import Manifest
from extender.ledger.ledger import ClaimState
from extender.plugins.kerf import (
    ASSIGNED_BY,
    ASSIGNED_GPUS,
    ASSIGNED_MEMORY,
    ASSIGNED_MODEL,
    ASSIGNED_SHARE,
    ASSIGNED_UUIDS,
    EXPLANATION,
)
from tests.ledger.builders import TTL_S, Fault, node_manifest, pod_manifest
from tests.nvidia import SHARED_GPU_RESOURCE
from tests.scheduling.binding.rigs import TIMEOUT, Rig, annotated_node


def test_a_binding_carries_the_very_gpus() -> None:
    rig = Rig()
    rig.filter("n")
    rig.bind()
    ((verb, path, body),) = rig.transport.calls
    assert (verb, path) == ("POST", "/api/v1/namespaces/default/pods/p/binding")
    # The contract with the API server, byte for byte.
    assert body == (
        b'{"apiVersion":"v1","kind":"Binding","metadata":{"name":"p","namespace":"default","uid":"u","annotations":'
        b'{"kerf.dev/assigned-gpus":"0","kerf.dev/assigned-by":"kerf/%s bestfit",'
        b'"kerf.dev/explanation":"placed: 1 GPU; 1 of 1 nodes had room,'
        b' this one ranks best by policy bestfit",'
        b'"kerf.dev/assigned-model":"t4"},'
        b'"resourceVersion":"3"},'
        b'"target":{"apiVersion":"v1","kind":"Node","name":"n"}}' % __version__.encode()
    )
    assert rig.cluster.pod("default", "p")["spec"]["nodeName"] == "n"
    assert rig.cluster.pod("default", "p")["metadata"]["annotations"][ASSIGNED_GPUS] == "0"


def test_a_bound_pod_holds_its_gpus_before_the_watch_tells() -> None:
    rig = Rig()
    rig.filter("n")
    rig.bind()
    assert (rig.state(), rig.free("n"), rig.free("m")) == (ClaimState.BOUND, {1}, {0, 1})
    rig.clock.now += 10 * TTL_S
    assert rig.free("n") == {1}
    rig.sync()
    assert rig.free("n") == {1}


@pytest.mark.parametrize(
    ("pod", "nodes", "annotations"),
    [
        pytest.param(
            pod_manifest("p", 2, uid="u"),
            [node_manifest("x", 4, product="NVIDIA-A100-SXM4-80GB", memory_mib=81920)],
            {ASSIGNED_GPUS: "0,1", ASSIGNED_BY: f"kerf/{__version__} bestfit", ASSIGNED_MODEL: "a100-sxm4-80gb"},
            id="two GPUs",
        ),
        pytest.param(
            pod_manifest("p", uid="u", annotations={MEMORY_TOTAL: "30Gi", POLICY: "binpack"}),
            [node_manifest("x", 4)],
            {ASSIGNED_GPUS: "0,1", ASSIGNED_BY: f"kerf/{__version__} binpack", ASSIGNED_MODEL: "t4"},
            id="by memory: 30 x 1024 = 2 x 15360",
        ),
        pytest.param(
            pod_manifest("p", uid="u", annotations={MEMORY_TOTAL: "31Gi", POLICY: "binpack"}),
            [node_manifest("x", 4)],
            {ASSIGNED_GPUS: "0,1,2", ASSIGNED_BY: f"kerf/{__version__} binpack", ASSIGNED_MODEL: "t4"},
            id="by memory: 2 x 15360 < 31 x 1024 = 31744 <= 3 x 15360",
        ),
        pytest.param(
            pod_manifest("p", 3, uid="u", resource=SHARED_GPU_RESOURCE),
            [node_manifest("x", 2, resource=SHARED_GPU_RESOURCE, replicas=4)],
            {ASSIGNED_GPUS: "", ASSIGNED_BY: f"kerf/{__version__} bestfit", ASSIGNED_MODEL: "t4"},
            id="slices: the device plugin picks",
        ),
        pytest.param(
            pod_manifest("p", 1, uid="u"),
            [{**node_manifest("x", 2), "metadata": {"name": "x", "uid": "x"}}],
            {ASSIGNED_GPUS: "0", ASSIGNED_BY: f"kerf/{__version__} bestfit"},
            id="no model where none is known",
        ),
        pytest.param(
            pod_manifest("p", uid="u", annotations={SHARE: "500", MEMORY_EACH: "4Gi"}),
            [node_manifest("x", 2)],
            {
                ASSIGNED_GPUS: "0",
                ASSIGNED_BY: f"kerf/{__version__} bestfit",
                ASSIGNED_MODEL: "t4",
                ASSIGNED_SHARE: "500",
                ASSIGNED_MEMORY: "4096",
            },
            id="a share",
        ),
        pytest.param(
            pod_manifest(
                "p", 1, uid="u", annotations={ASSIGNED_UUIDS: "GPU-x", ASSIGNED_SHARE: "1", ASSIGNED_GPUS: "9"}
            ),
            [node_manifest("x", 2)],
            {
                ASSIGNED_GPUS: "0",
                ASSIGNED_UUIDS: "",
                ASSIGNED_SHARE: "",
                ASSIGNED_BY: f"kerf/{__version__} bestfit",
                ASSIGNED_MODEL: "t4",
            },
            id="a copy of another pod: what was assigned to that one is blanked",
        ),
        pytest.param(
            pod_manifest("p", uid="u", annotations={UUID: "GPU-b"}),
            [annotated_node("x", "GPU-a", "GPU-b")],
            {ASSIGNED_GPUS: "1", ASSIGNED_BY: f"kerf/{__version__} bestfit", ASSIGNED_UUIDS: "GPU-b"},
            id="a UUID",
        ),
        pytest.param(
            pod_manifest("p", 2, uid="u", resource="nvidia.com/mig-1g.5gb"),
            [node_manifest("x", 7, resource="nvidia.com/mig-1g.5gb")],
            {ASSIGNED_GPUS: "", ASSIGNED_BY: f"kerf/{__version__} bestfit"},
            id="MIG devices: the device plugin picks",
        ),
    ],
)
def test_annotations(pod: Manifest, nodes: list[Manifest], annotations: dict[str, str]) -> None:
    rig = Rig(pod)
    for node in nodes:
        rig.cluster.apply(node)
    rig.sync()
    rig.filter("x")
    rig.bind("x")
    written = rig.bindings()[0]["metadata"]["annotations"]
    told = written.pop(EXPLANATION)
    assert "; 1 of 1 nodes had room, this one ranks best by policy " in told
    assert written == annotations


def test_the_event_names_the_gpus() -> None:
    rig = Rig()

    async def bind_and_stop() -> None:
        rig.events.start()
        await rig.binder.bind(rig.identity, "n", "")
        await rig.events.stop()

    asyncio.run(bind_and_stop())
    (event,) = rig.cluster.events
    assert (event["reason"], event["message"]) == ("GPUsAssigned", "Assigned GPU 0 (t4) on node n by policy bestfit")
    assert event["involvedObject"]["uid"] == "u"


def test_a_share_is_bound_and_read_back_as_it_was_decided() -> None:
    rig = Rig(pod_manifest("p", uid="u", annotations={SHARE: "300", MEMORY_EACH: "1Gi"}))
    rig.filter("n")
    reserved = rig.ledger.claim("u")
    assert reserved is not None
    rig.bind()
    rig.sync()
    assert rig.ledger.claim("u") is reserved, "what the watch tells is what was reserved"
    cluster = rig.ledger.snapshot(rig.clock())
    row = cluster.row_of["n"]
    assert (cluster.gpu_free_milli[row].tolist(), cluster.gpu_free_mib[row].tolist()) == (
        [700, 1000],
        [15360 - 1024, 15360],
    )


def test_the_node_of_the_call_counts_not_the_one_decided_on() -> None:
    rig = Rig()
    rig.filter("m")
    assert rig.free("m") == {1}
    rig.bind("n")
    assert (rig.free("m"), rig.free("n")) == ({0, 1}, {1})


def test_a_pod_never_offered_is_asked_for() -> None:
    rig = Rig()
    rig.bind()
    assert rig.paths() == ["GET p", "POST binding"]
    assert rig.free("n") == {1}


def test_a_request_is_forgotten_once_bound() -> None:
    rig = Rig()
    rig.filter()
    rig.bind()
    assert rig.placer.remembered("u") is None


def test_a_second_bind_of_what_is_bound_there_succeeds_without_a_write() -> None:
    rig = Rig()
    rig.filter()
    rig.bind()
    rig.bind()
    assert rig.paths() == ["POST binding", "GET p"]


# Pods without GPUs.


@pytest.mark.parametrize("fault", ["", "pods are not synced yet"])
@pytest.mark.parametrize("node", ["n", "unknown"])
def test_a_pod_without_gpus_is_bound_whatever_kerf_knows(node: str, fault: str) -> None:
    rig = Rig(pod_manifest("p", uid="u"))
    rig.filter()
    rig.bind(node, fault)
    assert rig.cluster.pod("default", "p")["spec"]["nodeName"] == node
    assert rig.bindings()[0]["metadata"]["annotations"] == {}
    assert (rig.state(), rig.cluster.events) == (None, [])


def test_a_pod_without_gpus_bound_before_its_answer_was_lost() -> None:
    rig = Rig(pod_manifest("p", uid="u"))
    rig.transport.posts.append(Fault(TIMEOUT, took_effect=True))
    rig.bind()
    assert rig.state() is None


# Kerf itself refuses.


def test_a_gpu_pod_is_not_bound_to_an_unknown_node() -> None:
    rig = Rig()
    rig.filter()
    assert rig.fail("unknown") == "node unknown is not known to Kerf"
    assert (rig.bindings(), rig.state(), rig.free("n"), rig.free("m")) == ([], None, {0, 1}, {0, 1})


def test_a_pod_that_no_longer_fits_is_not_bound() -> None:
    rig = Rig(pod_manifest("p", 2, uid="u"))
    rig.filter("n")
    rig.cluster.apply(pod_manifest("rival", 1, node="n", assigned="1"))
    rig.sync()
    assert rig.fail() == "node n no longer fits pod default/p: needs 2 GPUs, best here: 1 free"
    assert (rig.bindings(), rig.state(), rig.free("n")) == ([], None, {0})


def test_what_is_free_instead_is_taken() -> None:
    rig = Rig()
    rig.filter("n")
    rig.cluster.apply(pod_manifest("rival", 1, node="n", assigned="0"))
    rig.sync()
    rig.bind()
    assert rig.bindings()[0]["metadata"]["annotations"][ASSIGNED_GPUS] == "1"


def test_a_gpu_pod_is_not_bound_from_a_mirror_that_cannot_be_trusted() -> None:
    rig = Rig()
    rig.filter("n")
    sentence = rig.fail(fault="pods were last current 300 s ago")
    assert sentence == "Kerf can't tell which GPUs are free: pods were last current 300 s ago"
    assert (rig.bindings(), rig.state(), rig.free("n")) == ([], None, {0, 1})


def test_a_pod_that_the_watch_tells_is_bound_elsewhere() -> None:
    rig = Rig()
    rig.filter("n")
    rig.cluster.apply(pod_manifest("p", 1, uid="u", node="m", assigned="0"))
    rig.sync()
    assert rig.fail() == "pod default/p is already bound, or being bound, to node m"
    assert (rig.state(), rig.free("m"), rig.free("n")) == (ClaimState.BOUND, {1}, {0, 1})
