"""Whether Kerf or kube-scheduler allocates a claim, while drivers come and go."""

import asyncio
import secrets

import msgspec

from extender.core.dra.asks import ClaimSpec, DeviceClaims, DeviceSpec, RequestSpec, Selector
from extender.core.dra.devices import Device
from extender.dra.objects import DeviceClass, ResourceSlice
from extender.parts.dra.allocator_choice import AllocatorChoice
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
    rig.add("c", deviceClassName=device_class, count=count)
    pod = rig.pod("c").pod
    assert rig.keeper.read(pod).undecided
    while (found := rig.keeper.read(pod)).undecided:
        asyncio.run(rig.keeper.claims_outdated())
    return bool(found.left)


def test_a_claim_is_left_to_kube_scheduler_if_its_devices_are_however_many_there_are() -> None:
    for device_class, is_left in ((OURS, False), (THEIRS, True)):
        for count in (1, 2):
            assert left(rig_beside_others(), device_class, count) is is_left
        rig = rig_beside_others()
        rig.publish("k", 1)
        rig.ledger.remove_device(ResourceSlice, "s-n")  # Kerf's driver is away for a while
        rig.ledger.remove_device(ResourceSlice, "s-k")
        assert left(rig, device_class) is is_left


def asking(driver: str, number: int = 0) -> DeviceClaims:
    """A device of a driver."""
    return asking_by(Selector(f"{driver} {number}", lambda device: device.id.driver == driver, None, cost=1))


def asking_by(selector: Selector) -> DeviceClaims:
    return DeviceClaims((ClaimSpec((RequestSpec("r", (DeviceSpec("r", (selector,)),)),)),))


def find_out(whose: AllocatorChoice, asked: DeviceClaims) -> bool:
    whose.is_kerfs(asked, "")
    while whose.looking:
        whose.look_further()
    found = whose.is_kerfs(asked, "")
    assert found is not None
    return found


def test_an_answer_is_known_until_the_devices_change() -> None:
    rig, asked = rig_beside_others(), asking(OURS)
    whose = AllocatorChoice(rig.owned)
    assert find_out(whose, asked)
    assert not whose.looking
    rig.publish("n", 1, generation=2)
    assert whose.is_kerfs(asked, "")
    assert whose.looking


def test_an_answer_that_differs_from_the_previous_one_is_news() -> None:
    rig, ours, theirs = rig_beside_others(), asking(OURS), asking(THEIRS)
    whose = AllocatorChoice(rig.owned)
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


def test_requests_of_a_namespace_take_turns() -> None:
    rig, first, second = rig_beside_others(), asking(THEIRS, 1), asking(THEIRS, 2)
    for number in range(40):
        rig.publish(f"n{number}", 1)
    whose = AllocatorChoice(rig.owned)
    assert whose.is_kerfs(first, "") is whose.is_kerfs(second, "") is None
    while whose.is_kerfs(first, "") is None:
        assert whose.look_further(within_s=0.0) is True, "there is more to look at"
    assert whose.is_kerfs(second, "") is None
    assert whose.look_further(within_s=0.0) is False
    assert whose.is_kerfs(first, "") is whose.is_kerfs(second, "") is False


def test_a_request_that_comes_while_another_is_examined_is_next() -> None:
    rig, other = rig_beside_others(), asking(THEIRS)
    whose = AllocatorChoice(rig.owned)

    def is_ours(device: Device) -> bool:
        """In a thread, while the event loop goes on."""
        whose.is_kerfs(other, "team")
        return device.id.driver == OURS

    first = asking_by(Selector(f"slow {secrets.token_hex(4)}", is_ours, None, cost=1))  # answers are cached by its text
    whose.is_kerfs(first, "team")
    while whose.looking:
        whose.look_further(within_s=0.0)
    assert (whose.is_kerfs(first, "team"), whose.is_kerfs(other, "team")) == (True, False)
    assert not whose.looking
