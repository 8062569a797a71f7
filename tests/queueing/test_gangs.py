"""Gangs: who is there, what PodGroups of either kind say, and what becomes of one that loses a member."""

import asyncio
from typing import Any

import pytest

from extender.kube.client import ApiError
from extender.kube.objects import Pod
from extender.planning.wait_reasons import Code
from extender.queueing.gang_eviction import GangEviction
from extender.queueing.gangs import Gangs, units_of
from tests.queueing.watches import Answers, entries, pod

GROUP = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/ns/podgroups/g"
NATIVE = "/apis/scheduling.k8s.io/v1alpha2/namespaces/ns/podgroups/g"
PODS = "/api/v1/namespaces/ns/pods"
GANG = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "3"}


def test_an_incomplete_gang_waits_and_members_that_run_count() -> None:
    async def run() -> None:
        now = [0.0]
        api = Answers({PODS: {"items": []}})
        gangs = Gangs(api, lambda: now[0])  # type: ignore[arg-type]
        waiting = entries(pod("a", annotations=GANG), pod("b", annotations=GANG), pod("single"))
        units = await units_of(waiting, gangs)
        assert [(unit.key, len(unit.entries), str(unit.missing or "")) for unit in units] == [
            ("ns/single", 1, ""),
            ("ns/g", 2, "gang ns/g waits for its pods: 2 of 3 exist"),
        ]
        runs = {"metadata": {"namespace": "ns", "annotations": GANG}, "spec": {"nodeName": "n"}}
        api.answers[PODS] = {"items": [runs, {"metadata": {"namespace": "ns"}}]}
        await units_of(waiting, gangs)
        assert len(api.asked) == 1  # remembered for a while
        now[0] = 6.0
        assert [unit.missing for unit in await units_of(waiting, gangs)] == [None, None]

    asyncio.run(run())


def test_a_pod_group_says_the_size() -> None:
    async def run() -> None:
        label = {"scheduling.x-k8s.io/pod-group": "g"}
        waiting = entries(pod("a", labels=label), pod("b", labels=label))
        [unit] = await units_of(waiting, Gangs(Answers(), lambda: 0.0))  # type: ignore[arg-type]
        assert str(unit.missing) == "gang ns/g: its PodGroup does not exist, or has no minMember or minCount"
        [unit] = await units_of(waiting, Gangs(Answers({GROUP: {"spec": {"minMember": 2}}}), lambda: 0.0))  # type: ignore[arg-type]
        assert unit.missing is None

    asyncio.run(run())


def test_a_size_of_thousands_of_digits_harms_no_other_gang() -> None:
    """Of a pod that was never gated, so that nothing but the list of its namespace tells of it."""
    endless = {"kerf.dev/gang": "h", "kerf.dev/gang-size": "000000001" + "0" * 5000}
    found = {"metadata": {"name": "b", "namespace": "ns", "annotations": endless}, "spec": {"nodeName": "n"}}
    waiting = entries(pod("a", annotations=GANG))
    api = Answers({PODS: {"items": [found, member("c"), member("d")]}})
    [unit] = asyncio.run(units_of(waiting, Gangs(api, lambda: 0.0)))  # type: ignore[arg-type]
    assert unit.missing is None
    [entry] = entries(pod("a", annotations=endless))
    assert "is not a gang size" in str(entry.fault)


def test_many_gangs_are_asked_about_by_one_paged_list_of_their_namespace() -> None:
    async def run() -> None:
        api = Answers({PODS: {"items": []}})
        gangs = [{"kerf.dev/gang": f"g-{number}", "kerf.dev/gang-size": "2"} for number in range(300)]
        waiting = entries(*(pod(f"p-{number}", annotations=said) for number, said in enumerate(gangs)))
        units = await units_of(waiting, Gangs(api, lambda: 0.0))  # type: ignore[arg-type]
        assert (len(units), api.asked) == (300, [PODS])
        assert api.queries == [{"fieldSelector": "status.phase!=Failed", "limit": "32"}]

    asyncio.run(run())


