"""What is taken back, and what is not: devices of pods that run, whatever is known of them."""

import asyncio
from collections.abc import Callable

import pytest

from extender.kube.client import ApiError
from extender.queueing.pods.entries import Entry, Stage
from tests.dra.claim_api import ClaimApi
from tests.parts.dra.rigs import ClaimRig


def _allocated(rig: ClaimRig, name: str = "a") -> None:
    """A claim that a pod got its device of, which has left the queue since."""
    rig.allot(name)
    del rig.entries[name]


def _is_allocated(rig: ClaimRig, name: str = "a") -> bool:
    return "allocation" in rig.api.claims[name]["status"]


def _look(rig: ClaimRig, seconds: float) -> None:
    asyncio.run(rig.look())
    rig.now += seconds
    asyncio.run(rig.look())


def test_while_nobody_knows_which_pods_run_nothing_is_taken_back() -> None:
    rig = ClaimRig()
    _allocated(rig)
    rig.mirror.failing = "pods are not synced yet"
    _look(rig, 60.0)
    assert rig.api.claims["a"]["status"]["allocation"]
    rig.mirror.failing = ""
    asyncio.run(rig.look())
    assert rig.api.claims["a"]["status"]["allocation"], "the pods may be told of a moment later"
    _look(rig, 20.0)
    assert "allocation" not in rig.api.claims["a"]["status"]


def test_a_running_pod_of_which_no_watch_has_told_keeps_its_devices() -> None:
    rig = ClaimRig()
    _allocated(rig)
    metadata = {"name": "a", "namespace": "default", "uid": "p-a"}
    rig.api.pods["a"] = {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}}
    _look(rig, 60.0)
    assert rig.api.claims["a"]["status"]["allocation"]
    rig.api.pods["a"]["status"]["phase"] = "Succeeded"
    _look(rig, 60.0)
    assert "allocation" not in rig.api.claims["a"]["status"]


def test_a_pod_that_is_between_two_watches_keeps_the_devices_of_a_claim_that_is_gone() -> None:
    rig = ClaimRig(gpus=1)
    _allocated(rig)
    rig.forget("a")
    _look(rig, 1.0)
    assert rig.free() == 0
    _look(rig, 6.0)
    assert rig.free() == 1


@pytest.mark.parametrize("replaced", [False, True])
def test_a_pod_on_its_way_keeps_the_devices_of_a_claim_that_is_gone_until_another_has_its_name(replaced: bool) -> None:
    rig = ClaimRig(gpus=1)
    _allocated(rig)
    entry = rig.pod("a")
    entry.reserve("n")
    rig.forget("a")
    if replaced:
        rig.api.add("a")["metadata"]["uid"] = "u-other"
        rig.tell("a")
    _look(rig, 60.0)
    assert rig.free() == (1 if replaced else 0)
    entry.put_back(rig.now)
    _look(rig, 60.0)
    assert rig.free() == 1


def test_a_pod_that_is_let_go_while_another_s_devices_are_taken_back_keeps_its_own() -> None:
    rig, order = ClaimRig(gpus=3), list[str]()
    for name in "abc":
        _allocated(rig, name)
        rig.pod(name)
    asyncio.run(rig.look())

    def goes_on(name: str, part: str) -> None:
        """The next one does, once."""
        order.append(name)
        if len(order) == 1:
            rig.entries["b" if name == "a" else "a"].reserve("n")

    rig.now += 3.0
    rig.api.fail = goes_on
    asyncio.run(rig.look())
    kept = [name for name, claim in rig.api.claims.items() if "allocation" in claim["status"]]
    assert [rig.entries[name].stage for name in kept] == [Stage.NOMINATING]
    assert len(order) == 2, "and so has the one after it none"


def _held(rig: ClaimRig, name: str = "a") -> Entry:
    """A pod for whose claim a device is held, and nothing is written yet."""
    rig.api.add(name)
    rig.tell(name)
    entry = rig.pod(name)
    assert rig.decide(entry.pod)
    return entry


@pytest.mark.parametrize(("node", "free"), [("n", 0), ("m", 1), ("", 1)])
def test_what_is_held_and_never_written_is_free_unless_its_pod_is_on_its_way(node: str, free: int) -> None:
    rig = ClaimRig(gpus=1)
    entry = _held(rig)
    if node:
        entry.reserve(node)
    rig.changed.clear()
    asyncio.run(rig.look())
    assert rig.free() == free
    assert rig.changed == ["default/a"] * free


