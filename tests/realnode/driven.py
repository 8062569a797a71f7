"""A node with a DRA driver and claims on it, in the words that tests of devices think in."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.controlplane.api import Object
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import wait_until
from tests.realnode.claims import CLASSES, Claims, claim, claiming, seen_by
from tests.realnode.dra import DeviceKey, DraDriver, Slices
from tests.realnode.node import WITHIN_S, Node


@dataclass
class Driven:
    """A node with a DRA driver, and claims that the test allocates."""

    node: Node
    driver: DraDriver
    claims: Claims

    def submit(self, name: str, *requests: Object, **spec: Any) -> None:
        """Create a gated pod with a claim of its name."""
        self.claims.create(claim(name, *requests), claiming(name, [name], **spec))

    def give(self, name: str, *devices: DeviceKey, request: str = "gpus") -> None:
        """Allocate the claim of a pod's name, and open the pod's gate."""
        self.claims.allocate(name, self.node.name, {request: [device for _, device in devices]})
        self.claims.open(name, self.node.name)

    def seen(self, name: str, container: str = "main") -> set[DeviceKey]:
        """The devices that a pod's container has; their UUIDs are those that are published."""
        devices = seen_by(self.node.environments(name)[container])
        found = {(self.node.name, device): uuid for device, uuid in devices.items()}
        assert found == {key: self.driver.devices[key]["attributes"]["uuid"]["string"] for key in found}
        return set(found)

    def freed(self, *names: str) -> None:
        """Wait until claims are free on the API server and on the node."""
        wait_until(lambda: not any(map(self.claims.allocated, names)), WITHIN_S, f"{names} are free")
        keys = {f"default/{name}" for name in names}
        wait_until(lambda: not keys & set(self.driver.prepared()), WITHIN_S, f"{names} are unprepared")


Drive = Callable[[Slices], Driven]
"""Starts a driver that publishes these."""


@contextlib.contextmanager
def controllers(plane: ControlPlane) -> Iterator[None]:
    """NVIDIA's device classes, and the controllers that make claims of templates, free them and remove them."""
    plane.apply(*CLASSES)
    plane.start_controller_manager("resourceclaim-controller", "garbage-collector-controller")
    yield
    plane.kill("controller-manager")
