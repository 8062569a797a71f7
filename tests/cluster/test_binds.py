"""Binding: one write with the GPUs in it, and a deliberate end for every way it can fail."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from extender import __version__
from extender.cluster import objects
from extender.cluster.binds import Binder, BindError
from extender.cluster.events import EventRecorder
from extender.cluster.inventories import GPUS
from extender.cluster.leases import Unelected
from extender.cluster.ledger import ClaimState, Ledger
from extender.cluster.memory import Manifest, MemoryCluster
from extender.cluster.mirrors import NODES_PATH, PODS_PATH
from extender.cluster.placements import Placer, PodIdentity
from extender.cluster.pods import (
    ASSIGNED_BY,
    ASSIGNED_GPUS,
    ASSIGNED_MEMORY,
    ASSIGNED_MODEL,
    ASSIGNED_SHARE,
    ASSIGNED_UUIDS,
    EXPLANATION,
    read_pod_request,
)
from extender.cluster.transports import ApiError, ClusterError, UnreachableError
from extender.core.nodes import SHARED_GPU_RESOURCE
from extender.core.requests import COUNT, MEMORY_EACH, MEMORY_TOTAL, POLICY, SHARE, UUID
from tests.cluster.builders import Clock, Fault, FaultyTransport, node_manifest, open_fence, pod_manifest

TTL_S = 30.0
TIMEOUT = UnreachableError("POST: timed out")
CONFLICT = ApiError(409, "Conflict", "already assigned")
SERVER_ERROR = ApiError(500, "InternalError", "etcdserver: request timed out")
NOT_FOUND = ApiError(404, "NotFound", 'pods "p" not found')
FORBIDDEN = ApiError(403, "Forbidden", "no")


def annotated_node(name: str, *uuids: str) -> Manifest:
    """A node whose GPUs Kerf's own annotation names."""
    gpus = [{"index": index, "uuid": uuid} for index, uuid in enumerate(uuids)]
    return {"kind": "Node", "metadata": {"name": name, "uid": name, "annotations": {GPUS: json.dumps(gpus)}}}


class Rig:
    """A binder on a cluster in memory: nodes "n" (2 T4) and "m" (2 T4), pod "p" as given."""

    def __init__(self, pod: Manifest | None = None) -> None:
        self.clock = Clock()
        self.cluster = MemoryCluster([node_manifest("n", 2), node_manifest("m", 2)])
        self.transport = FaultyTransport(self.cluster)
        self.ledger = Ledger(reservation_ttl_s=TTL_S)
        self.placer = Placer(self.ledger, default_policy="bestfit", clock=self.clock, wall_clock=self.clock)
        self.events = EventRecorder(self.transport)
        self.fence = open_fence()
        self.binder = Binder(
            self.transport, self.ledger, self.placer, self.events, self.clock, self.fence, lambda: 1_800_000_000.0
        )
        self.cluster.apply(pod or pod_manifest("p", 1, uid="u"))
        self.identity = PodIdentity("default", "p", "u")
        self.sync()

    def sync(self) -> None:
        """What the watch would tell."""
        for path, take in ((NODES_PATH, self._take_node), (PODS_PATH, self._take_pod)):
            for item in msgspec.json.decode(asyncio.run(self.cluster.get(path)))["items"]:
                take(item)

    def _take_node(self, item: Manifest) -> None:
        self.ledger.upsert_node(msgspec.convert(item, objects.Node))

    def _take_pod(self, item: Manifest) -> None:
        self.ledger.upsert_pod(msgspec.convert(item, objects.Pod), self.clock())

    def filter(self, *nodes: str) -> None:
        """What filter does with the pod: decide, reserve, remember."""
        pod = msgspec.convert(self.cluster.pod("default", "p"), objects.Pod)
        request = read_pod_request(pod)
        self.placer.remember(self.identity, request)
        self.fence.note(pod.metadata)
        if request.gpus:
            policy = self.placer.policy_of(request)
            self.placer.reserve(self.placer.place(self.identity, request.gpus, policy, nodes or ["m", "n"]))

    def bind(self, node: str = "n", fault: str = "") -> None:
        asyncio.run(self.binder.bind(self.identity, node, fault))

    def fail(self, node: str = "n", fault: str = "") -> str:
        with pytest.raises(BindError) as raised:
            self.bind(node, fault)
        return str(raised.value)

    def settle(self) -> None:
        asyncio.run(self.binder.settler.settle_round())

    def free(self, node: str) -> set[int]:
        cluster = self.ledger.snapshot(self.clock())
        row = cluster.row_of[node]
        return {index for index, free in enumerate(cluster.gpu_idle[row].tolist()) if free}

    def state(self) -> ClaimState | None:
        claim = self.ledger.claim("u")
        return claim.state if claim else None

    def paths(self) -> list[str]:
        return [f"{verb} {path.rpartition('/')[2]}" for verb, path, _ in self.transport.calls]

    def bindings(self) -> list[Any]:
        return [msgspec.json.decode(body) for _, path, body in self.transport.calls if path.endswith("/binding")]


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
        b'"kerf.dev/explanation":"placed: 1 GPU; there was room on 1 of 1 nodes,'
        b' this one is the best by policy bestfit",'
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
    assert "; there was room on 1 of 1 nodes, this one is the best by policy " in told
    assert written == annotations