def test_who_may_lead_no_more_gives_nothing_back_before_that_is_known() -> None:
    rig = ClaimRig(gpus=2)
    _held(rig)
    _allocated(rig, "b")
    rig.fence.unsure = "not renewed in time"
    _look(rig, 60.0)
    assert rig.free() == 0
    assert _is_allocated(rig, "b")


def test_all_that_is_taken_back_is_counted() -> None:
    rig = ClaimRig(gpus=2)
    for name in "ab":
        _allocated(rig, name)
    _look(rig, 20.0)
    assert (rig.keeper.counts.freed, rig.keeper.counts.errors) == (2, 0)


def test_what_can_not_be_taken_back_is_tried_ever_later_and_keeps_nothing_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    rig, num_tries = ClaimRig(gpus=2), 0
    for name in ("bad", "good"):
        _allocated(rig, name)

    def fail(name: str, part: str) -> ApiError | None:
        nonlocal num_tries
        num_tries += name == "bad"
        return ApiError(422, "Invalid", "denied by a webhook") if name == "bad" else None

    rig.api.fail = fail
    _look(rig, 20.0)
    for _ in range(100):
        rig.now += 0.5
        asyncio.run(rig.look())
    assert 4 <= num_tries <= 12
    assert (_is_allocated(rig, "bad"), _is_allocated(rig, "good")) == (True, False)
    assert rig.keeper.counts.errors == num_tries
    assert set(caplog.messages) == {
        "claim default/bad, which no pod uses, was not deallocated: 422 Invalid: denied by a webhook"
    }
    rig.api.fail = lambda name, part: None
    _look(rig, 120.0)
    assert not _is_allocated(rig, "bad")


def test_what_could_be_taken_back_at_last_is_as_any_other() -> None:
    rig = ClaimRig(gpus=1)
    for _ in range(3):
        _allocated(rig)
        rig.api.fail = lambda name, part: ApiError(422, "Invalid", "denied by a webhook")
        _look(rig, 20.0)
        rig.now += 0.5
        asyncio.run(rig.look())
        assert rig.keeper.counts.errors == 2, "at once, once more"
        rig.keeper.counts.errors = 0
        rig.api.fail = lambda name, part: None
        _look(rig, 60.0)
        assert not _is_allocated(rig)
        asyncio.run(rig.look())


class Deposing(ClaimApi):
    """Another process takes over as a pod is read."""

    def __init__(self) -> None:
        super().__init__()
        self.depose: Callable[[], None] = lambda: None

    async def get(self, path: str, query: object = None) -> bytes:
        if "/pods/" in path:
            self.depose()
        return await super().get(path, query)


def test_whoever_leads_no_more_takes_nothing_back_and_is_in_time_once_it_leads_again() -> None:
    api = Deposing()
    rig = ClaimRig(api=api)
    _allocated(rig)

    def depose() -> None:
        rig.fence.others_lead = "another one leads"

    asyncio.run(rig.look())
    api.depose = depose
    for _ in range(4):
        rig.now += 20.0
        rig.fence.others_lead = ""
        asyncio.run(rig.reclaimer.look())
        assert _is_allocated(rig)
    api.depose, rig.fence.others_lead = lambda: None, ""
    rig.now += 0.1
    asyncio.run(rig.look())
    assert not _is_allocated(rig)


def test_a_running_pod_of_the_same_name_keeps_nothing_that_was_another_s() -> None:
    rig = ClaimRig()
    _allocated(rig)
    metadata = {"name": "a", "namespace": "default", "uid": "another"}
    rig.api.pods["a"] = {"metadata": metadata, "spec": {"nodeName": "n"}, "status": {"phase": "Running"}}
    _look(rig, 60.0)
    assert not _is_allocated(rig)


def test_it_looks_in_the_background_whatever_fails_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = ClaimRig()
    _allocated(rig)

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

    asyncio.run(rig.look())
    freed, failed = asyncio.Event(), list[str]()
    rig.api.fail = written
    rig.now += 20.0
    asyncio.run(run())
    assert caplog.messages == ["settling ResourceClaims failed"]
