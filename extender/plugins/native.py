"""A vendor's own device plugin, and whatever else offers GPUs by the kubelet alone: it picks whole GPUs by itself.

So what Kerf assigns is advice there, and the plugin need not be told. What a pod was really given is known only to the
kubelet (its PodResources API): see `kerf.GIVEN`.
"""

from extender.kube import objects
from extender.plugins.protocol import DevicePlugin


class Native(DevicePlugin):
    """Every node that belongs to no other plugin."""

    name = "native"

    def owns(self, node: objects.Node) -> bool:
        return True
