"""The API server."""

from pathlib import Path

from pydantic import Field

from extender.settings.section import Section


class ClusterSettings(Section):
    """Connection to the API server."""

    GONE = {"page_size": "always 500"}
    EXPERIMENTAL = frozenset({"request_timeout_s", "service_account_dir"})

    kubeconfig: str = ""
    """Path of the kubeconfig; empty: as kubectl: KUBECONFIG or ~/.kube/config, else the pod's service account."""
    context: str = ""
    """Context in the kubeconfig; empty: the current one."""
    service_account_dir: Path = Path("/var/run/secrets/kubernetes.io/serviceaccount")
    """Directory with the pod's service account token and CA."""
    request_timeout_s: float = Field(default=10.0, gt=0)
    """Timeout of one request, in seconds."""
    max_age_s: float = Field(default=120.0, gt=0)
    """No decisions are made once Kerf has heard nothing from the API server for this long, in seconds."""
    ignored_resources: list[str] = []
    """Resources that kube-scheduler does not count on nodes, so that plans don't either: those of another extender with
    `ignoredByScheduler`, `ignoredResources` of `NodeResourcesFit`, `extendedResourceName` of a DeviceClass."""
