"""Who may read, and how much."""

from enum import StrEnum
from pathlib import Path

from pydantic import Field

from extender.settings.section import Section


class OpenTo(StrEnum):
    """For whom something is open without token or certificate."""

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
    """File with one token a line, at least 16 characters each; read again when it changes."""
    apply_token_file: Path | None = None
    """File with tokens likewise, of those who may also have pods moved (`POST /defrag/apply`): nobody else may, on
    loopback neither. Empty: nobody."""
    hosts: list[str] = []
    """Host names, besides localhost and IP addresses, under which browsers on loopback may call Kerf, such as a local
    proxy's."""
    calls_per_s: float = Field(default=50.0, ge=0)
    """Requests per second for each client (token or address), once it has sent 200 at once; of files of the page ten
    times as many. 0: no limit."""
    what_if_s: float = Field(default=60.0, gt=0)
    """A what-if or defrag request that takes longer is aborted, in seconds. They run one at a time, in processes of
    their own."""
