"""Gangs: who is there, what PodGroups of either kind say, and what becomes of one that loses a member."""

import asyncio
from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest

from extender.kube.client import ApiError, Query
from extender.kube.objects import Pod
from extender.planning.wait_reasons import Code
from extender.queueing.gangs import Gangs, Unit, units_of
from extender.queueing.pods.batches import by_gang
from extender.queueing.pods.objects import decode_pod
from extender.queueing.preempted_gangs import GangEviction, post_eviction
from extender.scheduling.placer import PodIdentity
from tests.ledger.builders import until
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
        now[0] = 5.0  # what was learned is due again: first what was learned longest ago
        api.asked.clear()
        await units_of(waiting, gangs)
        assert len(api.asked) == 16
        now[0] = 10.0
        await units_of(waiting, gangs)
        assert len(set(api.asked)) == 32, "others than before"

    asyncio.run(run())


def test_what_is_known_of_a_group_is_forgotten_where_it_was_not_asked_for_again_in_time() -> None:
    def unknown(units: Sequence[Unit]) -> int:
        return sum(unit.missing is not None and unit.missing.code is Code.GANG_UNKNOWN for unit in units)

    async def run() -> None:
        now = [7.0]
        gangs = Gangs(Answers(), lambda: now[0])  # type: ignore[arg-type]
        label = "scheduling.x-k8s.io/pod-group"
        waiting = entries(*(pod(f"p-{number}", labels={label: f"g-{number}"}) for number in range(32)))
        for _ in range(2):
            await units_of(waiting, gangs)
        now[0] = 56.9
        assert unknown(await units_of(waiting, gangs)) == 0
        now[0] = 57.0
        assert unknown(await units_of(waiting, gangs)) == 0, "those that were asked for just now, and 16 more"
        now[0] = 107.0
        assert unknown(await units_of(waiting, gangs)) == 16

    asyncio.run(run())


class Silent(Answers):
    """An API server that answers when it may."""

    def __init__(self, answers: dict[str, Any] | None = None) -> None:
        super().__init__(answers)
        self.may = asyncio.Event()

    async def get(self, path: str, query: Query | None = None) -> bytes:
        self.asked.append(path)
        await self.may.wait()
        return await super().get(path, query)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param({"annotations": {"kerf.dev/gang": "g", "kerf.dev/gang-size": "3"}}, id="by their pods"),
        pytest.param({"labels": {"scheduling.x-k8s.io/pod-group": "g"}}, id="by their PodGroups"),
    ],
)
def test_an_api_server_that_does_not_answer_holds_up_no_round_and_is_not_asked_more_and_more(
    said: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extender.queueing.gangs._MAX_WAIT_S", 0.05)

    async def run() -> None:
        api = Silent()
        gangs = Gangs(api, lambda: 0.0)  # type: ignore[arg-type]
        [*waiting] = chain(*(entries(pod("p", namespace=f"ns-{number}", **said)) for number in range(20)))
        unknown = [
            (f"ns-{number}/g", (entry,), Code.GANG_UNKNOWN.reason(gang=f"ns-{number}/g"))
            for number, entry in enumerate(waiting)
        ]
        for _ in range(3):
            units = await units_of(waiting, gangs)
            assert [(unit.key, unit.entries, unit.missing) for unit in units] == unknown
        assert len(api.asked) == 16
        api.may.set()
        for _ in range(3):
            await asyncio.sleep(0)
        units = await units_of(waiting, gangs)
        assert Code.GANG_UNKNOWN not in {unit.missing.code for unit in units if unit.missing is not None}

    asyncio.run(run())


def test_a_group_that_can_not_be_read_says_no_size_and_the_log_says_why(caplog: pytest.LogCaptureFixture) -> None:
    class Forbidden(Answers):
        async def get(self, path: str, query: Query | None = None) -> bytes:
            raise ApiError(403, "Forbidden", "cannot get podgroups")

    waiting = entries(pod("a", labels={"scheduling.x-k8s.io/pod-group": "g"}))
    [unit] = asyncio.run(units_of(waiting, Gangs(Forbidden(), lambda: 0.0)))  # type: ignore[arg-type]
    assert unit.missing == Code.GANG_WITHOUT_GROUP.reason(gang="ns/g")
    [told] = caplog.messages
    assert "ns/g" in told
    assert "cannot get podgroups" in told


def test_a_gang_that_is_complete_is_asked_nothing_about() -> None:
    said = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "2"}
    api = Answers()
    [unit] = asyncio.run(units_of(entries(*(pod(name, annotations=said) for name in "ab")), Gangs(api, lambda: 0.0)))  # type: ignore[arg-type]
    assert (unit.missing, [planned.topology for planned in unit.pods], api.asked) == (None, ["", ""], [])


