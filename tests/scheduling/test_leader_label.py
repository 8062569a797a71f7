"""The label that leads a Service to the leader: it moves, it is put right, and it never just goes."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest

from extender.kube.client import ApiError
from extender.scheduling import leader_label
from extender.scheduling.fence import Fence
from extender.scheduling.leader_label import LeaderLabel
from tests.ledger.builders import until

PODS = "/api/v1/namespaces/gpu/pods"
LOOK_AGAIN_S = 0.02


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_label, "_LOOK_S", LOOK_AGAIN_S / 4)
    monkeypatch.setattr(leader_label, "_FIRST_RETRY_S", LOOK_AGAIN_S)


class Api:
    """The labels of a namespace's pods."""

    def __init__(self, **labels: str | None) -> None:
        self.labels: dict[str, str | None] = dict(labels)
        self.unready: set[str] = set()
        self.fault: Exception | None = None
        self.written: list[tuple[str, str | None]] = []

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        assert (path, query) == (PODS, {"labelSelector": "kerf.dev/leads=kerf"})
        found = [
            {
                "metadata": {"name": name},
                "status": {"conditions": [{"type": "Ready", "status": str(name not in self.unready)}]},
            }
            for name, value in self.labels.items()
            if value == "kerf"
        ]
        return json.dumps({"items": found}).encode()

    async def patch(self, path: str, body: bytes) -> bytes:
        if self.fault is not None:
            raise self.fault
        name = path.removeprefix(f"{PODS}/").removesuffix("/status")
        assert path == f"{PODS}/{name}/status"  # the pod's spec is out of reach
        value = json.loads(body)["metadata"]["labels"]["kerf.dev/leads"]
        self.labels[name] = value
        self.written.append((name, value))
        return b"{}"


class Replica:
    """One process, which leads when it is told to."""

    def __init__(self, api: Any, name: str) -> None:
        self.fence = Fence(lambda: 0.0)
        self.label = LeaderLabel(api, self.fence, f"gpu/{name}", "kerf", look_again_s=LOOK_AGAIN_S)

    def lead(self) -> None:
        self.fence.take_over("taking over", lambda: 1.0, lambda: "")
        self.fence.open("term")

    def stand_by(self) -> None:
        self.fence.shut(lambda: "others lead")


def run(scenario: Callable[[], Awaitable[None]], *replicas: Replica) -> None:
    async def beside() -> None:
        for replica in replicas:
            replica.label.start()
        try:
            await asyncio.wait_for(scenario(), 30)
            assert not any(replica.label.tasks.num_deaths for replica in replicas)
        finally:
            for replica in replicas:
                await replica.label.stop()

    asyncio.run(beside())


def test_it_moves_with_the_lease() -> None:
    api = Api(a=None, b=None, c="other-kerf")
    first, second = Replica(api, "a"), Replica(api, "b")

    async def scenario() -> None:
        await asyncio.sleep(2 * LOOK_AGAIN_S)
        assert api.written == []  # nobody leads yet
        first.lead()
        await until(lambda: api.labels["a"] == "kerf")
        first.stand_by()
        await asyncio.sleep(2 * LOOK_AGAIN_S)
        assert api.labels["a"] == "kerf", "who led last answers, until there is another"
        second.lead()
        await until(lambda: api.labels == {"a": None, "b": "kerf", "c": "other-kerf"})
        assert api.written[-2:] == [("b", "kerf"), ("a", None)]  # at no time is there nobody

    run(scenario, first, second)


def test_it_stays_with_others_until_the_pod_is_ready() -> None:
    """A Service leads to nobody else: without the one before it would lead nowhere."""
    api = Api(a=None, b="kerf")
    first = Replica(api, "a")
    api.unready = {"a"}

    async def scenario() -> None:
        first.lead()
        await until(lambda: api.labels["a"] == "kerf")
        await asyncio.sleep(5 * LOOK_AGAIN_S)
        assert api.labels == {"a": "kerf", "b": "kerf"}
        api.unready = set()
        await until(lambda: api.labels["b"] is None)
        assert len(api.written) == 2

    run(scenario, first)


def test_a_leader_that_is_never_ready_has_the_label_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leader_label, "_READY_S", 3 * LOOK_AGAIN_S)
    api = Api(a=None, b="kerf")
    first = Replica(api, "a")
    api.unready = {"a", "b"}

    async def scenario() -> None:
        first.lead()
        await until(lambda: api.labels == {"a": "kerf", "b": None})

    run(scenario, first)


def test_who_goes_knows_when_another_has_it() -> None:
    api = Api(a="kerf", b=None)
    first, second = Replica(api, "a"), Replica(api, "b")

    async def scenario() -> None:
        waiting = asyncio.create_task(first.label.taken_off())
        await asyncio.sleep(2 * LOOK_AGAIN_S)
        assert not waiting.done()
        second.lead()
        await waiting
        assert api.labels == {"a": None, "b": "kerf"}

    run(scenario, first, second)


def test_who_goes_does_not_wait_for_ever(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(leader_label, "_SUCCESSOR_S", 2 * LOOK_AGAIN_S)
    replica = Replica(Api(a="kerf"), "a")
    run(replica.label.taken_off, replica)
    assert "no other leader within" in caplog.text


def test_what_somebody_else_has_done_is_put_right() -> None:
    api = Api(a=None)
    replica = Replica(api, "a")

    async def scenario() -> None:
        replica.lead()
        await until(lambda: api.labels["a"] == "kerf")
        api.labels |= {"a": None, "late": "kerf"}
        await until(lambda: api.labels == {"a": "kerf", "late": None})
        num_written = len(api.written)
        await asyncio.sleep(3 * LOOK_AGAIN_S)
        assert len(api.written) == num_written

    run(scenario, replica)


def test_a_label_that_can_not_be_set_is_said_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    api = Api(a=None)
    api.fault = ApiError(403, "Forbidden", "may not")
    replica = Replica(api, "a")

    async def scenario() -> None:
        replica.lead()
        await until(lambda: "may not" in caplog.text)
        await asyncio.sleep(3 * LOOK_AGAIN_S)
        api.fault = None
        await until(lambda: api.labels["a"] == "kerf")

    run(scenario, replica)
    assert caplog.text.count("callers may not find this leader") == 1
