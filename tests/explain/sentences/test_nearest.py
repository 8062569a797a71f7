"""The node that comes nearest to a request: all that is told of it, kind by kind of what is missing."""

from dataclasses import replace

import numpy as np
import pytest

from extender.core.clusters import Cluster
from extender.core.fit.fits import fit
from extender.core.fit.reasons import Reason
from extender.core.gauges import Gauge
from extender.core.occupancies import ObservedRules
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.explain.occupants import Unbooked
from extender.explain.sentences.nearest import Nearest, holding, in_short, nearest_of, who
from extender.ledger.arrays import Held
from tests.core.builders import NodeState, all_rows, arrays_of, cluster_of, node, pattern
from tests.core.fit.claims import OF_A100, ask, asked, gpus, owned
from tests.core.observing import observed_cluster
from tests.explain.sentences.test_why_pending import holder

T4, A100 = ("Tesla-T4", 15360), ("NVIDIA-A100-SXM4-80GB", 81920)
WHOLE = AskedUnit.WHOLE
SHARES = {
    "n": node(T4, T4, T4, used={0: (800, 0), 1: (500, 0)}, broken=[2]),
    "o": node(T4, T4, T4, T4, held=[0, 1, 2, 3]),
}
"""Of which shares of a GPU are free, or nothing."""


def nearest(states: dict[str, NodeState], request: GpuRequest, *names: str) -> Nearest:
    """What comes nearest of some nodes by name, of all if none is named, in the opposite order."""
    cluster = cluster_of(states)
    rows = np.array([cluster.row_of[name] for name in reversed(names or tuple(states))])
    return nearest_of(cluster, request, None, rows)


def short(cluster: Cluster, request: GpuRequest, *names: str) -> str:
    """The same in one sentence, of a check that was made."""
    rows = np.array([cluster.row_of[name] for name in reversed(names or cluster.node_names)])
    return in_short(cluster, request, None, rows, fit(cluster, request, rows))


