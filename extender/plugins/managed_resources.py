"""Which pods kube-scheduler's first extender entry is asked about: those whose containers name one of these resources.

kube-scheduler looks at nothing else of a pod. So a pod that asks for GPUs by annotation or label alone carries the
marker, a resource that no node offers and that is no amount of anything: by it the pod waits while Kerf is gone, and
is bound by Kerf. Everything that kube-scheduler is not told to wait for goes to the second entry, which it may skip.

MIG profiles: NVIDIA/mig-parted `deployments/systemd/config-default.yaml` 1400787, with a dot for the plus sign as
k8s-device-plugin writes them.
"""

from functools import cache
from typing import Final

from extender.core.annotations import MARKER
from extender.core.resources.nodes import GPU_RESOURCE, MIG_RESOURCE_PREFIX, SHARED_GPU_RESOURCE
from extender.kube import objects
from extender.plugins.formats import asks_any
from extender.plugins.registry import plugins

_MIG_PROFILES: Final = (
    *("1g.5gb", "1g.5gb.me", "1g.6gb", "1g.6gb.me", "1g.10gb", "1g.10gb.me", "1g.12gb", "1g.12gb.me", "1g.18gb"),
    *("1g.18gb.me", "1g.20gb", "1g.23gb", "1g.23gb.me", "1g.24gb", "1g.24gb-me", "1g.24gb.gfx", "1g.24gb.me"),
    *("1g.24gb.me.all", "1g.35gb", "1g.36gb", "1g.45gb", "1g.47gb", "2g.10gb", "2g.12gb", "2g.12gb.me", "2g.20gb"),
    *("2g.24gb", "2g.35gb", "2g.36gb", "2g.45gb", "2g.47gb", "2g.48gb", "2g.48gb-me", "2g.48gb.gfx", "2g.48gb.me.all"),
    *("3g.20gb", "3g.40gb", "3g.47gb", "3g.48gb", "3g.71gb", "3g.72gb", "3g.90gb", "3g.95gb", "4g.20gb", "4g.24gb"),
    *("4g.40gb", "4g.47gb", "4g.48gb", "4g.71gb", "4g.72gb", "4g.90gb", "4g.95gb", "4g.96gb", "4g.96gb.gfx"),
    *("7g.40gb", "7g.80gb", "7g.94gb", "7g.96gb", "7g.141gb", "7g.144gb", "7g.180gb", "7g.189gb"),
)

UNMARKED: Final = (
    f'requests GPUs by annotation or label only: add limits: {{{MARKER}: "1"}} to one of its containers, or install '
    "the policy that adds it (docs/guides/requests.md)"
)
"""Constant: another text at each try would make kube-scheduler ask again."""


@cache
def _managed_resources() -> tuple[str, ...]:
    """`managedResources` of the first entry, in its order."""
    own = [resource for plugin in plugins() for resource in plugin.resources]
    return (*(MARKER, GPU_RESOURCE, SHARED_GPU_RESOURCE, *own), *(MIG_RESOURCE_PREFIX + name for name in _MIG_PROFILES))


def is_managed(spec: objects.PodSpec) -> bool:
    """Whether the first entry is asked about a pod."""
    return asks_any(spec, managed_names())


@cache
def managed_names() -> frozenset[str]:
    """The same, to look names up in."""
    return frozenset(_managed_resources())
