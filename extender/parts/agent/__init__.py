"""The node agent: reports which GPUs the kubelet allocated, and makes the device plugin prefer those that Kerf chose:
docs/parts/agent.md."""

from typing import Final

from extender.core.faces import Command, Face

FACE: Final = Face(
    commands={
        "node-agent": Command(
            "Run on each GPU node: report the GPUs that the kubelet allocated, and steer it to Kerf's choice.",
            module=f"{__name__}.command",
        )
    }
)
