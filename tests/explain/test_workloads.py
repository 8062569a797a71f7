"""`GET /workloads`: every pod that has GPUs or asks for some, whom it belongs to, and what they come to together."""

import asyncio
import contextlib
import math
import random
import time
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.clusters import Floats
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.explain.holders import Holder, Ownership
from extender.explain.pending import PendingSummary
from extender.explain.rates import asked_milli
from extender.explain.workloads import (
    _HAVE,
    _STATES,
    BoundPod,
    Question,
    Sources,
    Workload,
    WorkloadTable,
    _chosen,
    _long_idle,
    _of_states,
    _summed,
    _table_of,
    _told_sums,
)
from extender.queueing.pods.objects import GATE
from tests.api.bodies import Manifest, node, pod
from tests.api.services import Kerf, Shared, running
from tests.explain.test_waiting_pods import made
from tests.ledger.builders import until

NODES = [node("n", 8), node("m", 4)]


def told(kerf: Kerf, query: str = "") -> Any:
    """The answer now, not that of a moment ago."""
    kerf.clock.now += 3
    answer = kerf.get(f"/workloads?{query}")
    assert answer.status == 200, answer.content
    return answer.json()


def by_pod(answer: Any) -> dict[str, Any]:
    return {item["pod"].partition("/")[2]: item for item in answer["pods"]}


def bound(name: str, gpus: str, on: str = "n", *, owner: str = "", namespace: str = "default", **more: Any) -> Manifest:
    """A pod that has these GPUs of a node."""
    annotations = {"kerf.dev/assigned-gpus": gpus, **more.pop("annotations", {})}
    manifest = pod(name, len(gpus.split(",")), node_name=on, annotations=annotations, **more)
    manifest["status"]["phase"] = "Running"
    manifest["metadata"] |= {"namespace": namespace, "uid": f"uid-of-{namespace}-{name}"}
    return owned_by(owner, manifest) if owner else manifest


def owned_by(owner: str, manifest: Manifest) -> Manifest:
    """The pod with a controller, such as Job/train."""
    kind, _, name = owner.partition("/")
    manifest["metadata"]["ownerReferences"] = [{"kind": kind, "name": name, "controller": True}]
    return manifest


def seen(kerf: Kerf, *pods: Manifest, waiting: int = 0) -> None:
    """The watch has told of these, and of so many that wait."""
    for one in pods:
        kerf.create(one)
    kerf.run(until(lambda: kerf.service.waitlist.num_pods() == waiting))


def test_each_pod_has_its_state_owner_node_gpus_and_age() -> None:
    starting, ending = bound("starts", "2,3"), bound("ends", "4")
    starting["status"]["phase"] = "Pending"
    ending["metadata"]["deletionTimestamp"] = "2026-11-26T17:00:00Z"
    with running(NODES) as kerf:
        runs = bound("train-1", "0,1", owner="Job/train", annotations={"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"})
        gated = made("gated", 2, 60, schedulingGates=[{"name": "example.com/later"}])
        unreadable = {"kerf.dev/gang": "ring", "kerf.dev/gang-size": "many"}
        odd = bound("odd", "5", annotations=unreadable, labels={"genius/priority": "first"})
        seen(kerf, runs, starting, ending, odd, made("waits", 9, 600, priority=7), gated, waiting=2)
        asks = {"kerf.dev/gpu-share": "250", "kerf.dev/gpu-memory-each": "8Gi"}
        has = {"kerf.dev/assigned-gpus": "6", "kerf.dev/assigned-share": "250", "kerf.dev/assigned-memory-mib": "8192"}
        seen(kerf, pod("has", annotations=asks | has, node_name="n"), pod("asks", annotations=asks), waiting=3)
        pods = by_pod(told(kerf))
    states = {"train-1": "running", "starts": "starting", "ends": "ending", "waits": "pending", "gated": "gated"}
    states |= {"odd": "running", "has": "running", "asks": "pending"}
    assert {name: item["state"] for name, item in pods.items()} == states
    assert (pods["odd"]["gang"], pods["odd"]["priority"]) == (None, 0)
    train, waits = pods["train-1"], pods["waits"]
    assert (train["namespace"], train["owner"], train["gang"]) == ("default", "Job/train", "default/g")
    assert (train["node"], train["model"], train["gpus"], train["indices"]) == ("n", "a100-sxm4-80gb", 2.0, [0, 1])
    assert (train["memoryMiB"], train["request"], train["since"]) == (163840, None, 1795240762.0)
    assert train["explain"] == "kerf explain default/train-1"
    assert (waits["owner"], waits["node"], waits["gpus"], waits["request"]) == ("Pod/waits", None, 9.0, "9 GPUs")
    assert (waits["priority"], waits["memoryMiB"], waits["load"], waits["idleSeconds"]) == (7, None, None, None)
    assert 600 <= time.time() - waits["since"] < 700
    share = pods["has"]
    assert (share["gpus"], share["indices"], share["memoryMiB"]) == (0.25, [6], 8192)
    assert (pods["asks"]["gpus"], pods["asks"]["request"]) == (0.25, "250 milli of a GPU with 8 GiB")


