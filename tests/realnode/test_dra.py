"""A DRA driver on a real node: containers have the devices that are written in their claims, and no others.

The tests allocate as Kerf does: finalizer, allocation, nomination, gate.
"""

import functools
import random
import time
from collections.abc import Callable, Iterator

import pytest

from tests.controlplane import ControlPlane, wait_until
from tests.e2e.test_direct import PLAIN
from tests.realnode.claims import claim, claiming, request, template
from tests.realnode.dra import DeviceKey, partitioned, room, taken, whole
from tests.realnode.driven import Drive, Driven, controllers
from tests.realnode.node import WITHIN_S

pytestmark = [pytest.mark.controlplane, pytest.mark.e2e]

NUM_PODS = 20
WIPED_WITHIN_S = 60.0
"""A kubelet removes the slices of a driver that has been away for 30 s."""


@pytest.fixture(scope="module", autouse=True)
def scheduler(node_plane: ControlPlane) -> Iterator[None]:
    """kube-scheduler, and the controllers that make, free and remove claims."""
    with controllers(node_plane):
        started = node_plane.start_scheduler(PLAIN, name="scheduler-dra")
        yield
        started.stop()


@pytest.fixture
def driven(drive: Drive) -> Driven:
    """With 32 whole GPUs that kube-scheduler may not give away."""
    return drive([{"devices": whole(32)}])


def test_one_after_the_other_they_have_what_is_written(driven: Driven) -> None:
    rng = random.Random(1)
    for number in range(NUM_PODS):
        (chosen,) = rng.sample(sorted(driven.driver.devices), 1)
        driven.submit(f"p{number}")
        driven.give(f"p{number}", chosen)
        assert driven.seen(f"p{number}") == {chosen} == driven.claims.allocated(f"p{number}")
        driven.claims.end(f"p{number}")
    driven.freed(*(f"p{number}" for number in range(NUM_PODS)))


def test_all_at_once_they_have_what_is_written(driven: Driven) -> None:
    rng = random.Random(2)
    free = sorted(driven.driver.devices)
    rng.shuffle(free)
    chosen = {f"p{number}": [free.pop() for _ in range(rng.choice([1, 1, 2]))] for number in range(NUM_PODS)}
    for name, devices in chosen.items():
        driven.submit(name, request(count=len(devices)))
    for name, devices in chosen.items():
        driven.give(name, *devices)
    assert {name: driven.seen(name) for name in chosen} == {name: set(devices) for name, devices in chosen.items()}
    assert driven.driver.prepared() == {f"default/{name}": set(devices) for name, devices in chosen.items()}


def test_claims_of_templates_and_containers_with_requests_of_their_own(driven: Driven) -> None:
    first, second, third = sorted(driven.driver.devices)[5:8]
    pod = claiming("p", ["own"], ["made"])
    (main,) = pod["spec"]["containers"]
    by_request = [{"name": "template-made", "request": "left"}, {"name": "claim-own"}]
    other = main | {"name": "other", "resources": {"claims": [{"name": "template-made", "request": "right"}]}}
    pod["spec"]["containers"] = [main | {"resources": {"claims": by_request}}, other]
    driven.claims.create(template("made", request("left"), request("right")), claim("own"), pod)
    own, made = driven.claims.of_pod("p")  # made while the pod is gated
    driven.claims.allocate(made, driven.node.name, {"left": [third[1]], "right": [first[1]]})
    driven.claims.allocate(own, driven.node.name, {"gpus": [second[1]]})
    driven.claims.open("p", driven.node.name)
    assert driven.seen("p") == {third, second}
    assert driven.seen("p", "other") == {first}
    driven.claims.end("p")
    driven.freed(own)
    wait_until(lambda: driven.claims.get(made) is None, WITHIN_S, "the pod's claim goes with it")


