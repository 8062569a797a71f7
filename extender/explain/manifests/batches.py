"""What an object makes: batches of pods alike."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from extender.kube.decoding import convert
from extender.kube.objects import PodSpec

Count = Annotated[int, msgspec.Meta(ge=0, le=10**9)]
Template = dict[str, Any]
NOT_READ: Final = "is not read by Kerf's queue: its pods go one by one unless their template says kerf.dev/gang"


class Batch(NamedTuple):
    """Pods of one template."""

    num_pods: int
    name: Callable[[int], str]
    """Of the pod of a number, from 0."""
    template: Template
    path: str
    """Of the template in the object."""


class Made(NamedTuple):
    """What an object makes."""

    batches: list[Batch]
    notes: Sequence[str] = ()
    """What its author should know of it."""
    namespace: str = ""
    """Of its pods, "" for that of the object."""


class KindError(ValueError):
    """What is wrong with an object: at which path, and why."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path, self.why = path, why


def read(manifest: Any, kind: Any, path: str = "") -> Any:
    """A part of an object, which is at a path of it, as a type. Raises KindError."""
    try:
        return convert(manifest, kind)
    except msgspec.ValidationError as error:
        why, _, at = str(error).partition(" - at `$")
        where = f"{path}{at.rstrip('`')}".removeprefix(".")
        raise KindError(where, why) from None


def within(manifest: Any, key: str) -> Any:
    """What an object's spec has under a key. Raises KindError."""
    spec = manifest.get("spec")
    if not isinstance(spec, dict) or not isinstance(spec.get(key), dict):
        raise KindError(f"spec.{key}", "is missing")
    return spec[key]


def numbered(stem: str) -> Callable[[int], str]:
    """Names that begin alike."""
    return lambda number: f"{stem}-{number}"


def spec_of(batch: Batch) -> PodSpec:
    """What the pods of a batch say. Raises KindError."""
    path = f"{batch.path}.spec" if batch.path else "spec"
    given = batch.template.get("spec")
    if not isinstance(given, dict) or not given.get("containers"):
        raise KindError(path, "a pod needs containers")
    found: PodSpec = read(given, PodSpec, path)
    return found
