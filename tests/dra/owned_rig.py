"""A ledger of nodes whose GPUs Kerf owns."""

from typing import Any

import msgspec

from extender.dra.objects import DeviceClass, ResourceSlice
from extender.ledger.ledger import Ledger
from extender.queueing.pods.objects import decode_node

OWNED = {"key": "kerf.dev/owned", "value": "kerf", "effect": "NoSchedule"}


class OwnedRig:
    """One node with some GPUs, at first."""

    def __init__(self, gpus: int = 2, node: str = "n") -> None:
        self.now = 1000.0
        self.ledger = Ledger(reservation_ttl_s=30.0, allocates=True)
        owned = self.ledger.rows.owned
        assert owned is not None
        self.owned = owned
        self.ledger.upsert_device(msgspec.convert({"metadata": {"name": "gpu", "uid": "u-class"}}, DeviceClass))
        self.publish(node, gpus)

    def publish(self, node: str, gpus: int, generation: int = 1, **facts: Any) -> None:
        """A node, and all that its driver has; `facts` are attributes of each device."""
        self.ledger.upsert_node(decode_node({"metadata": {"name": node, "uid": f"u-{node}"}}))
        devices = [{"name": f"gpu-{index}", "attributes": facts, "taints": [OWNED]} for index in range(gpus)]
        pool = {"name": node, "generation": generation, "resourceSliceCount": 1}
        spec = {"driver": "gpu.nvidia.com", "nodeName": node, "pool": pool, "devices": devices}
        self.ledger.upsert_device(
            msgspec.convert({"metadata": {"name": node, "uid": f"s-{node}"}, "spec": spec}, ResourceSlice)
        )

    def free(self, node: str = "n") -> int:
        """Devices of a node that nobody has."""
        devices = self.owned.devices_on(node)
        assert devices is not None
        return len(devices.inventory.devices) - devices.taken.bit_count()
