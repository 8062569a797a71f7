"""A gang that has lost a pod to preemption ends as a whole where it can't go on, and only there."""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from extender.kube.cache import Cache
from extender.kube.client import ApiError, Query
from extender.kube.objects import Pod
from extender.queueing.gangs import GANG_PREEMPTED, GangMembers, Gangs
from extender.queueing.pods.objects import decode_pod
from extender.queueing.preempted_gangs import PreemptedGangs
from tests.ledger.builders import until

Manifest = dict[str, Any]

EARLY, MADE, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z", "2026-01-01T02:00:00Z"
LEFT = "2026-01-01T01:00:00Z"
NOW = 1767229200.0  # 01:00:00Z of that day
PREEMPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
GROUP = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/ns/podgroups/g"


def pod(name: str, *, size: str = "3", gang: str = "g", priority: int = 0, **metadata: Any) -> Manifest:
    """A pod that runs."""
    namespace = metadata.get("namespace", "ns")
    meta = {"name": name, "namespace": namespace, "uid": f"{namespace}-{name}", "creationTimestamp": MADE}
    meta["resourceVersion"] = f"0{name}"
    said = {"kerf.dev/gang": gang, "kerf.dev/gang-size": size}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": MADE}]}
    meta |= {"annotations": {key: value for key, value in said.items() if value}, **metadata}
    return {"metadata": meta, "spec": {"nodeName": f"on-{name}", "priority": priority}, "status": status}


class StoppedError(Exception):
    """The process ends."""


class Cluster:
    """An API server; `listener` hears what a watch of pods with a node tells."""

    def __init__(self, *pods: Manifest) -> None:
        self.pods = {f"{item['metadata']['namespace']}/{item['metadata']['name']}": item for item in pods}
        self.groups: dict[str, Manifest] = {}
        self.listener: Cache[Pod, Pod] | None = None
        self.guarded: set[str] = set()
        """Pods that a PodDisruptionBudget keeps."""
        self.guarded_twice: set[str] = set()
        """Pods with two of them."""
        self.evicted: list[str] = []
        self.events: list[tuple[str, str]] = []
        self.asked: list[tuple[str, str]] = []
        """Writes that came, and of which pod: "status", or "eviction"."""
        self.refuse: Callable[[str, str], ApiError | None] = lambda name, part: None
        self.writes_left = 10**9
        self.late_conflicts = 0
        self.version = 1

    async def get(self, path: str, query: Query | None = None) -> bytes:
        parts = path.split("/")
        if path == "/api/v1/pods":
            _, _, node = dict(query or {})["fieldSelector"].partition("status.nominatedNodeName=")
            found = [item for item in self.pods.values() if item["status"].get("nominatedNodeName") == node]
            return msgspec.json.encode({"items": found})
        if path.endswith("/pods"):
            assert len(parts) == 6
            if (error := self.refuse(parts[4], "list")) is not None:
                raise error
            return msgspec.json.encode(
                {"items": [p for p in self.pods.values() if p["metadata"]["namespace"] == parts[4]]}
            )
        if path in self.groups:
            return msgspec.json.encode(self.groups[path])
        if (item := self.pods.get(f"{parts[4]}/{parts[-1]}")) is None:
            raise ApiError(404, "NotFound", path)
        return msgspec.json.encode(item)

    async def patch(self, path: str, body: bytes) -> bytes:
        self._count()
        _, _, _, _, namespace, _, name, part = path.split("/")
        assert part == "status"
        self.asked.append((name, part))
        if (error := self.refuse(name, part)) is not None:
            raise error
        asked, item = msgspec.json.decode(body, type=Manifest), self.pods[f"{namespace}/{name}"]
        if self.late_conflicts:
            self.late_conflicts -= 1
            raise ApiError(409, "Conflict", "the object has been modified")
        assert asked["metadata"] == {key: item["metadata"][key] for key in ("uid", "resourceVersion")}
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        item["status"] |= asked["status"]
        self.tell(item)
        return b"{}"

    async def post(self, path: str, body: bytes) -> bytes:
        asked = msgspec.json.decode(body, type=Manifest)
        self._count()
        _, _, _, _, namespace, _, name, part = path.split("/")
        assert (part, asked["kind"]) == ("eviction", "Eviction")
        self.asked.append((name, part))
        if name in self.guarded_twice:
            raise ApiError(500, "InternalError", "This pod has more than one PodDisruptionBudget")
        if name in self.guarded:
            raise ApiError(429, "TooManyRequests", "The disruption budget pdb needs 3 healthy pods")
        item = self.pods[f"{namespace}/{name}"]
        assert asked["deleteOptions"]["preconditions"]["uid"] == item["metadata"]["uid"]
        assert not item["metadata"].get("deletionTimestamp"), "nobody is evicted twice"
        self.evicted.append(name)
        item["metadata"] |= {"deletionTimestamp": "2026-01-01T01:00:30Z", "deletionGracePeriodSeconds": 30}
        self.tell(item)
        return b"{}"

    async def ensure(self, path: str, body: bytes) -> bytes:
        raise NotImplementedError

    def emit(self, namespace: str, name: str, uid: str, *, reason: str, message: str) -> None:
        """Where events go."""
        metadata = self.pods[f"{namespace}/{name}"]["metadata"]
        assert (namespace, uid, reason) == (metadata["namespace"], metadata["uid"], "GangPreempted")
        self.events.append((name, message))

    def preempt(self, name: str, *, at: str = "2026-01-01T01:00:30Z", grace_s: int = 30, namespace: str = "ns") -> None:
        """What kube-scheduler does to a victim; without time to end it is gone at once."""
        item = self.pods[f"{namespace}/{name}"]
        item["status"]["conditions"] = [*item["status"]["conditions"], PREEMPTED]
        self.tell(item)
        if grace_s:
            item["metadata"] |= {"deletionTimestamp": at, "deletionGracePeriodSeconds": grace_s}
            self.tell(item)
        else:
            self.gone(name)

    def gone(self, name: str) -> None:
        item = self.pods.pop(f"ns/{name}")
        if self.listener is not None:
            self.listener.remove(decode_pod(item))

    def tell(self, item: Manifest) -> None:
        if self.listener is not None and item["spec"].get("nodeName"):
            self.listener.upsert(decode_pod(item))

    def _count(self) -> None:
        if not self.writes_left:
            raise StoppedError
        self.writes_left -= 1


