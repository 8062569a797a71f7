"""The sentence and the remedies from what is known, without a service: every reason to wait, and what is hostile."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.fit.reasons import Reason
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest, named
from extender.explain.occupants import Unbooked
from extender.explain.sentences.nearest import Nearest, holding, nearest_of, who
from extender.explain.sentences.pending import Lacking, Standing, why_pending
from extender.explain.sentences.remedies import to_json
from extender.explain.sentences.words import bounded, listed
from extender.planning.wait_reasons import Code
from tests.core.builders import NodeState, all_rows, cluster_of, node, pattern

T4, A100 = ("Tesla-T4", 15360), ("NVIDIA-A100-SXM4-80GB", 81920)
TWO = GpuRequest(2)
PARAMETERS = {
    **{"cpu": 8.0, "memory_mib": 4096, "text": "its text", "head": "default/first", "namespace": "team", "limit": 2.0},
    **{
        "used": 2.0,
        "asked": 1.0,
        "gang": "default/ring",
        "here": 1,
        "size": 3,
        "gates": "a/b",
        "claim": "c",
        "why": "w",
        "taints": "nvidia.com/gpu",
        "nodes": 2,
        "resource": "rdma/hca",
        "units": 2,
        "port": "80/TCP",
        "topology": "kubernetes.io/hostname",
        "whom": "it",
        "node": "n",
        "words": "no",
        "right": "patch pods",
        "user": "someone",
        "manifest": "manifests/queue/rbac.yaml",
        "error": "timed out",
    },
}
SHORT = Nearest("needs 2 GPUs; n has 1 free", node="n", whole=True, missing=1, reason=Reason.BUSY)
ROOM = Nearest("needs 2 GPUs; there is room now on n", fits=True, node="n")


def holder(pod: str | None, *gpus: int, units: int = 0, state: str = "BOUND", shared: bool = False) -> dict[str, Any]:
    return {"pod": pod, "units": units or len(gpus), "gpus": list(gpus), "state": state, "shared": shared}


@pytest.mark.parametrize("code", [code for code in Code if code is not Code.NOT_REACHED], ids=lambda code: code.name)
def test_every_reason_of_the_queue_is_told_and_has_a_remedy(code: Code) -> None:
    why = code.reason(**PARAMETERS)
    for nearest in (SHORT, ROOM):
        sentence, found = why_pending(Lacking("default/p", TWO, nearest), Standing(why, queued=True))
        of_room = code in (Code.NO_GPU_ROOM, Code.LEFT_OUT)  # the node that comes nearest says more
        assert (str(why) in sentence) is not (of_room and nearest is SHORT)
        assert found and all(remedy.text and "{" not in remedy.text for remedy in found)


def test_room_that_a_selector_rules_out_is_named() -> None:
    sentence, _ = why_pending(Lacking("default/p", TWO, ROOM), Standing(Code.FORBIDDEN.reason(), queued=True))
    assert sentence == "there is room on n, but no node matches its selector and tolerations"
    quota = Code.OVER_QUOTA.reason(**PARAMETERS)
    sentence, (wait, setting) = why_pending(Lacking("default/p", TWO, ROOM), Standing(quota, queued=True))
    assert sentence == "quota of namespace team: 2 GPUs, 2 in use, 1 more requested"
    assert (wait.text, setting.kind.value) == ("wait until pods of namespace team end", "setting")


@pytest.mark.parametrize(
    ("used", "asked", "helps"),
    [
        (2.0, 1.0, ["wait", "setting"]),
        (0.0, 8.0, ["setting", "pod"]),  # nobody ends by whom it would get more than its quota
        (2.0, 8.0, ["setting", "pod"]),
    ],
)
def test_what_helps_over_a_quota_is_what_can_help(used: float, asked: float, helps: list[str]) -> None:
    over = Code.OVER_QUOTA.reason(namespace="team", limit=4.0, used=used, asked=asked)
    _, found = why_pending(Lacking("team/p", TWO, ROOM), Standing(over, queued=True))
    assert [remedy.kind.value for remedy in found] == helps


@pytest.mark.parametrize("unit", [AskedUnit.WHOLE, AskedUnit.GPU])
def test_pods_that_are_kept_apart_are_helped(unit: AskedUnit) -> None:
    apart = Nearest("needs it", node="n", reason=Reason.KEPT_APART)
    _, found = why_pending(Lacking("team/p", GpuRequest(1, unit, milli=500), apart), Standing())
    texts = [remedy.text for remedy in found]
    assert any(text.startswith("label a node for shares") for text in texts)
    assert any(text.startswith("turn on the node agent") for text in texts)
    assert any(text.startswith("wait for ") for text in texts)


def test_a_gang_that_is_too_large_is_helped_by_moves_or_nodes() -> None:
    why = Code.GANG_TOO_LARGE.reason(**PARAMETERS)
    _, found = why_pending(Lacking("default/p", TWO, ROOM), Standing(why, queued=True))
    commands = [remedy.command for remedy in found]
    assert commands == ["kerf defrag --for default/p", "kerf what-if --waiting --add-node auto"]


def test_a_pod_of_which_nobody_has_said_anything() -> None:
    sentence, (only,) = why_pending(Lacking("default/p", TWO, ROOM), Standing(unseen=True))
    assert sentence == "needs 2 GPUs; fits on n, but its scheduler has not tried it yet"
    assert "schedulerName" in only.text


def test_a_pod_whose_scheduler_does_not_ask_kerf() -> None:
    why = "kube-scheduler has not asked Kerf about any pod for 5 min"
    sentence, (entries, _) = why_pending(Lacking("default/p", TWO, ROOM), Standing(unseen=True, unasked=why))
    assert sentence == f"needs 2 GPUs; there is room now on n, but {why}"
    assert entries.command == "kerf install check"
    sentence, _ = why_pending(Lacking("default/p", TWO, SHORT), Standing(unasked=why))
    assert sentence == f"{SHORT.words}; {why}"


@pytest.mark.parametrize(
    ("said", "helps"),
    [
        ("1 node(s) had untolerated taint {a: b}", "tolerate the taint"),
        ("1 node(s) didn't match Pod's node affinity/selector", "change its node selector or affinity"),
        ("2 Insufficient cpu", "ask for less CPU"),
        ("1 node(s) had volume node affinity conflict", "its volume is available on other nodes only"),
        ("1 node(s) were unschedulable", "uncordon the node"),
        ("something new", "wait: kube-scheduler retries it"),
    ],
)
def test_what_helps_against_kube_schedulers_own_rules(said: str, helps: str) -> None:
    _, (only,) = why_pending(Lacking("default/p", TWO, ROOM), Standing(scheduler=said))
    assert only.text.startswith(helps)
    # Where Kerf had no node for it, and now has, that was another matter.
    sentence, (wait,) = why_pending(Lacking("default/p", TWO, ROOM), Standing(scheduler=said, by_kerf=True))
    assert sentence.endswith(f"kube-scheduler has not retried it yet; its last message: {said}")
    assert wait.text.startswith("wait: Kerf makes kube-scheduler retry it")


@pytest.mark.parametrize(
    ("reason", "helps"),
    [
        (Reason.UNHEALTHY, "repair the unhealthy GPUs of n"),
        (Reason.OCCUPIED, "find what uses GPUs of n without a booking, or which of them are faulty"),
        (Reason.SET_ASIDE, "find out why pods fail on n"),
        (Reason.NO_GPUS, "add a node with 2 GPUs: no node it may run on has that"),
    ],
)
def test_sick_nodes_are_to_be_looked_at(reason: Reason, helps: str) -> None:
    nearest = Nearest("needs 2 GPUs, best here: 1 healthy (n)", node="n", reason=reason)
    _, (only,) = why_pending(Lacking("default/p", TWO, nearest), Standing())
    assert only.text == helps


def test_who_has_the_rest() -> None:
    nearest = SHORT._replace(in_the_way=frozenset({0, 1, 2}), rest=Unbooked(1, 0, 2))
    held = [holder("a/x", 0), holder("a/y", 1, 7), holder("a/elsewhere", 6), holder(None, 2, state="RESERVED")]
    found = holding(nearest, held)
    assert [one["pod"] for one in found] == ["a/x", "a/y", None]
    assert who(nearest, found) == (
        "a/x and a/y hold 2, 1 is reserved for a pod that is being placed, "
        "1 is in use by unknown processes, 2 are unhealthy"
    )
    assert who(nearest, [*found[:1], holder("a/lost", units=3)]).startswith("a/x and a/lost hold 4, ")
    assert who(nearest, [holder("a/x", 0, shared=True)]).startswith("a/x holds parts of its GPUs, ")
    assert who(SHORT, []) == ""


def test_only_gpus_that_would_do_are_in_the_way() -> None:
    cluster = cluster_of({"n": node(A100, A100, T4, T4, held=[0, 2])})
    nearest = nearest_of(cluster, GpuRequest(2, include=pattern("a100")), None, all_rows(cluster))
    assert nearest.words == "needs 2 GPUs of model a100; n has 1 free"
    assert nearest.in_the_way == {0}


def test_mig_devices_and_memory_in_total() -> None:
    mig = GpuRequest(2, AskedUnit.MIG, mig=(("1g.5gb", 2),))
    cluster = cluster_of({"n": node(A100, mig={"1g.5gb": 2})})
    cluster = replace(cluster, mig_free=cluster.mig_free - 1)
    nearest = nearest_of(cluster, mig, None, all_rows(cluster))
    assert nearest.words == "needs 2 x mig-1g.5gb; n would need 1 more MIG device free"
    assert [one["pod"] for one in holding(nearest, [holder("a/gpu", 0), holder("a/mig")])] == ["a/mig"]
    total = GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=4 * 15360)
    cluster = cluster_of({"n": node(*[T4] * 4, held=[0])})
    nearest = nearest_of(cluster, total, None, all_rows(cluster))
    assert nearest.words == "needs GPUs with 60 GiB in total; n has 45 GiB of 60 GiB free"


def test_time_slices_of_any_gpu_are_in_the_way() -> None:
    sliced = node(T4, T4, unit=GpuUnit.REPLICA, units_per_gpu=4, untracked=5)
    cluster = cluster_of({"n": sliced})
    nearest = nearest_of(cluster, GpuRequest(4, AskedUnit.SHARED), None, all_rows(cluster))
    assert nearest.words == "needs 4 GPU replicas; n has 3 free"
    found = holding(nearest, [holder("a/x", 0, units=2), holder("a/y", units=3)])
    assert who(nearest, found) == "a/x and a/y hold 5"


@given(st.lists(st.tuples(st.sampled_from([T4, A100]), st.integers(1, 8), st.integers(0, 255)), min_size=1, max_size=6),
       st.integers(1, 8), st.booleans())  # fmt: skip
def test_what_is_free_and_what_is_held_add_up_as_counted_gpu_by_gpu(
    drawn: list[tuple[tuple[str, int], int, int]], asked: int, of_model: bool
) -> None:
    states: dict[str, NodeState] = {}
    for number, (product, count, bits) in enumerate(drawn):
        states[f"n-{number}"] = node(*[product] * count, held=[gpu for gpu in range(count) if bits >> gpu & 1])
    request = GpuRequest(asked, include=pattern("a100") if of_model else None)
    cluster = cluster_of(states)
    nearest = nearest_of(cluster, request, None, all_rows(cluster))
    best: tuple[int, str] | None = None
    for name, state in states.items():
        would_do = [gpu for gpu, one in enumerate(state.offer.gpus) if not of_model or "a100" in one.model.name]
        free = [gpu for gpu in would_do if gpu not in state.held]
        if len(would_do) >= asked > len(free) and (best is None or len(free) > best[0]):
            best = len(free), name
        if len(free) >= asked:
            assert nearest.fits
            return
    assert not nearest.fits
    if best is None:
        assert not nearest.missing
        return
    state = states[nearest.node]
    free = [gpu for gpu, one in enumerate(state.offer.gpus) if gpu not in state.held]
    assert nearest.words == f"needs {request}; {nearest.node} has {best[0]} free"
    assert nearest.in_the_way == state.held
    of_all = (
        sum(gpu in one.idle for gpu, a in enumerate(one.offer.gpus) if not of_model or "a100" in a.model.name)
        for one in states.values()
    )
    assert nearest.free_elsewhere == sum(of_all) - len(free)


def test_units_elsewhere_count_only_where_they_would_do() -> None:
    """Of another model, too small, unhealthy, time slices of others: moves give none of them."""
    states = {
        "full": node(*[A100] * 4, held=[0, 1, 2]),
        "also-full": node(*[A100] * 4, held=[0, 1, 2, 3]),
        "sick": node(*[A100] * 4, broken=[0, 1], held=[2]),
        "small": node(*[T4] * 8),
        "sliced": node(T4, unit=GpuUnit.REPLICA, units_per_gpu=8),
        "aside": node(*[A100] * 8, held=range(6), aside=3),
    }
    for request in (GpuRequest(4, include=pattern("a100")), GpuRequest(4, memory_each_mib=40960)):
        cluster = cluster_of(states)
        nearest = nearest_of(cluster, request, None, all_rows(cluster))
        assert (nearest.node, nearest.missing, nearest.free_elsewhere) == ("full", 3, 1)
        commands = [remedy.command for remedy in why_pending(Lacking("default/p", request, nearest), Standing())[1]]
        assert "kerf defrag --for default/p" not in commands


def test_units_elsewhere_are_told_in_those_of_the_request() -> None:
    sliced = node(T4, unit=GpuUnit.REPLICA, units_per_gpu=4, untracked=2)
    cluster = cluster_of({"a": sliced, "b": sliced, "whole": node(*[T4] * 8)})
    request = GpuRequest(4, AskedUnit.SHARED)
    _, found = why_pending(
        Lacking("default/p", request, nearest_of(cluster, request, None, all_rows(cluster))), Standing()
    )
    assert "see which running pods could move: 2 suitable GPU replicas are free on other nodes" in [
        remedy.text for remedy in found
    ]


def test_names_are_text_on_one_line_and_bounded() -> None:
    hostile = "a/\x1b[2J\n<img src=x>" + "y" * 300
    assert named(hostile).isprintable() and len(named(hostile)) <= 80
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c", "d"]) == "a, b, c and d"
    assert listed(["a", "b", "c", "d", "e"]) == "a, b, c and 2 more"
    held = [holder(f"{hostile}{number}", number) for number in range(8)]
    nearest = SHORT._replace(node="n" * 253, in_the_way=frozenset(range(8)), words=f"needs {TWO}; \n" + "w" * 2000)
    change: Mapping[str, Any] = {"change": "count", "text": hostile * 9, "nodes": [hostile] * 5}
    sentence, found = why_pending(Lacking(hostile, TWO, nearest, held, [change], elsewhere=hostile), Standing())
    for text in (sentence, *(str(to_json(remedy)["text"]) for remedy in found)):
        assert text.isprintable() and len(text) <= 1000
    assert bounded("x" * 2000).endswith(" ...")
