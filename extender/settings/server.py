"""The HTTP server."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from extender.settings.section import Section


class ServerSettings(Section):
    """Where Kerf listens."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 and :: are all addresses, IPv4 and IPv6. Loopback by default, because anyone who
    reaches /bind can bind pods."""
    port: int = Field(default=8888, ge=0, le=65535)
    """Port; 0 picks a free one."""
    metrics_port: int | None = Field(default=None, ge=0, le=65535)
    """A second port, over HTTP, with /metrics, /healthz, /readyz and /syncz and nothing else, for the kubelet and
    Prometheus where Kerf listens on loopback or by TLS; 0 picks a free one, empty: none."""
    metrics_host: str = "127.0.0.1"
    """Address of that port. The chart gives it the pod's address."""
    keep_alive_s: int = Field(default=120, ge=1)
    """How long idle connections stay open, in seconds. Longer than kube-scheduler's 90 s, because it does not retry a
    POST on a closed connection."""
    drain_s: float = Field(default=1.0, ge=0)
    """How long /readyz fails after SIGTERM before connections are closed, in seconds."""
    max_body_mib: int = Field(default=64, ge=1)
    """Larger request bodies are rejected, in MiB. Bodies of kube-scheduler's verbs from addresses that have called them
    before may take twice that in all, and so may all other bodies; 64 MiB if a part is served alone. Beyond that, or
    three quarters of it from one address, the bodies idle longest are aborted."""
    request_s: float = Field(default=10.0, gt=0)
    """A connection is closed if its TLS handshake, or a request with its body, takes longer to arrive, in seconds."""
    max_connections: int = Field(default=1024, ge=2)
    """Most connections open at once. Beyond that a new connection replaces an idle one, taken from the address with the
    most: one that carried kube-scheduler's verbs only as a last resort, one with a client certificate never."""
    max_connections_each: int = Field(default=256, ge=1)
    """Most connections from one address."""
    tls_cert_file: Path | None = None
    """Certificate chain (PEM) for HTTPS. A changed file is used for new connections."""
    tls_key_file: Path | None = None
    """Private key of the certificate."""
    tls_client_ca_file: Path | None = None
    """CA of client certificates. kube-scheduler's verbs then require one; probes and metrics don't."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if (self.tls_cert_file is None) != (self.tls_key_file is None):
            raise ValueError("tls_cert_file and tls_key_file go together")
        if self.tls_client_ca_file is not None and self.tls_cert_file is None:
            raise ValueError("tls_client_ca_file needs tls_cert_file and tls_key_file")
        return self
