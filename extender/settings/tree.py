"""The tree of settings: sections of the kernel and of the parts."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from pydantic import create_model
from pydantic_settings import BaseSettings, SettingsConfigDict

from extender.kube.rights import Rights
from extender.settings import parts
from extender.settings.access import AccessSettings
from extender.settings.cluster import ClusterSettings
from extender.settings.decisions import DecisionSettings, ModelSettings
from extender.settings.leader_election import LeaderElectionSettings
from extender.settings.operation import EventSettings, LogSettings
from extender.settings.parts import Part
from extender.settings.queue import QueueSettings
from extender.settings.ranking import RankSettings
from extender.settings.section import Section
from extender.settings.server import ServerSettings
from extender.settings.telemetry import TelemetrySettings

ENV_PREFIX: Final = "KERF_"
NESTED: Final = "__"


class KernelSettings(BaseSettings):
    """The sections of the kernel."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter=NESTED, frozen=True, extra="forbid", env_ignore_empty=True
    )

    server: ServerSettings = ServerSettings()
    access: AccessSettings = AccessSettings()
    cluster: ClusterSettings = ClusterSettings()
    decisions: DecisionSettings = DecisionSettings()
    leader_election: LeaderElectionSettings = LeaderElectionSettings()
    models: ModelSettings = ModelSettings()
    model: RankSettings = RankSettings()
    queue: QueueSettings = QueueSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    log: LogSettings = LogSettings()
    events: EventSettings = EventSettings()


PARTS: Final = parts.known(KernelSettings.model_fields)
"""All parts, whether enabled or not."""
RENAMED: Final[Mapping[str, str]] = {old: new for part in PARTS for old, new in part.renamed.items()}
"""New dotted names of renamed settings by their old ones, which work for one more version."""

if TYPE_CHECKING:

    class Settings(KernelSettings):
        """All settings."""

else:
    Settings = create_model(
        "Settings",
        __base__=KernelSettings,
        __doc__="All settings.",
        **{part.name: (part.settings, part.settings()) for part in PARTS},
    )


def sections() -> list[tuple[str, type[Section]]]:
    """Return the sections of the kernel and of the parts, by name."""
    return [(name, type(field.default)) for name, field in Settings.model_fields.items()]


GONE: Final[Mapping[str, str]] = {
    "live": "the policy has its own weights",
    "genius": "the policy has Genius' own weights",
    **{f"{name}.{key}": holds for name, kind in sections() for key, holds in kind.GONE.items()},
}
"""Removed settings by dotted name or section, and what applies instead; ignored for one more version."""


def alone(settings: Settings) -> Part | None:
    """Return the part that is served alone, or None."""
    return next(iter(_all_alone(settings)), None)


def _all_alone(settings: Settings) -> list[Part]:
    sections = [(part, getattr(settings, part.name)) for part in PARTS]
    return [part for part, section in sections if part.wanted(section) and part.alone(section)]


def allocates(settings: Settings) -> bool:
    """Whether an enabled part allocates devices of DRA drivers."""
    return any(part.allocates(getattr(settings, part.name)) for part in wanted_parts(settings))


def wanted_parts(settings: Settings) -> list[Part]:
    """Return the enabled parts."""
    wanted, one = [part for part in PARTS if part.wanted(getattr(settings, part.name))], alone(settings)
    return [part for part in wanted if one is None or part is one or part.beside_one_alone]


def lacking(settings: Settings) -> list[str]:
    """Return a sentence for each unmet requirement of an enabled part."""
    one = alone(settings)
    parts_on = wanted_parts(settings) if one is None else [one]  # the others serve a Kerf elsewhere
    faults = [f"{part.name}: {fault}" for part in parts_on if (fault := part.lacks(settings))]
    names = [part.name for part in _all_alone(settings)]
    return faults + [f"{' and '.join(names)}: only one part can be served alone"] * (len(names) > 1)


def rights_of(settings: Settings) -> list[Rights]:
    """Return the rights of enabled parts, beyond those of the kernel."""
    parts_on = wanted_parts(settings)
    return [rights for part in parts_on for rights in part.rights if rights.wanted(getattr(settings, part.name))]