@pytest.mark.parametrize(
    ("states", "request_", "found"),
    [
        pytest.param(
            {"b": node(T4, T4), "a": node(T4), "c": node(T4, held=[0])},
            GpuRequest(1),
            Nearest("needs 1 GPU; there is room now on 2 nodes", fits=True, node="a", num_fit=2),
            id="room on two nodes",
        ),
        pytest.param(
            {"b": node(T4, T4), "a": node(T4), "c": node(T4, held=[0])},
            GpuRequest(2),
            Nearest("needs 2 GPUs; there is room now on b", fits=True, node="b"),
            id="room on one",
        ),
        pytest.param(
            {
                "b": node(T4, T4, held=[0]),
                "a": node(T4, T4, held=[1]),
                "c": node(T4),
                "d": node(A100, A100, untracked=3),
            },
            GpuRequest(2),
            Nearest(
                "needs 2 GPUs; a has 1 free",
                node="a",
                in_the_way=frozenset({1}),
                whole=True,
                missing=1,
                reason=Reason.BUSY,
                free_elsewhere=2,
            ),
            id="whole GPUs",
        ),
        pytest.param(
            SHARES,
            GpuRequest(1, WHOLE, milli=600),
            Nearest(
                "needs 600 milli of a GPU; n has 500 of 600 milli free on one GPU",
                node="n",
                in_the_way=frozenset({0, 1}),
                missing=100,
                reason=Reason.BUSY,
                rest=Unbooked(0, 0, 1),
            ),
            id="compute of a share",
        ),
        pytest.param(
            {"n": node(T4, T4, used={0: (100, 15000), 1: (100, 14000)}, unit=GpuUnit.PART), "m": node(T4, held=[0])},
            GpuRequest(1, memory_each_mib=2048),
            Nearest(
                "needs 1 GPU with 2 GiB; n has 1360 MiB of 2 GiB free on one GPU",
                node="n",
                in_the_way=frozenset({0, 1}),
                missing=688,
                reason=Reason.BUSY,
            ),
            id="memory of a share",
        ),
        pytest.param(
            {"n": node(*[T4] * 4, held=[1]), "m": node(*[T4] * 2), "l": node(A100, held=[0])},
            GpuRequest(0, WHOLE, memory_total_mib=4 * 15360),
            Nearest(
                "needs GPUs with 60 GiB in total; n has 45 GiB of 60 GiB free",
                node="n",
                in_the_way=frozenset({1}),
                missing=15360,
                reason=Reason.BUSY,
                free_elsewhere=2,
            ),
            id="memory in total",
        ),
        pytest.param(
            {"n": node(T4, T4, unit=GpuUnit.REPLICA, units_per_gpu=4, untracked=5), "m": node(T4)},
            GpuRequest(4, AskedUnit.SHARED),
            Nearest(
                "needs 4 GPU replicas; n has 3 free",
                node="n",
                in_the_way=frozenset({0, 1}),
                whole=True,
                missing=1,
                slices=True,
                reason=Reason.BUSY,
            ),
            id="time slices",
        ),
        pytest.param(
            {"n": node(T4, T4), "m": node(T4), "o": node(*[T4] * 5, broken=range(3))},
            GpuRequest(3),
            Nearest("needs 3 GPUs; n is nearest with 2 installed", node="n", reason=Reason.TOO_FEW_INSTALLED, number=2),
            id="too few installed",
        ),
        pytest.param(
            {"m": node(T4, A100, A100), "n": node(*[A100] * 4, broken=[0, 1])},
            GpuRequest(3, include=pattern("a100")),
            Nearest(
                "needs 3 GPUs of model a100; m is nearest with 2 of that model",
                node="m",
                reason=Reason.WRONG_MODEL,
                number=2,
            ),
            id="of equals that with the smaller name, whatever it fails",
        ),
        pytest.param(
            {"n": node(*[A100] * 2), "m": node(T4), "a": node(A100, aside=3)},
            GpuRequest(3, include=pattern("a100")),
            Nearest(
                "needs 3 GPUs of model a100; n is nearest with 2 installed",
                node="n",
                reason=Reason.TOO_FEW_INSTALLED,
                number=2,
            ),
            id="one that would do if it had more",
        ),
        pytest.param(
            {"n": node(*[A100] * 2), "b": node(*[A100] * 3, aside=3), "a": node(*[A100] * 3, aside=2), "m": node(T4)},
            GpuRequest(3, include=pattern("a100")),
            Nearest(
                "needs 3 GPUs of model a100; n is nearest with 2 installed",
                node="n",
                reason=Reason.TOO_FEW_INSTALLED,
                number=2,
            ),
            id="those that are set aside would not do either",
        ),
        pytest.param(
            {"b": node(*[A100] * 3, aside=3), "a": node(*[A100] * 3, aside=2), "m": node(T4)},
            GpuRequest(3, include=pattern("a100")),
            Nearest(
                "quarantined: 3 pods failed here soon after starting (b)", node="b", reason=Reason.SET_ASIDE, number=3
            ),
            id="unless there are no others",
        ),
        pytest.param(
            {"n": node(*[A100] * 2), "b": node(*[A100] * 3, picks=True, unserved=1), "m": node(T4)},
            GpuRequest(3, include=pattern("a100")),
            Nearest(
                "needs 3 GPUs of model a100; b is nearest: pods here have GPUs by annotation alone, "
                "and the device plugin could hand out the same GPUs",
                node="b",
                reason=Reason.KEPT_APART,
                number=3,
            ),
            id="one that has enough and would do if others went",
        ),
        pytest.param(
            {"n": node(A100), "m": node(T4)},
            GpuRequest(1, include=pattern("h100")),
            Nearest(
                "needs 1 GPU of model h100; none of 2 nodes offers it GPUs of that model", reason=Reason.WRONG_MODEL
            ),
            id="none has it",
        ),
        pytest.param(
            {"n": node(A100)},
            GpuRequest(1, include=pattern("h100")),
            Nearest(
                "needs 1 GPU of model h100; the only node offers it no GPUs of that model", reason=Reason.WRONG_MODEL
            ),
            id="the only one has not",
        ),
        pytest.param(
            {"n": node(mig={"1g.5gb": 1}), "m": node(mig={"1g.5gb": 2}), "o": node(T4)},
            GpuRequest(3, AskedUnit.MIG, mig=(("1g.5gb", 3),)),
            Nearest(
                "needs 3 x mig-1g.5gb; m is nearest with 2 installed",
                node="m",
                reason=Reason.TOO_FEW_INSTALLED,
                number=2,
            ),
            id="MIG devices",
        ),
        pytest.param(
            {"n": node(mig={"2g.10gb": 1}), "o": node(T4)},
            GpuRequest(1, AskedUnit.MIG, mig=(("1g.5gb", 1),)),
            Nearest("needs 1 x mig-1g.5gb; none of 2 nodes has such devices", reason=Reason.TOO_FEW_INSTALLED),
            id="no such MIG devices",
        ),
    ],
)
def test_all_that_is_told_of_the_nearest_node(
    states: dict[str, NodeState], request_: GpuRequest, found: Nearest
) -> None:
    assert nearest(states, request_) == found