def test_the_event_names_the_gpus() -> None:
    rig = Rig()

    async def bind_and_stop() -> None:
        rig.events.start()
        await rig.binder.bind(rig.identity, "n", "")
        await rig.events.stop()

    asyncio.run(bind_and_stop())
    (event,) = rig.cluster.events
    assert (event["reason"], event["message"]) == ("GPUsAssigned", "Assigned GPU 0 (t4) of node n by policy bestfit")
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


# The API server refuses, or nobody knows what it did.


@pytest.mark.parametrize(
    ("post", "get", "sentence", "state"),
    [
        pytest.param(
            Fault(FORBIDDEN),
            None,
            "the API server refused to bind default/p to n: 403 Forbidden: no",
            None,
            id="403",
        ),
        pytest.param(
            Fault(NOT_FOUND),
            None,
            'the API server refused to bind default/p to n: 404 NotFound: pods "p" not found',
            None,
            id="404",
        ),
        pytest.param(
            Fault(ApiError(429, "TooManyRequests", "slow down")),
            None,
            "the API server refused to bind default/p to n: 429 TooManyRequests: slow down",
            None,
            id="429",
        ),
        pytest.param(
            Fault(CONFLICT),
            None,
            "the API server refused to bind default/p to n: 409 Conflict: already assigned",
            None,
            id="409 while it has no node: gated, or being deleted",
        ),
        pytest.param(
            Fault(CONFLICT),
            Fault(NOT_FOUND),
            "pod default/p is gone",
            None,
            id="409, then gone",
        ),
        pytest.param(
            Fault(CONFLICT),
            Fault(FORBIDDEN),
            "binding default/p to n: 409 Conflict: already assigned; its outcome is unknown: 403 Forbidden: no",
            ClaimState.UNDECIDED,
            id="409, then it can't be read",
        ),
        pytest.param(
            Fault(SERVER_ERROR),
            None,
            "binding default/p to n failed: 500 InternalError: etcdserver: request timed out",
            None,
            id="500 and not bound yet: the write can't come any more",
        ),
        pytest.param(
            Fault(SERVER_ERROR),
            Fault(SERVER_ERROR),
            "binding default/p to n: 500 InternalError: etcdserver: request timed out; its outcome is unknown: "
            "500 InternalError: etcdserver: request timed out",
            ClaimState.UNDECIDED,
            id="500, then 500",
        ),
        pytest.param(
            Fault(TIMEOUT),
            None,
            "binding default/p to n failed: POST: timed out",
            None,
            id="timed out and not bound yet: the write can't come any more",
        ),
        pytest.param(
            Fault(TIMEOUT),
            Fault(UnreachableError("GET: refused")),
            "binding default/p to n: POST: timed out; its outcome is unknown: GET: refused",
            ClaimState.UNDECIDED,
            id="timed out, then unreachable",
        ),
        pytest.param(
            Fault(TIMEOUT, took_effect=True),
            Fault(UnreachableError("GET: refused")),
            "binding default/p to n: POST: timed out; its outcome is unknown: GET: refused",
            ClaimState.UNDECIDED,
            id="timed out though it took effect, then unreachable",
        ),
        pytest.param(
            Fault(TIMEOUT),
            Fault(NOT_FOUND),
            "pod default/p is gone",
            None,
            id="timed out, then gone",
        ),
    ],
)
def test_a_failed_binding(post: Fault, get: Fault | None, sentence: str, state: ClaimState | None) -> None:
    rig = Rig()
    rig.filter("n")
    rig.transport.posts.append(post)
    for answers in (rig.transport.gets, rig.transport.patches):
        answers.append(get)
    assert rig.fail() == sentence
    assert rig.state() is state
    assert rig.free("n") == ({1} if state else {0, 1})
    rig.clock.now += 10 * TTL_S
    assert rig.free("n") == ({1} if state else {0, 1}), "what nobody knows is held"
    rig.transport.patches.append(Fault(SERVER_ERROR))
    rig.settle()
    assert rig.free("n") == ({1} if state else {0, 1}), "and the pod can't be asked"
    rig.transport.patches.clear()
    rig.settle()
    bound = post.took_effect
    assert (rig.state(), rig.free("n")) == ((ClaimState.BOUND, {1}) if bound else (None, {0, 1}))
    assert rig.cluster.events == []