def test_a_group_s_name_is_one_part_of_its_path_whatever_its_author_writes() -> None:
    api = Answers()
    waiting = entries(pod("a", labels={"scheduling.x-k8s.io/pod-group": "../x/g"}))
    asyncio.run(units_of(waiting, Gangs(api, lambda: 0.0)))  # type: ignore[arg-type]
    assert api.asked[:1] == [GROUP.removesuffix("g") + "..%2Fx%2Fg"]


@pytest.mark.parametrize(("page_size", "large", "limits"), [(7, 0, ["7", "7"]), (500, 2**17, ["32", "31"])])
def test_members_come_in_pages_as_large_as_is_set_and_no_larger_than_can_be_decoded_at_once(
    page_size: int, large: int, limits: list[str]
) -> None:
    class Pages(Answers):
        async def get(self, path: str, query: Query | None = None) -> bytes:
            page = await super().get(path, query)
            self.answers[PODS] = {"items": []}
            return page

    first = {"items": [{"metadata": {"namespace": "ns"}, "x": "." * large}], "metadata": {"continue": "more"}}
    api = Pages({PODS: first})
    asyncio.run(Gangs(api, lambda: 0.0, page_size).ask_members("ns"))  # type: ignore[arg-type]
    assert [dict(query)["limit"] for query in api.queries] == limits


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
    assert {planned.topology for planned in unit.pods} == {""}
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
        self.running = self._running
        self.eviction = GangEviction(
            self.api,  # type: ignore[arg-type]
            gangs,
            lambda: self.running(),  # noqa: PLW0108 - tests change it
            timeout_s=60.0,
            clock=lambda: self.now,
            standby=lambda: self.standby,
        )

    def add(self, namespace: str, *there: dict[str, Any]) -> None:
        """The same of another namespace."""
        for item in there:
            item["metadata"]["namespace"] = namespace
        self.api.answers[PODS.replace("/ns/", f"/{namespace}/")] = {"items": list(there)}

    def _running(self) -> dict[str, list[Pod]]:
        items = [item for path, told in self.api.answers.items() if path.endswith("/pods") for item in told["items"]]
        on_nodes = [item for item in items if item["status"]["phase"] == "Running" and item["spec"].get("nodeName")]
        return by_gang(map(decode_pod, on_nodes))

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
    assert body == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "a", "namespace": "ns"},
        "deleteOptions": {"preconditions": {"uid": "uid-a"}},
    }


def test_a_pod_may_be_evicted_as_it_was_seen_and_not_as_it_is_by_then() -> None:
    api = Answers()
    asyncio.run(post_eviction(api, PodIdentity("ns", "a", "uid-a"), "7"))  # type: ignore[arg-type]
    [(_, body)] = api.written
    assert body["deleteOptions"] == {"preconditions": {"uid": "uid-a", "resourceVersion": "7"}}


def of_group(name: str, group: str) -> dict[str, Any]:
    """A pod whose PodGroup says how many are needed."""
    return member(name, annotations={}, labels={"scheduling.x-k8s.io/pod-group": group})