def test_a_pod_that_a_node_is_reserved_for_is_being_placed_there() -> None:
    with running(NODES) as kerf:
        asked = made("asked", 2, 60)
        seen(kerf, asked, waiting=1)
        kerf.filter(asked, ["m"])
        placing = by_pod(told(kerf))["asked"]
        assert kerf.bind(asked, "m") == ""
        placed = by_pod(told(kerf))["asked"]
    assert (placing["state"], placing["node"], placing["gpus"]) == ("placing", "m", 2.0)
    assert (placed["state"], placed["node"], placed["gpus"], placed["request"]) == ("running", "m", 2.0, None)


def test_who_belongs_to_a_deployment_is_told_by_it() -> None:
    with running(NODES) as kerf:
        labels, owner = {"pod-template-hash": "6b8f9c5d4b"}, "ReplicaSet/serve-6b8f9c5d4b"
        waits = owned_by(owner, made("serve-2", 9, 60, labels=labels))
        seen(kerf, bound("serve-1", "0", owner=owner, labels=labels), waits, waiting=1)
        (group,) = told(kerf, "by=owner")["groups"]
    assert (group["owner"], group["pods"], group["gpusBooked"], group["gpusAsked"]) == ("Deployment/serve", 2, 1.0, 9.0)
    assert (group["states"]["running"], group["states"]["pending"]) == (1, 1)


def test_what_pods_have_is_what_the_nodes_have_given() -> None:
    with running(NODES) as kerf:
        seen(kerf, bound("a", "0,1,2"), bound("b", "3", namespace="team"), bound("c", "0,1", "m", namespace="team"))
        answer = told(kerf)
        booked = kerf.get("/nodes").json()["totals"]["gpusBooked"]
        groups = told(kerf, "by=namespace")["groups"]
        kerf.cluster.delete(bound("a", "0,1,2"))
        kerf.settle()
        after = told(kerf)
    assert answer["totals"]["gpusBooked"] == booked == sum(item["gpus"] for item in answer["pods"]) == 6.0
    shown = [(group["namespace"], group["gpusBooked"], group["owner"]) for group in groups]
    assert shown == [("default", 3.0, None), ("team", 3.0, None)]
    assert (after["totals"]["gpusBooked"], after["total"]) == (3.0, 2)


def test_rows_are_filtered_and_searched() -> None:
    with running(NODES) as kerf:
        marks = {"kerf.dev/gang": "ring", "kerf.dev/gang-size": "1"}
        team = bound("train-2", "0", "m", owner="Job/train", namespace="team")
        seen(kerf, bound("Train-1", "0", owner="Job/train"), bound("eval-1", "1", owner="Job/eval", annotations=marks))
        seen(kerf, team, made("train-3", 9, 60), waiting=1)

        def names(query: str) -> list[str]:
            return sorted(by_pod(told(kerf, query)))

        assert names("namespace=team") == ["train-2"]
        assert names("owner=Job/train") == ["Train-1", "train-2"]
        assert names("gang=default/ring") == ["eval-1"]
        assert names("node=m") == ["train-2"]
        assert names("state=pending") == ["train-3"]
        assert names("state=running&namespace=default") == ["Train-1", "eval-1"]
        assert names("q=TRAIN") == ["Train-1", "train-2", "train-3"]
        assert names("q=train+team") == ["train-2"]
        assert names("q=a100") == ["Train-1", "eval-1", "train-2"]
        assert names("q=nowhere") == []
        assert told(kerf, "q=nowhere")["totals"]["pods"] == 0
        found = told(kerf, "q=ring")["found"]
        assert found == {"pods": [], "owners": [], "namespaces": [], "gangs": ["default/ring"]}
        found = told(kerf, "q=t")["found"]
    assert found["namespaces"] == ["team", "default"]  # what begins with it first
    assert found["owners"][:2] == ["default/Job/train", "default/Pod/train"]


def test_pages_are_bounded_and_sorted_either_way() -> None:
    with running(NODES) as kerf:
        seen(kerf, bound("a", "0"), bound("b", "1,2,3"), bound("c", "4,5"), made("d", 9, 60, priority=5), waiting=1)

        def names(query: str) -> list[str]:
            return list(by_pod(told(kerf, query)))

        assert names("") == names("sort=gpus") == ["d", "b", "c", "a"]
        assert names("sort=gpus&reverse=true") == ["a", "c", "b", "d"]
        assert names("sort=name") == ["a", "b", "c", "d"]
        assert names("sort=name&reverse=true&limit=3") == ["d", "c", "b"]
        assert names("sort=priority")[0] == "d"
        assert names("sort=age") == ["b", "c", "a", "d"]  # all but the last of one time
        page = told(kerf, "sort=name&limit=2&offset=1")
        assert [item["pod"] for item in page["pods"]] == ["default/b", "default/c"]
        assert (page["total"], page["more"]) == (4, 1)
        beyond = told(kerf, "offset=9")
    assert [beyond[key] for key in ("by", "pods", "groups", "total", "more", "atLeast", "found")] == [
        *("pod", [], [], 4, 0, False, None)
    ]


