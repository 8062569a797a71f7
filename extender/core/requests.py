"""What a pod asks for, read from its resources, annotations and labels.

Precedence: a key of Kerf's own (annotation `kerf.dev/...`) beats the Genius label of the same meaning. A number of
GPUs said in two places that disagree is a conflict, and the pod is rejected with a sentence that says so: the
kubelet will hand out what the resource says, so no other number can be honoured.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from fractions import Fraction
from typing import Final

from extender.core.clusters import WHOLE_MILLI
from extender.core.models import CompilePattern, ModelPattern
from extender.core.nodes import GPU_RESOURCE, MIG_RESOURCE_PREFIX, SHARED_GPU_RESOURCE
from extender.core.quantities import MIB, format_mib, is_plain_number, mib_of_bytes, parse_quantity

COUNT: Final = "kerf.dev/gpu-count"
SHARE: Final = "kerf.dev/gpu-share"
MEMORY_EACH: Final = "kerf.dev/gpu-memory-each"
MEMORY_TOTAL: Final = "kerf.dev/gpu-memory-total"
MODEL: Final = "kerf.dev/gpu-model"
MODEL_EXCLUDE: Final = "kerf.dev/gpu-model-exclude"
UUID: Final = "kerf.dev/gpu-uuid"
UUID_EXCLUDE: Final = "kerf.dev/gpu-uuid-exclude"
POLICY: Final = "kerf.dev/policy"
MARKER: Final = "kerf.dev/gpu"
"""A resource, and no amount of anything: by it kube-scheduler knows a pod that asks by annotation or label alone."""

GENIUS_COUNT: Final = "genius/gpu-number"
GENIUS_MEMORY_EACH: Final = "genius/gpu-memory-each"
GENIUS_MEMORY_TOTAL: Final = "genius/gpu-memory-total"
GENIUS_MODEL: Final = "genius/gpu-model"
GENIUS_PRIORITY: Final = "genius/priority"

_CONDITIONS: Final = frozenset({SHARE, MEMORY_EACH, MEMORY_TOTAL, MODEL, MODEL_EXCLUDE, UUID, UUID_EXCLUDE})
_CONDITION_LABELS: Final = frozenset({GENIUS_MEMORY_EACH, GENIUS_MEMORY_TOTAL, GENIUS_MODEL})
"""Keys that say what a GPU must be like: most pods have none of them."""

AMOUNTS: Final = frozenset({COUNT, MEMORY_EACH, MEMORY_TOTAL})
AMOUNT_LABELS: Final = frozenset({GENIUS_COUNT, GENIUS_MEMORY_EACH, GENIUS_MEMORY_TOTAL})
"""Keys whose "0" asks for nothing."""
ASKING: Final = _CONDITIONS | {COUNT}
ASKING_LABELS: Final = _CONDITION_LABELS | {GENIUS_COUNT}
"""Keys by which a pod asks for GPUs without any resource."""

_MAX_UNITS: Final = 2**31 - 1
_MAX_MEMORY_MIB: Final = 2**40
_MAX_PATTERN_CHARS: Final = 256
_MAX_UUIDS_CHARS: Final = 4096
_MAX_UUIDS: Final = 128  # of 40 characters each no more get into so many
_MAX_PROFILES: Final = 32
"""Kinds of MIG devices in one pod: each is looked for on every node."""
_MAX_DIGITS: Final = 18
_UUID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}")
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}")  # int() takes underscores and digits of any script

Resources = Mapping[str, str | int | float]


class RequestError(ValueError):
    """A request that can't be understood: names the key, the value and what would be right, on one line."""

    def __init__(self, sentence: str) -> None:
        super().__init__(printable(sentence))


class AskedUnit(IntEnum):
    """What a pod counts its GPUs in."""

    GPU = 1
    """Units of `nvidia.com/gpu`: whole GPUs, or time slices where the node's plugin gives them that name."""
    WHOLE = 2
    """Whole GPUs, asked by annotation or label alone: time slices never satisfy it."""
    SHARED = 3
    """Time slices, `nvidia.com/gpu.shared`."""
    MIG = 4
    """MIG devices, `nvidia.com/mig-<profile>`."""
    PART = 5
    """GPUs or parts of them, asked by resources of a plugin that hands out parts: only its nodes will do."""
    CLAIM = 6
    """Whole GPUs, asked by ResourceClaims."""


