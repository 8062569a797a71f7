"""Binding: one write with the GPUs in it, and what Kerf itself refuses."""

from typing import Any

import pytest

from extender import __version__
from extender.core.annotations import MEMORY_EACH, MEMORY_TOTAL, POLICY, SHARE, UUID
from extender.kube.memory import Manifest
from extender.ledger.ledger import AllocationState
from extender.plugins.kerf import (
    ASSIGNED_BY,
    ASSIGNED_GPUS,
    ASSIGNED_MEMORY,
    ASSIGNED_MODEL,
    ASSIGNED_SHARE,
    ASSIGNED_UUIDS,
    EXPLANATION,
    GPUS,
)
from tests.ledger.builders import TTL_S, Fault, node_manifest, pod_manifest
from tests.nvidia import SHARED_GPU_RESOURCE
from tests.scheduling.binding.rigs import TIMEOUT, Rig


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
    bound = rig.cluster.pod("default", "p")
    assert (bound["spec"]["nodeName"], bound["metadata"]["annotations"][ASSIGNED_GPUS]) == ("n", "0")
    rig.clock.now += 10 * TTL_S
    assert (rig.state(), rig.free("n"), rig.free("m")) == (AllocationState.BOUND, {1}, {0, 1})
    assert rig.placer.remembered("u") is None


def test_annotations() -> None:
    t4, mig = {ASSIGNED_MODEL: "t4"}, "nvidia.com/mig-1g.5gb"
    plain, unlabelled = node_manifest("x", 4), {**node_manifest("x", 2), "metadata": {"name": "x", "uid": "x"}}
    described = '[{"index": 0, "uuid": "GPU-a"}, {"index": 1, "uuid": "GPU-b"}]'

    def asking(**annotations: str) -> Manifest:
        return pod_manifest("p", uid="u", annotations=annotations)

    rows: tuple[tuple[Manifest, Manifest, dict[str, str]], ...] = (
        (
            pod_manifest("p", 2, uid="u"),
            node_manifest("x", 4, product="NVIDIA-A100-SXM4-80GB", memory_mib=81920),
            {ASSIGNED_GPUS: "0,1", ASSIGNED_MODEL: "a100-sxm4-80gb"},
        ),
        (asking(**{MEMORY_TOTAL: "30Gi", POLICY: "binpack"}), plain, {ASSIGNED_GPUS: "0,1", **t4}),  # 30 = 2 x 15
        (asking(**{MEMORY_TOTAL: "31Gi", POLICY: "binpack"}), plain, {ASSIGNED_GPUS: "0,1,2", **t4}),
        (
            asking(**{SHARE: "500", MEMORY_EACH: "4Gi"}),
            plain,
            {ASSIGNED_GPUS: "0", ASSIGNED_SHARE: "500", ASSIGNED_MEMORY: "4096", **t4},
        ),
        # The device plugin picks the slices, and the MIG devices.
        (
            pod_manifest("p", 3, uid="u", resource=SHARED_GPU_RESOURCE),
            node_manifest("x", 2, resource=SHARED_GPU_RESOURCE, replicas=4),
            {ASSIGNED_GPUS: "", **t4},
        ),
        (pod_manifest("p", 2, uid="u", resource=mig), node_manifest("x", 7, resource=mig), {ASSIGNED_GPUS: ""}),
        (pod_manifest("p", 1, uid="u"), unlabelled, {ASSIGNED_GPUS: "0"}),
        # A copy of another pod: that one's assignment is blanked.
        (
            pod_manifest("p", 1, uid="u", annotations={ASSIGNED_UUIDS: "GPU-x", ASSIGNED_SHARE: "1"}, assigned="9"),
            plain,
            {ASSIGNED_GPUS: "0", ASSIGNED_UUIDS: "", ASSIGNED_SHARE: "", **t4},
        ),
        (
            asking(**{UUID: "GPU-b"}),
            {"kind": "Node", "metadata": {"name": "x", "uid": "x", "annotations": {GPUS: described}}},
            {ASSIGNED_GPUS: "1", ASSIGNED_UUIDS: "GPU-b"},
        ),
    )
    for pod, node, expected in rows:
        rig = Rig(pod)
        rig.cluster.apply(node)
        rig.sync()
        rig.filter("x")
        rig.bind("x")
        written: dict[str, Any] = rig.bindings()[0]["metadata"]["annotations"]
        policy = pod["metadata"]["annotations"].get(POLICY, "bestfit")
        assert written.pop(EXPLANATION).endswith(f"this one ranks best by policy {policy}")
        assert written == {ASSIGNED_BY: f"kerf/{__version__} {policy}", **expected}


