"""Access control and rate limits."""

from enum import StrEnum
from pathlib import Path

from pydantic import Field

from extender.settings.section import Section


class OpenTo(StrEnum):
    """Clients that need neither a token nor a certificate."""

    LOOPBACK = "loopback"
    ALL = "all"


class AccessSettings(Section):
    """Who may use the page and the HTTP API, and how much: see docs/reference/access.md."""

    GONE = {"burst": "always 200", "calls_at_once": "always 32", "max_body_mib": "always 16"}

    open_to: OpenTo = OpenTo.LOOPBACK
    """`loopback`: clients on loopback, with a token, or with a certificate of `server.tls_client_ca_file`. `all`:
    anyone who reaches the port."""
    metrics: OpenTo = OpenTo.ALL
    """The same for /metrics: totals of the cluster, with names of namespaces, owners and nodes."""
    token_file: Path | None = None
    """File with one token per line, at least 16 characters each; read again when it changes."""
    apply_token_file: Path | None = None
    """File with tokens of operators, in the same format. Only they may also move pods (`POST /defrag/apply`), even on
    loopback. Empty: nobody may."""
    hosts: list[str] = []
    """Host names, besides localhost and IP addresses, under which browsers on loopback may call Kerf, such as a local
    proxy's."""
    calls_per_s: float = Field(default=50.0, ge=0)
    """Requests per second for each client (token or address), after a burst of 200; ten times as many for files of the
    page. 0: no limit."""
    what_if_s: float = Field(default=60.0, gt=0)
    """A what-if or defrag request that takes longer is aborted, in seconds. They run one at a time, in separate
    processes."""
