"""Settings of the webhook part."""

import re
from enum import StrEnum
from typing import Final, Self

from pydantic import field_validator, model_validator

from extender.settings.parts import Part
from extender.settings.section import Section

_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)


class Devices(StrEnum):
    """What identifies GPUs in the containers' environment variable."""

    AUTO = "auto"
    UUIDS = "uuids"
    INDICES = "indices"


class WebhookSettings(Section):
    """Admission webhooks: `/mutate`, for pods that request GPUs only by annotation or label, and the queue's
    `/gate`."""

    GONE = {"max_body_mib": "always 4", "calls_per_s": "always 500"}

    enabled: bool = True
    """Whether Kerf serves the webhooks; if not, the API server must not be configured to call them."""
    alone: bool = False
    """Whether this process serves only webhooks, probes and metrics. It then watches only nodes, decides nothing
    whatever leader_election.mode is, and neither reads telemetry nor ranks."""
    devices: Devices = Devices.AUTO
    """What identifies GPUs to containers: `uuids`, `indices`, or `auto`: UUIDs if every known GPU has one."""
    resource: bool = True
    """Whether pods that request a number of whole GPUs get a limit of the device plugin's resource, if nodes have that
    plugin: it then counts and allocates their GPUs."""
    write_affinity: bool = False
    """Whether a pod's GPU annotations (model, memory of each, number) are also written as required node affinity on the
    labels that describe GPUs, so that autoscalers see them: see docs/guides/autoscaling.md."""
    products: list[str] = []
    """Products, as in the nodes' label, of node pools that may have no node now. Those of existing nodes are known."""

    @model_validator(mode="after")
    def _answered(self) -> Self:
        if self.alone and not self.enabled:
            raise ValueError("alone needs enabled: a process that serves only webhooks must serve them")
        return self

    @field_validator("products")
    @classmethod
    def _label_values(cls, products: list[str]) -> list[str]:
        for product in products:
            if not _LABEL_VALUE.fullmatch(product):
                raise ValueError(f"{product!r} is not a valid label value")
        return products


PART: Final = Part(
    name="webhook",
    settings=WebhookSettings,
    wanted=lambda webhook: webhook.enabled,
    module="extender.parts.webhook.part",
    alone=lambda webhook: webhook.alone,
    off=dict.fromkeys(("/mutate", "/gate"), "webhooks are off (setting webhook.enabled)"),
)