def test_pod_groups_say_how_many_pods_a_gang_needs_to_go_on() -> None:
    lost = Lost(of_group("a", "g"), of_group("b", "whole"), of_group("x", "none"))
    lost.api.answers |= {GROUP: {"spec": {"minMember": 2}}, f"{GROUP[:-1]}whole": {"spec": {"minMember": 1}}}
    assert lost.check(0.0) == []
    assert lost.check(60.0) == ["a"]


def test_pods_of_a_group_that_is_no_gang_stay_however_few_there_are() -> None:
    alone = member("a", annotations={})
    alone["spec"]["schedulingGroup"] = {"podGroupName": "g"}
    lost = Lost(alone)
    lost.api.answers[NATIVE] = {"spec": {"schedulingPolicy": {"basic": {}}}}
    assert lost.check(0.0) == lost.check(60.0) == []


def test_pods_of_which_nobody_knows_how_many_they_need_stay() -> None:
    pending = of_group("x", "g")
    del pending["spec"]["nodeName"]
    lost = Lost(pending)
    lost.running = lambda: by_gang([decode_pod(member("a"))])  # it goes, as the watch is about to tell
    assert lost.check(0.0) == lost.check(60.0) == []


def test_a_gang_that_needs_nobody_is_not_asked_about_as_its_pods_go() -> None:
    going = of_group("a", "none")
    going["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    lost = Lost(going)
    assert lost.check(0.0) == lost.check(60.0) == []
    assert PODS not in lost.api.asked


def test_a_gang_whose_group_is_not_read_yet_keeps_no_other_from_being_looked_at() -> None:
    lost = Lost(*(of_group(f"p-{number}", f"g-{number}") for number in range(17)), member("a"))
    assert lost.check(0.0) == []
    lost.api.answers[PODS]["items"] = [of_group("p-x", f"g-{number}") for number in range(20, 40)] + [member("a")]
    assert lost.check(60.0) == ["a"]


def test_gangs_of_so_many_namespaces_are_given_up_at_once_and_the_others_at_the_next_check() -> None:
    lost = Lost()
    for number in range(17):
        lost.add(
            f"ns-{number:02}", member(f"p-{number}"), member(f"q-{number}", annotations=GANG | {"kerf.dev/gang": "h/2"})
        )
    lost.check(0.0)
    lost.api.asked.clear()
    assert len(lost.check(60.0)) == 2 * 16
    assert len(lost.api.asked) == 16, "one list for all gangs of a namespace"
    assert lost.check(61.0) == ["p-16", "q-16"]


def test_a_namespace_whose_pods_can_not_be_listed_keeps_no_other_from_its_own(caplog: pytest.LogCaptureFixture) -> None:
    lost = Lost()
    lost.add("first", member("a"))
    lost.add("second", member("b"))
    lost.check(0.0)
    listed = lost.api.answers.pop(PODS.replace("/ns/", "/first/"))
    lost.running = lambda: by_gang(map(decode_pod, [*listed["items"], member("b", namespace="second")]))
    assert lost.check(60.0) == ["b"]
    [told] = [message for message in caplog.messages if "first" in message]
    assert told.startswith("gangs of first could not be evicted: 404")


def test_gangs_are_looked_at_several_times_within_their_time_out_whatever_fails_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lost = Lost(member("a"))
    checks = list[float]()

    def clock() -> float:
        checks.append(60.0 * len(checks))
        if len(checks) == 2:
            raise ValueError("broken")
        return checks[-1]

    async def run() -> None:
        looking = asyncio.create_task(lost.eviction.run())
        await until(lambda: lost.eviction.num_evicted)
        looking.cancel()

    lost.eviction.timeout_s, lost.eviction.clock = 0.04, clock
    asyncio.run(run())
    assert len(checks) == 3
    assert [message for message in caplog.messages if "failed" in message] == ["a check of gangs failed"]


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
