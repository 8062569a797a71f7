"""Observed GPU load."""

from pathlib import Path

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from extender.settings.section import Matchers, Section, without_user


class TelemetrySettings(Section):
    """Observed GPU load: see docs/reference/telemetry.md."""

    GONE = {
        "timeout_s": "always 10",
        "max_refresh_s": "always 60",
        "fresh_s": "always 90",
        "forget_s": "always 900",
        "warmup_s": "always 45",
        "counts_memory": "always true",
        "min_unmanaged_mib": "always 1024",
        "xids": "always those of the vendors' hardware",
    }
    EXPERIMENTAL = frozenset({"interval_s"})

    source: str = "auto"
    """`auto`: `telemetry.url`, else `telemetry.exporters`, else a Prometheus found in the cluster. `off`: none. Or the
    name of a source (`prometheus`, `exporters`), read at `telemetry.addresses`."""
    addresses: list[str] = []
    """Addresses of the source named in `telemetry.source`: [http://prometheus.monitoring.svc:9090]."""
    url: str = ""
    """Address of Prometheus, including any path prefix: http://prometheus.monitoring.svc:9090."""
    namespaces: list[str] = [
        "monitoring",
        "prometheus",
        "kube-prometheus-stack",
        "observability",
        "kube-system",
        "openshift-monitoring",
        "cattle-monitoring-system",
    ]
    """Namespaces searched for a Prometheus if neither address is set, besides `leader_election.namespace`, which Kerf
    runs in. List only those in which none but the cluster's administrators create Services."""
    matchers: Matchers = ""
    """Label matchers of this cluster's series, if Prometheus has several clusters: `cluster="a"`."""
    exporters: list[str] = []
    """Exporter pages to read directly, without Prometheus: [http://node-1:9400/metrics]."""
    username: str = ""
    """User for basic authentication."""
    password_file: Path | None = None
    """File with that user's password; read again for every request."""
    bearer_token_file: Path | None = None
    """File with a bearer token; read again for every request."""
    ca_file: Path | None = None
    """CA certificates to trust instead of the system's."""
    cert_file: Path | None = None
    """Client certificate for mutual TLS."""
    key_file: Path | None = None
    """Its private key, if not in the same file."""
    insecure_skip_verify: bool = False
    """Accept any server certificate."""
    headers: dict[str, SecretStr] = {}
    """Extra request headers, such as X-Scope-OrgID; their values are never shown."""
    interval_s: float = Field(default=15.0, gt=0)
    """Time between refreshes, in seconds. Exporters collect every 30 s, so much shorter is no use."""
    faulty: str = Field(default="exclude", pattern="^(exclude|avoid)$")
    """GPUs with a hardware XID error or a failed row remap: `exclude`: policies that observe don't use them. `avoid`:
    they rank last with `live`."""

    @field_validator("url")
    @classmethod
    def _web_address(cls, url: str) -> str:
        if url and not url.startswith(("http://", "https://")):
            raise ValueError("write an address such as http://prometheus.monitoring.svc:9090")
        return without_user(url)

    @field_validator("addresses")
    @classmethod
    def _of_a_source(cls, addresses: list[str], other: ValidationInfo) -> list[str]:
        if addresses and other.data.get("source") == "auto":
            raise ValueError("name their source in telemetry.source")
        return [without_user(address) for address in addresses]

    @field_validator("exporters")
    @classmethod
    def _web_addresses(cls, urls: list[str]) -> list[str]:
        if any(not url.startswith(("http://", "https://")) for url in urls):
            raise ValueError("write addresses such as http://node-1:9400/metrics")
        return [without_user(url) for url in urls]
