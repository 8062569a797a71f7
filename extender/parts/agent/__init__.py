"""The node agent: tells which GPUs the kubelet really gave, and leads the vendor's plugin to those that Kerf chose:
docs/parts/agent.md."""

from typing import Final

from extender.core.faces import Command, Face

FACE: Final = Face(
    commands={
        "node-agent": Command(
            "Run on each GPU node: tell which GPUs the kubelet gave, and lead the device plugin to Kerf's.",
            module=f"{__name__}.command",
        )
    }
)
