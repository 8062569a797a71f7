"""Gangs: their members, PodGroups of both APIs, and the eviction of incomplete gangs."""

import asyncio
from collections.abc import Iterable
from itertools import chain
from typing import Any

import pytest

from extender.kube.client import ApiError, Query
from extender.kube.objects import Pod
from extender.planning.wait_reasons import Code
from extender.queueing.gangs import Gangs, Unit, units_of
from extender.queueing.pods.batches import by_gang
from extender.queueing.pods.entries import Entry
from extender.queueing.pods.objects import decode_pod
from extender.queueing.preempted_gangs import GangEviction, post_eviction
from extender.scheduling.placer import PodIdentity
from tests.ledger.builders import until
from tests.queueing.watches import Answers, entries, pod

GROUPS = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/ns/podgroups/"
NATIVE = "/apis/scheduling.k8s.io/v1alpha2/namespaces/ns/podgroups/g"
PODS = "/api/v1/namespaces/ns/pods"
GANG = {"kerf.dev/gang": "g", "kerf.dev/gang-size": "3"}
LABEL = "scheduling.x-k8s.io/pod-group"
DELETED = "2026-01-01T00:00:00Z"


def ask(waiting: Iterable[Entry], api: Answers) -> list[Unit]:
    """The units of waiting pods; the API server answers at once."""
    return asyncio.run(units_of(waiting, Gangs(api, lambda: 0.0)))  # type: ignore[arg-type]


def num_unknown(units: Iterable[Unit]) -> int:
    return sum(unit.missing is not None and unit.missing.code is Code.GANG_UNKNOWN for unit in units)


def test_an_incomplete_gang_waits_and_members_that_run_count() -> None:
    async def run() -> None:
        now = [0.0]
        api = Answers({PODS: {"items": []}})
        gangs = Gangs(api, lambda: now[0])  # type: ignore[arg-type]
        waiting = entries(pod("a", annotations=GANG), pod("b", annotations=GANG), pod("single"))
        units = await units_of(waiting, gangs)
        incomplete = Code.GANG_INCOMPLETE.reason(gang="ns/g", here=2, size=3)
        assert [(unit.key, len(unit.entries), unit.missing) for unit in units] == [
            ("ns/single", 1, None),
            ("ns/g", 2, incomplete),
        ]
        runs = {"metadata": {"namespace": "ns", "annotations": GANG}, "spec": {"nodeName": "n"}}
        api.answers[PODS] = {"items": [runs, {"metadata": {"namespace": "ns"}}]}
        await units_of(waiting, gangs)
        assert len(api.asked) == 1  # cached
        now[0] = 6.0
        assert [unit.missing for unit in await units_of(waiting, gangs)] == [None, None]

    asyncio.run(run())


def test_a_pod_group_says_the_size_and_a_complete_gang_needs_no_list() -> None:
    waiting = entries(*(pod(name, labels={LABEL: "g"}) for name in "ab"))
    [unit] = ask(waiting, Answers())
    assert unit.missing == Code.GANG_WITHOUT_GROUP.reason(gang="ns/g")
    [unit] = ask(waiting, Answers({f"{GROUPS}g": {"spec": {"minMember": 2}}}))
    assert unit.missing is None
    api = Answers()
    [unit] = ask(entries(*(pod(name, annotations=GANG) for name in "abc")), api)
    assert (unit.missing, [planned.topology for planned in unit.pods], api.asked) == (None, [""] * 3, [])


def test_a_pod_group_of_kubernetes_own() -> None:
    def native(spec: dict[str, Any], *names: str) -> list[Unit]:
        waiting = entries(*(pod(name, spec={"schedulingGroup": {"podGroupName": "g"}}) for name in names))
        return ask(waiting, Answers({NATIVE: {"spec": spec}}))

    policy = {"schedulingPolicy": {"gang": {"minCount": 3}}}
    [unit] = native(policy, "a", "b")
    assert unit.missing == Code.GANG_INCOMPLETE.reason(gang="ns/g", here=2, size=3)
    assert {planned.topology for planned in unit.pods} == {""}
    [unit] = native(policy | {"schedulingConstraints": {"topology": [{"key": "rack"}]}}, "a", "b", "c")
    assert (unit.missing, {planned.topology for planned in unit.pods}) == (None, {"rack"})
    units = native({"schedulingPolicy": {"basic": {}}}, "a", "b")
    assert [(unit.key, unit.missing, unit.pods[0].gang) for unit in units] == [("ns/a", None, ""), ("ns/b", None, "")]


