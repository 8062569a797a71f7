"""Which pods kube-scheduler's first extender entry is asked about: those whose containers name one of these resources.

kube-scheduler looks at nothing else of a pod. So a pod that asks for GPUs by annotation or label alone carries the
marker, a resource that no node offers and that is no amount of anything: by it the pod waits while Kerf is gone, and
is bound by Kerf. Everything that kube-scheduler is not told to wait for goes to the second entry, which it may skip.
"""

from functools import cache
from typing import Final

from extender.core.annotations import MARKER
from extender.core.vendors.registry import GPU_RESOURCES, VENDORS
from extender.kube import objects
from extender.plugins.formats import asks_any
from extender.plugins.registry import plugins

UNMARKED: Final = (
    f'requests GPUs by annotation or label only: add limits: {{{MARKER}: "1"}} to one of its containers, or install '
    "the policy that adds it (docs/guides/requests.md)"
)
"""Constant: another text at each try would make kube-scheduler ask again."""


@cache
def _managed_resources() -> tuple[str, ...]:
    """`managedResources` of the first entry, in its order."""
    own = [resource for plugin in plugins() for resource in plugin.resources]
    partitions = [vendor.partitions for vendor in VENDORS if vendor.partitions]
    cut = [f"{of.resource_prefix}{profile}" for of in partitions for profile in of.profiles]
    return (MARKER, *GPU_RESOURCES, *own, *cut)


def is_managed(spec: objects.PodSpec) -> bool:
    """Whether the first entry is asked about a pod."""
    return asks_any(spec, managed_names())


@cache
def managed_names() -> frozenset[str]:
    """The same, to look names up in."""
    return frozenset(_managed_resources())