def test_partitions_of_mixed_sizes_are_those_that_are_written(drive: Drive) -> None:
    """Waves on four GPUs, each as full as it gets in an order by chance; half of each wave ends before the next."""
    driven = drive(partitioned(4))
    rng, limit = random.Random(3), room(driven.driver.slices)
    devices, has = driven.driver.devices, dict[str, DeviceKey]()
    for wave in range(3):
        for key in rng.sample(sorted(devices), len(devices)):
            used = taken([devices[held] for held in (*has.values(), key)])
            if all(used[counter] <= limit[counter] for counter in used):
                name = f"w{wave}-{len(has)}-{key[1]}"
                profile = devices[key]["attributes"].get("profile", {"string": ""})["string"]
                driven.submit(name, request(profile=profile))
                driven.give(name, key)
                has[name] = key
        assert len(has) >= 8
        assert {name: driven.seen(name) for name in has} == {name: {key} for name, key in has.items()}
        ending = rng.sample(sorted(has), len(has) // 2)
        for name in ending:
            driven.claims.end(name)
            del has[name]
        driven.freed(*ending)


def kill_kubelet(driven: Driven) -> None:
    driven.node.restart_kubelet(kill=True)


def kill_driver(driven: Driven) -> None:
    driven.driver.kill()
    driven.driver.start()


@pytest.mark.parametrize("kill", [kill_kubelet, kill_driver])
@pytest.mark.parametrize("call", ["", "NodePrepareResources", "NodeUnprepareResources"])
def test_whoever_is_killed_running_pods_keep_theirs_and_new_ones_get_what_is_written(
    driven: Driven, kill: Callable[[Driven], None], call: str
) -> None:
    """At rest, while a claim is prepared, or while one is unprepared."""
    kept, midst, new = sorted(driven.driver.devices)[10:13]
    for name in ("old", "ends", "midst", "new"):
        driven.submit(name)
    driven.give("old", kept)
    driven.give("ends", midst)
    assert (driven.seen("old"), driven.seen("ends")) == ({kept}, {midst})
    num_registered = driven.driver.num_registered
    if call == "NodeUnprepareResources":
        with driven.driver.held(call) as waits:
            driven.claims.delete_pod("ends")
            wait_until(waits, WITHIN_S, "a claim is being unprepared")
            kill(driven)
    elif call:
        driven.claims.end("ends")
        driven.freed("ends")
        with driven.driver.held(call) as waits:
            driven.give("midst", midst)
            wait_until(waits, WITHIN_S, "a claim is being prepared")
            kill(driven)
    else:
        kill(driven)
    driven.driver.wait_registered(num_registered)
    if not call:
        driven.driver.wait_published()  # a kubelet that starts removes the slices: they are back after half a minute
    if call != "NodePrepareResources":
        driven.claims.end("ends")
        driven.freed("ends")
        driven.give("midst", midst)
    driven.give("new", new)
    assert (driven.seen("midst"), driven.seen("new"), driven.seen("old")) == ({midst}, {new}, {kept})
    expected = {"default/old": {kept}, "default/midst": {midst}, "default/new": {new}}
    assert driven.driver.prepared() == expected


def is_free(driven: Driven, name: str) -> bool:
    return not driven.claims.allocated(name)


def test_a_pod_that_has_run_frees_its_device_though_it_stays(driven: Driven) -> None:
    """Twice on one device: the claim is free when the API server has the pod's end, which the node may not yet be."""
    (device,) = random.Random(4).sample(sorted(driven.driver.devices), 1)
    for name in ("first", "second"):
        driven.submit(name, restartPolicy="Never", args=["-after=100ms"])
        driven.give(name, device)
        assert driven.seen(name) == {device}
        wait_until(functools.partial(is_free, driven, name), WITHIN_S, "its claim is free")
        assert driven.claims.pod(name)["status"]["phase"] == "Succeeded"
    driven.freed("first", "second")


def test_a_device_that_is_written_twice_is_given_once(driven: Driven) -> None:
    """The API server and kube-scheduler take both; the node is where it ends."""
    (device,) = random.Random(5).sample(sorted(driven.driver.devices), 1)
    for name in ("first", "second"):
        driven.submit(name)
    driven.give("first", device)
    assert driven.seen("first") == {device}
    driven.give("second", device)
    reason = "FailedPrepareDynamicResources"
    wait_until(lambda: driven.claims.events("second", reason), WITHIN_S, "it is refused")
    assert f"device {device[1]}" in driven.claims.events("second", reason)[0]
    assert driven.claims.pod("second")["status"]["phase"] == "Pending"
    assert driven.driver.prepared() == {"default/first": {device}}
    driven.claims.end("first")
    assert driven.seen("second") == {device}


@pytest.mark.slow
def test_a_driver_that_stays_away_takes_its_slices_and_no_running_pods_devices(driven: Driven) -> None:
    kept, new = sorted(driven.driver.devices)[20:22]
    driven.submit("old")
    driven.submit("new")
    driven.give("old", kept)
    assert driven.seen("old") == {kept}
    num_registered, began = driven.driver.num_registered, time.monotonic()
    driven.driver.kill()
    wait_until(lambda: not driven.driver.published(), WIPED_WITHIN_S, "the kubelet has removed its slices")
    assert time.monotonic() - began >= 25.0
    assert driven.claims.allocated("old") == {kept}
    driven.give("new", new)  # kube-scheduler does not look for the slice again
    assert driven.claims.pod("new")["status"]["phase"] == "Pending"
    driven.driver.start()
    driven.driver.wait_registered(num_registered)
    driven.driver.wait_published()
    assert (driven.seen("new"), driven.seen("old")) == ({new}, {kept})