class Kerf:
    """One process; it begins with a list of what there is."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.now, self.standby = cluster, 1000.0, ""
        self.members = GangMembers(lambda: NOW + self.now - 1000.0)
        cluster.listener = Cache[Pod, Pod](lambda pod: pod, wanted=lambda pod: not pod.finished)
        cluster.listener.subscribe(self.members.changed)
        for item in list(cluster.pods.values()):
            cluster.tell(item)
        clock: Callable[[], float] = lambda: self.now  # noqa: E731 - a clock
        gangs = Gangs(cluster, clock)  # type: ignore[arg-type]
        self.work = PreemptedGangs(
            cluster,  # type: ignore[arg-type]
            gangs,
            self.members,
            cluster,  # type: ignore[arg-type]
            clock,
            lambda: self.standby,
        )

    def check(self, later_s: float = 10.0) -> list[str]:
        """Names of the pods evicted by now."""
        self.now += later_s
        asyncio.run(self.work.check())
        return sorted(self.cluster.evicted)


def condition(item: Manifest, key: str = "status") -> str:
    return next((str(c[key]) for c in item["status"]["conditions"] if c["type"] == GANG_PREEMPTED), "")


@pytest.mark.parametrize("grace_s", [30, 0])
def test_the_others_end_once_one_was_really_evicted_and_each_says_why(grace_s: int) -> None:
    cluster = Cluster(pod("a"), pod("b"), pod("c"))
    kerf = Kerf(cluster)
    assert kerf.check() == []
    cluster.preempt("a", grace_s=grace_s)
    assert kerf.check() == ["b", "c"]
    why = "a was preempted on on-a, and gang ns/g can't go on without it: 2 of its pods are left"
    assert sorted(cluster.events) == [("b", why), ("c", why)]
    assert [item["type"] for item in cluster.pods["ns/b"]["status"]["conditions"]] == ["Ready", GANG_PREEMPTED]
    assert cluster.pods["ns/b"]["status"]["conditions"][-1] == {
        "type": GANG_PREEMPTED,
        "status": "True",
        "reason": "MemberPreempted",
        "message": "2026-01-01T01:00:10Z: a was preempted on on-a"
        if not grace_s
        else f"{LEFT}: a was preempted on on-a",
    }
    assert kerf.check() == kerf.check(100.0) == ["b", "c"]
    assert kerf.work.num_evicted == 2
    assert not kerf.members.losses


def test_a_gang_that_has_its_size_left_goes_on() -> None:
    """Those of an elastic owner say the least number of pods with which it works."""
    cluster = Cluster(*(pod(name) for name in "abcd"))
    kerf = Kerf(cluster)
    cluster.preempt("a")
    assert kerf.check() == []
    assert not kerf.members.losses
    assert all(not condition(item) for item in cluster.pods.values())
    cluster.preempt("b")
    assert kerf.check() == ["c", "d"]


@pytest.mark.parametrize("writes", range(5))
def test_a_leader_that_stops_anywhere_between_leaves_the_rest_to_the_next(writes: int) -> None:
    """Two marks, then two evictions; the pod that was evicted first is gone by then, once marks tell of it."""
    cluster = Cluster(pod("a"), pod("b"), pod("c"))
    first = Kerf(cluster)
    cluster.preempt("a")
    cluster.writes_left = writes
    if writes < 4:
        with pytest.raises(StoppedError):
            first.check()
    else:
        first.check()
    cluster.writes_left = 10**9
    if writes:
        cluster.gone("a")
    for name in tuple(cluster.evicted):
        cluster.gone(name)
    assert Kerf(cluster).check() == ["b", "c"]


def test_a_standby_ends_nobody_and_knows_what_to_do_when_it_leads() -> None:
    cluster = Cluster(pod("a"), pod("b"), pod("c"))
    kerf = Kerf(cluster)
    kerf.standby = "another one leads"
    cluster.preempt("a", grace_s=0)
    assert kerf.check() == []
    kerf.standby = ""
    assert kerf.check() == ["b", "c"]


def test_a_pod_that_a_budget_keeps_is_asked_for_again_and_said_once() -> None:
    cluster = Cluster(*(pod(name, size="4") for name in "abcd"))
    kerf = Kerf(cluster)
    cluster.guarded = {"c", "d"}
    cluster.preempt("a")
    assert kerf.check() == kerf.check() == kerf.check(60.0) == ["b"]
    told = [message for name, message in cluster.events if name in "cd"]
    assert len(told) == 2, "once of each"
    assert told[0].endswith("This one can't be ended yet: The disruption budget pdb needs 3 healthy pods")
    cluster.guarded = set()
    assert kerf.check(60.0) == ["b", "c", "d"]
    assert sorted(name for name, part in cluster.asked if part == "status") == ["b", "c", "d"], "marked once"


def test_a_pod_that_can_never_be_evicted_keeps_no_other() -> None:
    """The API server evicts none that has two budgets; whoever may make budgets can do that to a pod."""
    cluster = Cluster(*(pod(name) for name in "abc"), *(pod(name, gang="h") for name in "xyz"))
    kerf = Kerf(cluster)
    cluster.guarded_twice = {"b"}
    cluster.preempt("a")
    cluster.preempt("x")
    assert kerf.check() == ["c", "y", "z"]


def test_a_gang_that_is_whole_again_before_it_could_be_ended_goes_on() -> None:
    cluster = Cluster(pod("a"), pod("b"), pod("c"))
    kerf = Kerf(cluster)
    cluster.guarded = {"b", "c"}
    cluster.preempt("a")
    assert kerf.check() == []
    assert condition(cluster.pods["ns/b"]) == "True"
    cluster.pods["ns/d"] = pod("d", creationTimestamp=MADE)
    cluster.guarded = set()
    assert kerf.check(60.0) == []
    assert condition(cluster.pods["ns/b"]) == condition(cluster.pods["ns/c"]) == "False"
    assert Kerf(cluster).check() == [], "what was written does not end it later"


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param(lambda cluster: cluster.gone("a"), id="deleted"),
        pytest.param(
            lambda cluster: cluster.pods["ns/a"]["metadata"].update(deletionTimestamp="2026-01-01T01:00:30Z"),
            id="leaves",
        ),
        pytest.param(lambda cluster: cluster.pods["ns/a"]["status"].update(phase="Failed"), id="failed"),
    ],
)
def test_a_pod_that_goes_for_another_reason_ends_nobody(ends: Callable[[Cluster], None]) -> None:
    cluster = Cluster(pod("a"), pod("b"), pod("c"))
    kerf = Kerf(cluster)
    ends(cluster)
    if "ns/a" in cluster.pods:
        cluster.tell(cluster.pods["ns/a"])
    assert kerf.check() == []


def test_members_that_have_succeeded_are_not_missing() -> None:
    job = [{"uid": "job", "kind": "Job", "name": "job", "controller": True}]
    cluster = Cluster(*(pod(name, ownerReferences=job) for name in "abcd"))
    cluster.pods["ns/d"]["status"]["phase"] = "Succeeded"
    kerf = Kerf(cluster)
    cluster.preempt("a")
    assert kerf.check() == []  # b, c, and d that has done its part
    old = pod("old", ownerReferences=[{**job[0], "uid": "old"}])
    old["status"]["phase"] = "Succeeded"
    cluster.pods |= {"ns/old": old}
    cluster.preempt("b")
    assert kerf.check() == ["c"]  # and d; what an earlier Job has done does not count


def test_a_pod_group_says_how_many_are_needed() -> None:
    label = {"scheduling.x-k8s.io/pod-group": "g"}
    cluster = Cluster(*(pod(name, size="", gang="", labels=label) for name in "abc"))
    cluster.groups[GROUP] = {"spec": {"minMember": 2}}
    kerf = Kerf(cluster)
    cluster.preempt("a")
    assert kerf.check() == []
    cluster.preempt("b")
    assert kerf.check() == ["c"]


def test_pods_made_since_are_of_a_later_start_and_stay() -> None:
    """The one that was preempted takes its time to end; the others were evicted, and come back one after the other."""
    cluster = Cluster(pod("a"), pod("b"), pod("c"))
    kerf = Kerf(cluster)
    cluster.preempt("a", at="2026-01-01T02:00:00Z", grace_s=3600)
    assert kerf.check() == ["b", "c"]
    for name in "bc":
        cluster.gone(name)
    cluster.pods["ns/d"] = pod("d", creationTimestamp="2026-01-01T01:00:01Z")
    cluster.evicted.clear()
    assert kerf.check() == []
    assert Kerf(cluster).check() == [], "nor after a restart"


@pytest.mark.parametrize("grace_s", [30, 0])
def test_a_gang_that_was_made_in_the_second_of_the_preemption_ends_too(grace_s: int) -> None:
    """The API server's times are whole seconds."""
    cluster = Cluster(*(pod(name, creationTimestamp="2026-01-01T01:00:00Z") for name in "abc"))
    kerf = Kerf(cluster)
    cluster.preempt("a", grace_s=grace_s)
    assert kerf.check(0.0) == ["b", "c"]