def test_room_is_where_the_policy_finds_it_among_several_nodes() -> None:
    room = nearest({"b": node(T4, T4), "a": node(T4)}, GpuRequest(1))
    assert room.where == "2 nodes"
    assert room._replace(num_fit=1, node="n" * 100).where == f"{'n' * 77}..."


def test_of_no_nodes_none_comes_nearest() -> None:
    cluster = cluster_of({"a": node(T4)})
    nobody = all_rows(cluster)[:0]
    assert nearest_of(cluster, GpuRequest(1), None, nobody) == Nearest("there are no nodes")
    assert in_short(cluster, GpuRequest(1), None, nobody, fit(cluster, GpuRequest(1), nobody)) == (
        "Kerf does not know any of its candidate nodes yet"
    )


def test_only_the_nodes_that_are_asked_about_come_near() -> None:
    states = {"a": node(*[T4] * 4, held=[0]), "b": node(*[T4] * 4, held=[0, 1, 2]), "c": node(T4)}
    found = nearest(states, GpuRequest(4), "b", "c")
    assert (found.node, found.missing, found.in_the_way, found.free_elsewhere) == ("b", 3, frozenset({0, 1, 2}), 1)
    assert short(cluster_of(states), GpuRequest(4), "b", "c") == "needs 4 GPUs; b is nearest with 1 free"
    assert short(cluster_of(states), GpuRequest(5), "b", "c") == "needs 5 GPUs; b is nearest with 4 installed"


def test_what_is_observed_counts_as_the_policy_has_it() -> None:
    """One GPU of two, and one of another node, are in use by processes that nobody knows."""
    busy = {Gauge.MEMORY_USED: [50_000.0, 0.0]}
    cluster = observed_cluster({"a": node(A100, A100), "b": node(A100, A100)}, {"a": busy, "b": busy})
    request, rows = GpuRequest(2), all_rows(cluster)
    assert nearest_of(cluster, request, None, rows).num_fit == 2
    assert nearest_of(cluster, request, ObservedRules(), rows) == Nearest(
        "needs 2 GPUs; a has 1 free",
        node="a",
        in_the_way=frozenset({0}),
        whole=True,
        missing=1,
        reason=Reason.BUSY,
        rest=Unbooked(1, 0, 0),
        free_elsewhere=1,
    )


def test_mig_devices_that_others_hold() -> None:
    arrays = arrays_of({"m": node(mig={"1g.5gb": 1}), "n": NodeState(node(mig={"1g.5gb": 3}).offer)})
    arrays.set_held(1, Held({}, 0, (("1g.5gb", 2),)))
    request = GpuRequest(3, AskedUnit.MIG, mig=(("1g.5gb", 3),))
    cluster = arrays.snapshot()
    found = nearest_of(cluster, request, None, all_rows(cluster))
    assert (found.words, found.missing, found.whole) == (
        "needs 3 x mig-1g.5gb; n would need 2 more MIG devices free",
        2,
        False,
    )
    assert short(cluster, request) == "needs 3 x mig-1g.5gb; n is nearest with 1 free"


def test_of_claims_it_is_told_what_keeps_them_from_all_nodes() -> None:
    cluster = owned({"a": gpus(2, 0), "b": gpus(1)}).snapshot()
    wanted = asked(ask(OF_A100, count=2))
    request = GpuRequest(2, AskedUnit.CLAIM, devices=wanted)
    assert nearest_of(cluster, request, None, all_rows(cluster)) == Nearest(
        "request gpu: needs 2 devices of one node; 2 would do, 1 free (node a)"
    )
    assert (
        short(cluster, request)
        == "needs 2 devices by ResourceClaim; a is nearest: all matching devices here are taken"
    )
    none = owned({"a": None}).snapshot()
    assert short(none, request) == "needs 2 devices by ResourceClaim; a is nearest: no devices here that Kerf allocates"