def test_a_size_of_thousands_of_digits_harms_no_other_gang() -> None:
    """Its pod was never gated, so only the list of its namespace has it."""
    endless = {"kerf.dev/gang": "h", "kerf.dev/gang-size": "000000001" + "0" * 5000}
    items = [member("b", annotations=endless), member("c"), member("d")]
    [unit] = ask(entries(pod("a", annotations=GANG)), Answers({PODS: {"items": items}}))
    assert unit.missing is None
    [entry] = entries(pod("a", annotations=endless))
    assert "is not a gang size" in str(entry.fault)


def test_many_gangs_are_read_by_one_paged_list_of_their_namespace() -> None:
    api = Answers({PODS: {"items": []}})
    gangs = [{"kerf.dev/gang": f"g-{number}", "kerf.dev/gang-size": "2"} for number in range(300)]
    units = ask(entries(*(pod(f"p-{number}", annotations=said) for number, said in enumerate(gangs))), api)
    assert (len(units), api.asked) == (300, [PODS])
    assert api.queries == [{"fieldSelector": "status.phase!=Failed", "limit": "32"}]


def test_a_round_reads_16_groups_those_never_read_or_longest_ago_first() -> None:
    async def run() -> None:
        api, now = Answers(), [0.0]
        gangs = Gangs(api, lambda: now[0])  # type: ignore[arg-type]
        waiting = entries(*(pod(f"p-{number}", labels={LABEL: f"g-{number}"}) for number in range(40)))
        for unknown in (24, 8, 0):
            asked = len(api.asked)
            assert num_unknown(await units_of(waiting, gangs)) == unknown
            assert len(api.asked) - asked <= 16
        api.asked.clear()
        for later in (5.0, 10.0):  # what was learned is due again
            now[0] = later
            await units_of(waiting, gangs)
        assert (len(api.asked), len(set(api.asked))) == (32, 32)

    asyncio.run(run())


def test_a_group_is_forgotten_50_s_after_it_was_read() -> None:
    async def run() -> None:
        now = [7.0]
        gangs = Gangs(Answers(), lambda: now[0])  # type: ignore[arg-type]
        waiting = entries(*(pod(f"p-{number}", labels={LABEL: f"g-{number}"}) for number in range(32)))
        for _ in range(2):
            await units_of(waiting, gangs)
        # At 57 those that were read just now are known, and 16 more are read.
        for later, unknown in ((56.9, 0), (57.0, 0), (107.0, 16)):
            now[0] = later
            assert num_unknown(await units_of(waiting, gangs)) == unknown

    asyncio.run(run())


