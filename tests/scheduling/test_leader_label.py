"""The label by which a Service finds the leader: it moves with the lease, is corrected, and is never on no pod."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from extender.kube.client import ApiError
from extender.scheduling import leader_label
from extender.scheduling.fence import Fence
from extender.scheduling.leader_label import LeaderLabel
from tests.kube.loops import in_loop
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
        self.num_tries = self.num_looks = 0
        self.written: list[tuple[str, str | None]] = []

    async def get(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        assert (path, query) == (PODS, {"labelSelector": "kerf.dev/leads=kerf"})
        self.num_looks += 1

        def found(name: str) -> dict[str, Any]:
            ready = {"type": "Ready", "status": str(name not in self.unready)}
            return {"metadata": {"name": name}, "status": {"conditions": [ready]}}

        return json.dumps({"items": [found(name) for name, value in self.labels.items() if value == "kerf"]}).encode()

    async def patch(self, path: str, body: bytes) -> bytes:
        self.num_tries += 1
        if self.fault is not None:
            raise self.fault
        name = path.removeprefix(f"{PODS}/").removesuffix("/status")
        assert path == f"{PODS}/{name}/status"  # Kerf may not change the pod's spec
        value = json.loads(body)["metadata"]["labels"]["kerf.dev/leads"]
        self.labels[name] = value
        self.written.append((name, value))
        return b"{}"

    async def looked_at(self, times: int = 3) -> None:
        """Wait until the labels were read again."""
        before = self.num_looks
        await until(lambda: self.num_looks >= before + times)


class Replica:
    """One process, which leads when it is told to."""

    def __init__(self, api: Any, name: str) -> None:
        self.fence = Fence(lambda: 0.0)
        self.label = LeaderLabel(api, self.fence, f"gpu/{name}", "kerf", look_again_s=LOOK_AGAIN_S)

    def lead(self) -> None:
        self.fence.take_over("taking over", lambda: 1.0, lambda: "")
        self.fence.open("term")


@asynccontextmanager
async def running(*replicas: Replica) -> AsyncIterator[None]:
    for replica in replicas:
        replica.label.start()
    try:
        yield
        assert not any(replica.label.tasks.num_deaths for replica in replicas)
    finally:
        for replica in replicas:
            await replica.label.stop()


@in_loop
async def test_it_moves_with_the_lease() -> None:
    api = Api(a=None, b=None, c="other-kerf")
    first, second = Replica(api, "a"), Replica(api, "b")
    async with running(first, second):
        first.lead()
        await until(lambda: api.labels["a"] == "kerf")
        first.fence.shut(lambda: "others lead")
        taken_off = asyncio.create_task(first.label.taken_off())
        await api.looked_at()
        assert (api.written, taken_off.done()) == ([("a", "kerf")], False), "it stays until there is another leader"
        second.lead()
        await taken_off
        assert api.labels == {"a": None, "b": "kerf", "c": "other-kerf"}
        assert api.written[1:] == [("b", "kerf"), ("a", None)], "it is never on no pod"


@pytest.mark.parametrize("is_ever_ready", [True, False])
@in_loop
async def test_it_stays_on_others_until_the_pod_is_ready_or_some_time_is_over(
    is_ever_ready: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Service routes to ready pods only."""
    monkeypatch.setattr(leader_label, "_READY_S", 30.0 if is_ever_ready else 3 * LOOK_AGAIN_S)
    api = Api(a=None, b="kerf")
    leader = Replica(api, "a")
    api.unready = {"a"}
    async with running(leader):
        leader.lead()
        await until(lambda: api.labels["a"] == "kerf")
        if is_ever_ready:
            await api.looked_at()
            assert api.labels == {"a": "kerf", "b": "kerf"}
            api.unready = set()
        await until(lambda: api.labels["b"] is None)
        assert len(api.written) == 2


@in_loop
async def test_a_leader_that_stops_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leader_label, "_SUCCESSOR_S", 2 * LOOK_AGAIN_S)
    replica = Replica(Api(a="kerf"), "a")
    async with running(replica):
        await replica.label.taken_off()
    assert "no other leader within" in caplog.text


@in_loop
async def test_edits_are_corrected_and_then_nothing_is_written() -> None:
    api = Api(a=None)
    leader = Replica(api, "a")
    async with running(leader):
        leader.lead()
        await until(lambda: api.labels["a"] == "kerf")
        api.labels |= {"a": None, "late": "kerf"}
        await until(lambda: api.labels == {"a": "kerf", "late": None})
        num_written = len(api.written)
        await api.looked_at()
        assert len(api.written) == num_written


@in_loop
async def test_a_label_that_can_not_be_set_is_logged_once_and_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    api = Api(a=None)
    api.fault = ApiError(403, "Forbidden", "may not")
    leader = Replica(api, "a")
    async with running(leader):
        leader.lead()
        await until(lambda: api.num_tries > 2)
        api.fault = None
        await until(lambda: api.labels["a"] == "kerf")
    assert caplog.text.count("may not find this leader: 403 Forbidden: may not") == 1
