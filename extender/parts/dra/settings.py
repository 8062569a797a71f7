"""Whether devices of DRA drivers are allocated."""

from typing import Any, Final

from pydantic import field_validator

from extender.kube.rights import BY_CHART, Need, Rights
from extender.settings.parts import Part
from extender.settings.section import Section

_API: Final = "resource.k8s.io"
ALLOCATING: Final = (
    Need(_API, "deviceclasses", ("list", "watch"), "no device is allocated"),
    Need(_API, "devicetaintrules", ("list", "watch"), "pools that Kerf owns are not known as its own"),
    Need(_API, "resourceclaims", ("get", "patch"), "no device is allocated"),
    Need(_API, "resourceclaims/status", ("patch",), "no device is allocated"),
    Need(_API, "resourceclaims/binding", ("patch",), "no device is allocated"),
)

_CREATING: Final = (Need(_API, "resourceclaims", ("create",), "pods that asked by an extended resource wait for ever"),)


class DraSettings(Section):
    """Devices of DRA drivers, for pods with ResourceClaims: see docs/guides/dra.md."""

    EXPERIMENTAL = frozenset({"allocate", "rewrite_extended_resources"})

    allocate: bool = False
    """Whether Kerf allocates devices to the claims of pods in the queue, in pools that `kerf install dra` has given it.
    Needs queue.enabled. `false`: kube-scheduler allocates, and nobody does in pools that were given to Kerf."""
    rewrite_extended_resources: dict[str, str] = {}
    """Device classes by extended resource, `{acme.com/gpu: gpu.acme.com}`: the queue's webhook makes pods that ask
    for such a resource ask by a ResourceClaim of the class, which Kerf creates where it allocates. They run by DRA
    drivers alone then."""

    @field_validator("rewrite_extended_resources")
    @classmethod
    def _named(cls, classes: dict[str, str]) -> dict[str, str]:
        for resource, device_class in classes.items():
            if not resource.partition("/")[2] or not device_class:
                raise ValueError(f"{resource}: {device_class}: write DOMAIN/RESOURCE: DEVICE_CLASS")
        return classes


def _lacking(settings: Any) -> str:
    if settings.dra.allocate:
        return "" if settings.queue.enabled else "allocate needs queue.enabled: devices are for pods that wait there"
    if settings.queue.enabled:
        return "rewrite_extended_resources needs allocate: else nobody creates the claims that pods wait for"
    return ""  # it serves webhooks beside a Kerf that allocates


PART: Final = Part(
    name="dra",
    settings=DraSettings,
    wanted=lambda dra: dra.allocate or bool(dra.rewrite_extended_resources),
    module="extender.parts.dra.part",
    allocates=lambda dra: dra.allocate,
    early=True,
    lacks=_lacking,
    beside_one_alone=True,  # a process of webhooks alone rewrites what pods ask for
    rights=(
        Rights(
            who="the allocator of devices",
            manifest="manifests/dra/rbac.yaml",
            needs=ALLOCATING,
            wanted=lambda dra: dra.allocate,
        ),
        Rights(
            who="the allocator of devices",
            manifest=BY_CHART,
            needs=_CREATING,
            wanted=lambda dra: dra.allocate and bool(dra.rewrite_extended_resources),
        ),
    ),
)
