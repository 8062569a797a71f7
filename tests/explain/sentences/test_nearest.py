"""The node that comes nearest to a request: all that is told of it, kind by kind of what is missing."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from extender.core.clusters import Cluster, Rows
from extender.core.fit.fits import fit
from extender.core.fit.reasons import Reason
from extender.core.gauges import Gauge
from extender.core.occupancies import ObservedRules
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.explain.occupants import Unbooked
from extender.explain.sentences.nearest import Nearest, describe_holders, holding, in_short, nearest_of
from extender.ledger.arrays import HeldAmounts
from tests.core.builders import A100, T4, NodeState, all_rows, arrays_of, cluster_of, node, pattern
from tests.core.fit.claims import OF_A100, ask, asked, gpus, owned
from tests.core.observing import observed_cluster
from tests.explain.sentences.test_why_pending import holder
from tests.golden import Golden

H100 = ("NVIDIA-H100-80GB-HBM3", 81920)
ONE, TWO, THREE = GpuRequest(1), GpuRequest(2), GpuRequest(3)
OF_H100, THREE_A100 = GpuRequest(1, include=pattern("h100")), GpuRequest(3, include=pattern("a100"))
HALF, BIG = GpuRequest(1, AskedUnit.WHOLE, milli=500), GpuRequest(4, memory_each_mib=40960)
SLICES = GpuRequest(4, AskedUnit.SHARED)
LONG = "n" * 100
ROOM = {"b": node(T4, T4), "a": node(T4), "c": node(T4, held=[0])}
SHARES = {"n": node(T4, T4, T4, used={0: (800, 0), 1: (500, 0)}, broken=[2]), "o": node(*[T4] * 4, held=range(4))}
SLICED = node(T4, unit=GpuUnit.REPLICA, units_per_gpu=4, untracked=2)
FULL = {
    **{"full": node(*[A100] * 4, held=[0, 1, 2]), "also-full": node(*[A100] * 4, held=range(4)), "sliced": SLICED},
    **{"sick": node(*[A100] * 4, broken=[0, 1], held=[2]), "small": node(*[T4] * 8)},
    "aside": node(*[A100] * 8, held=range(6), aside=3),
}
"""One unit elsewhere would do for four A100s: not those of T4s, unhealthy, sliced or of a quarantined node."""
CASES: list[tuple[str, dict[str, NodeState], GpuRequest]] = [
    ("room on two nodes", ROOM, ONE),
    ("room on one", ROOM, TWO),
    ("room on one with a long name", {LONG: node(T4)}, ONE),
    ("the only GPU", {"n": node(T4, held=[0])}, ONE),
    ("GPUs of the larger node", {"b": node(T4, T4, held=[0]), "a": node(T4, T4, held=[1]), "c": node(T4),
                                 "d": node(A100, A100, untracked=3)}, TWO),
    ("GPUs of one model on a mixed node", {"n": node(A100, A100, T4, T4, held=[0, 2])},
     GpuRequest(2, include=pattern("a100"))),
    ("GPUs of a node with a long name", {LONG: node(T4, T4, held=[0])}, TWO),
    ("units elsewhere of that model", FULL, GpuRequest(4, include=pattern("a100"))),
    ("units elsewhere of that size", FULL, BIG),
    ("compute of a share", SHARES, GpuRequest(1, AskedUnit.WHOLE, milli=600)),
    ("memory of a share", {"n": node(T4, T4, used={0: (100, 15000), 1: (100, 14000)}, unit=GpuUnit.PART),
                           "m": node(T4, held=[0])}, GpuRequest(1, memory_each_mib=2048)),
    ("memory in total", {"n": node(*[T4] * 4, held=[1]), "m": node(*[T4] * 2), "l": node(A100, held=[0])},
     GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=4 * 15360)),
    ("replicas", {"n": node(T4, T4, unit=GpuUnit.REPLICA, units_per_gpu=2, untracked=1), "m": node(T4)}, SLICES),
    ("replicas elsewhere", {"a": SLICED, "b": SLICED, "whole": node(*[T4] * 8)}, SLICES),
    ("too few installed", {"n": node(T4, T4), "m": node(T4), "o": node(*[T4] * 5, broken=range(3))}, THREE),
    ("too few installed, a long name", {LONG: node(T4, T4)}, THREE),
    ("of equals the first name, whatever it fails",
     {"m": node(T4, A100, A100), "n": node(*[A100] * 4, broken=[0, 1])}, THREE_A100),
    ("one that would do if it had more", {"n": node(A100, A100), "m": node(T4), "a": node(A100, aside=3)}, THREE_A100),
    ("quarantined nodes would not do either", {"n": node(A100, A100), "b": node(*[A100] * 3, aside=3), "m": node(T4),
                                               "a": node(*[A100] * 3, aside=2)}, THREE_A100),
    ("unless there are no others",
     {"b": node(*[A100] * 3, aside=3), "a": node(*[A100] * 3, aside=2), "m": node(T4)}, THREE_A100),
    ("quarantined, a long name", {LONG: node(T4, aside=2)}, ONE),
    ("kept apart from pods by annotation", {"n": node(A100, A100), "b": node(*[A100] * 3, picks=True, unserved=1),
                                            "m": node(T4)}, THREE_A100),
    ("kept apart from pods of the plugin", {"a": node(T4, T4, picks=True, served=1, held=[0]), "b": node()}, HALF),
    ("unhealthy", {"a": node(T4, T4, broken=[0])}, TWO),
    ("none has the model", {"n": node(A100), "m": node(T4)}, OF_H100),
    ("the only one lacks the model", {"n": node(A100)}, OF_H100),
    ("the only one lacks the size", {"a": node(*[T4] * 4)}, BIG),
    ("none has GPUs", {"a": node(), "b": node()}, ONE),
    ("MIG devices", {"n": node(mig={"1g.5gb": 1}), "m": node(mig={"1g.5gb": 2}), "o": node(T4)},
     GpuRequest(3, AskedUnit.MIG, mig=(("1g.5gb", 3),))),
    ("no such MIG devices", {"n": node(mig={"2g.10gb": 1}), "o": node(T4)},
     GpuRequest(1, AskedUnit.MIG, mig=(("1g.5gb", 1),))),
]  # fmt: skip
BY_FOUR = Nearest("", node="n", in_the_way=frozenset({0, 1, 2, 3}), whole=True, missing=4)
PARTS = BY_FOUR._replace(whole=False)
RESERVED = holder(None, 2, state="RESERVED")
HOLDERS: list[tuple[str, Nearest, list[Mapping[str, Any]]]] = [
    ("nobody", BY_FOUR, []),
    ("one twice, and what would not do", BY_FOUR, [holder("a/x", 0, 9), holder("a/x", 1)]),
    ("two of one GPU", BY_FOUR, [holder("a/x", 0), holder("a/y", 0)]),
    ("of unknown index", BY_FOUR, [holder("a/x", units=3), holder("a/y", 1)]),
    ("reserved", BY_FOUR, [holder("a/x", 0, 1, state="RESERVED"), RESERVED]),
    ("those that run first", BY_FOUR, [RESERVED, holder("a/x", 1)]),
    ("shares", BY_FOUR, [holder("a/x", 0), holder("a/y", 1, shared=True)]),
    ("memory or compute", PARTS, [holder("a/x", 0)]),
    ("memory or compute, reserved", PARTS, [holder("a/x", 0, state="RESERVED")]),
    ("replicas", BY_FOUR._replace(slices=True), [holder("a/x", 0, units=2), holder("a/y", 9, units=3)]),
    ("nobody who is known", BY_FOUR._replace(rest=Unbooked(1, 2, 1)), []),
    ("and more beside", BY_FOUR._replace(rest=Unbooked(2, 0, 0)), [holder("a/x", 0)]),
]


def rows_of(cluster: Cluster, *names: str) -> Rows:
    """Rows of some nodes, of all if none is named, in the opposite order."""
    return np.array([cluster.row_of[name] for name in reversed(names or cluster.node_names)])


def short(cluster: Cluster, request: GpuRequest, *names: str) -> str:
    rows = rows_of(cluster, *names)
    return in_short(cluster, request, None, rows, fit(cluster, request, rows))


def fields(found: Nearest) -> str:
    """Those that are not the default."""
    plain, shown = (one._asdict() | {"reason": Reason(one.reason).name} for one in (Nearest(""), found))
    return ", ".join(f"{key}={value}" for key, value in shown.items() if value != plain[key])


def told() -> Iterator[str]:
    for title, states, request in CASES:
        cluster = cluster_of(states)
        found = nearest_of(cluster, request, None, rows_of(cluster))
        yield f"{title}: {fields(found)}"
        if not found.fits:
            yield f"  in short: {short(cluster, request)}"
    for title, found, holders in HOLDERS:
        yield f"held by {title}: {describe_holders(found, holders)}"


def test_all_that_is_told_of_the_nearest_node(golden: Golden) -> None:
    golden("explain/nearest.txt", told())


def test_of_no_nodes_none_comes_nearest() -> None:
    cluster = cluster_of({"a": node(T4)})
    nobody = all_rows(cluster)[:0]
    assert nearest_of(cluster, ONE, None, nobody) == Nearest("there are no nodes")
    assert in_short(cluster, ONE, None, nobody, fit(cluster, ONE, nobody)) == (
        "Kerf does not know any of its candidate nodes yet"
    )


def test_only_the_nodes_that_are_asked_about_come_near() -> None:
    cluster = cluster_of({"a": node(*[T4] * 4, held=[0]), "b": node(*[T4] * 4, held=[0, 1, 2]), "c": node(T4)})
    found = nearest_of(cluster, GpuRequest(4), None, rows_of(cluster, "b", "c"))
    assert (found.node, found.missing, found.in_the_way, found.free_elsewhere) == ("b", 3, frozenset({0, 1, 2}), 1)
    assert "b is nearest with 1 free" in short(cluster, GpuRequest(4), "b", "c")
    assert "b is nearest with 4 installed" in short(cluster, GpuRequest(5), "b", "c")


def test_what_is_observed_counts_as_the_policy_has_it() -> None:
    """One GPU of two, and one of another node, are in use by processes that nobody knows."""
    busy = {Gauge.MEMORY_USED: [50_000.0, 0.0]}
    cluster = observed_cluster({"a": node(A100, A100), "b": node(A100, A100)}, {"a": busy, "b": busy})
    assert nearest_of(cluster, TWO, None, all_rows(cluster)).num_fit == 2
    found = nearest_of(cluster, TWO, ObservedRules(), all_rows(cluster))
    assert (found.node, found.in_the_way, found.missing, found.reason) == ("a", frozenset({0}), 1, Reason.BUSY)
    assert (found.rest, found.free_elsewhere) == (Unbooked(1, 0, 0), 1)


def test_mig_devices_that_others_hold() -> None:
    arrays = arrays_of({"m": node(mig={"1g.5gb": 1}), "n": node(mig={"1g.5gb": 3})})
    arrays.set_held(1, HeldAmounts({}, 0, (("1g.5gb", 2),)))
    request, cluster = GpuRequest(3, AskedUnit.MIG, mig=(("1g.5gb", 3),)), arrays.snapshot()
    found = nearest_of(cluster, request, None, all_rows(cluster))
    assert found.words == "needs 3 x mig-1g.5gb; n would need 2 more MIG devices free"
    assert (found.missing, found.whole) == (2, False)
    assert short(cluster, request) == "needs 3 x mig-1g.5gb; n is nearest with 1 free"


def test_of_claims_it_is_told_what_keeps_them_from_all_nodes() -> None:
    cluster = owned({"a": gpus(2, 0), "b": gpus(1)}).snapshot()
    request = GpuRequest(2, AskedUnit.CLAIM, devices=asked(ask(OF_A100, count=2)))
    words = "request gpu: needs 2 devices of one node; 2 matching, 1 free (node a)"
    assert nearest_of(cluster, request, None, all_rows(cluster)) == Nearest(words)
    assert short(cluster, request).endswith("a is nearest: all matching devices here are taken")
    assert short(owned({"a": None}).snapshot(), request).endswith("no devices here that Kerf allocates")


def test_in_short_a_node_that_would_do_but_for_a_check_that_may_pass_is_named() -> None:
    cluster = cluster_of({"a": node(*[T4] * 2, aside=1), "b": node(*[T4] * 2, aside=2), "c": node(*[T4] * 9)})
    moved = replace(cluster, closed=np.array([False, True, False]))
    request = GpuRequest(2, include=pattern("t4"), exclude=pattern("nothing"))
    for one, asking in ((cluster, request), (moved, TWO)):
        assert short(one, asking, "a", "b") == "quarantined: 2 pods failed here soon after starting (b)"
    kept = replace(moved, set_aside=np.array([1, 0, 0]))
    assert short(kept, TWO, "a", "b").endswith(
        "b is nearest: free capacity here is reserved for a move that makes room"
    )


def test_who_holds_what_would_do_is_in_the_way_and_who_may_do_so() -> None:
    held = [holder("a/x", 0, 9), holder("a/elsewhere", 8, 9), holder("a/unknown", units=2), holder("a/y", 3)]
    assert [one["pod"] for one in holding(BY_FOUR, held)] == ["a/x", "a/unknown", "a/y"]


@given(
    st.lists(st.tuples(st.sampled_from([T4, A100, H100]), st.integers(0, 8), st.integers(0, 255)), min_size=1),
    st.integers(1, 9), st.booleans(),
)  # fmt: skip
def test_the_nearest_is_the_one_that_lacks_least_counted_gpu_by_gpu(
    drawn: list[tuple[tuple[str, int], int, int]], number: int, of_model: bool
) -> None:
    states = {
        f"n-{at}": node(*[product] * count, held=[gpu for gpu in range(count) if bits >> gpu & 1])
        for at, (product, count, bits) in enumerate(drawn)
    }
    cluster, request = cluster_of(states), GpuRequest(number, include=pattern("h100") if of_model else None)
    rows = all_rows(cluster)
    found, checked = nearest_of(cluster, request, None, rows), fit(cluster, request, rows)
    would_do = {
        name: {gpu for gpu, one in enumerate(state.offer.gpus) if not of_model or "h100" in one.model.name}
        for name, state in states.items()
    }
    free = {name: len(some - states[name].held) for name, some in would_do.items()}
    most = max(map(len, would_do.values()))
    if max(free.values()) >= number:
        assert found.fits
        return
    sentence = in_short(cluster, request, None, rows, checked)
    if enough := {name: count for name, count in free.items() if len(would_do[name]) >= number}:
        best = max(enough.values())
        first = min(name for name, count in enough.items() if count == best)
        assert sentence == f"needs {request}; {first} is nearest with {best} free"
        words, held = f"needs {request}; {first} has {best} free", states[first].held
        lacks = Nearest(words, node=first, in_the_way=held, whole=True, missing=number - best, reason=Reason.BUSY)
        assert found == lacks._replace(free_elsewhere=sum(free.values()) - best)
        return
    assert sentence == found.words
    if most:
        first = min(name for name, some in would_do.items() if len(some) == most)
        assert sentence == f"needs {request}; {first} is nearest with {most} installed"
    else:
        assert not found.missing and ("none of" in sentence or "the only node" in sentence)