# Whose word ends whom


def test_nobody_elses_size_ends_a_gang() -> None:
    """Who claims to be of the gang, and that it is of a hundred, ends with his own pods alone."""
    cluster = Cluster(*(pod(name) for name in "abc"), pod("x", size="100"), pod("y", size="100"))
    kerf = Kerf(cluster)
    cluster.preempt("x")
    assert kerf.check() == ["y"]


def test_only_pods_of_the_gang_and_its_namespace_end() -> None:
    others = [pod("a", namespace="other"), pod("b", namespace="other"), pod("z", gang="h")]
    cluster = Cluster(pod("a"), pod("b"), pod("c"), *others)
    kerf = Kerf(cluster)
    cluster.preempt("a")
    assert kerf.check() == ["b", "c"]
    assert all(not item["metadata"].get("deletionTimestamp") for item in others)


def test_a_pod_that_claims_to_be_of_a_gang_once_it_is_preempted_ends_nobody() -> None:
    cluster = Cluster(pod("a"), pod("b"), pod("x", gang="own", size="1"))
    kerf = Kerf(cluster)  # a gang of three that has two: it waits for the third to be made again
    cluster.preempt("x")
    cluster.pods["ns/x"]["metadata"]["annotations"]["kerf.dev/gang"] = "g"
    cluster.tell(cluster.pods["ns/x"])
    assert kerf.check() == []


