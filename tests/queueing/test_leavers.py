"""One author's thousands of pods that leave, or can't be understood yet, hold up no round."""

import asyncio
from typing import Any

import msgspec
import pytest

from extender.kube.client import ApiError
from extender.kube.turns import in_turn
from extender.kube.watches import PODS
from extender.queueing.gangs import Gangs
from extender.queueing.leavers import Leaver, Leavers
from extender.queueing.pods.objects import decode_pod
from tests.queueing.rigs import GATES, Api, Manifest, Rig


class Held(Api):
    """Answers no write about pods of one author before it may."""

    def __init__(self) -> None:
        super().__init__()
        self.may = asyncio.Event()
        self.asked: list[str] = []

    async def patch(self, path: str, body: bytes) -> bytes:
        name = path.partition("/pods/")[2].partition("/")[0]
        self.asked.append(name)
        if self.pods[name]["metadata"]["namespace"] == "evil":
            await self.may.wait()
        return await super().patch(path, body)


def make(rig: Rig, name: str, namespace: str, **labels: str) -> None:
    spec = {"schedulingGates": GATES, "containers": [{"resources": {"limits": {"nvidia.com/gpu": 1, "cpu": 1}}}]}
    metadata = {"name": name, "namespace": namespace, "uid": name, "annotations": {}, "labels": labels}
    manifest: Manifest = {"metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
    rig.api.pods[name] = manifest
    rig.hub.cache(PODS).upsert(decode_pod(manifest))


def test_pods_that_leave_hold_up_no_round_and_no_other_that_leaves() -> None:
    async def scenario() -> None:
        api = Held()
        rig = Rig(api=api)
        rig.node("n", 8)
        out = {"kerf.dev/queue": "disabled"}
        for number in range(300):
            make(rig, f"evil-{number}", "evil", **out)
        make(rig, "leaves", "good", **out)
        make(rig, "good", "good")
        await asyncio.wait_for(rig.queue.begin_round(), 10.0)  # no answer about the others yet
        for _ in range(100):
            await asyncio.sleep(0)
        assert rig.node_of("good") == "n"
        assert not rig.api.pods["leaves"]["spec"]["schedulingGates"]
        assert len([name for name in api.asked if name.startswith("evil")]) <= 16  # some at once
        assert not any(rig.node_of(f"evil-{number}") for number in range(300))
        api.may.set()
        await rig.queue.dispatcher.finish()
        assert not any(rig.api.pods[f"evil-{number}"]["spec"]["schedulingGates"] for number in range(300))
        assert len(api.asked) == len(set(api.asked)) + 1  # each once, and a nomination

    asyncio.run(scenario())


def test_a_pod_that_leaves_is_not_planned_meanwhile() -> None:
    async def scenario() -> None:
        api = Held()
        rig = Rig(api=api)
        rig.node("n", 8)
        for number in range(40):
            make(rig, f"evil-{number}", "evil", **{"kerf.dev/queue": "disabled"})
        for _ in range(3):
            rig.now += 1.0
            await rig.queue.begin_round()
        api.may.set()
        await rig.queue.dispatcher.finish()
        assert rig.queue.counts.opened == 0
        assert not any(pod["status"].get("nominatedNodeName") for pod in rig.api.pods.values())

    asyncio.run(scenario())


def leaves(rig: Rig, *names: str, by_kerf: bool = False) -> list[Leaver]:
    return [Leaver(rig.queue.backlog.entries[name], "nobody wants it", by_kerf=by_kerf) for name in names]


def leavers_of(rig: Rig) -> Leavers:
    return Leavers(rig.queue.dispatcher, rig.queue.backlog, rig.queue.counts, rig.why_standby)


def opened(rig: Rig) -> list[str]:
    return [name for name, pod in rig.api.pods.items() if not pod["spec"]["schedulingGates"]]


def test_sixteen_leave_at_a_time_and_the_others_after_them() -> None:
    async def scenario() -> None:
        api = Held()
        rig = Rig(api=api)
        names = [f"evil-{number}" for number in range(40)]
        for name in names:
            make(rig, name, "evil")
        leavers = leavers_of(rig)
        for _ in range(2):  # a round, and the next one
            leavers.open(leaves(rig, *names))
            for _ in range(50):
                await asyncio.sleep(0)
            assert api.asked == names[:16]
        api.may.set()
        await rig.queue.dispatcher.finish()
        assert (opened(rig), api.asked) == (names, names)
        assert rig.note("evil-0", "planned-by") == "nobody wants it"
        later = [f"late-{number}" for number in range(20)]
        for name in later:
            make(rig, name, "good")
        leavers.open(leaves(rig, *later, by_kerf=True))
        await rig.queue.dispatcher.finish()
        assert opened(rig) == names + later
        assert rig.queue.counts.failed_open == 20, "of which Kerf let go"
        entries = rig.queue.backlog.entries
        assert [entries[name].by_kerf for name in ("evil-0", "late-0")] == [False, True]

    asyncio.run(scenario())


def test_who_does_not_wait_any_more_or_is_gone_is_not_written_on_and_a_standby_writes_nothing() -> None:
    async def scenario() -> None:
        rig = Rig()
        for name in ("planned", "gone", "leaves"):
            make(rig, name, "ns")
        leavers, found = leavers_of(rig), leaves(rig, "planned", "gone", "leaves")
        rig.standby = "another one leads"
        leavers.open(found)
        await rig.queue.dispatcher.finish()
        assert opened(rig) == []
        rig.standby = ""
        leavers.open(found)
        found[0].entry.reserve("n")
        rig.queue.backlog.remove(found[1].entry.pod)
        await rig.queue.dispatcher.finish()
        assert opened(rig) == ["leaves"]

    asyncio.run(scenario())


def test_one_that_could_not_be_opened_rests_and_keeps_no_other_waiting() -> None:
    async def scenario() -> None:
        rig = Rig()
        for name in ("bad", "good"):
            make(rig, name, "ns")
        rig.api.fail = lambda name, part: ApiError(422, "Invalid", "denied") if name == "bad" else None
        leavers = leavers_of(rig)
        for _ in range(10):
            leavers.open(leaves(rig, "bad"))
            await rig.queue.dispatcher.finish()
        assert rig.queue.dispatcher.rests(rig.queue.backlog.entries["bad"]) is not None
        rig.api.fail = lambda name, part: None
        leavers.open(leaves(rig, "bad", "good"))
        await rig.queue.dispatcher.finish()
        assert opened(rig) == ["good"]
        rig.now += 1000.0
        leavers.open(leaves(rig, "bad"))
        await rig.queue.dispatcher.finish()
        assert opened(rig) == ["bad", "good"]

    asyncio.run(scenario())


class Slow:
    """An API server that takes its time over PodGroups and pods of one author."""

    def __init__(self) -> None:
        self.may = asyncio.Event()

    async def get(self, path: str, query: Any = None) -> bytes:
        if "/evil/" in path or path.endswith("/evil/pods"):
            await self.may.wait()
        if path.endswith("/pods"):
            return msgspec.json.encode({"items": []})
        if "/podgroups/" in path and "good" in path:
            return msgspec.json.encode({"metadata": {"name": "g", "namespace": "good"}, "spec": {"minMember": 2}})
        raise ApiError(404, "NotFound", path)


@pytest.mark.parametrize("num_gangs", [1, 1000])
def test_gangs_of_one_author_keep_no_other_gang_from_being_read(
    num_gangs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("extender.queueing.gangs._MAX_WAIT_S", 0.05)
    labels = {"scheduling.x-k8s.io/pod-group": "g"}

    async def scenario() -> None:
        api = Slow()
        gangs = Gangs(api, lambda: 0.0)  # type: ignore[arg-type]
        pod = decode_pod({"metadata": {"name": "p", "namespace": "x", "uid": "p", "labels": labels}, "spec": {}})
        keys = [f"evil/g{number}" for number in range(num_gangs)] + ["good/g"]
        await asyncio.wait_for(gangs.learn_groups({key: [pod] for key in keys}), 10.0)
        found = gangs.group("good/g", [pod])
        assert found is not None
        assert found.size == 2
        assert gangs.group("evil/g0", [pod]) is None
        await asyncio.wait_for(gangs.learn_members(["evil", "good"]), 10.0)
        assert gangs.members("good/g") == []
        assert gangs.members("evil/g0") is None
        api.may.set()

    asyncio.run(scenario())


def test_the_first_of_each_namespace_is_first() -> None:
    items = ["a1", "a2", "a3", "b1", "c1", "c2"]
    assert in_turn(items, lambda item: item[0]) == ["a1", "b1", "c1", "a2", "c2", "a3"]
    assert in_turn(items[:3], lambda item: item[0]) == items[:3]
    assert in_turn([], str) == []
