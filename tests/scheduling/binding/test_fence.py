"""The fence around a Binding: it carries the pod as it was known before the last check."""

import asyncio
from collections.abc import Callable

import msgspec

from extender.core.annotations import COUNT, MEMORY_TOTAL
from extender.kube.leadership import Unelected
from extender.ledger.ledger import AllocationState
from extender.plugins.kerf import ASSIGNED_GPUS
from tests.ledger.builders import node_manifest, open_fence, pod_manifest
from tests.scheduling.binding.rigs import STATUS_PATH, Rig


def test_a_pod_changed_since_filter_is_read_again_and_bound() -> None:
    for annotation in ("harmless", "kerf.dev/epoch-kerf"):  # even by a late mark of a predecessor
        rig = Rig()
        rig.filter("n")
        rig.annotate(**{annotation: "1-aa"})
        rig.bind()
        assert rig.paths() == ["POST binding", "GET p", "POST binding"]
        first, second = (binding["metadata"]["resourceVersion"] for binding in rig.bindings())
        assert int(first) < int(second)
        assert (rig.state(), rig.free("n")) == (AllocationState.BOUND, {1})


def test_a_pod_that_asks_for_something_else_by_now_is_not_bound() -> None:
    rig = Rig()
    rig.filter("n")
    rig.annotate(**{MEMORY_TOTAL: "8Gi"})
    assert "has changed its request" in rig.fail()
    assert (len(rig.bindings()), rig.state(), rig.free("n")) == (1, None, {0, 1})


def test_a_pod_offered_without_a_version_is_read_before_it_is_bound() -> None:
    rig = Rig()
    rig.filter("n")
    rig.fence.forget("u")
    rig.bind()
    assert rig.paths() == ["GET p", "POST binding"]
    assert rig.bindings()[0]["metadata"]["resourceVersion"] == "3"


def test_a_pod_that_asks_by_annotation_only_after_it_was_offered_gets_its_gpus() -> None:
    """kube-scheduler may take minutes between the two: it waits for volumes, and for other plugins."""
    rig = Rig(pod_manifest("p", uid="u"))
    rig.filter()
    rig.annotate(**{COUNT: "1"})
    rig.bind()
    assert rig.bindings()[0]["metadata"]["annotations"][ASSIGNED_GPUS] == "0"
    assert (rig.state(), rig.free("n")) == (AllocationState.BOUND, {1})


def bind_after(rig: Rig, meanwhile: Callable[[], None], **annotations: str) -> str:
    """Bind while the pod changes between check and write, and something else happens; return the error."""

    async def change() -> None:
        await rig.cluster.patch(STATUS_PATH, msgspec.json.encode({"metadata": {"annotations": annotations}}))
        meanwhile()

    rig.transport.before_post = change
    rig.filter("n")
    error = rig.fail()
    assert "nodeName" not in rig.cluster.pod("default", "p")["spec"]
    return error


def test_a_pod_that_asks_by_annotation_as_it_is_bound_is_not_bound_without_gpus() -> None:
    rig = Rig(pod_manifest("p", uid="u"))
    assert "has changed its request" in bind_after(rig, lambda: None, **{COUNT: "8"})


def test_a_late_binding_cannot_take_effect_once_a_successor_has_marked_the_pod() -> None:
    """Paused between check and write for longer than the term; then the check refuses the retry."""
    rig = Rig()
    error = bind_after(rig, lambda: rig.fence.shut(lambda: "b leads"), **{"kerf.dev/epoch": "of the successor"})
    assert error == "standby: b leads"
    assert rig.paths() == ["POST binding", "GET p"]
    assert (rig.state(), rig.free("n")) == (None, {0, 1})


class Confirming(Unelected):
    """An election in which something happens during each confirmation."""

    def __init__(self, meanwhile: Callable[[], None] = lambda: None, *, confirms: bool = True) -> None:
        self.meanwhile, self.confirms = meanwhile, confirms

    async def confirm(self, since: int) -> bool:
        await asyncio.to_thread(self.meanwhile)
        return self.confirms


def test_nothing_is_bound_that_is_not_confirmed_though_the_term_looks_good() -> None:
    """A process that was paused with its clock, or beside a kube-scheduler that has released its lease."""
    rig = Rig()
    rig.fence = open_fence(Confirming(confirms=False))
    rig.binder = rig.binder_on(rig.transport)
    rig.filter("n")
    assert "can't be sure that it still leads" in rig.fail()
    assert (rig.transport.calls, rig.state(), rig.free("n")) == ([], None, {0, 1})


def test_what_is_known_before_the_binding_is_sent_counts() -> None:
    """The lease is asked in between, and on HAMi's nodes a lock is waited for."""
    for change in (node_manifest("n", 0), pod_manifest("rival", 1, node="n", assigned="0")):
        rig = Rig()

        def meanwhile(rig: Rig = rig, change: dict[str, object] = change) -> None:
            rig.cluster.apply(change)
            rig.sync()

        rig.fence = open_fence(Confirming(meanwhile))
        rig.binder = rig.binder_on(rig.transport)
        rig.filter("n")
        assert "has changed since" in rig.fail()
        assert (rig.bindings(), rig.state()) == ([], None)
