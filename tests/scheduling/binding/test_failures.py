"""Bindings that the API server refuses, or answers late or never: what is held then, and what is said."""

import asyncio

import pytest

from extender.core.annotations import POLICY
from extender.kube.client import ApiError, ClusterError, UnreachableError
from extender.kube.memory import Manifest
from extender.ledger.ledger import AllocationState
from extender.queueing.pods.objects import decode_pod
from extender.scheduling.binding import BindError
from extender.scheduling.placer import PodIdentity
from tests.golden import Golden
from tests.ledger.builders import TTL_S, Fault, pod_manifest
from tests.scheduling.binding.rigs import CONFLICT, FORBIDDEN, NOT_FOUND, SERVER_ERROR, TIMEOUT, Rig

REFUSED = Fault(UnreachableError("GET: refused"))
UNDECIDED = AllocationState.UNDECIDED

# The API server refuses, or its answer is lost.


def test_a_failed_binding(golden: Golden) -> None:
    sentences = []
    rows: tuple[tuple[Fault, Fault | None, AllocationState | None], ...] = (
        (Fault(FORBIDDEN), None, None),
        (Fault(NOT_FOUND), None, None),
        (Fault(ApiError(429, "TooManyRequests", "slow down")), None, None),
        (Fault(CONFLICT), None, None),  # it has no node: gated, or being deleted
        (Fault(CONFLICT), Fault(NOT_FOUND), None),
        (Fault(CONFLICT), Fault(FORBIDDEN), UNDECIDED),
        (Fault(SERVER_ERROR), None, None),  # not bound, and the write can't take effect any more
        (Fault(SERVER_ERROR), Fault(SERVER_ERROR), UNDECIDED),
        (Fault(TIMEOUT), None, None),
        (Fault(TIMEOUT), Fault(NOT_FOUND), None),
        (Fault(TIMEOUT), REFUSED, UNDECIDED),
        (Fault(TIMEOUT, took_effect=True), REFUSED, UNDECIDED),
    )
    for post, get, state in rows:
        rig, held = Rig(), {1} if state else {0, 1}
        rig.filter("n")
        rig.transport.posts.append(post)
        for answers in (rig.transport.gets, rig.transport.patches):
            answers.append(get)
        sentences.append(rig.fail())
        assert (rig.state(), rig.free("n")) == (state, held)
        rig.clock.now += 10 * TTL_S
        rig.transport.patches.append(Fault(SERVER_ERROR))
        rig.settle()
        assert rig.free("n") == held, "it is held for as long as the outcome is unknown"
        rig.transport.patches.clear()
        rig.settle()
        assert (rig.state(), rig.free("n")) == ((AllocationState.BOUND, {1}) if post.took_effect else (None, {0, 1}))
        assert rig.cluster.events == []
    golden("bind_errors.txt", sentences)


@pytest.mark.parametrize("error", [TIMEOUT, SERVER_ERROR], ids=str)
def test_a_binding_that_failed_without_an_answer_cannot_take_effect_later(error: ClusterError) -> None:
    rig = Rig()
    rig.filter("n")
    rig.transport.posts.append(Fault(error))
    rig.fail()
    ((_, path, late),) = (call for call in rig.transport.calls if call[0] == "POST")
    with pytest.raises(ApiError, match="409"):
        asyncio.run(rig.cluster.post(path, late))


@pytest.mark.parametrize("error", [TIMEOUT, SERVER_ERROR, CONFLICT, ApiError(504, "Timeout", "")], ids=str)
def test_a_binding_that_took_effect_is_a_success_whatever_the_answer(error: ClusterError) -> None:
    rig = Rig()
    rig.filter("n")
    rig.transport.posts.append(Fault(error, took_effect=True))
    rig.bind()
    assert rig.paths() == ["POST binding", "GET p" if error is CONFLICT else "PATCH status"]
    assert (rig.state(), rig.free("n")) == (AllocationState.BOUND, {1})


def test_a_pod_bound_by_another_client() -> None:
    # On the node that was chosen here this Binding may have set the node, and the pod been edited: GPU 0 is held too.
    rows: tuple[tuple[str, str | None, set[int], set[int]], ...] = (
        ("m", "0", {0, 1}, {1}),
        ("n", "1", set(), {0, 1}),
        ("n", None, {1}, {0, 1}),
    )
    for node, assigned, *free in rows:
        rig = Rig()
        rig.filter("n")
        rig.cluster.apply(pod_manifest("p", 1, uid="u", node=node, assigned=assigned))
        assert rig.fail() == f"pod default/p is bound to node {node} by another client"
        assert (rig.state(), [rig.free("n"), rig.free("m")]) == (UNDECIDED, free), "the watch may be late"
        rig.sync()
        assert rig.state() is AllocationState.BOUND


def test_a_pod_created_again_under_its_name_is_not_bound() -> None:
    rig = Rig()
    rig.filter("n")
    rig.cluster.apply(pod_manifest("p", 1, uid="another"))
    assert "UID u is gone" in rig.fail()
    assert "nodeName" not in rig.cluster.pod("default", "p")["spec"]
    assert (rig.state(), rig.free("n")) == (None, {0, 1})


def test_a_pod_never_offered_that_cannot_be_bound() -> None:
    rows: tuple[tuple[Fault | None, Manifest | None, str], ...] = (
        (Fault(NOT_FOUND), None, "404 NotFound"),
        (Fault(TIMEOUT), None, "timed out"),
        (None, pod_manifest("p", "-1", uid="u"), '"-1" is negative'),
        (None, pod_manifest("p", 1, uid="another"), "UID u is gone"),
        (None, pod_manifest("p", 1, uid="u", annotations={POLICY: "best"}), POLICY),
    )
    for get, pod, why in rows:
        rig = Rig(pod)
        rig.transport.gets.append(get)
        assert why in rig.fail()
        assert (rig.bindings(), rig.state()) == ([], None)


# What happens while the API server is asked.


def test_gpus_are_held_while_the_api_server_is_asked_and_the_watch_may_be_faster() -> None:
    rig = Rig()
    rig.filter("n")
    seen: list[set[int]] = []

    def meanwhile() -> None:
        rig.clock.now += 10 * TTL_S
        seen.append(rig.free("n"))
        rig.ledger.upsert_pod(decode_pod(rig.cluster.pod("default", "p")), rig.clock())

    rig.transport.on_post = meanwhile
    rig.bind()
    assert seen == [{1}]
    assert (rig.state(), rig.free("n"), rig.ledger.num_allocations(AllocationState.BOUND)) == (
        AllocationState.BOUND,
        {1},
        1,
    )


def test_a_binding_under_way_admits_no_second_one_and_no_other_pod() -> None:
    rig = Rig()
    rig.filter("n")

    async def meanwhile() -> None:
        assert rig.state() is AllocationState.BINDING
        for node in ("n", "m"):
            with pytest.raises(BindError, match="being bound, to node n"):
                await rig.binder.bind(rig.identity, node, "")
        rig.cluster.apply(pod_manifest("q", 2, uid="v"))
        with pytest.raises(BindError, match="best here: 1 free"):
            await rig.binder.bind(PodIdentity("default", "q", "v"), "n", "")

    rig.transport.before_post = meanwhile
    rig.bind()
    assert (rig.state(), rig.free("n"), len(rig.bindings())) == (AllocationState.BOUND, {1}, 1)