@pytest.mark.parametrize("error", [TIMEOUT, SERVER_ERROR], ids=str)
def test_a_binding_that_failed_without_an_answer_cannot_take_effect_later(error: ClusterError) -> None:
    rig = Rig()
    rig.filter("n")
    rig.transport.posts.append(Fault(error))
    rig.fail()
    ((_, path, late),) = (call for call in rig.transport.calls if call[0] == "POST")
    with pytest.raises(ApiError, match="409"):
        asyncio.run(rig.cluster.post(path, late))


def test_a_pod_created_again_under_its_name_leaves_nothing_undecided() -> None:
    rig = Rig()
    rig.filter("n")
    rig.transport.posts.append(Fault(TIMEOUT))
    rig.transport.patches.append(Fault(TIMEOUT))
    rig.fail()
    assert rig.state() is ClaimState.UNDECIDED
    rig.cluster.delete(pod_manifest("p"))
    rig.cluster.apply(pod_manifest("p", 1, uid="another"))
    rig.settle()  # the API server answers 422: a UID can't be changed
    assert (rig.state(), rig.free("n")) == (None, {0, 1})


@pytest.mark.parametrize("error", [TIMEOUT, SERVER_ERROR, CONFLICT, ApiError(504, "Timeout", "")], ids=str)
def test_a_binding_that_took_effect_is_a_success_whatever_the_answer(error: ClusterError) -> None:
    rig = Rig()
    rig.filter("n")
    rig.transport.posts.append(Fault(error, took_effect=True))
    rig.bind()
    assert rig.paths() == ["POST binding", "GET p" if error is CONFLICT else "PATCH status"]
    assert (rig.state(), rig.free("n")) == (ClaimState.BOUND, {1})


@pytest.mark.parametrize(
    ("node", "assigned"),
    [
        pytest.param("m", "0", id="to another node"),
        pytest.param("n", "1", id="to this node with another GPU"),
        pytest.param("n", None, id="to this node without an assignment"),
    ],
)
def test_a_pod_bound_by_somebody_else(node: str, assigned: str | None) -> None:
    rig = Rig()
    rig.filter("n")
    rig.cluster.apply(pod_manifest("p", 1, uid="u", node=node, assigned=assigned))
    assert rig.fail() == f"pod default/p is bound to node {node} by somebody else"
    # Held at once, and made to tell: the watch may be late, or may have told that it is gone already.
    assert rig.state() is ClaimState.UNDECIDED
    # On the node that was chosen here it may be this Binding's effect, edited since: GPU 0 is held besides.
    assert (rig.free("n"), rig.free("m")) == ((set() if assigned else {1}, {0, 1}) if node == "n" else ({0, 1}, {1}))
    rig.sync()
    assert rig.state() is ClaimState.BOUND, "the watch tells of it as of any pod"


def test_a_pod_created_again_under_its_name_is_not_bound() -> None:
    rig = Rig()
    rig.filter("n")
    rig.cluster.delete(rig.cluster.pod("default", "p"))
    rig.cluster.apply(pod_manifest("p", 1, uid="another"))
    assert rig.fail() == "pod default/p was deleted and created again: UID u is gone"
    assert "nodeName" not in rig.cluster.pod("default", "p")["spec"]
    assert (rig.state(), rig.free("n")) == (None, {0, 1})


