"""Every source, by the name that `telemetry.source` has for it."""

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
"""Makers, each of addresses and how to get at them. By name: only the reading process imports what they need."""


def open_source(command: Command) -> Source:
    """The source of a command. Raises SourceError."""
    if command.kind not in SOURCES:
        raise SourceError(unknown(command.kind))
    make: Callable[[Sequence[str], Access], Source] = pkgutil.resolve_name(SOURCES[command.kind])
    return make(command.addresses, msgspec.structs.replace(command.access, bounds=command.bounds))


def unknown(name: str) -> str:
    """A sentence for whoever names a source that there is not."""
    return f"telemetry.source: no source {name!r}; use one of auto, off, {', '.join(SOURCES)}"
