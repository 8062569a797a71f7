"""The fence around a Binding: it carries the pod as it was known before the last check."""

import asyncio

import msgspec
import pytest

from extender.core.annotations import COUNT, MEMORY_TOTAL
from extender.kube.leadership import Unelected
from extender.kube.memory import Manifest
from extender.ledger.ledger import ClaimState
from extender.plugins.kerf import ASSIGNED_GPUS
from tests.ledger.builders import Fault, FaultyTransport, node_manifest, open_fence, pod_manifest
from tests.scheduling.binding.rigs import CONFLICT, Rig


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
    assert rig.fail() == "pod default/p has changed its request since the decision"
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
    rig.binder = rig.binder_on(transport)
    rig.filter()
    assert rig.fail() == "pod default/p has changed its request since the decision"
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
    rig.binder = rig.binder_on(transport)
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
    rig.binder = rig.binder_on(rig.transport)
    rig.filter("n")
    assert rig.fail() == "this process can't be sure that it still leads"
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
    rig.binder = rig.binder_on(rig.transport)
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