@pytest.mark.parametrize(
    ("get", "pod", "sentence"),
    [
        pytest.param(Fault(NOT_FOUND), None, 'pod default/p: 404 NotFound: pods "p" not found', id="gone"),
        pytest.param(Fault(TIMEOUT), None, "pod default/p: POST: timed out", id="unreachable"),
        pytest.param(
            None,
            pod_manifest("p", "-1", uid="u"),
            'pod default/p: nvidia.com/gpu: "-1" is negative; write a whole number',
            id="a request that can't be understood",
        ),
        pytest.param(
            None,
            pod_manifest("p", 1, uid="another"),
            "pod default/p was deleted and created again: UID u is gone",
            id="another pod of that name",
        ),
        pytest.param(
            None,
            pod_manifest("p", 1, uid="u", annotations={POLICY: "best"}),
            'kerf.dev/policy: "best" is no policy; write one of bestfit, binpack, spread, ...',
            id="a policy that is none",
        ),
    ],
)
def test_a_pod_never_offered_that_cannot_be_bound(get: Fault | None, pod: Manifest | None, sentence: str) -> None:
    rig = Rig(pod)
    rig.transport.gets.append(get)
    told = rig.fail()
    assert told == sentence or (sentence.endswith(", ...") and told.startswith(sentence.removesuffix(", ...")))
    assert (rig.bindings(), rig.state()) == ([], None)


# The fence: a Binding carries the pod as it was known before the last check.


def touch(rig: Rig, **annotations: str) -> None:
    """Somebody changes the pod's metadata."""
    metadata = {"annotations": annotations or {"harmless": "change"}}
    path = "/api/v1/namespaces/default/pods/p/status"
    asyncio.run(rig.cluster.patch(path, msgspec.json.encode({"metadata": metadata})))


def test_a_pod_changed_since_filter_is_read_again_and_bound() -> None:
    rig = Rig()
    rig.filter("n")
    touch(rig)
    rig.bind()
    assert rig.paths() == ["POST binding", "GET p", "POST binding"]
    first, second = (binding["metadata"]["resourceVersion"] for binding in rig.bindings())
    assert int(first) < int(second)
    assert (rig.state(), rig.free("n")) == (ClaimState.BOUND, {1})


def test_a_pod_that_changes_again_and_again_is_refused() -> None:
    rig = Rig()
    rig.filter("n")
    rig.transport.posts.extend([Fault(CONFLICT), Fault(CONFLICT)])
    touch(rig)
    assert rig.fail() == "the API server refused to bind default/p to n: 409 Conflict: already assigned"
    assert rig.paths() == ["POST binding", "GET p", "POST binding", "GET p"]
    assert (rig.state(), rig.free("n")) == (None, {0, 1})


def test_a_pod_that_asks_for_something_else_by_now_is_not_bound() -> None:
    rig = Rig()
    rig.filter("n")
    touch(rig, **{MEMORY_TOTAL: "8Gi"})
    assert rig.fail() == "pod default/p asks for something else than what was decided on"
    assert (len(rig.bindings()), rig.state(), rig.free("n")) == (1, None, {0, 1})


def test_a_pod_offered_without_a_version_is_read_before_it_is_bound() -> None:
    rig = Rig()
    rig.filter("n")
    rig.fence.forget("u")
    rig.bind()
    assert rig.paths() == ["GET p", "POST binding"]
    assert rig.bindings()[0]["metadata"]["resourceVersion"] == "3"


def test_a_pod_without_gpus_is_bound_without_a_fence() -> None:
    rig = Rig(pod_manifest("p", uid="u"))
    rig.filter()
    touch(rig)
    rig.fence.shut(lambda: "b leads")
    rig.bind(fault="b leads")
    assert rig.cluster.pod("default", "p")["spec"]["nodeName"] == "n"


def test_a_pod_that_asks_by_annotation_only_after_it_was_offered_gets_its_gpus() -> None:
    """kube-scheduler may take minutes between the two: it waits for volumes, and for other plugins."""
    rig = Rig(pod_manifest("p", uid="u"))
    rig.filter()
    touch(rig, **{COUNT: "1"})
    rig.bind()
    assert rig.bindings()[0]["metadata"]["annotations"][ASSIGNED_GPUS] == "0"
    assert (rig.state(), rig.free("n")) == (ClaimState.BOUND, {1})


