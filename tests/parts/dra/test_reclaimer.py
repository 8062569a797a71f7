"""What is taken back, and what is not: devices of running pods, whatever is known of them."""

import asyncio
from collections.abc import Callable

import pytest

from extender.kube.client import ApiError
from extender.queueing.pods.entries import Stage
from tests.dra.claim_api import ClaimApi
from tests.parts.dra.rigs import ClaimRig


def allotted(*names: str, gpus: int = 1, api: ClaimApi | None = None) -> ClaimRig:
    """Claims that are allocated to pods which have left the queue since."""
    rig = ClaimRig(gpus=gpus, api=api)
    for name in names or ("a",):
        rig.allot(name)
    rig.entries.clear()
    return rig


def look(rig: ClaimRig, seconds: float) -> None:
    """Look now, and again later."""
    rig.wait()
    rig.wait(seconds)


def test_nothing_is_taken_back_while_it_is_unknown_which_pods_run() -> None:
    rig = allotted()
    rig.mirror.failing = "pods are not synced yet"
    look(rig, 60.0)
    assert rig.is_allocated()
    rig.mirror.failing = ""
    rig.wait()
    assert rig.is_allocated(), "the pods may be reported a moment later"
    look(rig, 20.0)
    assert not rig.is_allocated()


def test_a_running_pod_that_no_watch_has_reported_keeps_its_devices() -> None:
    rig = allotted()
    metadata = {"name": "a", "namespace": "default", "uid": "p-a"}
    rig.api.pods["a"] = {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}}
    look(rig, 60.0)
    assert rig.is_allocated()
    rig.api.pods["a"]["status"]["phase"] = "Succeeded"
    look(rig, 60.0)
    assert not rig.is_allocated()
    rig.allot("b")
    rig.entries.clear()
    rig.api.pods["b"] = {"metadata": metadata | {"name": "b"}, "spec": {"nodeName": "n"}, "status": {}}
    look(rig, 60.0)
    assert not rig.is_allocated("b"), "another pod has its name"


def test_a_pod_between_two_watches_keeps_the_devices_of_a_deleted_claim() -> None:
    rig = allotted()
    rig.forget("a")
    look(rig, 1.0)
    assert rig.free() == 0
    look(rig, 6.0)
    assert rig.free() == 1


@pytest.mark.parametrize("replaced", [False, True])
def test_a_pod_on_its_way_keeps_the_devices_of_a_deleted_claim_until_another_has_its_name(replaced: bool) -> None:
    rig = allotted()
    entry = rig.pod("a")
    entry.reserve("n")
    rig.forget("a")
    if replaced:
        rig.api.add("a")["metadata"]["uid"] = "u-other"
        rig.tell("a")
    look(rig, 60.0)
    assert rig.free() == replaced
    entry.put_back(rig.now)
    look(rig, 60.0)
    assert rig.free() == 1


def test_a_pod_that_is_released_while_devices_of_others_are_taken_back_keeps_its_own() -> None:
    rig, order = allotted(*"abc", gpus=3), list[str]()
    for name in "abc":
        rig.pod(name)
    rig.wait()

    def release_next(name: str, part: str) -> None:
        order.append(name)
        if len(order) == 1:
            rig.entries["b" if name == "a" else "a"].reserve("n")

    rig.api.fail = release_next
    rig.wait(3.0)
    kept = [name for name in "abc" if rig.is_allocated(name)]
    assert [rig.entries[name].stage for name in kept] == [Stage.NOMINATING]
    assert len(order) == 2


@pytest.mark.parametrize(("node", "free"), [("n", 0), ("m", 1), ("", 1)])
def test_a_hold_that_is_never_written_is_released_unless_its_pod_is_on_its_way(node: str, free: int) -> None:
    rig = ClaimRig(gpus=1)
    entry = rig.hold()
    if node:
        entry.reserve(node)
    rig.changed.clear()
    rig.wait()
    assert rig.free() == free
    assert rig.changed == ["default/a"] * free


def test_nothing_is_released_or_taken_back_while_the_lease_is_in_doubt() -> None:
    rig = allotted("b", gpus=2)
    rig.hold()
    rig.fence.unsure = "not renewed in time"
    look(rig, 60.0)
    assert rig.free() == 0
    assert rig.is_allocated("b")


def test_a_claim_that_can_not_be_freed_backs_off_alone(caplog: pytest.LogCaptureFixture) -> None:
    rig, num_tries = allotted("bad", "good", gpus=2), 0

    def fail(name: str, part: str) -> ApiError | None:
        nonlocal num_tries
        num_tries += name == "bad"
        return ApiError(422, "Invalid", "denied by a webhook") if name == "bad" else None

    rig.api.fail = fail
    look(rig, 20.0)
    for _ in range(100):
        rig.wait(0.5)
    assert 4 <= num_tries <= 12
    assert (rig.is_allocated("bad"), rig.is_allocated("good")) == (True, False)
    assert (rig.keeper.counts.freed, rig.keeper.counts.errors) == (1, num_tries)
    (message,) = set(caplog.messages)
    assert "default/bad" in message and "denied by a webhook" in message
    rig.api.fail = lambda name, part: None
    look(rig, 120.0)
    assert not rig.is_allocated("bad")


def test_a_claim_that_was_freed_at_last_does_not_back_off() -> None:
    rig = ClaimRig(gpus=1)
    for _ in range(3):
        rig.allot()
        rig.entries.clear()
        rig.api.fail = lambda name, part: ApiError(422, "Invalid", "denied by a webhook")
        look(rig, 20.0)
        rig.wait(0.5)
        assert rig.keeper.counts.errors == 2, "at once, once more"
        rig.keeper.counts.errors = 0
        rig.api.fail = lambda name, part: None
        look(rig, 60.0)
        assert not rig.is_allocated()
        rig.wait()


class Deposing(ClaimApi):
    """Another process takes over as a pod is read."""

    def __init__(self) -> None:
        super().__init__()
        self.depose: Callable[[], None] = lambda: None

    async def get(self, path: str, query: object = None) -> bytes:
        if "/pods/" in path:
            self.depose()
        return await super().get(path, query)


def test_a_deposed_leader_takes_nothing_back_and_is_not_late_once_it_leads_again() -> None:
    api = Deposing()
    rig = allotted(api=api)

    def depose() -> None:
        rig.fence.others_lead = "another one leads"

    rig.wait()
    api.depose = depose
    for _ in range(4):
        rig.now += 20.0
        rig.fence.others_lead = ""
        asyncio.run(rig.reclaimer.look())
        assert rig.is_allocated()
    api.depose, rig.fence.others_lead = lambda: None, ""
    rig.wait(0.1)
    assert not rig.is_allocated()


def test_it_looks_in_the_background_whatever_fails_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = allotted()
    rig.wait()
    freed, failed = asyncio.Event(), list[str]()

    async def run() -> None:
        looking = asyncio.create_task(rig.reclaimer.run())
        async with asyncio.timeout(10.0):
            await freed.wait()
        looking.cancel()

    def written(name: str, part: str) -> None:
        if not failed:
            failed.append(name)
            raise ValueError("broken")
        freed.set()

    rig.api.fail = written
    rig.now += 20.0
    asyncio.run(run())
    assert len(caplog.messages) == 1