def test_in_short_a_node_that_would_do_but_for_a_check_that_may_pass_is_named() -> None:
    cluster = cluster_of({"a": node(*[T4] * 2, aside=1), "b": node(*[T4] * 2, aside=2), "c": node(*[T4] * 9)})
    moved = replace(cluster, closed=np.array([False, True, False]))
    request = GpuRequest(2, include=pattern("t4"), exclude=pattern("nothing"))
    assert short(cluster, request, "a", "b") == "quarantined: 2 pods failed here soon after starting (b)"
    assert short(moved, GpuRequest(2), "a", "b") == "quarantined: 2 pods failed here soon after starting (b)"
    kept = replace(moved, set_aside=np.array([1, 0, 0]))
    assert short(kept, GpuRequest(2), "a", "b") == (
        "needs 2 GPUs; b is nearest: free capacity here is reserved for a move that makes room"
    )


def test_a_name_is_fit_to_be_shown() -> None:
    long = "n" * 100
    states = {long: node(T4, T4, held=[0])}
    shown = f"{'n' * 77}..."
    assert nearest(states, GpuRequest(2)).words == f"needs 2 GPUs; {shown} has 1 free"
    assert nearest(states, GpuRequest(3)).words == f"needs 3 GPUs; {shown} is nearest with 2 installed"
    assert nearest({long: node(T4, aside=2)}, GpuRequest(1)).words.endswith(f"({shown})")
    assert short(cluster_of(states), GpuRequest(2)) == f"needs 2 GPUs; {shown} is nearest with 1 free"


BY_FOUR = Nearest("", node="n", in_the_way=frozenset({0, 1, 2, 3}), whole=True, missing=4)


@pytest.mark.parametrize(
    ("found", "holders", "words"),
    [
        pytest.param(BY_FOUR, [], "", id="nobody"),
        pytest.param(BY_FOUR, [holder("a/x", 0)], "a/x holds 1", id="one"),
        pytest.param(
            BY_FOUR, [holder("a/x", 0, 9), holder("a/x", 1)], "a/x holds 2", id="one twice, and what would not do"
        ),
        pytest.param(BY_FOUR, [holder("a/x", 0), holder("a/y", 0)], "a/x and a/y hold 1", id="two of one GPU"),
        pytest.param(BY_FOUR, [holder("a/x", units=3), holder("a/y", 1)], "a/x and a/y hold 4", id="of unknown index"),
        pytest.param(
            BY_FOUR,
            [holder("a/x", 0, 1, state="RESERVED"), holder(None, 2, state="RESERVED")],
            "3 are reserved for a/x and a pod that is being placed",
            id="reserved",
        ),
        pytest.param(
            BY_FOUR,
            [holder(None, 0, state="RESERVED"), holder("a/x", 1)],
            "a/x holds 1, 1 is reserved for a pod that is being placed",
            id="those that run first",
        ),
        pytest.param(
            BY_FOUR,
            [holder("a/x", 0), holder("a/y", 1, shared=True)],
            "a/x and a/y hold parts of its GPUs",
            id="shares",
        ),
        pytest.param(
            BY_FOUR._replace(whole=False), [holder("a/x", 0)], "a/x holds the rest", id="memory or compute is missing"
        ),
        pytest.param(
            BY_FOUR._replace(whole=False),
            [holder("a/x", 0, state="RESERVED")],
            "the rest are reserved for a/x",
            id="and is reserved",
        ),
        pytest.param(
            BY_FOUR._replace(slices=True),
            [holder("a/x", 0, units=2), holder("a/y", 9, units=3)],
            "a/x and a/y hold 5",
            id="time slices",
        ),
        pytest.param(
            BY_FOUR._replace(rest=Unbooked(1, 2, 1)),
            [],
            "1 is in use by unknown processes, 2 are faulty, 1 is unhealthy",
            id="nobody who is known",
        ),
        pytest.param(
            BY_FOUR._replace(rest=Unbooked(2, 0, 0)),
            [holder("a/x", 0)],
            "a/x holds 1, 2 are in use by unknown processes",
            id="and more beside",
        ),
    ],
)
def test_who_has_the_rest(found: Nearest, holders: list[dict[str, object]], words: str) -> None:
    assert who(found, holders) == words  # type: ignore[arg-type]


def test_who_holds_what_would_do_is_in_the_way_and_who_may_do_so() -> None:
    held = [holder("a/x", 0, 9), holder("a/elsewhere", 8, 9), holder("a/unknown", units=2), holder("a/y", 3)]
    assert [one["pod"] for one in holding(BY_FOUR, held)] == ["a/x", "a/unknown", "a/y"]