def test_a_pod_that_asks_by_annotation_as_it_is_bound_is_not_bound_without_gpus() -> None:
    rig = Rig(pod_manifest("p", uid="u"))

    class Edited(FaultyTransport):
        async def post(self, path: str, body: bytes) -> bytes:
            edit = {"metadata": {"annotations": {COUNT: "8"}}}
            await rig.cluster.patch("/api/v1/namespaces/default/pods/p/status", msgspec.json.encode(edit))
            return await super().post(path, body)

    transport = Edited(rig.cluster)
    rig.binder = Binder(transport, rig.ledger, rig.placer, EventRecorder(transport), rig.clock, rig.fence, rig.clock)
    rig.filter()
    assert rig.fail() == "pod default/p asks for something else than what was decided on"
    assert "nodeName" not in rig.cluster.pod("default", "p")["spec"]


def test_a_late_binding_cannot_take_effect_once_a_successor_has_marked_the_pod() -> None:
    """Paused between check and write for longer than the term; then the retry is refused by the check."""
    rig = Rig()
    rig.filter("n")

    class Paused(FaultyTransport):
        async def post(self, path: str, body: bytes) -> bytes:
            await rig.cluster.patch(
                "/api/v1/namespaces/default/pods/p/status",
                msgspec.json.encode({"metadata": {"annotations": {"kerf.dev/epoch": "of the successor"}}}),
            )
            rig.fence.shut(lambda: "b leads")
            return await super().post(path, body)

    transport = Paused(rig.cluster)
    rig.binder = Binder(transport, rig.ledger, rig.placer, EventRecorder(transport), rig.clock, rig.fence, rig.clock)
    assert rig.fail() == "standby: b leads"
    assert [verb for verb, _, _ in transport.calls] == ["POST", "GET"]
    assert "nodeName" not in rig.cluster.pod("default", "p")["spec"]
    assert (rig.state(), rig.free("n")) == (None, {0, 1})


class Replaced(Unelected):
    """An election that another process has won, which this one's clock does not tell."""

    async def confirm(self, since: int) -> bool:
        return False


def test_nothing_is_bound_that_is_not_confirmed_though_the_term_looks_good() -> None:
    """A process that was paused with its clock, or beside a kube-scheduler that has released its lease."""
    rig = Rig()
    rig.fence = open_fence(Replaced())
    rig.binder = Binder(rig.transport, rig.ledger, rig.placer, rig.events, rig.clock, rig.fence, rig.clock)
    rig.filter("n")
    assert rig.fail() == "whether this process still leads is not known"
    assert (rig.transport.calls, rig.state(), rig.free("n")) == ([], None, {0, 1})


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(node_manifest("n", 0), id="the node has lost its GPUs"),
        pytest.param(pod_manifest("rival", 1, node="n", assigned="0"), id="somebody else has placed a pod there"),
    ],
)
def test_what_is_known_before_the_binding_is_sent_counts(change: Manifest) -> None:
    """The lease is asked in between, and on HAMi's nodes a lock is waited for."""

    class Asked(Unelected):
        async def confirm(self, since: int) -> bool:
            await asyncio.to_thread(told)
            return True

    def told() -> None:
        rig.cluster.apply(change)
        rig.sync()

    rig = Rig()
    rig.fence = open_fence(Asked())
    rig.binder = Binder(rig.transport, rig.ledger, rig.placer, rig.events, rig.clock, rig.fence, rig.clock)
    rig.filter("n")
    assert rig.fail() == "node n has changed since pod default/p was given its GPUs"
    assert (rig.bindings(), rig.state()) == ([], None)


def test_a_pod_that_another_leader_has_marked_is_bound_by_who_leads() -> None:
    """The mark of a predecessor came late, after that of this one."""
    rig = Rig()
    rig.filter("n")
    touch(rig, **{"kerf.dev/epoch-kerf": "1-aa"})
    rig.bind()
    assert (rig.state(), rig.free("n")) == (ClaimState.BOUND, {1})


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
    assert rig.fail() == "pod default/p is bound, or being bound, to node m already"
    assert (rig.state(), rig.free("m"), rig.free("n")) == (ClaimState.BOUND, {1}, {0, 1})


# What happens while the API server is asked.


