"""Bindings that the API server refuses, or answers late or never: what is held then, and what is said."""

import asyncio
from collections.abc import Awaitable, Callable

import msgspec
import pytest

from extender.core.annotations import POLICY
from extender.kube import objects
from extender.kube.client import ApiError, ClusterError, UnreachableError
from extender.kube.memory import Manifest, MemoryCluster
from extender.ledger.ledger import ClaimState
from extender.scheduling.binding import BindError
from extender.scheduling.placer import PodIdentity
from tests.ledger.builders import TTL_S, Fault, FaultyTransport, pod_manifest
from tests.scheduling.binding.rigs import CONFLICT, FORBIDDEN, NOT_FOUND, SERVER_ERROR, TIMEOUT, Rig

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
    assert rig.fail() == f"pod default/p is bound to node {node} by another client"
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
            'kerf.dev/policy: "best" is not a policy; use one of tightest, binpack, spread, ...',
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
        binder = rig.binder_on(transport)
        rig.binder = binder
        first = asyncio.create_task(binder.bind(rig.identity, "n", ""))
        await transport.asked.wait()
        await scenario(rig, transport, first)

    asyncio.run(run())
    return rig


def test_a_second_bind_of_a_pod_being_bound_is_refused() -> None:
    async def scenario(rig: Rig, transport: SlowTransport, first: "asyncio.Task[None]") -> None:
        for node in ("n", "m"):
            with pytest.raises(BindError, match="is already bound, or being bound, to node n"):
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
