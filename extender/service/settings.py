"""Settings: one frozen tree from flags, environment and file, in that order of precedence.

Environment variables are `KERF_` + section + `__` + name, as in `KERF_SERVER__PORT=9000`. All faults are reported at
once, each with the place and what would be right.
"""

import os
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any, Final, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import BaseSettings, EnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from extender.cluster.yaml_faults import yaml_fault
from extender.core.occupancies import HARDWARE_XIDS
from extender.core.orders import HELD_MOST_S, Order
from extender.core.policies import AUTO, POLICIES
from extender.queueing.planners import PLANNERS
from extender.service.admissions import Devices
from extender.service.certificates import CertificateFiles
from extender.service.verbs import Mode

ENV_PREFIX: Final = "KERF_"
_NESTED: Final = "__"


class SettingsError(ValueError):
    """Settings that can't be used; `faults` has one sentence for each."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


class _Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)


class ServerSettings(_Section):
    """Where Kerf listens."""

    host: str = "127.0.0.1"
    """Address to listen on. Loopback by default: whoever reaches /bind can bind pods."""
    port: int = Field(default=8888, ge=0, le=65535)
    """Port; 0 picks a free one."""
    keep_alive_s: int = Field(default=120, ge=1)
    """Idle connections are kept longer than kube-scheduler's 90 s: it does not repeat a POST on a closed one."""
    drain_s: float = Field(default=1.0, ge=0)
    """On SIGTERM /readyz fails for so long before connections close."""
    max_body_mib: int = Field(default=64, ge=1)
    """Larger request bodies are refused."""
    request_s: float = Field(default=10.0, gt=0)
    """A connection is closed whose TLS handshake, or whose request with its body, has not come in whole for so long."""
    max_connections: int = Field(default=1024, ge=2)
    """Connections open at the same time. Beyond them one that waits for a request makes room for the new one: of the
    address that has most, those on which kube-scheduler's verbs were called last, and none with a certificate."""
    max_connections_each: int = Field(default=256, ge=1)
    """The same of one address."""
    tls_cert_file: Path | None = None
    """Certificate (PEM, with its chain) to serve HTTPS with. Files that change are taken over for new connections."""
    tls_key_file: Path | None = None
    """Its key."""
    tls_client_ca_file: Path | None = None
    """CA of the clients: kube-scheduler's verbs are refused without a certificate from it, probes and metrics not."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file go together")
        if self.tls_client_ca_file is not None and self.tls_cert_file is None:
            raise ValueError("tls_client_ca_file needs tls_cert_file and tls_key_file")
        return self

    @property
    def certificate_files(self) -> CertificateFiles | None:
        """The files for HTTPS, None for HTTP."""
        if self.tls_cert_file is None or self.tls_key_file is None:
            return None
        return CertificateFiles(self.tls_cert_file, self.tls_key_file, self.tls_client_ca_file)


class OpenTo(StrEnum):
    """For whom something is open without token or certificate."""

    LOOPBACK = "loopback"
    ALL = "all"


class AccessSettings(_Section):
    """Who may read: the page and the API that people call, and how much. Not the verbs, not probes: docs/access.md."""

    open_to: OpenTo = OpenTo.LOOPBACK
    """`loopback`: clients on loopback, those with a token, those with a certificate of `server.tls_client_ca_file`.
    `all`: whoever reaches the port."""
    metrics: OpenTo = OpenTo.ALL
    """The same for /metrics: numbers of the whole cluster, without names of pods or nodes."""
    token_file: Path | None = None
    """File of tokens, one a line, of 16 characters or more; read again when it changes."""
    hosts: list[str] = []
    """Names, besides localhost and addresses, by which browsers on loopback may call Kerf: those of a proxy there."""
    calls_per_s: float = Field(default=50.0, ge=0)
    """Calls a second of one client, by token or address; 0: as many as it likes."""
    burst: int = Field(default=200, ge=1)
    """Calls that a client may make at once after a rest."""
    calls_at_once: int = Field(default=32, ge=1)
    """Calls of one client under way at the same time, streams among them."""
    max_body_mib: int = Field(default=16, ge=1)
    """Larger questions are refused."""
    what_if_s: float = Field(default=60.0, gt=0)
    """An answer to what-if that takes longer is given up; one is worked out at a time, in a process of its own."""


class ClusterSettings(_Section):
    """The API server."""

    kubeconfig: str = ""
    """Path; empty means the pod's service account, else KUBECONFIG or ~/.kube/config."""
    context: str = ""
    """kubeconfig context, empty for the current one."""
    service_account_dir: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    """Where a pod finds its service account's token and CA."""
    request_timeout_s: float = Field(default=10.0, gt=0)
    """Time-out of one request."""
    page_size: int = Field(default=500, ge=1)
    """Objects per page of a list."""
    max_age_s: float = Field(default=120.0, gt=0)
    """Nothing is decided from a mirror of the cluster of which the API server has said nothing for longer than this."""


