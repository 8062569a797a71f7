"""All sources by their name in `telemetry.source`."""

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from extender.telemetry.errors import SourceError
from extender.telemetry.sources.source import EXPORTERS, PROMETHEUS, Access, Command, Source

SOURCES: Final[Mapping[str, str]] = {
    PROMETHEUS: "extender.telemetry.sources.prometheus:Candidates",
    EXPORTERS: "extender.telemetry.sources.exporters:ExporterSource",
}
"""Constructors by import path, so that only the reader process imports them."""


def open_source(command: Command) -> Source:
    """Open a command's source. Raises SourceError."""
    if command.kind not in SOURCES:
        raise SourceError(unknown(command.kind))
    make: Callable[[Sequence[str], Access], Source] = pkgutil.resolve_name(SOURCES[command.kind])
    return make(command.addresses, msgspec.structs.replace(command.access, bounds=command.bounds))


def unknown(name: str) -> str:
    """The error message for an unknown source."""
    return f"telemetry.source: no source {name!r}; use one of auto, off, {', '.join(SOURCES)}"