@dataclass(frozen=True, slots=True)
class GpuRequest:
    """The GPUs a pod asks for; equal requests are one class, which fit and scores are remembered by."""

    count: int
    """Units asked; 0 with `memory_total_mib` set means: as few GPUs as hold that much."""
    unit: AskedUnit = AskedUnit.GPU
    memory_each_mib: int = 0
    memory_total_mib: int = 0
    include: ModelPattern | None = None
    exclude: ModelPattern | None = None
    milli: int = 0
    """Compute asked of each GPU: 0 whole GPUs, 1..999 a share of one GPU (of each of `count` GPUs where that is more);
    the memory of each is what the share books then."""
    uuids: frozenset[str] = frozenset()
    """The only GPUs that will do; empty: any."""
    uuids_exclude: frozenset[str] = frozenset()
    mig: tuple[tuple[str, int], ...] = ()
    """MIG devices asked, by profile."""
    cpu_milli: int = 0
    """CPU of the pod, where the policy weighs it: other policies would only have more classes to remember."""
    memory_mib: int = 0
    """Main memory of the pod, likewise."""
    memory_each_percent: int = 0
    """Memory of each GPU in percent of what it has, for a share whose memory is asked so."""

    @property
    def shares_by_memory(self) -> bool:
        """Whether it is a share where the node's plugin hands out parts of GPUs, and asks whole GPUs elsewhere."""
        asks_memory = self.memory_each_mib > 0 or self.memory_each_percent > 0
        return self.milli == 0 and asks_memory and self.memory_total_mib == 0 and not self.mig

    def __str__(self) -> str:
        """The request in words: "2 GPUs of model a100 with 40 GiB"."""
        if self.mig:
            return " and ".join(f"{count} x mig-{profile}" for profile, count in self.mig)
        noun = "GPU replica" if self.unit is AskedUnit.SHARED else "GPU"
        words = f"{self.count} {noun}{'' if self.count == 1 else 's'}" if self.count else f"{noun}s"
        if self.milli:
            words = f"{self.milli} milli of {'a GPU' if self.count == 1 else f'each of {words}'}"
        if self.include:
            words += f" of model {printable(self.include.text)}"
        if self.exclude:
            words += f" not of model {printable(self.exclude.text)}"
        if self.uuids:
            words += f" of UUID {_any_of(self.uuids)}"
        if self.uuids_exclude:
            words += f" not of UUID {_any_of(self.uuids_exclude)}"
        if self.memory_each_mib:
            words += f" with {format_mib(self.memory_each_mib)}"
        if self.memory_each_percent:
            words += f" with {self.memory_each_percent} % of its memory"
        if self.memory_total_mib:
            words += f" with {format_mib(self.memory_total_mib)} in total"
        return words


_ANY_GPU: Final = GpuRequest(0)
"""Of no condition."""


@dataclass(frozen=True, slots=True)
class PodRequest:
    """Everything a decision needs to know of a pod."""

    gpus: GpuRequest | None = None
    policy: str = ""
    """Name of the policy chosen for this pod, "" for the deployment's."""
    priority: int = 0
    stale: tuple[str, ...] = ()
    """Annotations of an assignment that a pod without a node carries, as a copy of another pod does: a Binding blanks
    those that it does not write."""
    cpu_milli: int = 0
    """CPU of the pod, whatever its GPUs."""
    memory_mib: int = 0
    """Main memory of the pod, likewise."""


NO_REQUEST: Final = PodRequest()
"""Of a pod that asks for no GPU, whatever else it says."""


@dataclass(frozen=True, slots=True)
class Container:
    """A container's resources; `sidecar` is an init container that keeps running (restartPolicy Always)."""

    requests: Resources
    sidecar: bool = False