def test_a_round_asks_a_few_questions_and_everybody_has_a_turn() -> None:
    async def run() -> None:
        api, now = Answers(), [0.0]
        gangs = Gangs(api, lambda: now[0])  # type: ignore[arg-type]
        label = "scheduling.x-k8s.io/pod-group"
        waiting = entries(*(pod(f"p-{number}", labels={label: f"g-{number}"}) for number in range(40)))
        unknown = []
        for _ in range(3):
            asked = len(api.asked)
            units = await units_of(waiting, gangs)
            unknown.append(sum(unit.missing is not None and unit.missing.code is Code.GANG_UNKNOWN for unit in units))
            assert len(api.asked) - asked <= 16
        assert unknown == [24, 8, 0]
        now[0] = 6.0  # what was learned is due again: first what was learned longest ago
        api.asked.clear()
        await units_of(waiting, gangs)
        assert len(api.asked) == 16

    asyncio.run(run())


def member(name: str, *, node: str = "n", phase: str = "Running", owner: str = "", **metadata: Any) -> dict[str, Any]:
    """A pod of the gang that was let go."""
    owners = [{"uid": owner, "kind": "Job", "name": owner, "controller": True}] if owner else []
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "annotations": GANG, "ownerReferences": owners}
    return {"metadata": meta | metadata, "spec": {"nodeName": node} if node else {}, "status": {"phase": phase}}


@pytest.mark.parametrize(
    ("started", "complete"),
    [
        pytest.param([member("a"), member("b")], True, id="two run"),
        pytest.param([member("a"), member("b", phase="Succeeded", owner="job")], True, id="one of its Job succeeded"),
        pytest.param([member("a"), member("b", phase="Succeeded", owner="old")], False, id="one of an earlier gang"),
        pytest.param([member("a"), member("b", deletionTimestamp="2026-01-01T00:00:00Z")], False, id="deleted"),
        pytest.param(
            [member("a"), member("b", phase="Succeeded", owner="x", labels={"kerf.dev/pipeline": "p"})],
            True,
            id="one of another Job of a pipeline's gang has succeeded",
        ),
    ],
)
def test_a_member_that_is_made_again_joins_those_that_were_let_go(started: list[Any], complete: bool) -> None:
    job = [{"uid": "job", "kind": "Job", "name": "job", "controller": True}]
    waiting = entries(pod("c", annotations=GANG, ownerReferences=job))
    [unit] = asyncio.run(units_of(waiting, Gangs(Answers({PODS: {"items": started}}), lambda: 0.0)))  # type: ignore[arg-type]
    assert (unit.missing is None) == complete


def test_a_member_made_again_knows_where_the_others_are() -> None:
    nominated = member("b", node="", phase="Pending")
    nominated["status"]["nominatedNodeName"] = "next"
    started = [member("a"), nominated, member("c", node="ended", phase="Succeeded")]
    waiting = entries(pod("d", annotations=GANG))
    [unit] = asyncio.run(units_of(waiting, Gangs(Answers({PODS: {"items": started}}), lambda: 0.0)))  # type: ignore[arg-type]
    assert [planned.beside for planned in unit.pods] == [("n", "next")]


def native(spec: dict[str, Any], *names: str) -> Any:
    group = {"spec": {"schedulingGroup": {"podGroupName": "g"}}}
    waiting = entries(*(pod(name, spec=group["spec"]) for name in names))
    return asyncio.run(units_of(waiting, Gangs(Answers({NATIVE: {"spec": spec}}), lambda: 0.0)))  # type: ignore[arg-type]


def test_a_pod_group_of_kubernetes_own() -> None:
    policy = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    [unit] = native(policy, "a", "b")
    assert str(unit.missing) == "gang ns/g waits for its pods: 2 of 3 exist"
    [unit] = native(policy | {"schedulingConstraints": {"topology": [{"key": "rack"}]}}, "a", "b", "c")
    assert (unit.missing, {planned.topology for planned in unit.pods}) == (None, {"rack"})


