"""A DRA driver on a real node: containers have the devices that are written in their claims, and no others."""

import random
from collections.abc import Iterator

import pytest

from tests.controlplane import ControlPlane, wait_until
from tests.e2e.test_direct import PLAIN
from tests.realnode import Node
from tests.realnode.claims import CLASSES, Claims, claim, claiming, request, seen_by, template
from tests.realnode.dra import DeviceKey, DraDriver, dra_driver, partitioned, whole
from tests.realnode.node import WITHIN_S

pytestmark = [pytest.mark.controlplane, pytest.mark.e2e]

NUM_PODS = 20


@pytest.fixture(scope="module")
def plane(node_plane: ControlPlane) -> Iterator[ControlPlane]:
    """With kube-scheduler and the controllers that make, free and remove claims."""
    node_plane.apply(*CLASSES)
    scheduler = node_plane.start_scheduler(PLAIN, name="scheduler-dra")
    node_plane.start_controller_manager("resourceclaim-controller", "garbage-collector-controller")
    yield node_plane
    node_plane.kill("controller-manager")
    scheduler.stop()


@pytest.fixture
def claims(plane: ControlPlane) -> Iterator[Claims]:
    found = Claims(plane)
    yield found
    found.clean()


@pytest.fixture
def driver(plane: ControlPlane, node: Node, claims: Claims) -> Iterator[DraDriver]:
    """Of 32 whole GPUs that kube-scheduler may not give away."""
    with dra_driver(plane, node, [{"devices": whole(32)}]) as found:
        yield found
        claims.clean()


def seen(node: Node, driver: DraDriver, name: str) -> set[DeviceKey]:
    """The devices that a pod's container has; their UUIDs are those that are published."""
    devices = seen_by(node.environments(name)["main"])
    found = {(node.name, device): uuid for device, uuid in devices.items()}
    assert found == {key: driver.devices[key]["attributes"]["uuid"]["string"] for key in found}
    return set(found)


def test_one_after_the_other_containers_have_what_is_written(node: Node, driver: DraDriver, claims: Claims) -> None:
    rng = random.Random(1)
    for number in range(NUM_PODS):
        name, (chosen,) = f"p{number}", rng.sample(sorted(driver.devices), 1)
        claims.create(claim(name), claiming(name, [name]))
        claims.allocate(name, node.name, {"gpus": [chosen[1]]})
        claims.open(name, node.name)
        assert seen(node, driver, name) == {chosen} == claims.allocated(name)
        claims.end(name)
        wait_until(lambda name=name: not claims.allocated(name), WITHIN_S, "the claim is free")
        assert driver.prepared() == {}