def total_request(
    resource: str, containers: Iterable[Container], init_containers: Iterable[Container], overhead: Resources
) -> Fraction | int:
    """A pod's request of one extended resource, as kube-scheduler counts it.

    The larger of the containers' sum and any moment of the initialisation, sidecars counted in both, plus the
    overhead: `PodRequests` of k8s.io/component-helpers/resource/helpers.go. Resources at pod level are no part of it:
    the API server takes only CPU, memory and huge pages there.
    Raises RequestError when a value is no quantity.
    """

    def asked(resources: Resources) -> Fraction | int:
        value = resources.get(resource)
        if value is None:
            return 0
        text = str(value)
        if text.isdecimal() and text.isascii() and len(text) <= _MAX_DIGITS:
            return int(text)  # as nearly all are: without the price of a rational number
        try:
            quantity = parse_quantity(text)
        except ValueError as error:
            raise RequestError(f'{resource}: "{_shorten(str(value))}" is {error}; write a whole number') from None
        if quantity < 0:
            raise RequestError(f'{resource}: "{_shorten(str(value))}" is negative; write a whole number')
        return quantity

    sidecars: Fraction | int = 0
    initialising: Fraction | int = 0
    for container in init_containers:
        if container.sidecar:
            sidecars += asked(container.requests)
            initialising = max(initialising, sidecars)
        else:
            initialising = max(initialising, sidecars + asked(container.requests))
    running = sidecars + sum(asked(container.requests) for container in containers)
    return max(running, initialising) + asked(overhead)


def resource_units(
    containers: Iterable[Container], init_containers: Iterable[Container], overhead: Resources
) -> tuple[int, AskedUnit]:
    """How many GPU units a pod's resources ask for, and of which kind; (0, GPU) when none. MIG devices not counted."""
    containers, init_containers = tuple(containers), tuple(init_containers)
    whole, shared = (
        _whole_units(name, total_request(name, containers, init_containers, overhead))
        for name in (GPU_RESOURCE, SHARED_GPU_RESOURCE)
    )
    if whole and shared:
        raise RequestError(
            f'{SHARED_GPU_RESOURCE}: "{shared}" together with {GPU_RESOURCE}: "{whole}" fits no node, '
            "since a node offers either; ask for one of them"
        )
    return (shared, AskedUnit.SHARED) if shared else (whole, AskedUnit.GPU)


def mig_devices(
    containers: Iterable[Container], init_containers: Iterable[Container], overhead: Resources
) -> tuple[tuple[str, int], ...]:
    """The MIG devices a pod's resources ask for: (profile, number) in the order of the profiles."""
    containers, init_containers = tuple(containers), tuple(init_containers)
    names = {
        name
        for resources in (overhead, *(container.requests for container in (*containers, *init_containers)))
        for name in resources
        if name.startswith(MIG_RESOURCE_PREFIX)
    }
    if len(names) > _MAX_PROFILES:
        raise RequestError(f"{MIG_RESOURCE_PREFIX}...: {len(names)} profiles are more than any GPU is cut into")
    counted = (
        (name, _whole_units(name, total_request(name, containers, init_containers, overhead))) for name in sorted(names)
    )
    return tuple((name.removeprefix(MIG_RESOURCE_PREFIX), count) for name, count in counted if count)


