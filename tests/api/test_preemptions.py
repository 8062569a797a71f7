"""Preempt: which of kube-scheduler's proposals are kept, with which victims; and bad input."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from extender.kube.memory import MemoryCluster
from tests.api import bodies
from tests.api.bodies import Manifest, pod
from tests.api.services import Kerf, Shared, running
from tests.ledger.builders import until


def holder(name: str, on: str, gpus: str, *, priority: int = 0, started: str = "", **options: Any) -> Manifest:
    """A pod that Kerf has placed on a node, with these GPUs."""
    annotations = {"kerf.dev/assigned-gpus": gpus}
    manifest = pod(name, len(gpus.split(",")), annotations=annotations, node_name=on, priority=priority, **options)
    if started:
        manifest["status"]["startTime"] = started
    return manifest


def uids(*names: str) -> list[str]:
    return [f"uid-of-{name}" for name in names]


TWO_OF_40 = pod("urgent", 2, annotations={"kerf.dev/gpu-memory-each": "40Gi"}, priority=1000)
HOLDERS = (
    holder("t0", "t4-0", "0"),
    holder("t1", "t4-0", "1"),
    *(holder(f"a{index}", "a100-40-0", str(index), priority=index) for index in range(4)),
    holder("whole", "a100-0", "0,1,2,3,4,5,6,7", priority=2),
)


@pytest.fixture
def busy(shared: Shared) -> Kerf:
    """Three nodes without a free GPU, which stay as they are."""
    return shared([*bodies.CLUSTER, *HOLDERS])


@pytest.fixture
def own() -> Iterator[Kerf]:
    """The same for one test, which may change it."""
    with running([*bodies.CLUSTER, *HOLDERS]) as kerf:
        yield kerf


def test_nodes_with_unsuitable_gpus_are_dropped(busy: Kerf) -> None:
    proposals = {"t4-0": uids("t0", "t1"), "a100-40-0": uids("a0", "a1")}
    assert busy.preempt(TWO_OF_40, proposals) == {"a100-40-0": uids("a0", "a1")}


def test_victims_that_hold_too_few_gpus_are_no_candidate(busy: Kerf) -> None:
    assert busy.preempt(TWO_OF_40, {"a100-40-0": uids("a0")}) == {}


def test_victims_on_another_node_free_nothing_here(busy: Kerf) -> None:
    assert busy.preempt(TWO_OF_40, {"a100-40-0": uids("a0", "whole")}) == {}


def test_victims_that_are_not_needed_are_spared(busy: Kerf) -> None:
    assert busy.preempt(TWO_OF_40, {"a100-40-0": uids("a3", "a0", "a2", "a1")}) == {"a100-40-0": uids("a0", "a1")}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"affinity": {"podAntiAffinity": {bodies.REQUIRED: [{"topologyKey": "zone"}]}}}, id="affinity"),
        pytest.param({"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}, id="disk"),
        pytest.param({"resourceClaims": [{"name": "c"}]}, id="resource claim"),
        pytest.param({"hostNetwork": True}, id="host network"),
        pytest.param(
            {"topologySpreadConstraints": [{"whenUnsatisfiable": "DoNotSchedule", "maxSkew": 1}]}, id="spread"
        ),
    ],
)
def test_no_victim_is_spared_for_pods_with_other_constraints(busy: Kerf, changes: dict[str, Any]) -> None:
    asking = {**TWO_OF_40, "spec": {**TWO_OF_40["spec"], **changes}}
    proposal = {"a100-40-0": uids("a0", "a1", "a2")}
    assert busy.preempt(asking, proposal) == proposal


def test_no_victim_is_spared_whose_cpu_is_needed(busy: Kerf) -> None:
    """The node has 64 CPUs; its four pods take 4 each."""
    asking = json.loads(json.dumps(TWO_OF_40))
    for cpus, expected in (("56", 2), ("57", 3), ("61", 4)):  # 64 - 2 * 4, and what no longer fits then
        asking["spec"]["containers"][0]["resources"]["requests"]["cpu"] = cpus
        answer = busy.preempt(asking, {"a100-40-0": uids("a0", "a1", "a2", "a3")})
        assert len(answer["a100-40-0"]) == expected, cpus


def test_no_victim_is_spared_beside_an_unknown_one(busy: Kerf) -> None:
    proposal = {"a100-40-0": uids("a0", "a1", "a2", "stranger")}
    assert busy.preempt(TWO_OF_40, proposal) == proposal


def test_the_node_that_loses_least_is_kept(busy: Kerf) -> None:
    # The highest priority evicted: 1 on a100-40-0, 2 on a100-0.
    proposals = {"a100-0": uids("whole"), "a100-40-0": uids("a0", "a1")}
    assert busy.preempt(TWO_OF_40, proposals) == {"a100-40-0": uids("a0", "a1")}


def test_gpu_seconds_decide_among_equal_priorities() -> None:
    holders = [
        holder("old", "t4-0", "0,1", started="2026-01-01T00:00:00Z"),
        holder("young-0", "t4-1", "0", started="2026-01-01T12:00:00Z"),
        holder("young-1", "t4-1", "1", started="2026-01-01T12:00:00Z"),
    ]
    with running([*bodies.CLUSTER, *holders]) as kerf:
        proposals = {"t4-0": uids("old"), "t4-1": uids("young-0", "young-1")}
        assert kerf.preempt(pod("urgent", 2, priority=9), proposals) == {"t4-1": uids("young-0", "young-1")}


def test_terminating_pods_still_hold_their_gpus_and_cost_nothing() -> None:
    leaving = holder("leaving", "t4-0", "0", priority=8)
    leaving["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    with running([*bodies.CLUSTER, leaving, holder("t1", "t4-0", "1"), holder("t2", "t4-1", "0,1")]) as kerf:
        asking = pod("urgent", 1, priority=9)
        assert kerf.preempt(asking, {"t4-0": uids("leaving"), "t4-1": uids("t2")}) == {"t4-0": uids("leaving")}


def test_proposals_for_pods_without_gpus_are_unchanged(busy: Kerf) -> None:
    proposals = {"t4-0": uids("t0"), "nowhere": uids("x", "x"), "cpu-0": []}
    assert busy.preempt(pod("web", priority=9), proposals) == {"t4-0": uids("t0"), "nowhere": uids("x"), "cpu-0": []}


def test_an_empty_proposal_is_kept_where_the_pod_fits_without_evictions(busy: Kerf) -> None:
    assert busy.preempt(pod("urgent", 1), {"t4-0": [], "t4-1": [], "nowhere": []}) == {"t4-1": []}


def test_preempt_holds_and_frees_nothing(busy: Kerf) -> None:
    asking = pod("next", 1)
    assert busy.filter(asking, ["t4-1"])["NodeNames"] == ["t4-1"]
    busy.post("/preempt", bodies.preemption_args(TWO_OF_40, {"a100-40-0": uids("a0", "a1")}))
    busy.post("/preempt", bodies.preemption_args(asking, {"t4-1": []}))
    assert busy.num_reservations == 1
    assert busy.filter(TWO_OF_40, ["a100-40-0"])["FailedNodes"].keys() == {"a100-40-0"}


# Evictions under way


def asked(kerf: Kerf, asking: Manifest, proposals: dict[str, list[str]]) -> list[str]:
    """The nodes kept, without waiting."""
    answer = kerf.post("/preempt", bodies.preemption_args(asking, proposals)).json()
    return list(answer["NodeNameToMetaVictims"])


def nominated(asking: Manifest, on: str) -> Manifest:
    """The pod once kube-scheduler has evicted others for it."""
    return {**asking, "status": {**asking["status"], "nominatedNodeName": on}}


def test_no_second_eviction_until_the_first_is_reported(busy: Kerf) -> None:
    first, second = {"a100-40-0": uids("a0", "a1")}, {"a100-0": uids("whole")}
    assert asked(busy, TWO_OF_40, first) == ["a100-40-0"]
    again = nominated(TWO_OF_40, "a100-40-0")
    assert asked(busy, again, second) == []
    assert asked(busy, TWO_OF_40, second) == []  # its status is on the way as well
    assert asked(busy, {**TWO_OF_40, "metadata": {**TWO_OF_40["metadata"], "uid": "another"}}, second) == ["a100-0"]
    busy.clock.now += 31  # nobody was evicted after all
    assert asked(busy, again, second) == ["a100-0"]


def test_a_pod_nominated_elsewhere_may_evict(busy: Kerf) -> None:
    assert asked(busy, TWO_OF_40, {"a100-40-0": uids("a0", "a1")}) == ["a100-40-0"]
    assert asked(busy, nominated(TWO_OF_40, "somewhere"), {"a100-0": uids("whole")}) == ["a100-0"]


def test_kerf_does_not_wait_for_room_that_another_pod_has_taken(own: Kerf) -> None:
    assert asked(own, TWO_OF_40, {"a100-40-0": uids("a0", "a1")}) == ["a100-40-0"]
    for name in ("a0", "a1"):
        own.cluster.delete(next(item for item in HOLDERS if item["metadata"]["name"] == name))
    own.create(holder("thief", "a100-40-0", "0,1"))
    again = nominated(TWO_OF_40, "a100-40-0")
    assert asked(own, again, {"a100-0": uids("whole")}) == ["a100-0"]


def test_no_pod_is_evicted_for_one_that_fits_meanwhile(own: Kerf) -> None:
    """kube-scheduler asks about another node, for a pod that Kerf has rejected a moment ago."""
    assert own.filter(TWO_OF_40, ["a100-40-0", "t4-0"])["NodeNames"] == []
    for name in ("a0", "a1"):
        own.cluster.delete(next(item for item in HOLDERS if item["metadata"]["name"] == name))
    own.settle()
    assert asked(own, TWO_OF_40, {"a100-0": uids("whole")}) == []


# What makes a node a candidate at all


def test_only_nodes_whose_gpus_are_in_use_may_be_candidates(busy: Kerf) -> None:
    answer = busy.filter(TWO_OF_40, ["t4-0", "a100-40-0", "cpu-0", "nowhere"])
    assert answer["FailedNodes"].keys() == {"a100-40-0"}
    assert answer["FailedAndUnresolvableNodes"].keys() == {"t4-0", "cpu-0", "nowhere"}


# The wire


def test_the_answer_has_the_keys_of_the_go_types(busy: Kerf) -> None:
    body = bodies.preemption_args(TWO_OF_40, {"t4-0": uids("t0"), "a100-40-0": uids("a0", "a1")}, violations=1)
    answer = busy.post("/preempt", body)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.content == (
        b'{"NodeNameToMetaVictims":{"a100-40-0":{"Pods":[{"UID":"uid-of-a0"},{"UID":"uid-of-a1"}],'
        b'"NumPDBViolations":1}}}'
    )


def test_whole_pods_are_understood_and_answered_by_uid(busy: Kerf) -> None:
    victims = {"t4-0": list(HOLDERS[:2]), "a100-40-0": list(HOLDERS[2:4])}
    by_pods = busy.post("/preempt", bodies.whole_preemption_args(TWO_OF_40, victims, 2))
    busy.clock.now += 60
    by_uids = busy.post(
        "/preempt", bodies.preemption_args(TWO_OF_40, {"t4-0": uids("t0", "t1"), "a100-40-0": uids("a0", "a1")}, 2)
    )
    assert by_pods.content == by_uids.content
    assert by_pods.json()["NodeNameToMetaVictims"]["a100-40-0"]["NumPDBViolations"] == 2


def renamed(value: Any, change: Callable[[str], str], names: frozenset[str]) -> Any:
    """The same JSON with these keys written differently."""
    if isinstance(value, list):
        return [renamed(item, change, names) for item in value]
    if not isinstance(value, dict):
        return value
    return {(change(key) if key in names else key): renamed(child, change, names) for key, child in value.items()}


@pytest.mark.parametrize("change", [str.lower, str.upper, str.swapcase], ids=["lower", "UPPER", "sWAPPED"])
@pytest.mark.parametrize("whole", [False, True], ids=["UIDs", "whole pods"])
def test_keys_are_read_in_any_case(busy: Kerf, change: Callable[[str], str], whole: bool) -> None:
    exact = (
        bodies.whole_preemption_args(TWO_OF_40, {"a100-40-0": list(HOLDERS[2:4])}, 1)
        if whole
        else bodies.preemption_args(TWO_OF_40, {"a100-40-0": uids("a0", "a1")}, 1)
    )
    names = frozenset(("Pod", "NodeNameToVictims", "NodeNameToMetaVictims", "Pods", "NumPDBViolations", "UID"))
    other = json.dumps(renamed(json.loads(exact), change, names)).encode()
    answer = busy.post("/preempt", exact).content
    assert b"uid-of-a1" in answer
    busy.clock.now += 60
    assert busy.post("/preempt", other).content == answer


@pytest.mark.parametrize(
    "proposals",
    [
        pytest.param({}, id="neither form"),
        pytest.param({"NodeNameToMetaVictims": None, "NodeNameToVictims": None}, id="both null"),
        pytest.param({"NodeNameToMetaVictims": {}}, id="no nodes"),
        pytest.param({"NodeNameToMetaVictims": {"t4-0": None}}, id="null victims"),
        pytest.param({"NodeNameToMetaVictims": {"t4-0": {}}}, id="no keys"),
        pytest.param({"NodeNameToMetaVictims": {"t4-0": {"Pods": None, "NumPDBViolations": None}}}, id="null pods"),
    ],
)
def test_a_proposal_without_victims_is_none(busy: Kerf, proposals: dict[str, Any]) -> None:
    body = json.dumps({"Pod": bodies.sent(TWO_OF_40), **proposals}).encode()
    assert busy.post("/preempt", body).content == b'{"NodeNameToMetaVictims":{}}'


# Bad input


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        pytest.param(b"", "truncated", id="empty"),
        pytest.param(b"{", "truncated", id="one bracket"),
        pytest.param(b"null", "got `null`", id="null"),
        pytest.param(b"{}", "no Pod", id="no pod"),
        pytest.param(b'{"Pod":null}', "no Pod", id="null pod"),
        pytest.param(b'{"Pod":7}', "got `int`", id="pod of another type"),
        pytest.param(b'{"Pod":{},"NodeNameToMetaVictims":[]}', "got `array`", id="victims of another type"),
        pytest.param(b'{"Pod":{},"NodeNameToMetaVictims":{"n":{"Pods":{}}}}', "got `object`", id="pods no list"),
        pytest.param(b'{"Pod":{},"NodeNameToMetaVictims":{"n":{"Pods":[{}]}}}', "has no UID", id="no UID"),
        pytest.param(b'{"Pod":{},"NodeNameToMetaVictims":{"n":{"Pods":[{"UID":7}]}}}', "got `int`", id="UID no text"),
        pytest.param(b'{"Pod":{},"NodeNameToVictims":{"n":{"Pods":[{}]}}}', "has no UID", id="pod without UID"),
        pytest.param(
            b'{"Pod":{},"NodeNameToMetaVictims":{"n":{"NumPDBViolations":-1}}}', ">= 0", id="violations below 0"
        ),
        pytest.param(
            b'{"Pod":{},"NodeNameToMetaVictims":{"n":{"NumPDBViolations":1.5}}}', "got `float`", id="half a violation"
        ),
        pytest.param(b'{"Pod":' + b"[" * 100_000, "", id="100,000 brackets"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused(busy: Kerf, body: bytes, fault: str) -> None:
    answer = busy.post("/preempt", body)
    assert answer.status == 400
    assert answer.json().keys() == {"Error"}
    assert fault in answer.json()["Error"]


def test_a_body_over_the_limit_is_refused() -> None:
    with running(server__max_body_mib=1) as kerf:
        answer = kerf.post("/preempt", b" " * (1024 * 1024 + 1))
        assert answer.status == 413
        assert "server.max_body_mib" in answer.json()["Error"]


@pytest.mark.parametrize(
    "asking",
    [
        pytest.param(pod("urgent", 2, annotations={"kerf.dev/gpu-memory-each": "plenty"}), id="no size"),
        pytest.param(pod("urgent", 2, annotations={"kerf.dev/policy": "tarot"}), id="no policy"),
        pytest.param(pod("urgent", "2.5"), id="no whole number"),
    ],
)
def test_no_pod_is_evicted_for_an_invalid_request(busy: Kerf, asking: Manifest) -> None:
    before = busy.metric("kerf_preemption_candidates_total", verdict="refused")
    assert busy.preempt(asking, {"a100-40-0": uids("a0", "a1")}) == {}
    assert busy.metric("kerf_preemption_candidates_total", verdict="refused") == before + 1


def test_a_stale_mirror_evicts_no_pod(own: Kerf) -> None:
    proposal = {"a100-40-0": uids("a0", "a1")}
    assert own.preempt(TWO_OF_40, proposal) == proposal
    own.stop_mirror()
    assert own.get("/readyz").status == 503
    assert own.preempt(TWO_OF_40, proposal) == {}
    assert own.preempt(pod("web"), proposal) == proposal


def test_no_pod_is_evicted_from_an_unknown_node(busy: Kerf) -> None:
    assert busy.preempt(TWO_OF_40, {"nowhere": uids("a0", "a1")}) == {}


def test_verdicts_are_counted(own: Kerf) -> None:
    own.preempt(TWO_OF_40, {"t4-0": uids("t0", "t1"), "a100-40-0": uids("a0", "a1", "a2")})
    assert own.metric("kerf_preemption_candidates_total", verdict="kept") == 1
    assert own.metric("kerf_preemption_candidates_total", verdict="dropped") == 1
    assert own.metric("kerf_spared_victims_total") == 1


# Shares


def sharer(name: str, on: str, gpu: int, milli: int, **options: Any) -> Manifest:
    """A pod that has a share of a GPU."""
    annotations = {
        "kerf.dev/gpu-share": str(milli),
        "kerf.dev/assigned-gpus": str(gpu),
        "kerf.dev/assigned-share": str(milli),
    }
    return pod(name, annotations=annotations, node_name=on, **options)


def test_a_gpu_is_free_when_all_its_shares_are_evicted() -> None:
    sharers = [sharer("s0", "t4-0", 0, 300), sharer("s1", "t4-0", 0, 600), sharer("s2", "t4-0", 1, 100)]
    with running([*bodies.CLUSTER, *sharers]) as kerf:
        asking = pod("urgent", annotations={"kerf.dev/gpu-count": "1"}, priority=9)
        assert kerf.preempt(asking, {"t4-0": uids("s0", "s2")}) == {"t4-0": uids("s2")}
        assert kerf.preempt(asking, {"t4-0": uids("s0")}) == {}
        assert kerf.preempt(asking, {"t4-0": uids("s0", "s1")}) == {"t4-0": uids("s0", "s1")}
        half = pod("half", annotations={"kerf.dev/gpu-share": "500"}, priority=9)
        assert kerf.preempt(half, {"t4-0": uids("s0", "s1")})["t4-0"] == uids("s0", "s1")  # there is room on GPU 1


def test_a_pod_of_the_plugin_needs_a_node_without_pods_that_it_does_not_know() -> None:
    sharers = [sharer("s0", "t4-0", 0, 300), sharer("s1", "t4-0", 1, 600)]
    with running([*bodies.CLUSTER, *sharers]) as kerf:
        asking = pod("urgent", 1, priority=9)
        assert kerf.preempt(asking, {"t4-0": uids("s0")}) == {}
        assert kerf.preempt(asking, {"t4-0": uids("s0", "s1")}) == {"t4-0": uids("s0", "s1")}


def test_shares_lose_their_part_of_a_gpu() -> None:
    started = "2026-01-01T00:00:00Z"
    old, young = sharer("old", "t4-0", 0, 100), holder("young", "t4-1", "0", started="2026-01-01T12:00:00Z")
    old["status"]["startTime"] = started
    fill = [holder("f0", "t4-0", "1"), holder("f1", "t4-1", "1")]
    with running([*bodies.CLUSTER, old, young, *fill]) as kerf:
        proposals = {"t4-0": uids("old"), "t4-1": uids("young")}
        assert kerf.preempt(pod("urgent", 1, priority=9), proposals) == {"t4-0": uids("old")}


# Gangs


def in_gang(name: str, on: str, gpus: str, size: int, **options: Any) -> Manifest:
    manifest = holder(name, on, gpus, **options)
    manifest["metadata"]["annotations"] |= {"kerf.dev/gang": "g", "kerf.dev/gang-size": str(size)}
    return manifest


def preempted(asking: Manifest, proposals: dict[str, list[str]], *holders: Manifest, **settings: Any) -> Any:
    """What is left of proposals where the queue is on."""
    with running([*bodies.CLUSTER, *holders], queue__enabled=True, **settings) as kerf:
        kerf.run(until(lambda: not kerf.service.fault()))
        return kerf.preempt(asking, proposals)


LONG, SHORT = "2026-01-01T00:00:00Z", "2026-01-01T12:00:00Z"
PAIRS = {"t4-0": uids("m0"), "t4-1": uids("alone")}


@pytest.mark.parametrize(
    ("size", "settings", "left"),
    [
        pytest.param(2, {}, "t4-1", id="its gang can't go on, and has done more"),
        pytest.param(1, {}, "t4-0", id="its gang goes on"),
        pytest.param(2, {"queue__gangs_end_whole": False}, "t4-0", id="gangs that don't end whole"),
    ],
)
def test_a_gang_is_one_victim_with_all_its_pods_have_done(size: int, settings: dict[str, Any], left: str) -> None:
    """By itself m0 has done half of what `alone` has."""
    holders = [
        in_gang("m0", "t4-0", "0", size, started=SHORT),
        in_gang("m1", "a100-0", "0,1,2,3", size, started=LONG),
        holder("f0", "t4-0", "1"),
        holder("f1", "t4-1", "1"),
        holder("alone", "t4-1", "0", started=LONG),
    ]
    assert list(preempted(pod("urgent", 1, priority=9), PAIRS, *holders, **settings)) == [left]


def test_no_pod_is_preempted_whose_gang_has_a_pod_of_higher_priority() -> None:
    gang = [in_gang("m0", "t4-0", "0", 2), in_gang("m1", "a100-0", "0", 2, priority=9), holder("f0", "t4-0", "1")]
    proposal = {"t4-0": uids("m0")}
    assert preempted(pod("urgent", 1, priority=9), proposal, *gang) == {}
    assert preempted(pod("urgent", 1, priority=10), proposal, *gang) == proposal


def test_a_forged_gang_annotation_protects_no_pod() -> None:
    """The gang goes on without the pod that says it is of it, and of a size that it never had."""
    gang = [in_gang(f"m{number}", "a100-0", str(number), 2, priority=9) for number in range(2)]
    claims = [in_gang("x", "t4-0", "0", 100), holder("f0", "t4-0", "1")]
    assert preempted(pod("urgent", 1, priority=9), {"t4-0": uids("x")}, *gang, *claims) == {"t4-0": uids("x")}


def test_no_pod_is_evicted_for_a_namespace_at_its_quota() -> None:
    """On a full node kube-scheduler's own plugins fail first, so it calls preempt without filter."""
    asking, proposal = pod("urgent", 2, priority=1000), {"t4-0": uids("t0", "t1")}
    settings: dict[str, Any] = {"queue__enabled": True, "queue__quotas": {"team-a": 1}}
    with running([*bodies.CLUSTER, *HOLDERS], **settings) as kerf:
        kerf.run(until(lambda: not kerf.service.fault()))
        assert kerf.preempt(asking, proposal) == proposal
        asking["metadata"]["namespace"] = "team-a"
        assert kerf.preempt(asking, proposal) == {}
        told = kerf.filter(asking, ["t4-0"])["FailedAndUnresolvableNodes"]["t4-0"]
        assert told.startswith("quota of namespace team-a")


@pytest.mark.parametrize("taken", [False, True])
def test_a_process_that_leads_only_by_its_clock_evicts_no_pod(taken: bool) -> None:
    """It was paused with its clock while another replica took the lease."""
    settings: dict[str, Any] = {"leader_election__mode": "own", "leader_election__duration_s": 1000}
    lease = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kerf"
    proposal = {"a100-40-0": uids("a0", "a1")}

    async def take(cluster: MemoryCluster) -> None:
        found = json.loads(await cluster.get(lease))
        change = {"metadata": found["metadata"], "spec": {"holderIdentity": "other", "leaseTransitions": 1}}
        await cluster.patch(lease, json.dumps(change).encode())

    with running([*bodies.CLUSTER, *HOLDERS], **settings) as kerf:
        kerf.run(until(lambda: not kerf.service.fault()))
        if taken:
            kerf.run(take(kerf.cluster))
        assert kerf.service.fault() == "", "so it looks"
        assert kerf.preempt(TWO_OF_40, proposal) == ({} if taken else proposal)