def test_what_is_out_of_range_is_refused(shared: Shared) -> None:
    kerf = shared(NODES)
    for query in (
        *("limit=0", "limit=1001", "offset=-1", f"namespace={'n' * 64}", "by=gang", "state=dead", "sort=luck"),
        *("idle=perhaps", f"q={'q' * 201}", f"owner={'o' * 129}"),
    ):
        assert kerf.get(f"/workloads?{query}").status == 422, query


def random_table(seed: int) -> WorkloadTable:
    """Pods of a few namespaces and owners, half of what is known of them left out."""
    rng = np.random.default_rng(seed)
    draw = random.Random(seed)
    num = draw.choice((1, 2, 40))
    state = rng.integers(0, len(_STATES), num)
    have = state < _HAVE

    def some(values: Any, where: Any) -> Any:
        return np.where(where, values, np.nan)

    since = some(1e9 + rng.integers(0, 9999, num), rng.random(num) < 0.8)
    rows = [
        Workload(
            *(f"uid-{row}", f"ns/pod-{row}", f"ns-{draw.randrange(3)}", f"Job/j-{draw.randrange(3)}", "", "", "", ""),
            *(int(state[row]), float(since[row]), 0, 0.0),
        )
        for row in range(num)
    ]
    return WorkloadTable(
        rows,
        state,
        np.where(have, rng.integers(0, 9, num) / 2, 0.0),
        np.where(have, 0.0, some(rng.integers(1, 9, num), rng.random(num) < 0.8)),
        some(rng.integers(0, 5, num) / 4, have & (rng.random(num) < 0.7)),
        some(rng.integers(0, 200, num).astype(float), have & (rng.random(num) < 0.5)),
        since,
        rng.integers(-3, 4, num),
    )


def by_hand(table: WorkloadTable, positions: list[int], after_s: float) -> dict[str, Any]:
    """What some pods come to, one by one."""

    def gpus(numbers: Floats, among: list[int]) -> float:
        return round(sum(float(numbers[at]) for at in among), 3)

    states = [_STATES[table.state[at]] for at in positions]
    idle = [at for at in positions if not math.isnan(table.idle_s[at]) and table.idle_s[at] >= after_s]
    known = [at for at in positions if not math.isnan(table.load[at])]
    used, measured = sum(float(table.booked[at] * table.load[at]) for at in known), gpus(table.booked, known)
    return {
        **{"pods": len(positions), "states": {state: states.count(state) for state in _STATES}},
        **{"gpusBooked": gpus(table.booked, positions), "load": round(used / measured, 3) if measured else None},
        "gpusAsked": gpus(table.asked, [at for at in positions if not math.isnan(table.asked[at])]),
        **{"idlePods": len(idle), "idleGpus": gpus(table.booked, idle)},
    }


@given(st.integers(0, 2**32))
def test_groups_are_the_sums_of_their_pods(seed: int) -> None:
    table, after_s = random_table(seed), 100.0
    idle = _long_idle(table, after_s)
    for asked in (Question(), Question(namespace="ns-1"), Question(state="pending"), Question(idle=True)):
        rows = _of_states(table, asked, _chosen(table, asked), idle)
        wanted = [
            at
            for at, row in enumerate(table.rows)
            if asked.namespace in ("", row.namespace)
            and asked.state in ("", _STATES[table.state[at]])
            and (not asked.idle or (not math.isnan(table.idle_s[at]) and table.idle_s[at] >= after_s))
        ]
        assert rows.tolist() == wanted
        owners = _summed(table, rows, idle, "owner")
        groups: dict[tuple[str, str], list[int]] = {}
        for at in wanted:
            groups.setdefault((table.rows[at].namespace, table.rows[at].owner), []).append(at)
        assert list(owners.names) == list(groups)
        for number, positions in enumerate(groups.values()):
            assert _told_sums(owners, number) == by_hand(table, positions, after_s)
            ages = [age for age in table.since[positions] if not math.isnan(age)]
            np.testing.assert_equal(owners.since[number], min(ages, default=math.nan))
            idle_times = [idle_s for idle_s in table.idle_s[positions] if not math.isnan(idle_s)]
            np.testing.assert_equal(owners.idle_s[number], max(idle_times, default=math.nan))
            assert owners.priority[number] == max(table.priority[at] for at in positions)
        assert _told_sums(_summed(table, rows, idle, "all"), 0) == by_hand(table, wanted, after_s)


