"""A gang that has lost a pod to preemption ends as a whole where it can't continue, and only there."""

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
NOW, NOW_S = "2026-01-01T01:00:00Z", 1767229200.0
PREEMPTED = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
GROUP = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/ns/podgroups/g"
JOB = {"uid": "job", "kind": "Job", "name": "job", "controller": True}


def pod(name: str, *, size: str = "3", gang: str = "g", priority: int = 0, **metadata: Any) -> Manifest:
    """A pod that runs."""
    said = {"kerf.dev/gang": gang, "kerf.dev/gang-size": size}
    meta: Manifest = {"name": name, "namespace": "ns", "creationTimestamp": MADE, "resourceVersion": f"0{name}"}
    meta |= {"annotations": {key: said[key] for key in said if said[key]}} | metadata
    meta["uid"] = f"{meta['namespace']}-{name}"
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": MADE}]}
    return {"metadata": meta, "spec": {"nodeName": f"on-{name}", "priority": priority}, "status": status}


class StoppedError(Exception):
    """The process ends."""


class Cluster:
    """An API server; `listener` is a watch of pods with a node."""

    def __init__(self, *pods: Manifest) -> None:
        self.pods = {f"{item['metadata']['namespace']}/{item['metadata']['name']}": item for item in pods}
        self.groups: dict[str, Manifest] = {}
        self.listener: Cache[Pod, Pod] | None = None
        self.evicted: list[str] = []
        self.events: list[tuple[str, str]] = []
        self.asked: list[tuple[str, str]] = []
        """Writes that came, and of which pod: "status", or "eviction"."""
        self.refuse: Callable[[str, str], ApiError | None] = lambda name, part: None
        """By the pod and the part of a write, or the namespace and "list"."""
        self.writes_left = 10**9
        self.version = 1

    def guard(self, *names: str, twice: bool = False) -> None:
        """A PodDisruptionBudget protects these pods from now on, or two of them do."""
        budget = ApiError(429, "TooManyRequests", "The disruption budget pdb needs 3 healthy pods")
        two = ApiError(500, "InternalError", "This pod has more than one PodDisruptionBudget")
        self.refuse = lambda name, part: (two if twice else budget) if part == "eviction" and name in names else None

    async def get(self, path: str, query: Query | None = None) -> bytes:
        parts = path.split("/")
        if path == "/api/v1/pods":
            _, _, node = dict(query or {})["fieldSelector"].partition("status.nominatedNodeName=")
            found = [item for item in self.pods.values() if item["status"].get("nominatedNodeName") == node]
            return msgspec.json.encode({"items": found})
        if path.endswith("/pods"):
            self._check(parts[4], "list")
            return msgspec.json.encode(
                {"items": [p for p in self.pods.values() if p["metadata"]["namespace"] == parts[4]]}
            )
        if path in self.groups:
            return msgspec.json.encode(self.groups[path])
        if (item := self.pods.get(f"{parts[4]}/{parts[-1]}")) is None:
            raise ApiError(404, "NotFound", path)
        return msgspec.json.encode(item)

    async def patch(self, path: str, body: bytes) -> bytes:
        item, asked = self._write(path, "status", body)
        assert asked["metadata"] == {key: item["metadata"][key] for key in ("uid", "resourceVersion")}
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        item["status"] |= asked["status"]
        self.tell(item)
        return b"{}"

    async def post(self, path: str, body: bytes) -> bytes:
        item, asked = self._write(path, "eviction", body)
        assert asked["deleteOptions"]["preconditions"]["uid"] == item["metadata"]["uid"]
        assert not item["metadata"].get("deletionTimestamp"), "no pod is evicted twice"
        self.evicted.append(item["metadata"]["name"])
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
        """What kube-scheduler does to a victim; without a grace period it is gone at once."""
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

    def mark(self, name: str) -> str:
        """The status of the condition that a pod ends with its gang, "" without one."""
        conditions = self.pods[f"ns/{name}"]["status"]["conditions"]
        return next((str(item["status"]) for item in conditions if item["type"] == GANG_PREEMPTED), "")

    def _write(self, path: str, part: str, body: bytes) -> tuple[Manifest, Manifest]:
        if not self.writes_left:
            raise StoppedError
        self.writes_left -= 1
        _, _, _, _, namespace, _, name, written = path.split("/")
        assert written == part
        self.asked.append((name, part))
        self._check(name, part)
        return self.pods[f"{namespace}/{name}"], msgspec.json.decode(body, type=Manifest)

    def _check(self, name: str, part: str) -> None:
        if (error := self.refuse(name, part)) is not None:
            raise error


