"""Logs and Events."""

from pydantic import Field

from extender.settings.section import Section


class LogSettings(Section):
    """Logging."""

    level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    """`debug`, `info`, `warning` or `error`."""
    format: str = Field(default="text", pattern="^(text|json)$")
    """`text` or `json`."""


class EventSettings(Section):
    """Kubernetes Events."""

    placements: bool = True
    """Write an Event `GPUsAssigned` for each placed pod. It repeats the pod's annotations, and costs the API server as
    much as a Binding."""
