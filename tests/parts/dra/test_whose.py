"""Whose it is to allocate what a claim asks, while drivers come and go."""

import asyncio
import secrets

import msgspec
import pytest

from extender.core.dra.asks import ClaimAsk, DeviceAsk, DevicesAsked, RequestAsk, Selector
from extender.core.dra.devices import Device
from extender.dra.objects import DeviceClass, ResourceSlice
from extender.parts.dra.whose import Whose
from tests.parts.dra.rigs import ClaimRig

OURS, THEIRS = "gpu.nvidia.com", "other.example.com"


def rig_beside_others() -> ClaimRig:
    """A node with devices of Kerf's, and one with devices of another driver."""
    rig = ClaimRig(gpus=1)
    for driver in (OURS, THEIRS):
        selectors = [{"cel": {"expression": f"device.driver == '{driver}'"}}]
        manifest = {"metadata": {"name": driver, "uid": f"class-{driver}"}, "spec": {"selectors": selectors}}
        rig.ledger.upsert_device(msgspec.convert(manifest, DeviceClass))
    publish_theirs(rig, "other")
    return rig


def publish_theirs(rig: ClaimRig, *devices: str, driver: str = THEIRS, generation: int = 1) -> None:
    """All that another driver has, of its node."""
    spec = {
        "driver": driver,
        "nodeName": "m",
        "pool": {"name": "m", "generation": generation, "resourceSliceCount": 1},
        "devices": [{"name": name} for name in devices],
    }
    rig.ledger.upsert_device(msgspec.convert({"metadata": {"name": "m", "uid": "s-m"}, "spec": spec}, ResourceSlice))


def left(rig: ClaimRig, device_class: str, count: int = 1) -> bool:
    """Whether a claim is left to kube-scheduler, once that is found out."""
    rig.api.add("c", {"name": "r", "exactly": {"deviceClassName": device_class, "count": count}})
    rig.tell("c")
    pod = rig.pod("c").pod
    assert rig.keeper.read(pod).undecided
    asyncio.run(rig.keeper.anything_new())
    found = rig.keeper.read(pod)
    assert not found.undecided
    return bool(found.left)


def test_each_allocates_what_is_his() -> None:
    assert not left(rig_beside_others(), OURS)
    assert left(rig_beside_others(), THEIRS)


@pytest.mark.parametrize(("device_class", "theirs"), [(OURS, False), (THEIRS, True)])
def test_a_driver_that_is_away_for_a_while_hands_no_claims_over_to_kube_scheduler(
    device_class: str, theirs: bool
) -> None:
    rig = rig_beside_others()
    rig.publish("k", 1)
    rig.ledger.remove_device(ResourceSlice, "s-n")
    rig.ledger.remove_device(ResourceSlice, "s-k")
    assert left(rig, device_class) == theirs


def test_who_asks_for_more_than_there_is_waits_for_it() -> None:
    assert not left(rig_beside_others(), OURS, count=2)


def test_what_others_have_too_few_of_is_theirs_all_the_same() -> None:
    assert left(rig_beside_others(), THEIRS, count=2)


def test_slices_that_come_all_the_time_hold_nobody_up_and_an_old_answer_counts_meanwhile() -> None:
    rig = rig_beside_others()
    rig.api.add("a", {"name": "r", "exactly": {"deviceClassName": OURS}})
    rig.tell("a")
    pod = rig.pod("a").pod
    assert rig.keeper.read(pod).undecided == "a"
    rig.publish("n", 1, generation=2)
    asyncio.run(rig.keeper.anything_new())
    assert rig.keeper.read(pod).unallocated
    for generation in range(3, 6):
        rig.publish("n", 1, generation=generation)
        assert rig.keeper.read(pod).unallocated


def asking(driver: str, number: int = 0) -> DevicesAsked:
    """A device of a driver."""
    selector = Selector(f"{driver} {number}", lambda device: device.id.driver == driver, None, cost=1)
    return DevicesAsked((ClaimAsk((RequestAsk("r", (DeviceAsk("r", (selector,)),)),)),))


def find_out(whose: Whose, asked: DevicesAsked) -> bool:
    whose.is_kerfs(asked, "")
    while whose.looking:
        whose.look_further()
    found = whose.is_kerfs(asked, "")
    assert found is not None
    return found


def test_what_is_found_out_is_asked_no_more_until_there_are_other_devices() -> None:
    rig, asked = rig_beside_others(), asking(OURS)
    whose = Whose(rig.owned)
    assert find_out(whose, asked)
    assert not whose.looking
    rig.publish("n", 1, generation=2)
    assert whose.is_kerfs(asked, "")
    assert whose.looking


def test_it_is_news_once_it_is_another_s_than_before() -> None:
    rig, ours, theirs = rig_beside_others(), asking(OURS), asking(THEIRS)
    whose = Whose(rig.owned)
    assert find_out(whose, ours)
    assert not find_out(whose, theirs)
    rig.publish("n", 1, generation=2)
    assert find_out(whose, ours)
    assert not find_out(whose, theirs)
    assert not whose.news, "nothing else was said before"
    publish_theirs(rig, "other", driver="third.example.com", generation=2)
    assert find_out(whose, theirs), "nobody has such devices"
    assert find_out(whose, ours)
    assert whose.news, "until somebody takes note of it"


def test_asks_of_a_namespace_are_looked_into_in_turn() -> None:
    rig, first, second = rig_beside_others(), asking(THEIRS, 1), asking(THEIRS, 2)
    for number in range(40):
        rig.publish(f"n{number}", 1)
    whose = Whose(rig.owned)
    assert whose.is_kerfs(first, "") is whose.is_kerfs(second, "") is None
    while whose.is_kerfs(first, "") is None:
        assert whose.look_further(within_s=0.0) is True, "there is more to look at"
    assert whose.is_kerfs(second, "") is None
    assert whose.look_further(within_s=0.0) is False
    assert whose.is_kerfs(first, "") is whose.is_kerfs(second, "") is False


def test_what_is_asked_while_something_is_looked_into_is_next() -> None:
    rig, other = rig_beside_others(), asking(THEIRS)
    whose = Whose(rig.owned)

    def is_ours(device: Device) -> bool:
        """In a thread, while the event loop goes on."""
        whose.is_kerfs(other, "team")
        return device.id.driver == OURS

    selector = Selector(f"slow {secrets.token_hex(4)}", is_ours, None, cost=1)  # what it says is remembered by its text
    first = DevicesAsked((ClaimAsk((RequestAsk("r", (DeviceAsk("r", (selector,)),)),)),))
    whose.is_kerfs(first, "team")
    while whose.looking:
        whose.look_further(within_s=0.0)
    assert (whose.is_kerfs(first, "team"), whose.is_kerfs(other, "team")) == (True, False)
    assert not whose.looking
