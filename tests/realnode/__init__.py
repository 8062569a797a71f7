"""A real node for tests: kubelet, containerd and runc, joined to a `tests.controlplane.ControlPlane`.

See README.md. The names below are the whole interface, apart from `fixtures` (pytest).
"""

from tests.realnode.machine import lacking
from tests.realnode.node import SERVER_FLAGS, Node
from tests.realnode.plugin import Device, DevicePlugin, gpus, replicas

__all__ = ["SERVER_FLAGS", "Device", "DevicePlugin", "Node", "gpus", "lacking", "replicas"]