def read_request(
    units: int,
    unit: AskedUnit,
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    compile_pattern: CompilePattern,
    mig: tuple[tuple[str, int], ...] = (),
) -> PodRequest:
    """What a pod asks for, given the units its resources ask (see `resource_units`) and the MIG devices.

    Raises RequestError with a sentence for the pod's author.
    """
    if mig and units:
        raise RequestError(
            f'{MIG_RESOURCE_PREFIX}{mig[0][0]}: "{mig[0][1]}" together with {units} GPUs of another resource is '
            "not understood; ask for one of them"
        )
    if mig:
        units, unit = sum(count for _, count in mig), AskedUnit.MIG
    count = _read_count(units, annotations, labels)
    like, conditions = _ANY_GPU, False
    if not (_CONDITIONS.isdisjoint(annotations) and _CONDITION_LABELS.isdisjoint(labels)):
        like, conditions = _read_conditions(annotations, labels, compile_pattern)
    if mig and conditions:
        raise RequestError(
            f'{MIG_RESOURCE_PREFIX}{mig[0][0]}: "{mig[0][1]}" says all about the device; '
            "remove the annotations and labels that say what a GPU must be like"
        )
    if like.milli and unit is AskedUnit.SHARED:
        raise RequestError(
            f'{SHARE}: "{like.milli}" together with {SHARED_GPU_RESOURCE}: time slices have no size; '
            "remove one or the other"
        )
    if count == 0 and conditions:
        raise RequestError(
            f'{COUNT}: "0" asks for no GPU while other keys say what it must be like; remove one or the other'
        )
    if count is None:
        if not conditions:
            return NO_REQUEST
        count = 0 if like.memory_total_mib else 1
    if count == 0 and not like.memory_total_mib:
        return NO_REQUEST
    gpus = replace(like, count=count, unit=unit if units else AskedUnit.WHOLE, mig=mig)
    return PodRequest(gpus, annotations.get(POLICY, "").strip())