class Silent(Answers):
    """An API server that answers once `may` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.may = asyncio.Event()

    async def get(self, path: str, query: Query | None = None) -> bytes:
        self.asked.append(path)
        await self.may.wait()
        return await super().get(path, query)


@pytest.mark.parametrize("said", [{"annotations": GANG}, {"labels": {LABEL: "g"}}], ids=["pods", "PodGroups"])
def test_an_api_server_that_does_not_answer_delays_no_round_and_is_not_asked_more_and_more(
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
        assert num_unknown(await units_of(waiting, gangs)) == 0

    asyncio.run(run())


def test_a_group_that_can_not_be_read_says_no_size_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    class Forbidden(Answers):
        async def get(self, path: str, query: Query | None = None) -> bytes:
            raise ApiError(403, "Forbidden", "cannot get podgroups")

    [unit] = ask(entries(pod("a", labels={LABEL: "g"})), Forbidden())
    assert unit.missing == Code.GANG_WITHOUT_GROUP.reason(gang="ns/g")
    assert caplog.messages == ["gangs: ns/g can't be read: 403 Forbidden: cannot get podgroups"]


def test_a_groups_name_is_one_part_of_its_path_whatever_its_author_writes() -> None:
    api = Answers()
    ask(entries(pod("a", labels={LABEL: "../x/g"})), api)
    assert api.asked[:1] == [f"{GROUPS}..%2Fx%2Fg"]


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
    """A released pod of the gang."""
    owners = [{"uid": owner, "kind": "Job", "name": owner, "controller": True}] if owner else []
    meta = {"name": name, "namespace": "ns", "uid": f"uid-{name}", "annotations": GANG, "ownerReferences": owners}
    return {"metadata": meta | metadata, "spec": {"nodeName": node} if node else {}, "status": {"phase": phase}}


def test_a_member_that_is_created_again_joins_those_that_were_released() -> None:
    job = [{"uid": "job", "kind": "Job", "name": "job", "controller": True}]
    for second, complete in (
        (member("b"), True),
        (member("b", phase="Succeeded", owner="job"), True),
        (member("b", phase="Succeeded", owner="old"), False),  # of a former gang
        (member("b", phase="Succeeded", owner="x", labels={"kerf.dev/pipeline": "p"}), True),
        (member("b", deletionTimestamp=DELETED), False),
    ):
        waiting = entries(pod("c", annotations=GANG, ownerReferences=job))
        [unit] = ask(waiting, Answers({PODS: {"items": [member("a"), second]}}))
        assert (unit.missing is None) == complete


def test_a_member_that_is_created_again_knows_where_the_others_are() -> None:
    nominated = member("b", node="", phase="Pending")
    nominated["status"]["nominatedNodeName"] = "next"
    started = [member("a"), nominated, member("c", node="ended", phase="Succeeded")]
    [unit] = ask(entries(pod("d", annotations=GANG)), Answers({PODS: {"items": started}}))
    assert [planned.beside for planned in unit.pods] == [("n", "next")]


# Gangs that are incomplete for too long


class Lost:
    """A gang of three, of which these pods exist."""

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
        """Add pods of another namespace."""
        for item in there:
            item["metadata"]["namespace"] = namespace
        self.api.answers[PODS.replace("/ns/", f"/{namespace}/")] = {"items": list(there)}

    def _running(self) -> dict[str, list[Pod]]:
        items = [item for path, found in self.api.answers.items() if path.endswith("/pods") for item in found["items"]]
        on_nodes = [item for item in items if item["status"]["phase"] == "Running" and item["spec"].get("nodeName")]
        return by_gang(map(decode_pod, on_nodes))

    def check(self, now: float) -> list[str]:
        """Names of the pods evicted."""
        self.now = now
        before = len(self.api.written)
        asyncio.run(self.eviction.check())
        return [path.split("/")[-2] for path, body in self.api.written[before:] if body["kind"] == "Eviction"]

    def after_timeout(self) -> list[str]:
        """Names of the pods evicted after the timeout."""
        assert self.check(0.0) == []
        return self.check(60.0)


def test_what_is_left_of_a_gang_is_evicted_after_the_timeout_and_not_before() -> None:
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
    asyncio.run(post_eviction(lost.api, PodIdentity("ns", "a", "uid-a"), "7"))  # type: ignore[arg-type]
    assert lost.api.written[-1][1]["deleteOptions"] == {"preconditions": {"uid": "uid-a", "resourceVersion": "7"}}


def test_a_gang_that_is_whole_again_in_time_stays() -> None:
    lost = Lost(member("a"), member("b"))
    lost.check(0.0)
    lost.api.answers[PODS]["items"].append(member("c"))
    assert lost.check(59.0) == []
    lost.api.answers[PODS]["items"].pop()
    assert lost.check(61.0) == lost.check(120.0) == []  # the time begins again
    assert lost.check(121.0) == ["a", "b"]


def of_group(name: str, group: str, node: str = "n", **metadata: Any) -> dict[str, Any]:
    """A pod whose PodGroup says how many are needed."""
    return member(name, node=node, annotations={}, labels={LABEL: group}, **metadata)


def test_pod_groups_say_how_many_pods_a_gang_needs_to_continue() -> None:
    lost = Lost(of_group("a", "g"), of_group("b", "whole"), of_group("x", "none"))
    lost.api.answers |= {f"{GROUPS}g": {"spec": {"minMember": 2}}, f"{GROUPS}whole": {"spec": {"minMember": 1}}}
    assert lost.after_timeout() == ["a"]
    alone = member("a", annotations={})
    alone["spec"]["schedulingGroup"] = {"podGroupName": "g"}
    lost = Lost(alone)
    lost.api.answers[NATIVE] = {"spec": {"schedulingPolicy": {"basic": {}}}}
    assert lost.after_timeout() == [], "its group is no gang"


def test_pods_stay_of_which_it_is_unknown_how_many_they_need() -> None:
    lost = Lost(of_group("x", "g", node=""))
    lost.running = lambda: by_gang([decode_pod(member("a"))])  # gone, which the watch has not reported yet
    assert lost.after_timeout() == []


def test_members_that_have_succeeded_are_not_lost() -> None:
    assert Lost(member("a"), *(member(name, phase="Succeeded") for name in "bc")).after_timeout() == []


def test_nothing_is_logged_or_listed_of_a_gang_that_needs_no_pod_or_whose_pods_are_all_terminating(
    caplog: pytest.LogCaptureFixture,
) -> None:
    lost = Lost(of_group("a", "none", deletionTimestamp=DELETED))
    assert (lost.after_timeout(), PODS in lost.api.asked) == ([], False)
    assert Lost(member("a", deletionTimestamp=DELETED)).after_timeout() == []
    assert caplog.messages == []


def test_a_gang_whose_group_is_not_read_yet_delays_no_other() -> None:
    lost = Lost(*(of_group(f"p-{number}", f"g-{number}") for number in range(17)), member("a"))
    assert lost.check(0.0) == []
    lost.api.answers[PODS]["items"] = [of_group("p-x", f"g-{number}") for number in range(20, 40)] + [member("a")]
    assert lost.check(60.0) == ["a"]


def test_gangs_of_16_namespaces_are_evicted_at_once_and_the_others_at_the_next_check() -> None:
    lost, other = Lost(), GANG | {"kerf.dev/gang": "h/2"}
    for number in range(17):
        lost.add(f"ns-{number:02}", member(f"p-{number}"), member(f"q-{number}", annotations=other))
    lost.check(0.0)
    lost.api.asked.clear()
    assert len(lost.check(60.0)) == 2 * 16
    assert len(lost.api.asked) == 16, "one list for all gangs of a namespace"
    assert lost.check(61.0) == ["p-16", "q-16"]


def test_a_namespace_whose_pods_can_not_be_listed_delays_no_other(caplog: pytest.LogCaptureFixture) -> None:
    lost = Lost()
    lost.add("first", member("a"))
    lost.add("second", member("b"))
    lost.check(0.0)
    listed = lost.api.answers.pop(PODS.replace("/ns/", "/first/"))
    lost.running = lambda: by_gang(map(decode_pod, [*listed["items"], member("b", namespace="second")]))
    assert lost.check(60.0) == ["b"]
    [logged] = [message for message in caplog.messages if "first" in message]
    assert logged.startswith("gangs of first could not be evicted: 404")


def test_gangs_are_checked_several_times_within_their_timeout_whatever_fails_once(
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
        checking = asyncio.create_task(lost.eviction.run())
        await until(lambda: lost.eviction.num_evicted)
        checking.cancel()

    lost.eviction.timeout_s, lost.eviction.clock = 0.04, clock
    asyncio.run(run())
    assert len(checks) == 3
    assert [message for message in caplog.messages if "failed" in message] == ["a check of gangs failed"]


def test_nobody_elses_size_evicts_a_gang() -> None:
    """A pod that claims to be of the gang, with a size of 100, is evicted alone."""
    claims = GANG | {"kerf.dev/gang-size": "100"}
    assert Lost(*(member(name) for name in "abc"), member("x", annotations=claims)).after_timeout() == ["x"]


def test_a_standby_evicts_nothing_and_a_refused_eviction_is_tried_again() -> None:
    lost = Lost(member("a"), refuse=[ApiError(429, "TooManyRequests", "disruption budget")])
    lost.standby = "another one leads"
    assert lost.after_timeout() == []
    lost.standby = ""
    assert lost.check(61.0) == []
    for now, num_evicted in ((121.0, 0), (122.0, 0), (182.0, 1)):
        lost.check(now)
        assert lost.eviction.num_evicted == num_evicted