def test_gpus_are_held_while_the_api_server_is_asked_however_long() -> None:
    rig = Rig()
    rig.filter("n")
    seen: list[set[int]] = []

    def look() -> None:
        rig.clock.now += 10 * TTL_S
        seen.append(rig.free("n"))

    rig.transport.on_post = look
    rig.bind()
    assert seen == [{1}]


def test_the_watch_may_tell_before_the_answer_comes() -> None:
    rig = Rig()
    rig.filter("n")

    def tell() -> None:
        rig.ledger.upsert_pod(msgspec.convert(rig.cluster.pod("default", "p"), objects.Pod), rig.clock())

    rig.transport.on_post = tell
    rig.bind()
    assert (rig.state(), rig.free("n"), rig.ledger.num_claims(ClaimState.BOUND)) == (ClaimState.BOUND, {1}, 1)


def test_a_pod_deleted_while_it_is_bound_holds_nothing() -> None:
    rig = Rig()
    rig.filter("n")
    rig.transport.on_post = lambda: rig.ledger.remove_pod("u")
    rig.bind()
    assert (rig.state(), rig.free("n")) == (None, {0, 1})


class SlowTransport(FaultyTransport):
    """Does not answer a post before it is let go."""

    def __init__(self, inner: MemoryCluster) -> None:
        super().__init__(inner)
        self.asked, self.go = asyncio.Event(), asyncio.Event()

    async def post(self, path: str, body: bytes) -> bytes:
        self.asked.set()
        await self.go.wait()
        return await super().post(path, body)


def slow(scenario: Callable[[Rig, SlowTransport, "asyncio.Task[None]"], Awaitable[None]]) -> Rig:
    """Run a scenario while a first bind of pod "p" to node "n" is waiting for its answer."""
    rig = Rig()
    rig.filter("n")

    async def run() -> None:
        transport = SlowTransport(rig.cluster)
        binder = Binder(transport, rig.ledger, rig.placer, EventRecorder(transport), rig.clock, rig.fence, rig.clock)
        rig.binder = binder
        first = asyncio.create_task(binder.bind(rig.identity, "n", ""))
        await transport.asked.wait()
        await scenario(rig, transport, first)

    asyncio.run(run())
    return rig


def test_a_second_bind_of_a_pod_being_bound_is_refused() -> None:
    async def scenario(rig: Rig, transport: SlowTransport, first: "asyncio.Task[None]") -> None:
        for node in ("n", "m"):
            with pytest.raises(BindError, match="is bound, or being bound, to node n already"):
                await rig.binder.bind(rig.identity, node, "")
        assert rig.state() is ClaimState.BINDING
        transport.go.set()
        await first

    rig = slow(scenario)
    assert (rig.state(), rig.free("n")) == (ClaimState.BOUND, {1})


def test_a_cancelled_bind_keeps_its_gpus_until_the_pod_has_told() -> None:
    async def scenario(rig: Rig, transport: SlowTransport, first: "asyncio.Task[None]") -> None:
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first

    rig = slow(scenario)
    assert (rig.state(), rig.free("n")) == (ClaimState.UNDECIDED, {1})
    rig.settle()
    assert (rig.state(), rig.free("n")) == (None, {0, 1})


def test_another_pod_sees_a_binding_under_way() -> None:
    async def scenario(rig: Rig, transport: SlowTransport, first: "asyncio.Task[None]") -> None:
        rig.cluster.apply(pod_manifest("q", 2, uid="v"))
        with pytest.raises(BindError, match="needs 2 GPUs, best here: 1 free"):
            await rig.binder.bind(PodIdentity("default", "q", "v"), "n", "")
        transport.go.set()
        await first

    slow(scenario)


@pytest.mark.parametrize("fault", [None, Fault(TIMEOUT), Fault(FORBIDDEN), Fault(TIMEOUT, took_effect=True)], ids=str)
def test_whatever_happens_no_binding_stays_under_way(fault: Fault | None) -> None:
    rig = Rig()
    rig.transport.posts.append(fault)
    try:
        rig.bind()
    except BindError:
        rig.clock.now += TTL_S
    rig.ledger.snapshot(rig.clock())
    assert rig.ledger.num_claims(ClaimState.BINDING) == 0
    assert rig.ledger.num_claims(ClaimState.RESERVED) == 0