def asks_by_word(annotations: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether annotations or labels ask for GPUs, in whatever way: also where that can't be understood."""

    def says(said: Mapping[str, str], keys: frozenset[str], amounts: frozenset[str]) -> bool:
        texts = ((key, said[key].strip()) for key in keys.intersection(said))
        return any(text and not (text == "0" and key in amounts) for key, text in texts)

    return says(annotations, ASKING, AMOUNTS) or says(labels, ASKING_LABELS, AMOUNT_LABELS)


def _read_conditions(
    annotations: Mapping[str, str], labels: Mapping[str, str], compile_pattern: CompilePattern
) -> tuple[GpuRequest, bool]:
    """What the GPUs must be like, and whether anything is said about that."""
    share = _read_share(_first(annotations, SHARE))
    like = GpuRequest(
        count=0,
        memory_each_mib=_read_memory(_first(annotations, MEMORY_EACH, labels, GENIUS_MEMORY_EACH)),
        memory_total_mib=_read_memory(_first(annotations, MEMORY_TOTAL, labels, GENIUS_MEMORY_TOTAL)),
        include=_read_pattern(_first(annotations, MODEL, labels, GENIUS_MODEL), compile_pattern),
        exclude=_read_pattern(_first(annotations, MODEL_EXCLUDE), compile_pattern),
        milli=share % WHOLE_MILLI,  # all of a GPU is a whole one
        uuids=_read_uuids(_first(annotations, UUID)),
        uuids_exclude=_read_uuids(_first(annotations, UUID_EXCLUDE)),
    )
    if like.milli and like.memory_total_mib:
        raise RequestError(
            f'{SHARE}: "{like.milli}" is of one GPU, and memory in total is of several; use {MEMORY_EACH} with it'
        )
    return like, bool(share) or like != _ANY_GPU


_Said = tuple[str, str] | None
"""A key and what it says."""


def _first(annotations: Mapping[str, str], key: str, labels: Mapping[str, str] | None = None, label: str = "") -> _Said:
    """The annotation, else the label of the same meaning, else None; an empty value says nothing."""
    for source, name in ((annotations, key), (labels or {}, label)):
        text = source.get(name, "").strip()
        if text:
            return name, text
    return None


def _read_count(units: int, annotations: Mapping[str, str], labels: Mapping[str, str]) -> int | None:
    said = _first(annotations, COUNT, labels, GENIUS_COUNT)
    if said is None:
        return units or None
    key, text = said
    try:
        quantity = parse_quantity(text)
    except ValueError as error:
        raise _unreadable(said, str(error), 'a whole number of GPUs such as "2"') from None
    if quantity.denominator != 1 or not 0 <= quantity <= _MAX_UNITS:
        raise _unreadable(said, "not a number of GPUs", 'a whole number of GPUs such as "2"')
    if units and quantity != units:
        raise RequestError(
            f'{key}: "{_shorten(text)}" disagrees with the {units} GPUs of the pod\'s resources; '
            "remove it or make them equal"
        )
    return int(quantity)


def _read_memory(said: _Said) -> int:
    """MiB asked by a memory key, 0 when it says nothing. A plain number is MiB, anything else a quantity of bytes."""
    if said is None:
        return 0
    right = 'a size such as "16Gi", or a plain number of MiB such as "16384"'
    try:
        quantity = parse_quantity(said[1])
    except ValueError as error:
        raise _unreadable(said, str(error), right) from None
    if quantity < 0:
        raise _unreadable(said, "negative", right)
    plain = is_plain_number(said[1])
    if 0 < quantity < MIB and not plain:
        raise _unreadable(said, "less than 1 MiB", right)
    mib = -(-quantity.numerator // quantity.denominator) if plain else mib_of_bytes(quantity)
    if mib > _MAX_MEMORY_MIB:
        raise _unreadable(said, "more memory than any node has", right)
    return mib


def _read_share(said: _Said) -> int:
    """Milli of a GPU's compute, 0 when it says nothing."""
    if said is None:
        return 0
    text = said[1]
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= WHOLE_MILLI):
        raise _unreadable(said, "no share", f'thousandths of a GPU such as "500", from 1 to {WHOLE_MILLI}')
    return int(text)


def _read_uuids(said: _Said) -> frozenset[str]:
    if said is None:
        return frozenset()
    if len(said[1]) > _MAX_UUIDS_CHARS:
        raise _unreadable(said, f"longer than {_MAX_UUIDS_CHARS} characters", "the UUIDs of a few GPUs")
    uuids = [part.strip() for part in said[1].split(",")]
    if len(uuids) > _MAX_UUIDS:
        raise _unreadable(said, f"more than {_MAX_UUIDS} UUIDs", "the UUIDs of a few GPUs")
    if not all(_UUID.fullmatch(uuid) for uuid in uuids):
        raise _unreadable(said, "no list of UUIDs", 'UUIDs with commas between them such as "GPU-8dcd427f,GPU-f2a1"')
    return frozenset(uuids)


def _read_pattern(said: _Said, compile_pattern: CompilePattern) -> ModelPattern | None:
    if said is None:
        return None
    right = 'a regular expression on the model\'s name such as "a100|h100"'
    text = said[1]
    if len(text) > _MAX_PATTERN_CHARS:
        raise _unreadable(said, f"longer than {_MAX_PATTERN_CHARS} characters", right)
    try:
        return ModelPattern(text, compile_pattern(f"(?i){text}"))
    except ValueError as error:
        raise _unreadable(said, f"not a regular expression ({error})", right) from None


def read_priority(labels: Mapping[str, str], of_class: int | None) -> int:
    """`genius/priority` where a pod carries it, else the value of its PriorityClass (`spec.priority`).

    Raises RequestError with a sentence for the pod's author.
    """
    said = _first({}, "", labels, GENIUS_PRIORITY)
    if said is None:
        return of_class or 0
    if not _WHOLE_NUMBER.fullmatch(said[1]):
        raise _unreadable(said, "not a number", 'a whole number such as "10"')
    return int(said[1])


def _whole_units(resource: str, quantity: Fraction | int) -> int:
    if quantity.denominator != 1:
        raise RequestError(f'{resource}: "{float(quantity):g}" is not whole; GPUs are asked for in whole numbers')
    if quantity > _MAX_UNITS:
        raise RequestError(f'{resource}: "{_shorten(str(quantity))}" is more than any node has')
    return int(quantity)


def _unreadable(said: tuple[str, str], fault: str, right: str) -> RequestError:
    return RequestError(f'{said[0]}: "{_shorten(said[1])}" is {fault}; write {right}')


def _any_of(uuids: frozenset[str]) -> str:
    first = min(uuids)
    return first if len(uuids) == 1 else f"{first} or {len(uuids) - 1} more"


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."


def printable(text: str) -> str:
    """On one line and without control characters: what an author writes ends up in logs, events and terminals."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
