"""The webhooks."""

from enum import StrEnum

from pydantic import Field

from extender.settings.section import Section


class Devices(StrEnum):
    """What `NVIDIA_VISIBLE_DEVICES` is made of."""

    AUTO = "auto"
    UUIDS = "uuids"
    INDICES = "indices"


class WebhookSettings(Section):
    """Admission webhooks: `/mutate`, for pods that request GPUs only by annotation or label, and the queue's
    `/gate`."""

    alone: bool = False
    """Whether webhooks are all that this process serves, besides probes and metrics: it then watches nodes and nothing
    else, decides nothing whatever leader_election.mode says, and neither reads telemetry nor ranks."""
    devices: Devices = Devices.AUTO
    """What identifies GPUs to containers: `uuids`, `indices`, or `auto`: UUIDs if every known GPU has one."""
    resource: bool = True
    """Whether pods that ask for a number of whole GPUs are made to request `nvidia.com/gpu`, where nodes have NVIDIA's
    device plugin: it then counts them, and gives them their GPUs."""
    max_body_mib: int = Field(default=4, ge=1)
    """Larger request bodies are rejected, in MiB. The API server accepts pods of up to 3 MiB."""
    calls_per_s: float = Field(default=500.0, ge=0)
    """Requests per second from one address, with bursts of four times as many; 0: no limit."""
