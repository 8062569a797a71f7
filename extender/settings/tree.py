"""The whole tree: the sections of the kernel, and those of the parts that there are."""

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
from extender.settings.operation import LogSettings
from extender.settings.parts import Part
from extender.settings.queue import QueueSettings
from extender.settings.ranking import RankSettings
from extender.settings.section import Section
from extender.settings.server import ServerSettings
from extender.settings.telemetry import TelemetrySettings

ENV_PREFIX: Final = "KERF_"
NESTED: Final = "__"


class KernelSettings(BaseSettings):
    """What is there with no part."""

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


PARTS: Final = parts.known(KernelSettings.model_fields)
"""Those that there are."""
RENAMED: Final[Mapping[str, str]] = {old: new for part in PARTS for old, new in part.renamed.items()}
"""Settings by the dotted names that they had before, and those that they have: the old ones work for a version more."""

if TYPE_CHECKING:

    class Settings(KernelSettings):
        """The whole tree."""

else:
    Settings = create_model(
        "Settings",
        __base__=KernelSettings,
        __doc__="The whole tree.",
        **{part.name: (part.settings, part.settings()) for part in PARTS},
    )


def sections() -> list[tuple[str, type[Section]]]:
    """Those of the kernel and those of the parts, by name."""
    return [(name, type(field.default)) for name, field in Settings.model_fields.items()]


GONE: Final[Mapping[str, str]] = {
    "live": "the policy has its own weights",
    "genius": "the policy has Genius' own weights",
    **{f"{name}.{key}": holds for name, kind in sections() for key, holds in kind.GONE.items()},
}
"""What is no setting any more, by the dotted name or the section's, and what holds now: dropped for a version more."""


def alone(settings: Settings) -> Part | None:
    """The part that is all that is served, None where Kerf is."""
    return next(iter(_all_alone(settings)), None)


def _all_alone(settings: Settings) -> list[Part]:
    sections = [(part, getattr(settings, part.name)) for part in PARTS]
    return [part for part, section in sections if part.wanted(section) and part.alone(section)]


def allocates(settings: Settings) -> bool:
    """Whether a part allocates devices of DRA drivers."""
    return any(part.allocates(getattr(settings, part.name)) for part in wanted_parts(settings))


def wanted_parts(settings: Settings) -> list[Part]:
    """Those that the settings want."""
    wanted, one = [part for part in PARTS if part.wanted(getattr(settings, part.name))], alone(settings)
    return [part for part in wanted if one is None or part is one or part.beside_one_alone]


def lacking(settings: Settings) -> list[str]:
    """What parts lack that are wanted, a sentence each."""
    one = alone(settings)
    parts_on = wanted_parts(settings) if one is None else [one]  # beside it others serve a Kerf that is elsewhere
    found = [f"{part.name}: {lacks}" for part in parts_on if (lacks := part.lacks(settings))]
    names = [part.name for part in _all_alone(settings)]
    return found + [f"{' and '.join(names)}: only one part can be all that is served"] * (len(names) > 1)


def rights_of(settings: Settings) -> list[Rights]:
    """What parts that are wanted take besides the kernel."""
    parts_on = wanted_parts(settings)
    return [rights for part in parts_on for rights in part.rights if rights.wanted(getattr(settings, part.name))]