class TypicalPodSettings(_Section):
    """A class of pods that is expected: `{cpu_milli: 8000, gpus: 1, gpu_milli: 500, count: 120}`."""

    cpu_milli: int = Field(ge=0)
    """CPU of a pod."""
    gpus: int = Field(ge=0, le=64)
    """GPUs of a pod."""
    gpu_milli: int = Field(default=1000, ge=1, le=1000)
    """Of each GPU; less than 1000 is a share."""
    memory_mib: int = Field(default=0, ge=0)
    """Main memory of a pod; 0: not known."""
    count: int = Field(ge=1)
    """How many of them there are, beside the other classes."""
    models: list[str] = Field(default_factory=list)
    """Products that will do; empty for any."""


class DecisionSettings(_Section):
    """How pods are placed."""

    mode: Mode = Mode.DECISIVE
    """`decisive`: filter returns the best node. `scores`: filter returns all that fit, prioritize ranks them."""
    policy: str = AUTO
    """The ranking, where the pod does not choose one by `kerf.dev/policy`; `auto` is `kerf` where a model is
    served to all pods (`model.mode`), as by default, else `bestfit`."""
    near_best_nodes: int = Field(default=16, ge=1)
    """In decisive mode, how many nodes a pod with soft preferences of its own is offered."""
    reservation_ttl_s: float = Field(default=30.0, gt=0)
    """How long GPUs are held between the decision and the binding."""
    skip_s: float = Field(default=0.0, ge=0)
    """A pod is left pending for so long at most rather than take the last place of a larger one that waits; 0: no."""
    max_skips: int = Field(default=20, ge=1)
    """And at most so many times."""
    explain_after_s: float = Field(default=60.0, ge=0)
    """A pod that has been pending for so long is told why by annotation `kerf.dev/explanation`; 0: never."""
    memory_tolerance_frac: float = Field(default=0.02, ge=0, le=0.1)
    """A card that reports up to this fraction less than a whole GiB counts as that size: 40536 MiB is 40 GiB."""

    typical_pods: list[TypicalPodSettings] = Field(default_factory=list)
    """The pods that policy `fgd` expects, and `kerf` until it has seen others, most of them by count; empty: those of a
    public production trace."""

    @field_validator("policy")
    @classmethod
    def _known_policy(cls, name: str) -> str:
        if name not in POLICIES:
            raise ValueError(f"no policy of that name; write one of {', '.join(POLICIES)}")
        return name


class ElectionMode(StrEnum):
    """How it is settled which of several replicas decides."""

    OFF = "off"
    OWN = "own"
    SCHEDULER = "scheduler"
    NEVER = "never"