def test_an_annotation_that_looks_like_the_mark_ends_nobody() -> None:
    cluster = Cluster(pod("a"), pod("b"))
    cluster.pods["ns/a"]["metadata"]["annotations"][GANG_PREEMPTED] = f"{LATER}: x was preempted on n"
    assert Kerf(cluster).check() == []


def test_a_pod_of_a_higher_priority_ends_only_for_one_of_a_higher_priority_still() -> None:
    """Which pod it was evicted for is not written on a victim: it is nominated for the node."""
    cluster = Cluster(pod("a"), pod("b", priority=50), pod("c"))
    kerf = Kerf(cluster)
    cluster.preempt("a")
    assert kerf.check() == []
    urgent = pod("urgent", gang="", size="", priority=50)
    urgent["spec"].pop("nodeName")
    urgent["status"]["nominatedNodeName"] = "on-a"
    cluster.pods["ns/urgent"] = urgent
    assert kerf.check() == []
    urgent["spec"]["priority"] = 51
    assert kerf.check() == ["b", "c"]


def test_a_gang_that_may_not_be_ended_is_left_after_a_while(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(pod("a"), pod("b", priority=50), pod("c"))
    kerf = Kerf(cluster)
    cluster.preempt("a")
    for _ in range(12):
        assert kerf.check() == []
    assert [message for message in caplog.messages if "higher priority" in message] == [
        "gang ns/g: a was preempted on on-a; the others have a higher priority, and stay"
    ]
    assert not kerf.members.losses


def test_a_status_that_changes_under_its_hands_is_read_again() -> None:
    cluster = Cluster(pod("a"), pod("b"), pod("c"))
    kerf = Kerf(cluster)
    cluster.late_conflicts = 3
    cluster.preempt("a")
    assert kerf.check() == ["b", "c"]
    assert condition(cluster.pods["ns/b"]) == "True"


def test_a_missing_right_is_said_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(pod("a"), pod("b"), pod("c"))
    kerf = Kerf(cluster)
    allowed, post = [False], cluster.post

    async def forbidden(path: str, body: bytes) -> bytes:
        if path.endswith("/eviction") and not allowed[0]:
            raise ApiError(403, "Forbidden", 'cannot create resource "pods/eviction"')
        return await post(path, body)

    cluster.post = forbidden  # type: ignore[method-assign]
    cluster.preempt("a")
    assert kerf.check() == kerf.check() == kerf.check(60.0) == []
    assert len([message for message in caplog.messages if "can't be ended" in message]) == 1
    allowed[0] = True
    assert kerf.check(60.0) == ["b", "c"]


# How often, and what is said of it


def test_what_can_not_be_settled_is_tried_ever_more_rarely_whatever_else_is_lost() -> None:
    cluster = Cluster(*(pod(name, namespace=space) for space in ("ns", "other") for name in "abc"))
    kerf = Kerf(cluster)
    cluster.guarded = {"b", "c"}
    for namespace in ("ns", "other"):
        cluster.preempt("a", namespace=namespace)
    tried = []
    for second in range(250):
        before = cluster.asked.count(("b", "eviction"))
        kerf.check(1.0)
        tried += [second] * (cluster.asked.count(("b", "eviction")) - before)
    seconds = [0, 5, 10, 15, 23, 35, 53, 80, 120, 180, 240]
    assert tried == sorted(2 * [*seconds, *(second + 1 for second in seconds)]), "by what is lost, and by its marks"


def test_gangs_of_so_many_namespaces_are_ended_at_once_and_the_others_right_after() -> None:
    spaces = [f"ns-{number:02}" for number in range(17)]
    cluster = Cluster(*(pod(f"{name}{space}", namespace=space, size="2") for space in spaces for name in "ab"))
    kerf = Kerf(cluster)
    for space in spaces:
        cluster.preempt(f"a{space}", namespace=space)
    assert kerf.check() == [f"b{space}" for space in spaces[:16]]
    assert kerf.check(1.0) == [f"b{space}" for space in spaces]


def test_why_gangs_of_a_namespace_can_not_be_ended_is_said_when_it_is_news(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(*(pod(name, namespace=space) for space in ("ns", "other") for name in "abc"))
    kerf = Kerf(cluster)
    for namespace in ("ns", "other"):
        cluster.preempt("a", namespace=namespace)

    def told(fault: str) -> list[tuple[str, bool]]:
        """Of which namespaces something is said, and whether it is that."""
        caplog.clear()
        cluster.refuse = lambda name, part: ApiError(500, "", fault) if part == "list" and fault else None
        for _ in range(2):
            kerf.check(60.0)
        said = [message for message in caplog.messages if "can't be ended" in message]
        return [(space, fault in message) for message in said for space in ("ns", "other") if f"of {space} " in message]

    cluster.guarded = {"b", "c"}
    assert told("etcd is down") == [("ns", True), ("other", True)]
    assert told("too many requests") == [("ns", True), ("other", True)]
    assert told("") == []
    assert told("too many requests") == [("ns", True), ("other", True)], "it was well meanwhile"
    cluster.guarded = set()
    cluster.refuse = lambda name, part: None
    assert kerf.check(60.0) == ["b", "b", "c", "c"]


def test_losses_are_settled_as_they_become_known_whatever_fails_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(
        *(pod(name, size="2", gang=gang) for gang, name in (("g", "a"), ("g", "b"), ("h", "x"), ("h", "y")))
    )
    kerf = Kerf(cluster)
    failed = list[str]()

    def refuse(name: str, part: str) -> ApiError | None:
        if not failed:
            failed.append(name)
            raise ValueError("broken")
        return None

    async def run() -> None:
        working = asyncio.create_task(kerf.work.run())
        cluster.preempt("a")
        await until(lambda: caplog.messages)
        kerf.now += 10.0
        cluster.preempt("x")
        await until(lambda: len(cluster.evicted) == 2)
        working.cancel()

    cluster.refuse = refuse
    asyncio.run(run())
    assert "a check of preempted gangs failed" in caplog.messages


# What it may be that a gang goes on


def test_a_bare_pod_that_has_succeeded_is_not_missing() -> None:
    cluster = Cluster(*(pod(name) for name in "abcd"))
    cluster.pods["ns/d"]["status"]["phase"] = "Succeeded"
    kerf = Kerf(cluster)
    cluster.preempt("a")
    assert kerf.check() == []


def test_of_several_that_a_gang_has_lost_each_may_end_it() -> None:
    """The first was of an earlier start, the second had too low a priority for those that are left."""
    cluster = Cluster(*(pod(name, priority=50, size="4") for name in "bcd"), pod("low", size="4"), pod("old", size="4"))
    cluster.preempt("old", at=EARLY)
    kerf = Kerf(cluster)
    cluster.preempt("low")
    cluster.preempt("b")
    assert kerf.check() == ["c", "d"]


def test_a_gang_that_may_not_be_ended_is_left_at_once_when_its_time_is_over() -> None:
    cluster = Cluster(pod("a"), pod("b", priority=50), pod("c"))
    kerf = Kerf(cluster)
    cluster.preempt("a")
    kerf.check()
    kerf.check(59.0)
    assert kerf.members.losses
    kerf.check(60.0)
    assert not kerf.members.losses


def test_a_pod_without_a_priority_has_none_that_is_higher() -> None:
    cluster = Cluster(pod("a", priority=-1), pod("b"), pod("c"))
    kerf = Kerf(cluster)
    cluster.preempt("a")
    other = pod("other", gang="", size="")
    other["spec"] = {}
    other["status"]["nominatedNodeName"] = "on-a"
    cluster.pods["ns/other"] = other
    assert kerf.check() == []


def test_nobody_ends_before_it_is_written_why() -> None:
    cluster = Cluster(pod("a"), pod("b"), pod("c"))
    kerf = Kerf(cluster)
    cluster.refuse = lambda name, part: ApiError(403, "Forbidden", "pods/status") if part == "status" else None
    cluster.preempt("a")
    assert kerf.check() == []
    assert cluster.asked == [("b", "status")], "who may not write is not asked to again"
    cluster.refuse = lambda name, part: None
    assert kerf.check() == ["b", "c"]


def test_a_pod_that_is_gone_before_that_is_written_keeps_no_other() -> None:
    cluster = Cluster(pod("a"), pod("b"), pod("c"))
    kerf = Kerf(cluster)
    cluster.refuse = lambda name, part: ApiError(404, "NotFound", name) if (name, part) == ("b", "status") else None
    cluster.preempt("a")
    assert "c" in kerf.check()
    assert cluster.asked[:2] == [("b", "status"), ("c", "status")]
