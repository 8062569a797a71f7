"""The whole tree."""

from typing import Final

from pydantic_settings import BaseSettings, SettingsConfigDict

from extender.settings.access import AccessSettings
from extender.settings.cluster import ClusterSettings
from extender.settings.decisions import DecisionSettings, ModelSettings, SetAsideSettings
from extender.settings.leader_election import LeaderElectionSettings
from extender.settings.operation import HistorySettings, LogSettings, MissingSettings, TraceSettings, UsageSettings
from extender.settings.policies import GeniusSettings, LiveSettings
from extender.settings.queue import DefragSettings, DraSettings, QueueSettings
from extender.settings.ranking import RankSettings
from extender.settings.server import CertificateSettings, ServerSettings
from extender.settings.telemetry import TelemetrySettings
from extender.settings.webhook import WebhookSettings

ENV_PREFIX: Final = "KERF_"
NESTED: Final = "__"


class Settings(BaseSettings):
    """The whole tree."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter=NESTED, frozen=True, extra="forbid", env_ignore_empty=True
    )

    server: ServerSettings = ServerSettings()
    certificates: CertificateSettings = CertificateSettings()
    access: AccessSettings = AccessSettings()
    cluster: ClusterSettings = ClusterSettings()
    decisions: DecisionSettings = DecisionSettings()
    set_aside: SetAsideSettings = SetAsideSettings()
    leader_election: LeaderElectionSettings = LeaderElectionSettings()
    webhook: WebhookSettings = WebhookSettings()
    models: ModelSettings = ModelSettings()
    model: RankSettings = RankSettings()
    history: HistorySettings = HistorySettings()
    queue: QueueSettings = QueueSettings()
    missing: MissingSettings = MissingSettings()
    usage: UsageSettings = UsageSettings()
    dra: DraSettings = DraSettings()
    defrag: DefragSettings = DefragSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    live: LiveSettings = LiveSettings()
    genius: GeniusSettings = GeniusSettings()
    traces: TraceSettings = TraceSettings()
    log: LogSettings = LogSettings()