def test_the_node_of_the_call_counts_not_the_one_decided_on() -> None:
    rig = Rig()
    rig.filter("m")
    assert rig.free("m") == {1}
    rig.bind("n")
    assert (rig.free("m"), rig.free("n")) == ({0, 1}, {1})


def test_a_pod_never_offered_is_read_and_one_that_is_bound_there_is_not_bound_again() -> None:
    rig = Rig()
    rig.bind()
    assert rig.free("n") == {1}
    rig.bind()
    assert rig.paths() == ["GET p", "POST binding", "GET p"]


@pytest.mark.parametrize(("node", "fault"), [("n", "pods are not synced yet"), ("unknown", "")])
def test_a_pod_without_gpus_is_bound_whatever_kerf_knows(node: str, fault: str) -> None:
    rig = Rig(pod_manifest("p", uid="u"))
    rig.filter()
    rig.annotate(harmless="change")
    rig.fence.shut(lambda: "b leads")
    rig.transport.posts.append(Fault(TIMEOUT, took_effect=True))
    rig.bind(node, fault)
    assert rig.cluster.pod("default", "p")["spec"]["nodeName"] == node
    assert rig.bindings()[0]["metadata"]["annotations"] == {}
    assert (rig.state(), rig.cluster.events) == (None, [])


# Kerf itself refuses.


def test_a_gpu_pod_is_not_bound_to_an_unknown_node() -> None:
    rig = Rig()
    rig.filter()
    assert "unknown is not known" in rig.fail("unknown")
    assert (rig.bindings(), rig.state(), rig.free("n"), rig.free("m")) == ([], None, {0, 1}, {0, 1})


def test_a_pod_that_no_longer_fits_is_not_bound() -> None:
    rig = Rig(pod_manifest("p", 2, uid="u"))
    rig.filter("n")
    rig.cluster.apply(pod_manifest("rival", 1, node="n", assigned="1"))
    rig.sync()
    assert rig.fail().endswith("fits pod default/p: needs 2 GPUs, best here: 1 free")
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
    assert rig.fail(fault="it is 300 s old").endswith(": it is 300 s old")
    assert (rig.bindings(), rig.state(), rig.free("n")) == ([], None, {0, 1})


def test_a_bind_that_the_fence_refuses_releases_the_reservation_unless_it_is_written_on_the_pod() -> None:
    for persisted, state in ((False, None), (True, AllocationState.RESERVED)):
        rig = Rig()
        rig.filter("n")
        if persisted:  # kube-scheduler may bind the pod without Kerf
            rig.ledger.pin("u")
        rig.fence.shut(lambda: "b leads")
        assert rig.fail() == "standby: b leads"
        assert (rig.bindings(), rig.state()) == ([], state)


def test_a_bind_of_a_pod_that_cannot_be_read_releases_the_reservation() -> None:
    rig = Rig()
    rig.filter("n")
    rig.placer.forget("u")
    rig.transport.gets.append(Fault(TIMEOUT))
    rig.fail()
    assert (rig.bindings(), rig.state(), rig.free("n")) == ([], None, {0, 1})


def test_a_pod_that_the_watch_reports_on_another_node_is_not_bound() -> None:
    rig = Rig()
    rig.filter("n")
    rig.cluster.apply(pod_manifest("p", 1, uid="u", node="m", assigned="0"))
    rig.sync()
    assert rig.fail().endswith("to node m")
    assert (rig.state(), rig.free("m"), rig.free("n")) == (AllocationState.BOUND, {1}, {0, 1})