def test_pods_of_a_group_whose_policy_is_no_gang_go_one_by_one() -> None:
    units = native({"schedulingPolicy": {"basic": {}}}, "a", "b")
    assert [(unit.key, unit.missing, unit.pods[0].gang) for unit in units] == [
        ("ns/a", None, ""),
        ("ns/b", None, ""),
    ]


class Lost:
    """A gang of three, of which the test says who is there."""

    def __init__(self, *there: dict[str, Any], refuse: list[ApiError] | None = None) -> None:
        self.now = 0.0
        self.api = Answers({PODS: {"items": list(there)}}, refuse)
        gangs = Gangs(self.api, lambda: self.now)  # type: ignore[arg-type]
        self.standby = ""
        self.eviction = GangEviction(
            self.api,  # type: ignore[arg-type]
            gangs,
            self._running,
            timeout_s=60.0,
            clock=lambda: self.now,
            standby=lambda: self.standby,
        )

    def _running(self) -> dict[str, list[Pod]]:
        items = [item for item in self.api.answers[PODS]["items"] if item["status"]["phase"] == "Running"]
        on_nodes = [item["metadata"] for item in items if item["spec"].get("nodeName")]
        found = [pod(metadata["name"], annotations=metadata["annotations"]) for metadata in on_nodes]
        return {"ns/g": found} if found else {}

    def check(self, now: float) -> list[str]:
        """Names of the pods evicted."""
        self.now = now
        before = len(self.api.written)
        asyncio.run(self.eviction.check())
        return [path.split("/")[-2] for path, body in self.api.written[before:] if body["kind"] == "Eviction"]


def test_what_is_left_of_a_gang_is_evicted_after_the_time_out_and_not_before() -> None:
    lost = Lost(member("a"), member("b"), member("pending", node="", phase="Pending"))
    assert lost.check(0.0) == lost.check(59.0) == []
    assert lost.check(60.0) == ["a", "b", "pending"]
    assert lost.eviction.num_evicted == 3
    [(path, body), *_] = lost.api.written
    assert path == "/api/v1/namespaces/ns/pods/a/eviction"
    assert body["deleteOptions"] == {"preconditions": {"uid": "uid-a"}}


def test_nobody_elses_size_evicts_a_gang() -> None:
    """Who claims to be of the gang, and that it is of a hundred, is evicted alone."""
    claims = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "100"}
    lost = Lost(*(member(name) for name in "abc"), member("x", annotations=claims))
    assert lost.check(0.0) == []
    assert lost.check(60.0) == ["x"]


def test_nothing_is_said_of_a_gang_whose_pods_are_all_going(caplog: pytest.LogCaptureFixture) -> None:
    going = member("a")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    lost = Lost(going)
    assert lost.check(0.0) == lost.check(60.0) == []
    assert caplog.messages == []


def test_a_gang_that_is_whole_again_in_time_stays() -> None:
    lost = Lost(member("a"), member("b"))
    lost.check(0.0)
    lost.api.answers[PODS]["items"].append(member("c"))
    assert lost.check(59.0) == []
    lost.api.answers[PODS]["items"].pop()
    assert lost.check(61.0) == lost.check(120.0) == []  # the time begins anew
    assert lost.check(121.0) == ["a", "b"]


def test_members_that_have_succeeded_are_not_lost() -> None:
    lost = Lost(member("a"), member("b", phase="Succeeded"), member("c", phase="Succeeded"))
    assert lost.check(0.0) == lost.check(60.0) == []


def test_a_standby_evicts_nobody_and_a_refused_eviction_is_tried_again() -> None:
    lost = Lost(member("a"), refuse=[ApiError(429, "TooManyRequests", "disruption budget")])
    lost.standby = "another one leads"
    assert lost.check(0.0) == lost.check(60.0) == []
    lost.standby = ""
    assert lost.check(61.0) == []
    lost.check(121.0)
    assert lost.eviction.num_evicted == 0
    lost.check(122.0)
    lost.check(182.0)
    assert lost.eviction.num_evicted == 1