class Kerf:
    """One process, which begins with a list."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.now, self.standby = cluster, 1000.0, ""
        self.members = GangMembers(lambda: NOW_S + self.now - 1000.0)
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


def three(*others: Manifest, **of_b: Any) -> tuple[Cluster, Kerf]:
    """A gang of three that runs, others, and a process."""
    cluster = Cluster(pod("a"), pod("b", **of_b), pod("c"), *others)
    return cluster, Kerf(cluster)


@pytest.mark.parametrize("grace_s", [30, 0])
def test_the_others_of_the_gang_end_once_one_was_evicted_and_each_says_why(grace_s: int) -> None:
    cluster, kerf = three(pod("a", namespace="other"), pod("b", namespace="other"), pod("z", gang="h"))
    assert kerf.check() == []
    cluster.preempt("a", grace_s=grace_s)
    kerf.standby = "another one leads"
    assert kerf.check(0.0) == []
    kerf.standby = ""
    assert kerf.check() == ["b", "c"]
    why = "a was preempted on on-a, and gang ns/g can't go on without it: 2 of its pods are left"
    assert sorted(cluster.events) == [("b", why), ("c", why)]
    ready, mark = cluster.pods["ns/b"]["status"]["conditions"]
    at = NOW if grace_s else "2026-01-01T01:00:10Z"
    expected = {"status": "True", "reason": "MemberPreempted", "message": f"{at}: a was preempted on on-a"}
    assert (ready["type"], mark) == ("Ready", {"type": GANG_PREEMPTED} | expected)
    assert kerf.check() == kerf.check(100.0) == ["b", "c"]
    assert kerf.work.num_evicted == 2
    assert not kerf.members.losses


def test_a_gang_that_has_its_size_left_continues() -> None:
    """Pods of an elastic owner state the least number of pods with which it works."""
    cluster, kerf = three(pod("d"))
    cluster.preempt("a")
    assert kerf.check() == []
    assert not kerf.members.losses
    assert not any(cluster.mark(name) for name in "abcd")
    cluster.preempt("b")
    assert kerf.check() == ["c", "d"]


@pytest.mark.parametrize("writes", range(5))
def test_a_leader_that_stops_anywhere_between_leaves_the_rest_to_the_next(writes: int) -> None:
    """Two marks, then two evictions; the pod that was evicted first is gone by then, once there are marks."""
    cluster, first = three()
    cluster.preempt("a")
    cluster.writes_left = writes
    if writes < 4:
        with pytest.raises(StoppedError):
            first.check()
    else:
        first.check()
    cluster.writes_left = 10**9
    for name in (*("a" * bool(writes)), *cluster.evicted):
        cluster.gone(name)
    assert Kerf(cluster).check() == ["b", "c"]


def test_a_pod_that_a_budget_protects_is_tried_again_and_reported_once() -> None:
    cluster = Cluster(*(pod(name, size="4") for name in "abcd"))
    kerf = Kerf(cluster)
    cluster.guard("c", "d")
    cluster.preempt("a")
    assert kerf.check() == kerf.check() == kerf.check(60.0) == ["b"]
    told = [message for name, message in cluster.events if name in "cd"]
    assert len(told) == 2, "once of each"
    assert told[0].endswith("This one can't be ended yet: The disruption budget pdb needs 3 healthy pods")
    cluster.guard()
    assert kerf.check(60.0) == ["b", "c", "d"]
    assert sorted(name for name, part in cluster.asked if part == "status") == ["b", "c", "d"], "marked once"


def test_a_pod_that_can_never_be_evicted_delays_no_other() -> None:
    """The API server evicts none that has two budgets; anyone who may create budgets can do that to a pod."""
    cluster, kerf = three(*(pod(name, gang="h") for name in "xyz"))
    cluster.guard("b", twice=True)
    cluster.preempt("a")
    cluster.preempt("x")
    assert kerf.check() == ["c", "y", "z"]


def test_a_gang_that_is_whole_again_before_it_could_be_ended_continues() -> None:
    cluster, kerf = three()
    cluster.guard("b", "c")
    cluster.preempt("a")
    assert kerf.check() == []
    assert cluster.mark("b") == "True"
    cluster.pods["ns/d"] = pod("d")
    cluster.guard()
    assert kerf.check(60.0) == []
    assert cluster.mark("b") == cluster.mark("c") == "False"
    assert Kerf(cluster).check() == [], "what was written does not end it later"


def test_members_that_have_succeeded_are_not_missing(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(*(pod(name, ownerReferences=[JOB]) for name in "abcd"))
    cluster.pods["ns/d"]["status"]["phase"] = "Succeeded"
    kerf = Kerf(cluster)
    cluster.preempt("a")
    assert kerf.check() == []  # b, c, and d that has done its part
    old = pod("old", ownerReferences=[{**JOB, "uid": "old"}])
    old["status"]["phase"] = "Succeeded"
    cluster.pods["ns/old"] = old
    cluster.preempt("b")
    assert kerf.check() == ["c"]  # what a former Job has done does not count
    assert caplog.messages == ["gang ns/g: b was preempted on on-b; evicting the 1 remaining pods"]
    bare = pod("d")
    bare["status"]["phase"] = "Succeeded"
    cluster, kerf = three(bare)
    cluster.preempt("a")
    assert kerf.check() == []


def test_a_pod_group_says_how_many_are_needed() -> None:
    label = {"scheduling.x-k8s.io/pod-group": "g"}
    cluster = Cluster(*(pod(name, size="", gang="", labels=label) for name in "abc"))
    cluster.groups[GROUP] = {"spec": {"minMember": 2}}
    kerf = Kerf(cluster)
    cluster.preempt("a")
    assert kerf.check() == []
    cluster.preempt("b")
    assert kerf.check() == ["c"]


def test_pods_created_since_are_of_a_later_start_and_stay() -> None:
    """The one that was preempted takes its time to end; the others were evicted, and come back one after the other."""
    cluster, kerf = three()
    cluster.preempt("a", at=LATER, grace_s=3600)
    assert kerf.check() == ["b", "c"]
    for name in "bc":
        cluster.gone(name)
    cluster.pods["ns/d"] = pod("d", creationTimestamp="2026-01-01T01:00:01Z")
    cluster.evicted.clear()
    assert kerf.check() == []
    assert Kerf(cluster).check() == [], "nor after a restart"


# Which pods may end which


def test_nobody_elses_size_ends_a_gang() -> None:
    """Pods that claim to be of the gang, with a size of 100, end only each other."""
    cluster, kerf = three(pod("x", size="100"), pod("y", size="100"))
    cluster.preempt("x")
    assert kerf.check() == ["y"]


def test_a_pod_that_claims_to_be_of_a_gang_once_it_is_preempted_or_a_forged_mark_ends_no_other() -> None:
    cluster = Cluster(pod("a"), pod("b"), pod("x", gang="own", size="1"))
    cluster.pods["ns/a"]["metadata"]["annotations"][GANG_PREEMPTED] = f"{LATER}: x was preempted on n"
    kerf = Kerf(cluster)  # a gang of three that has two: it waits for the third to be created again
    assert kerf.check() == []
    cluster.preempt("x")
    cluster.pods["ns/x"]["metadata"]["annotations"]["kerf.dev/gang"] = "g"
    cluster.tell(cluster.pods["ns/x"])
    assert kerf.check() == []


def test_a_pod_of_a_higher_priority_ends_only_for_a_preemptor_of_a_higher_priority_still() -> None:
    """The preemptor is not written on a victim: it is nominated for the node."""
    cluster, kerf = three(priority=50)
    cluster.preempt("a")
    assert kerf.check() == []
    urgent = pod("urgent", gang="", size="")
    urgent["spec"] = {}
    urgent["status"]["nominatedNodeName"] = "on-a"
    cluster.pods["ns/urgent"] = urgent
    for priority, evicted in ((None, []), (50, []), (51, ["b", "c"])):
        urgent["spec"]["priority"] = priority
        assert kerf.check() == evicted
    cluster = Cluster(pod("a", priority=-1), pod("b"), pod("c"), urgent)
    kerf, urgent["spec"] = Kerf(cluster), {}
    cluster.preempt("a")
    assert kerf.check() == [], "a pod without a priority has 0"


def test_a_gang_that_may_not_be_ended_is_left_after_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    cluster, kerf = three(priority=50)
    cluster.preempt("a")
    kerf.check()
    kerf.check(59.0)
    assert kerf.members.losses
    kerf.check(60.0)
    assert not kerf.members.losses
    assert kerf.check() == []
    assert caplog.messages == ["gang ns/g: a was preempted on on-a; the others have a higher priority, and stay"]


def test_each_loss_of_a_gang_may_end_it() -> None:
    """The first was of an earlier start, the second had too low a priority for those that are left."""
    cluster = Cluster(*(pod(name, priority=50, size="4") for name in "bcd"), pod("low", size="4"), pod("old", size="4"))
    cluster.preempt("old", at=EARLY)
    kerf = Kerf(cluster)
    cluster.preempt("low")
    cluster.preempt("b")
    assert kerf.check() == ["c", "d"]


# What fails, how often it is tried, and what is logged


def test_no_pod_is_evicted_before_the_reason_is_written_on_it_unless_it_is_gone() -> None:
    cluster, kerf = three()
    cluster.refuse = lambda name, part: ApiError(403, "Forbidden", "pods/status") if part == "status" else None
    cluster.preempt("a")
    assert kerf.check() == []
    assert cluster.asked == [("b", "status")], "a missing right is not tried again at once"
    conflicts = iter([ApiError(409, "Conflict", "the object has been modified")] * 3)
    cluster.refuse = lambda name, part: next(conflicts, None) if part == "status" else None
    assert kerf.check() == ["b", "c"]
    assert cluster.mark("b") == "True"
    cluster, kerf = three()
    cluster.refuse = lambda name, part: ApiError(404, "NotFound", name) if (name, part) == ("b", "status") else None
    cluster.preempt("a")
    assert "c" in kerf.check()
    assert cluster.asked[:2] == [("b", "status"), ("c", "status")]


def test_what_can_not_be_settled_is_tried_ever_more_rarely_whatever_else_is_lost() -> None:
    cluster = Cluster(*(pod(name, namespace=space) for space in ("ns", "other") for name in "abc"))
    kerf = Kerf(cluster)
    cluster.guard("b", "c")
    for namespace in ("ns", "other"):
        cluster.preempt("a", namespace=namespace)
    tried = []
    for second in range(250):
        before = cluster.asked.count(("b", "eviction"))
        kerf.check(1.0)
        tried += [second] * (cluster.asked.count(("b", "eviction")) - before)
    seconds = [0, 5, 10, 15, 23, 35, 53, 80, 120, 180, 240]
    assert tried == sorted(2 * [*seconds, *(second + 1 for second in seconds)]), "by the loss, and by its marks"


def test_gangs_of_16_namespaces_are_ended_at_once_and_the_others_right_after() -> None:
    spaces = [f"ns-{number:02}" for number in range(17)]
    cluster = Cluster(*(pod(f"{name}{space}", namespace=space, size="2") for space in spaces for name in "ab"))
    kerf = Kerf(cluster)
    for space in spaces:
        cluster.preempt(f"a{space}", namespace=space)
    assert kerf.check() == [f"b{space}" for space in spaces[:16]]
    assert kerf.check(1.0) == [f"b{space}" for space in spaces]


def test_why_gangs_of_a_namespace_can_not_be_ended_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(*(pod(name, namespace=space) for space in ("ns", "other") for name in "abc"))
    kerf = Kerf(cluster)
    for namespace in ("ns", "other"):
        cluster.preempt("a", namespace=namespace)

    def logged(fault: str, part: str) -> list[str]:
        """The namespaces of which a fault is logged while it lasts."""
        caplog.clear()
        cluster.refuse = lambda name, where: ApiError(403, "", fault) if where == part else None
        for _ in range(2):
            assert kerf.check(60.0) == []
        said = [message for message in caplog.messages if "can't be ended" in message and fault in message]
        return [space for message in said for space in ("ns", "other") if f"of {space} " in message]

    assert logged("etcd is down", "list") == ["ns", "other"]
    assert logged("may not evict", "eviction") == ["ns", "other"]
    assert logged("etcd is down", "list") == ["ns", "other"]
    cluster.guard("b", "c")
    for _ in range(2):
        kerf.check(60.0)
    assert logged("etcd is down", "list") == ["ns", "other"], "it was well meanwhile"
    cluster.guard()
    assert kerf.check(60.0) == ["b", "b", "c", "c"]


def test_losses_are_settled_as_they_become_known_whatever_fails_once(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster(*(pod(name, size="2", gang=gang) for gang in "gh" for name in (f"{gang}0", f"{gang}1")))
    kerf = Kerf(cluster)
    failed = list[str]()

    def refuse(name: str, part: str) -> ApiError | None:
        if not failed:
            failed.append(name)
            raise ValueError("broken")
        return None

    async def run() -> None:
        working = asyncio.create_task(kerf.work.run())
        cluster.preempt("g0")
        await until(lambda: caplog.messages)
        kerf.now += 10.0
        cluster.preempt("h0")
        await until(lambda: len(cluster.evicted) == 2)
        working.cancel()

    cluster.refuse = refuse
    asyncio.run(run())
    assert "a check of preempted gangs failed" in caplog.messages
