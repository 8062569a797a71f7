"""The pods that a workload creates, in batches of identical pods."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from extender.kube.decoding import convert
from extender.kube.objects import PodSpec

Count = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Template = dict[str, Any]
NOT_READ: Final = "is ignored by Kerf's queue: its pods start one by one unless their template has kerf.dev/gang"


class Batch(NamedTuple):
    """Pods of one template."""

    num_pods: int
    name: Callable[[int], str]
    """Name of a pod, by its number from 0."""
    template: Template
    path: str
    """Path of the template in the object."""


class WorkloadPods(NamedTuple):
    """The pods that an object creates."""

    batches: list[Batch]
    notes: Sequence[str] = ()
    """Remarks for its author."""
    namespace: str = ""
    """Namespace of the pods; "" for the object's."""


class KindError(ValueError):
    """An object is invalid; says at which path, and why."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path, self.why = path, why


def read(manifest: Any, kind: Any, path: str = "") -> Any:
    """Convert a part of an object, found at `path`, to a type. Raises KindError."""
    try:
        return convert(manifest, kind)
    except msgspec.ValidationError as error:
        why, _, at = str(error).partition(" - at `$")
        where = f"{path}{at.rstrip('`')}".removeprefix(".")
        raise KindError(where, why) from None


def within(manifest: Any, key: str) -> Any:
    """The object under a key of an object's spec. Raises KindError."""
    spec = manifest.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get(key), dict):
        raise KindError(f"spec.{key}", "is missing")
    return spec[key]


def numbered(stem: str) -> Callable[[int], str]:
    """Names of the form STEM-NUMBER."""
    return lambda number: f"{stem}-{number}"


def spec_of(batch: Batch) -> PodSpec:
    """The spec of a batch's pods. Raises KindError."""
    path = f"{batch.path}.spec" if batch.path else "spec"
    given = batch.template.get("spec")
    if not isinstance(given, dict) or not given.get("containers"):
        raise KindError(path, "a pod needs containers")
    found: PodSpec = read(given, PodSpec, path)
    return found
