"""What the webhooks do, and whether they are all that a process serves."""

import re
from enum import StrEnum
from typing import Final, Self

from pydantic import field_validator, model_validator

from extender.settings.parts import Part
from extender.settings.section import Section

_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)


class Devices(StrEnum):
    """What the environment variable that shows containers their GPUs is made of."""

    AUTO = "auto"
    UUIDS = "uuids"
    INDICES = "indices"


class WebhookSettings(Section):
    """Admission webhooks: `/mutate`, for pods that request GPUs only by annotation or label, and the queue's
    `/gate`."""

    GONE = {"max_body_mib": "always 4", "calls_per_s": "always 500"}

    enabled: bool = True
    """Whether they are answered; where they are not, the API server must not be told to ask."""
    alone: bool = False
    """Whether webhooks are all that this process serves, besides probes and metrics: it then watches nodes and nothing
    else, decides nothing whatever leader_election.mode says, and neither reads telemetry nor ranks."""
    devices: Devices = Devices.AUTO
    """What identifies GPUs to containers: `uuids`, `indices`, or `auto`: UUIDs if every known GPU has one."""
    resource: bool = True
    """Whether pods that ask for a number of whole GPUs are made to request the device plugin's resource, where nodes
    have that plugin: it then counts them, and gives them their GPUs."""
    write_affinity: bool = False
    """Whether what a pod asks by annotation (GPU model, memory of each, number) is written as required node affinity
    for the labels that describe GPUs, so that autoscalers know it: see docs/guides/autoscaling.md."""
    products: list[str] = []
    """Products, as the nodes' label names them, of node pools that may have no node now. Those of the cluster's nodes
    are known."""

    @model_validator(mode="after")
    def _answered(self) -> Self:
        if self.alone and not self.enabled:
            raise ValueError("a process that serves webhooks alone has to answer them: set webhook.enabled")
        return self

    @field_validator("products")
    @classmethod
    def _label_values(cls, products: list[str]) -> list[str]:
        for product in products:
            if not _LABEL_VALUE.fullmatch(product):
                raise ValueError(f"{product!r} is no value of a label")
        return products


PART: Final = Part(
    name="webhook",
    settings=WebhookSettings,
    wanted=lambda webhook: webhook.enabled,
    module="extender.parts.webhook.part",
    alone=lambda webhook: webhook.alone,
    off=dict.fromkeys(("/mutate", "/gate"), "webhooks are off (setting webhook.enabled)"),
)
