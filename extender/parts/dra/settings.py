"""Settings of the dra part."""

from typing import Any, Final

from pydantic import field_validator

from extender.kube.rights import BY_CHART, Need, Rights
from extender.settings.parts import Part
from extender.settings.section import Section

_API: Final = "resource.k8s.io"
ALLOCATING: Final = (
    Need(_API, "deviceclasses", ("list", "watch"), "no devices are allocated"),
    Need(_API, "devicetaintrules", ("list", "watch"), "Kerf can't tell which pools it owns"),
    Need(_API, "resourceclaims", ("get", "patch"), "no devices are allocated"),
    Need(_API, "resourceclaims/status", ("patch",), "no devices are allocated"),
    Need(_API, "resourceclaims/binding", ("patch",), "no devices are allocated"),
)

_CREATING: Final = (Need(_API, "resourceclaims", ("create",), "pods with rewritten extended resources wait forever"),)


class DraSettings(Section):
    """Devices of DRA drivers, for pods with ResourceClaims: see docs/guides/dra.md."""

    EXPERIMENTAL = frozenset({"allocate", "rewrite_extended_resources"})

    allocate: bool = False
    """Whether Kerf allocates devices to the claims of queued pods, from pools that `kerf install dra` has given it.
    Needs queue.enabled. If `false`, kube-scheduler allocates, and devices of pools given to Kerf are not allocated."""
    rewrite_extended_resources: dict[str, str] = {}
    """Device classes by extended resource, such as `{acme.com/gpu: gpu.acme.com}`. The queue's webhook replaces these
    resources in pods by a ResourceClaim of the class, which Kerf creates if it allocates. Such pods then get their
    devices only from DRA drivers."""

    @field_validator("rewrite_extended_resources")
    @classmethod
    def _named(cls, classes: dict[str, str]) -> dict[str, str]:
        for resource, device_class in classes.items():
            if not resource.partition("/")[2] or not device_class:
                raise ValueError(f"{resource}: {device_class}: write DOMAIN/RESOURCE: DEVICE_CLASS")
        return classes


def _lacking(settings: Any) -> str:
    if settings.dra.allocate:
        return "" if settings.queue.enabled else "allocate needs queue.enabled: only queued pods are given devices"
    if settings.queue.enabled:
        return "rewrite_extended_resources needs allocate: otherwise the claims that pods wait for are never created"
    return ""  # a process that only serves webhooks, next to a Kerf that allocates


PART: Final = Part(
    name="dra",
    settings=DraSettings,
    wanted=lambda dra: dra.allocate or bool(dra.rewrite_extended_resources),
    module="extender.parts.dra.part",
    allocates=lambda dra: dra.allocate,
    early=True,
    lacks=_lacking,
    beside_one_alone=True,  # a process that only serves webhooks rewrites pods as well
    rights=(
        Rights(
            capability="the device allocator",
            manifest="manifests/dra/rbac.yaml",
            needs=ALLOCATING,
            wanted=lambda dra: dra.allocate,
        ),
        Rights(
            capability="the device allocator",
            manifest=BY_CHART,
            needs=_CREATING,
            wanted=lambda dra: dra.allocate and bool(dra.rewrite_extended_resources),
        ),
    ),
)
