"""Vendors' own device plugins, and others that only use the kubelet: they choose whole GPUs by themselves.

Kerf's assignment is advisory there, and nothing is written for the plugin. Only the kubelet knows what a pod was given
(PodResources API): see `kerf._GIVEN`.
"""

from extender.kube import objects
from extender.plugins.protocol import DevicePlugin


class Native(DevicePlugin):
    """All nodes that no other plugin owns."""

    name = "native"

    def owns(self, node: objects.Node) -> bool:
        return True
