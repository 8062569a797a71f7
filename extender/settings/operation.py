"""Logs."""

from pydantic import Field

from extender.settings.section import Section


class LogSettings(Section):
    """Logging."""

    level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    """`debug`, `info`, `warning` or `error`."""
    format: str = Field(default="text", pattern="^(text|json)$")
    """`text` or `json`."""