class LeaderElectionSettings(_Section):
    """Several replicas, of which one decides: see docs/high-availability.md."""

    mode: ElectionMode = ElectionMode.OFF
    """`off`: this is the only replica. `own`: replicas behind a Service elect their leader by a Lease of their own.
    `scheduler`: a sidecar decides exactly while the kube-scheduler beside it holds the scheduler's Lease.
    `never`: decides and writes nothing, as a process that serves the webhook alone."""
    namespace: str = Field(default="kube-system", pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
    """Namespace of the Lease."""
    lease: str = Field(default="", pattern=r"^([a-z0-9]([-a-z0-9.]{0,55}[a-z0-9])?)?$")
    """Name of the Lease, at most 57 characters; empty means `kerf` in mode own, `kube-scheduler` in mode scheduler."""
    identity: str = ""
    """In mode own, what the Lease names as its holder, followed by "_" and a random part. In mode scheduler, the holder
    that counts as the kube-scheduler beside Kerf: this text, alone or followed by "_" and more. Empty means the host's
    name, which containers of one pod have in common and kube-scheduler puts first."""
    duration_s: int = Field(default=2, ge=1)
    """Mode own: another replica takes over when it has seen no renewal for so long."""
    renew_deadline_s: float = Field(default=1.5, gt=0)
    """Mode own: the leader stops deciding so long after its last renewal; less than duration_s. Time-out of a call."""
    retry_s: float = Field(default=0.5, gt=0)
    """Time between two looks at the Lease, or renewals of it; less than renew_deadline_s."""

    @field_validator("mode", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return ElectionMode.OFF if value is False else value  # YAML reads a bare `off` as false

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if not self.retry_s < self.renew_deadline_s < self.duration_s:
            raise ValueError("retry_s has to be less than renew_deadline_s, and that less than duration_s")
        return self

    @property
    def lease_name(self) -> str:
        """The Lease's name with the default filled in, "" in a mode that has none."""
        defaults = {ElectionMode.OWN: "kerf", ElectionMode.SCHEDULER: "kube-scheduler"}
        return (self.lease or defaults[self.mode]) if self.mode in defaults else ""


class WebhookSettings(_Section):
    """The webhooks: `/mutate`, for pods that ask for GPUs by annotation or label alone, and `/gate` of the queue."""

    devices: Devices = Devices.AUTO
    """What containers are told: `uuids`, `indices`, or `auto`: UUIDs as long as every GPU known has one."""
    max_body_mib: int = Field(default=4, ge=1)
    """Larger bodies are refused: the API server takes pods of 3 MiB at most."""
    calls_per_s: float = Field(default=500.0, ge=0)
    """Calls a second of one client address, beyond a burst of four times as many; 0: as many as it likes."""


class ModelSettings(_Section):
    """GPU models."""

    aliases: dict[str, list[str]] = {}
    """Names that pods may ask by, each with the products it stands for: `big: [NVIDIA-H100-80GB-HBM3]`."""


class ModelMode(StrEnum):
    """What a model is loaded for."""

    SERVE = "serve"
    CANARY = "canary"
    SHADOW = "shadow"
    OFF = "off"


class RankSettings(_Section):
    """The learned rank, policy `kerf`: see docs/model.md."""

    path: Path | None = None
    """Directory of the model; empty: the one that comes with this version, but none where mode `serve` has a
    `decisions.policy` other than `auto` and `kerf`. One that changes is loaded again."""
    mode: ModelMode = ModelMode.SERVE
    """`serve`: policy `auto` is `kerf`. `canary`: only for the pods below. `shadow`: scores beside the policy that
    serves, for metrics alone. `off`: no model is loaded."""
    canary_namespaces: list[str] = []
    """Mode canary: namespaces whose pods get policy `kerf`."""
    canary_labels: dict[str, str] = {}
    """Mode canary: labels of which any gives a pod policy `kerf`: `{team: vision}`."""
    value_weight: float = Field(default=1.0, ge=0)
    """Of the value that is left behind, in quanta of the model."""
    live_weight: float = Field(default=2.0, ge=0)
    """How many quanta GPUs with all their headroom are worth beside GPUs with none; `live.` weighs its terms."""
    check_s: float = Field(default=10.0, gt=0)
    """Time between two looks at the model's files, and at the mix of pods."""
    prices: str = Field(default="auto", pattern="^(auto|lp|plain)$")
    """`lp`: what is left of GPUs is priced by a linear program of the pods expected, in a process of its own. `plain`:
    it is worth as much as it is. `auto`: `lp` where SciPy is installed (extra `plan`)."""
    refresh_s: float = Field(default=300.0, gt=0)
    """Shortest time between two workings-out of the prices of what is expected."""
    refresh_max_s: float = Field(default=120.0, gt=0)
    """Longest time that this may take."""
    min_drift: float = Field(default=0.05, ge=0, le=1)
    """They are worked out anew when this part of the pods has become others, or the nodes have."""
    look_frac: float = Field(default=0.1, gt=0, le=1)
    """A model with attention looks at the cluster again when so much of its GPU was given away or came back."""
    look_s: float = Field(default=300.0, gt=0)
    """And after so long, when anything has changed at all."""
    half_life_pods: float = Field(default=2000.0, gt=0)
    """A pod counts half in the mix after so many more."""
    prior_pods: float = Field(default=500.0, ge=0)
    """`decisions.typical_pods` count as so many pods seen at the start; where there are none, a fifth of them take GPUs
    of one model or with more memory only, as many for each model that there is."""
    shadow_frac: float = Field(default=0.05, gt=0, le=0.5)
    """Mode shadow: most part of a processor; what does not get its turn is left out and counted."""

    @field_validator("mode", mode="before")
    @classmethod
    def _off(cls, value: Any) -> Any:
        return ModelMode.OFF if value is False else value  # YAML reads a bare `off` as false


class QueueSettings(_Section):
    """The pending queue of pods that opt in: see docs/queueing.md."""

    enabled: bool = False
    """Whether pods behind the gate `kerf.dev/queue` are ordered, planned and let go."""
    planner: str = "greedy"
    """greedy, genetic, q-learning or exact: another one is followed where it places more of a batch than greedy."""
    order: Order = Order.FIFO
    """Among equals in priority: `fifo`, or `kerf`: least GPU time first, as expected from what such pods took."""
    held_most_s: float = Field(default=HELD_MOST_S, ge=0)
    """In the order `kerf` a pod is overtaken only by equals in priority that came at most so long after it."""
    ageing_s: float = Field(default=3600.0, ge=0)
    """Waiting so long, in the order `kerf` beyond what it is held back, raises a pod's priority by one; 0: never."""
    fair_share: bool = False
    """Among equals in priority the namespace goes first whose GPUs in use over its weight are fewest."""
    quotas: dict[str, float] = {}
    """Most GPUs that pods of a namespace may hold at once before more are let go: `{team-a: 16, "*": 4}`."""
    weights: dict[str, float] = {}
    """Weights of namespaces in fair share, 1 where not named."""
    reserve_frac: float = Field(default=0.0, ge=0, le=0.95)
    """Part of each node's CPU and memory that plans leave free."""
    reserve_after_s: float = Field(default=10.0, ge=0)
    """When the first in the queue has waited so long without room, nodes are kept for it from those behind it."""
    skip_s: float = Field(default=3600.0, ge=0)
    """A pod that has been kept from those nodes for so long, though it had room there, may use them."""
    patience_s: float = Field(default=0.0, ge=0)
    """A share that takes more of a GPU's worth than its part, by the prices of the learned rank, gives way to equals in
    priority that come up to so long after it; 0: never."""
    batch_pods: int = Field(default=500, ge=1)
    """Most pods of a batch for planners that search; greedy takes all."""
    max_open: int = Field(default=256, ge=1)
    """Most pods that are being let go, or were and have no node yet."""
    fail_open_s: float = Field(default=0.0, ge=0)
    """The gate of a pod that has waited so long is opened whatever holds; 0: never."""
    gang_timeout_s: float = Field(default=0.0, ge=0)
    """What is left of a gang that was let go and has not been whole for so long is evicted; 0: never."""
    pipelines: bool = False
    """Whether Pipeline objects are run, their pods through the queue: see docs/pipelines.md."""

    @field_validator("planner")
    @classmethod
    def _known_planner(cls, name: str) -> str:
        if name not in PLANNERS:
            raise ValueError(f"no planner of that name; write one of {', '.join(PLANNERS)}")
        return name

    @model_validator(mode="after")
    def _served(self) -> Self:
        if self.pipelines and not self.enabled:
            raise ValueError("pipelines needs enabled: their pods wait in the queue")
        return self


class TelemetrySettings(_Section):
    """What GPUs are really doing: see docs/telemetry.md."""

    source: str = Field(default="auto", pattern="^(auto|off)$")
    """`auto`: `telemetry.url`, else `telemetry.exporters`, else a Prometheus found in the cluster. `off`: none."""
    url: str = ""
    """Prometheus' address, with a path prefix where it has one: http://prometheus.monitoring.svc:9090."""
    exporters: list[str] = []
    """Pages of exporters, read directly where there is no Prometheus: [http://node-1:9400/metrics]."""
    username: str = ""
    """User for basic authentication."""
    password_file: Path | None = None
    """File with that user's password; read again for every call."""
    bearer_token_file: Path | None = None
    """File with a bearer token; read again for every call."""
    ca_file: Path | None = None
    """CA certificates to trust instead of the system's."""
    cert_file: Path | None = None
    """Client certificate for mutual TLS."""
    key_file: Path | None = None
    """Its key, where it is not in the same file."""
    insecure_skip_verify: bool = False
    """Trust any certificate."""
    headers: dict[str, SecretStr] = {}
    """Headers to send, such as X-Scope-OrgID; their values are never shown."""
    interval_s: float = Field(default=15.0, gt=0)
    """Pause between two refreshes. dcgm-exporter collects every 30 s: much faster is of no use."""
    timeout_s: float = Field(default=10.0, gt=0)
    """Time-out of one query."""
    max_refresh_s: float = Field(default=60.0, gt=0)
    """A refresh that takes longer is given up, and the process that makes it is started anew."""
    fresh_s: float = Field(default=90.0, gt=0)
    """Older samples are stale: their node is ranked as if its GPUs were average."""
    forget_s: float = Field(default=900.0, gt=0)
    """Older samples count as missing."""
    warmup_s: float = Field(default=45.0, ge=0)
    """For so long after its placement a pod's load need not show in samples: it is predicted instead."""
    counts_memory: bool = True
    """Policies that observe fit pods by the larger of booked and used memory."""
    min_unmanaged_mib: int = Field(default=1024, ge=1)
    """Less memory in use on a GPU that nobody booked is no sign of a user."""
    faulty: str = Field(default="exclude", pattern="^(exclude|avoid)$")
    """GPUs with an XID error of the hardware or a failed row remap: given to nobody by policies that observe, or
    ranked last by `live`."""
    xids: list[int] = sorted(HARDWARE_XIDS)
    """Codes of XID errors after which a GPU is faulty."""

    @field_validator("url")
    @classmethod
    def _web_address(cls, url: str) -> str:
        if url and not url.startswith(("http://", "https://")):
            raise ValueError("write an address such as http://prometheus.monitoring.svc:9090")
        return _without_user(url)

    @field_validator("exporters")
    @classmethod
    def _web_addresses(cls, urls: list[str]) -> list[str]:
        if any(not url.startswith(("http://", "https://")) for url in urls):
            raise ValueError("write addresses such as http://node-1:9400/metrics")
        return [_without_user(url) for url in urls]


class LiveSettings(_Section):
    """Weights of the policy `live`; see docs/live-scores.md."""

    load: float = Field(default=4.0, ge=0)
    """Compute that is not in use."""
    memory: float = Field(default=2.0, ge=0)
    """Memory that is neither booked nor in use."""
    power: float = Field(default=1.0, ge=0)
    """Distance from the product's power limit."""
    temperature: float = Field(default=1.0, ge=0)
    """Distance from 90 degrees."""
    bandwidth: float = Field(default=1.0, ge=0)
    """Memory bandwidth that is not in use."""
    tensor: float = Field(default=1.0, ge=0)
    """Tensor cores that are not in use."""
    own_gpus: float = Field(default=0.5, ge=0, le=1)
    """How much the GPUs count that the pod would get; the rest is the node's."""


class GeniusSettings(_Section):
    """Weights of the policy `genius`: Genius' own by default."""

    memory: float = 2.0
    """Memory size."""
    multiprocessors: float = 2.0
    """Streaming multiprocessors."""
    decoders: float = 1.0
    """Decoders."""
    encoders: float = 1.0
    """Encoders."""
    bandwidth: float = 2.0
    """Memory bandwidth."""
    free_memory: float = 2.0
    """Memory that is free."""
    power: float = 1.0
    """Power draw: Genius rewards a higher one, a negative weight a lower one."""
    encoder_idle: float = 1.0
    """Idle encoders."""
    decoder_idle: float = 1.0
    """Idle decoders."""
    static: float = 1.0
    """What GPUs have, as a whole."""
    dynamic: float = 2.0
    """What GPUs are doing, as a whole."""


class TraceSettings(_Section):
    """OpenTelemetry traces of kube-scheduler's calls; needs the extra `kerf[otel]`: see docs/operations.md."""

    endpoint: str = ""
    """Where to send them by OTLP over HTTP, such as http://otel-collector.monitoring.svc:4318; empty: nowhere."""
    service: str = "kerf"
    """Name of the service in them."""
    sampled_frac: float = Field(default=1.0, ge=0, le=1)
    """Part of the calls that is traced, where the caller has not settled it."""
    timeout_s: float = Field(default=5.0, gt=0)
    """Time-out of sending; what can't be sent is lost."""

    @field_validator("endpoint")
    @classmethod
    def _web_address(cls, url: str) -> str:
        if url and not url.startswith(("http://", "https://")):
            raise ValueError("write an address such as http://otel-collector.monitoring.svc:4318")
        return _without_user(url)


class LogSettings(_Section):
    """Logging."""

    level: str = Field(default="info", pattern="^(debug|info|warning|error)$")
    """debug, info, warning or error."""
    format: str = Field(default="text", pattern="^(text|json)$")
    """text or json."""


class Settings(BaseSettings):
    """The whole tree."""

    model_config = SettingsConfigDict(
        env_prefix=ENV_PREFIX, env_nested_delimiter=_NESTED, frozen=True, extra="forbid", env_ignore_empty=True
    )

    server: ServerSettings = ServerSettings()
    access: AccessSettings = AccessSettings()
    cluster: ClusterSettings = ClusterSettings()
    decisions: DecisionSettings = DecisionSettings()
    leader_election: LeaderElectionSettings = LeaderElectionSettings()
    webhook: WebhookSettings = WebhookSettings()
    models: ModelSettings = ModelSettings()
    model: RankSettings = RankSettings()
    queue: QueueSettings = QueueSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    live: LiveSettings = LiveSettings()
    genius: GeniusSettings = GeniusSettings()
    traces: TraceSettings = TraceSettings()
    log: LogSettings = LogSettings()


def load_settings(path: Path | None = None, flags: Mapping[str, Any] | None = None) -> Settings:
    """Settings from flags ("server.port": 9000), environment and a YAML file. Raises SettingsError."""
    unknown = _unknown_variables()
    faults = list(unknown.values())
    from_file: dict[str, Any] = {}
    if path is not None:
        try:
            from_file = yaml.safe_load(path.read_text()) or {}
        except (OSError, UnicodeDecodeError) as error:
            faults.append(f"{path}: {error}")
        except yaml.YAMLError as error:
            faults.append(f"{path}: {yaml_fault(error)}")
        if not isinstance(from_file, dict):
            faults.append(f"{path}: a mapping of sections is expected, not {type(from_file).__name__}")
            from_file = {}
    given, unnamed = _nested(flags or {})
    faults += unnamed

    class _Loaded(Settings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return init_settings, _Environment(settings_cls), _FileSource(settings_cls, from_file)

    loaded = Settings.model_construct()
    try:
        loaded = _Loaded(**given)
    except ValidationError as error:
        faults += [_fault(detail) for detail in error.errors() if _place(detail) not in unknown]
    if faults:
        raise SettingsError(faults)
    return Settings.model_construct(**{name: getattr(loaded, name) for name in Settings.model_fields})


def describe_settings() -> str:
    """All settings with defaults and meaning, as Markdown tables: what docs/configuration.md holds."""
    lines: list[str] = []
    for section, section_field in Settings.model_fields.items():
        kind = section_field.annotation
        if not (isinstance(kind, type) and issubclass(kind, _Section)):
            continue
        lines += [f"## {section}", "", kind.__doc__ or "", "", "| setting | default | meaning |", "|---|---|---|"]
        defaults = section_field.default.model_dump(mode="json")
        for name, field in kind.model_fields.items():
            default = "empty" if defaults[name] in (None, "") else str(defaults[name])
            lines.append(f"| `{section}.{name}` | {default} | {' '.join((field.description or '').split())} |")
        lines.append("")
    return "\n".join(lines)


class _FileSource(PydanticBaseSettingsSource):
    def __init__(self, settings_cls: type[BaseSettings], values: dict[str, Any]) -> None:
        super().__init__(settings_cls)
        self._values = values

    def get_field_value(self, field: Any, field_name: str) -> tuple[Any, str, bool]:
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        # A section that is only a heading says nothing.
        return {str(section): values for section, values in self._values.items() if values is not None}


class _Environment(EnvSettingsSource):
    """A value that is not the JSON its setting needs is kept as it is, for validation to report with all the rest."""

    def decode_complex_value(self, field_name: str, field: Any, value: Any) -> Any:
        try:
            return super().decode_complex_value(field_name, field, value)
        except ValueError:
            return value


def _unknown_variables() -> dict[str, str]:
    """Faults of variables of Kerf's form that no setting reads, by the place they name. Only nested names are ours for
    certain: Kubernetes itself sets KERF_PORT and others for a Service named kerf."""
    known = {
        f"{ENV_PREFIX}{section}{_NESTED}{name}".upper()
        for section, field in Settings.model_fields.items()
        if isinstance(field.annotation, type) and issubclass(field.annotation, _Section)
        for name in field.annotation.model_fields
    }
    return {
        name.upper().removeprefix(ENV_PREFIX).lower().replace(_NESTED, "."): (
            f"environment variable {name}: no such setting; `kerf config show` lists them"
        )
        for name in sorted(os.environ)
        if name.upper().startswith(ENV_PREFIX) and _NESTED in name and name.upper() not in known
    }


def _nested(flags: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Flags as a tree, and a fault for each that names no setting."""
    tree: dict[str, Any] = {}
    faults: list[str] = []
    for dotted, value in flags.items():
        section, _, name = dotted.partition(".")
        if section and name:
            tree.setdefault(section, {})[name] = value
        else:
            faults.append(f"{dotted}: write section.name=value, as in server.port=9000")
    return tree, faults


def _without_user(url: str) -> str:
    """An address, which is shown in logs and answers. Raises ValueError where it holds a user or password."""
    if "@" in url.partition("://")[2].partition("/")[0]:
        raise ValueError("write user and password into telemetry.username and the file of telemetry.password_file")
    return url


def _place(detail: Any) -> str:
    return ".".join(str(part) for part in detail["loc"])


def _fault(detail: Any) -> str:
    place = _place(detail)
    if detail["type"] == "extra_forbidden":
        return f"{place}: no such setting; `kerf config show` lists them"
    # What is given instead of headers, or with a user in an address, may be a secret: logs are read by others.
    secret = place.startswith("telemetry.headers") or "@" in str(detail["input"])
    return f"{place}: {detail['msg']}" + ("" if secret else f" (is {detail['input']!r})")
