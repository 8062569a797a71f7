"""Who runs the cluster's kube-scheduler, and so by which way Kerf can place its pods."""

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from extender.cli.install.findings import ANY, Finding, Verdict, listed, names
from extender.cli.install.kerf import Installed
from extender.kube.client import ClusterError, Transport

_WHAT: Final = "kube-scheduler"
_PODS: Final = "/api/v1/namespaces/kube-system/pods"
_SELECTOR: Final = "component=kube-scheduler"
"""kubeadm's, and that of whoever runs it as a static pod."""
_PROVIDERS: Final = {"-eks-": "EKS", "-gke.": "GKE"}
"""By a part of the version that their API servers tell."""


async def control_plane(transport: Transport, installed: Installed | None) -> AsyncIterator[Finding]:
    """Whether the cluster's own kube-scheduler can be told to call Kerf; mode `planner` does without."""
    try:
        found = [item["metadata"]["name"] for item in await listed(transport, _PODS, _SELECTOR)]
        version = str(ANY.decode(await transport.get("/version")).get("gitVersion", ""))
    except (ClusterError, msgspec.DecodeError) as error:
        yield Finding(_WHAT, Verdict.NOTE, f"can't be read: {error}", "run this as an administrator")
        return
    if found:
        told = f"{names(found)} in kube-system: it can call Kerf (mode service), and need not (mode planner)"
        yield Finding(_WHAT, Verdict.OK, told)
        return
    provider = next((name for part, name in _PROVIDERS.items() if part in version), "")
    whose = f"{provider} runs it" if provider else "it does not run in kube-system"
    told = f"{whose}, so nobody here configures it: mode planner for its pods, mode scheduler for those of another one"
    if installed is not None and installed.mode == "service" and provider:
        fix = f"{installed.upgrade} --set mode=planner --set queue.enabled=true"
        yield Finding(_WHAT, Verdict.NOTE, told, fix)
        return
    yield Finding(_WHAT, Verdict.OK, told)
