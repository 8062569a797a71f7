"""The whole tree: the sections of the kernel, and those of the parts that there are."""

from typing import TYPE_CHECKING, Final

from pydantic import create_model
from pydantic_settings import BaseSettings, SettingsConfigDict

from extender.settings import parts
from extender.settings.access import AccessSettings
from extender.settings.cluster import ClusterSettings
from extender.settings.decisions import DecisionSettings, ModelSettings, SetAsideSettings
from extender.settings.leader_election import LeaderElectionSettings
from extender.settings.operation import LogSettings, UsageSettings
from extender.settings.policies import GeniusSettings, LiveSettings
from extender.settings.queue import DefragSettings, DraSettings, QueueSettings
from extender.settings.ranking import RankSettings
from extender.settings.server import ServerSettings
from extender.settings.telemetry import TelemetrySettings
from extender.settings.webhook import WebhookSettings

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
    set_aside: SetAsideSettings = SetAsideSettings()
    leader_election: LeaderElectionSettings = LeaderElectionSettings()
    webhook: WebhookSettings = WebhookSettings()
    models: ModelSettings = ModelSettings()
    model: RankSettings = RankSettings()
    queue: QueueSettings = QueueSettings()
    usage: UsageSettings = UsageSettings()
    dra: DraSettings = DraSettings()
    defrag: DefragSettings = DefragSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    live: LiveSettings = LiveSettings()
    genius: GeniusSettings = GeniusSettings()
    log: LogSettings = LogSettings()


PARTS: Final = parts.known(KernelSettings.model_fields)
"""Those that there are."""

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