def test_what_nobody_is_known_to_use_is_held_and_a_pod_that_has_its_node_waits_no_longer() -> None:
    holders = [
        Holder(0, "team/claim", "team/claim", Ownership("team", "ResourceClaim/claim"), "n"),
        None,  # a number that is free
        Holder(2, "uid-static", "kube-system/static", Ownership("kube-system", "Node/n"), "n"),
        Holder(3, "uid-a", "team/a", Ownership("team", "Job/a"), "n"),
    ]
    waiting = [
        PendingSummary(uid, f"team/{uid}", 0, 1e9, asked, "Job/a", "", gated=False)
        for uid, asked in (("uid-a", GpuRequest(2)), ("uid-b", None), ("uid-c", GpuRequest(0, memory_total_mib=8)))
    ]
    table = _table_of(
        Sources(
            *(holders, np.array([1000, 0, 500, 2000]), np.full(4, np.nan), np.full(4, np.nan), waiting),
            bound=lambda uid: BoundPod(1e9, 0, "", starting=False, leaving=False) if uid == "uid-a" else None,
            claim=lambda uid: None,
            model=lambda node: "a100",
        )
    )
    held = [("team/claim", "held"), ("kube-system/static", "held"), ("team/a", "running")]
    waits = [("team/uid-b", "pending"), ("team/uid-c", "pending")]
    assert [(row.pod, _STATES[row.state]) for row in table.rows] == held + waits
    assert table.booked.tolist() == [1.0, 0.5, 2.0, 0.0, 0.0]
    assert table.asked[:3].tolist() == [0.0, 0.0, 0.0] and np.isnan(table.asked[3:]).all()


def test_gpus_are_asked_for_by_the_measure_that_they_are_booked_by() -> None:
    for request, milli in (
        (GpuRequest(2), 2000),
        (GpuRequest(1, milli=250), 250),
        (GpuRequest(2, AskedUnit.PART, milli=300), 600),
        (GpuRequest(3, AskedUnit.MIG, mig=(("1g.5gb", 2), ("3g.20gb", 1))), 2 * 142 + 428),
        (GpuRequest(3, AskedUnit.SHARED), None),
        (GpuRequest(0, memory_total_mib=90_000), None),
    ):
        assert asked_milli(request) == milli


def test_who_has_no_gpus_is_who_is_pending() -> None:
    with running(NODES, queue__enabled=True) as kerf:
        marks = {"kerf.dev/gang": "ring", "kerf.dev/gang-size": "2"}
        gated = made("gated", 1, 60, annotations=marks, schedulingGates=[{"name": GATE}])
        seen(kerf, bound("a", "0,1"), made("waits", 9, 60, priority=3), gated, waiting=2)
        kerf.filter(pod("by-hand", 9), ["n"])  # of no API server
        pods = by_pod(told(kerf))
        pending = kerf.get("/pending").json()["pods"]
    assert (pods["gated"]["state"], pods["gated"]["gang"]) == ("gated", "default/ring")
    by_hand = pods["by-hand"]
    assert (by_hand["state"], by_hand["owner"], by_hand["gpus"]) == ("pending", "Pod/by-hand", 9)
    shared = ("pod", "request", "priority", "gang", "since")
    works = sorted([item[key] for key in shared] for item in pods.values() if item["state"] in ("pending", "gated"))
    assert works == sorted([item[key] for key in shared] for item in pending)
    assert len(works) == 3


def test_who_is_stopped_while_looking_leaves_the_rest_to_the_next() -> None:
    with running([node(f"n-{number:03}", 2) for number in range(120)]) as kerf:
        occupants = kerf.service.workloads.occupants

        async def stopped() -> None:
            occupants.holders.changed.update(f"n-{number:03}" for number in range(120))
            looking = asyncio.create_task(occupants.catch_up())
            await asyncio.sleep(0)
            looking.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await looking

        kerf.run(stopped())
        assert occupants.holders.changed == {f"n-{number:03}" for number in range(50, 120)}
        kerf.run(occupants.catch_up())
        assert occupants.holders.changed == set()


def test_a_table_does_for_a_moment_and_is_not_kept_for_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    with running(NODES) as kerf:
        seen(kerf, bound("a", "0"))
        assert told(kerf)["total"] == 1
        seen(kerf, bound("b", "1"))
        assert kerf.get("/workloads").json()["total"] == 1  # that of a moment ago
        monkeypatch.setattr("extender.explain.workloads._MAX_AGE_S", 0.01)
        assert told(kerf)["total"] == 2
        kerf.run(until(lambda: kerf.service.workloads._made is None))  # noqa: SLF001 - nothing else tells
