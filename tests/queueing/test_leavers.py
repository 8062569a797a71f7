"""One author's thousands of pods that leave, or can't be understood yet, delay no round."""

import asyncio
from typing import Any

import msgspec
import pytest

from extender.kube.client import ApiError
from extender.queueing.gangs import Gangs, Group
from extender.queueing.leavers import GateOpener, LeavingPod
from tests.queueing.rigs import Api, Rig, idle
from tests.queueing.watches import pod


class Held(Api):
    """Holds back writes to one author's pods until `may` is set."""

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


OUT = {"kerf.dev/queue": "disabled"}


def make(rig: Rig, namespace: str, number: int, **more: Any) -> list[str]:
    names = [f"{namespace}-{at}" for at in range(number)]
    for name in names:
        rig.pod(name, 1, namespace=namespace, **more)
    return names


def leavers_of(rig: Rig) -> GateOpener:
    return GateOpener(rig.queue.dispatcher, rig.queue.backlog, rig.queue.counts, rig.why_standby)


def leaving(rig: Rig, *names: str, by_kerf: bool = False) -> list[LeavingPod]:
    return [LeavingPod(rig.entry(name), "nobody wants it", by_kerf=by_kerf) for name in names]


def opened(rig: Rig) -> list[str]:
    return [name for name, pod in rig.api.pods.items() if not pod["spec"]["schedulingGates"]]


def test_pods_that_leave_delay_no_round_and_no_other_that_leaves() -> None:
    async def scenario() -> None:
        api = Held()
        rig = Rig(api=api)
        rig.node("n", 8)
        evil = make(rig, "evil", 300, labels=OUT)
        rig.pod("leaves", 1, namespace="good", labels=OUT)
        rig.pod("good", 1, namespace="good")
        for _ in range(3):
            rig.now += 1.0
            await asyncio.wait_for(rig.queue.begin_round(), 10.0)  # no answer about the others yet
            await idle()
            assert rig.placed() == ["good"]
            assert sorted(opened(rig)) == ["good", "leaves"]
            assert len([name for name in api.asked if name in evil]) == 16
        api.may.set()
        await rig.queue.dispatcher.finish()
        assert len(opened(rig)) == 302
        assert len(api.asked) == len(set(api.asked)) + 1  # each once, and a nomination
        assert (rig.placed(), rig.queue.counts.opened) == (["good"], 1), "those that leave are not planned"

    asyncio.run(scenario())


def test_sixteen_leave_at_a_time_and_the_others_after_them() -> None:
    async def scenario() -> None:
        api = Held()
        rig = Rig(api=api)
        names, leavers = make(rig, "evil", 40), leavers_of(rig)
        for _ in range(2):  # a round, and the next one
            leavers.open(leaving(rig, *names))
            await idle(50)
            assert api.asked == names[:16]
        api.may.set()
        await rig.queue.dispatcher.finish()
        assert (opened(rig), api.asked) == (names, names)
        assert rig.note("evil-0", "planned-by") == "nobody wants it"
        later = make(rig, "good", 20)
        leavers.open(leaving(rig, *later, by_kerf=True))
        await rig.queue.dispatcher.finish()
        assert opened(rig) == names + later
        assert rig.queue.counts.failed_open == 20, "of which Kerf released"
        assert [rig.entry(name).by_kerf for name in ("evil-0", "good-0")] == [False, True]

    asyncio.run(scenario())


def test_a_pod_that_is_planned_or_gone_is_not_written_on_and_a_standby_writes_nothing() -> None:
    async def scenario() -> None:
        rig = Rig()
        names = make(rig, "ns", 3)
        leavers, found = leavers_of(rig), leaving(rig, *names)
        rig.standby = "another one leads"
        leavers.open(found)
        await rig.queue.dispatcher.finish()
        assert opened(rig) == []
        rig.standby = ""
        leavers.open(found)
        found[0].entry.reserve("n")
        rig.gone("ns-1")
        await rig.queue.dispatcher.finish()
        assert opened(rig) == ["ns-2"]

    asyncio.run(scenario())


def test_a_pod_that_could_not_be_opened_backs_off_and_delays_no_other() -> None:
    async def scenario() -> None:
        rig = Rig()
        for name in ("bad", "good"):
            rig.pod(name, 1)
        leavers = leavers_of(rig)

        async def leave(*names: str) -> list[str]:
            leavers.open(leaving(rig, *names))
            await rig.queue.dispatcher.finish()
            return opened(rig)

        rig.api.fail = lambda name, part: ApiError(422, "Invalid", "denied") if name == "bad" else None
        for _ in range(10):
            assert await leave("bad") == []
        assert rig.queue.dispatcher.rests(rig.entry("bad")) is not None
        rig.api.fail = lambda name, part: None
        assert await leave("bad", "good") == ["good"]
        rig.now += 1000.0
        assert await leave("bad") == ["bad", "good"]

    asyncio.run(scenario())


class Slow:
    """An API server that is slow for one author's PodGroups and pods."""

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


def test_gangs_of_one_author_delay_no_other_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("extender.queueing.gangs._MAX_WAIT_S", 0.05)

    async def scenario() -> None:
        api = Slow()
        gangs = Gangs(api, lambda: 0.0)  # type: ignore[arg-type]
        member = pod(labels={"scheduling.x-k8s.io/pod-group": "g"})
        keys = [f"evil/g{number}" for number in range(1000)] + ["good/g"]
        await asyncio.wait_for(gangs.learn_groups({key: [member] for key in keys}), 10.0)
        assert (gangs.group("good/g", [member]), gangs.group("evil/g0", [member])) == (Group(2), None)
        await asyncio.wait_for(gangs.learn_members(["evil", "good"]), 10.0)
        assert (gangs.members("good/g"), gangs.members("evil/g0")) == ([], None)
        api.may.set()

    asyncio.run(scenario())
