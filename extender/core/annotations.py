"""What a pod says about its GPUs in annotations and labels.

Precedence: a key of Kerf's own (annotation `kerf.dev/...`) beats the Genius label of the same meaning. A number of
GPUs said in two places that disagree is a conflict, and the pod is rejected with a sentence that says so: the
kubelet will hand out what the resource says, so no other number can be honoured.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from extender.core.clusters import WHOLE_MILLI
from extender.core.keys import stray_keys
from extender.core.resources.gpu_models import CompilePattern, ModelPattern
from extender.core.resources.nodes import resource_of
from extender.core.resources.pod_resources import MAX_UNITS, AskedGpus
from extender.core.resources.quantities import MIB, is_plain_number, meant_size, mib_of_bytes, parse_quantity
from extender.core.resources.requests import NO_REQUEST, AskedUnit, GpuRequest, PodRequest, RequestError, shorten, wrong
from extender.core.vendors.registry import VENDORS

COUNT: Final = "kerf.dev/gpu-count"
SHARE: Final = "kerf.dev/gpu-share"
MEMORY_EACH: Final = "kerf.dev/gpu-memory-each"
MEMORY_TOTAL: Final = "kerf.dev/gpu-memory-total"
MODEL: Final = "kerf.dev/gpu-model"
MODEL_EXCLUDE: Final = "kerf.dev/gpu-model-exclude"
UUID: Final = "kerf.dev/gpu-uuid"
UUID_EXCLUDE: Final = "kerf.dev/gpu-uuid-exclude"
POLICY: Final = "kerf.dev/policy"
CLAIM: Final = "kerf.dev/claim"
"""Written with the gate: the ResourceClaim that Kerf is to create for a pod, in JSON."""
MARKER: Final = "kerf.dev/gpu"
"""A resource, and no amount of anything: by it kube-scheduler knows a pod that asks by annotation or label alone."""

GENIUS_COUNT: Final = "genius/gpu-number"
GENIUS_MEMORY_EACH: Final = "genius/gpu-memory-each"
GENIUS_MEMORY_TOTAL: Final = "genius/gpu-memory-total"
_GENIUS_MODEL: Final = "genius/gpu-model"
GENIUS_PRIORITY: Final = "genius/priority"

_CONDITIONS: Final = frozenset({SHARE, MEMORY_EACH, MEMORY_TOTAL, MODEL, MODEL_EXCLUDE, UUID, UUID_EXCLUDE})
_CONDITION_LABELS: Final = frozenset({GENIUS_MEMORY_EACH, GENIUS_MEMORY_TOTAL, _GENIUS_MODEL})
"""Keys that say what a GPU must be like: most pods have none of them."""

_AMOUNTS: Final = frozenset({COUNT, MEMORY_EACH, MEMORY_TOTAL})
_AMOUNT_LABELS: Final = frozenset({GENIUS_COUNT, GENIUS_MEMORY_EACH, GENIUS_MEMORY_TOTAL})
"""Keys whose "0" asks for nothing."""
_SIZES: Final = (MEMORY_EACH, MEMORY_TOTAL)
"""Keys whose value is a size of memory."""
ASKING: Final = _CONDITIONS | {COUNT}
ASKING_LABELS: Final = _CONDITION_LABELS | {GENIUS_COUNT}
"""Keys by which a pod asks for GPUs without any resource."""

_MAX_MEMORY_MIB: Final = 2**40
_LEAST_PLAIN_MIB: Final = 256
"""Below it a plain number is rather one of GiB: no GPU has so little."""
_MAX_PATTERN_CHARS: Final = 256
_MAX_UUIDS_CHARS: Final = 4096
_MAX_UUIDS: Final = 128  # of 40 characters each no more get into so many
_UUID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}")
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}")  # int() takes underscores and digits of any script
_ANY_GPU: Final = GpuRequest(0)
"""Of no condition."""


def read_request(
    asked: AskedGpus,
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    compile_pattern: CompilePattern,
) -> PodRequest:
    """What a pod asks for, given what its resources ask.

    Raises RequestError with a sentence for the pod's author.
    """
    units, unit, mig, vendor = asked.units, asked.unit, asked.mig, VENDORS[asked.vendor]
    if mig and units:
        raise RequestError(
            f'{resource_of(mig[0][0], vendor)}: "{mig[0][1]}" together with {units} GPUs of another resource is '
            "not supported; request only one"
        )
    if mig:
        units, unit = sum(count for _, count in mig), AskedUnit.MIG
    count = _read_count(units, annotations, labels)
    like, conditions = _ANY_GPU, False
    if not (_CONDITIONS.isdisjoint(annotations) and _CONDITION_LABELS.isdisjoint(labels)):
        like, conditions = _read_conditions(annotations, labels, compile_pattern)
    if mig and conditions:
        raise RequestError(
            f'{resource_of(mig[0][0], vendor)}: "{mig[0][1]}" defines the device completely; '
            "remove the annotations and labels that describe a GPU"
        )
    if like.milli and unit is AskedUnit.SHARED:
        raise RequestError(
            f'{SHARE}: "{like.milli}" together with {vendor.shared_resource}: time slices have no size; '
            "remove one of them"
        )
    if count == 0 and conditions:
        raise RequestError(f'{COUNT}: "0" requests no GPU, but other keys describe one; remove one of them')
    if count is None:
        if not conditions:
            return NO_REQUEST
        count = 0 if like.memory_total_mib else 1
    if count == 0 and not like.memory_total_mib:
        return NO_REQUEST
    gpus = replace(like, count=count, unit=unit if units else AskedUnit.WHOLE, mig=mig, vendor=asked.vendor)
    return PodRequest(gpus, annotations.get(POLICY, "").strip())


def asks_by_word(annotations: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether annotations or labels ask for GPUs, in whatever way: also where that can't be understood."""

    def says(said: Mapping[str, str], keys: frozenset[str], amounts: frozenset[str]) -> bool:
        texts = ((key, said[key].strip()) for key in keys.intersection(said))
        return any(text and not (text == "0" and key in amounts) for key, text in texts)

    return says(annotations, ASKING, _AMOUNTS) or says(labels, ASKING_LABELS, _AMOUNT_LABELS)


def check_words(annotations: Mapping[str, str], labels: Mapping[str, str], *, asks: bool) -> None:
    """Raises RequestError for the keys and values of a pod without a node that say something else than was meant.

    `asks`: whether it asks for GPUs, or waits for Kerf; else only what was certainly meant for Kerf counts. What a pod
    has is read all the same, however it asked for it.
    """
    for stray in stray_keys(annotations, labels):
        if asks or stray.meant:
            raise RequestError(str(stray))
    for key in _SIZES:
        text = annotations.get(key, "").strip()
        if text and is_plain_number(text) and 0 < (mib := parse_quantity(text)) < _LEAST_PLAIN_MIB:
            number = f"{float(mib):g}"
            raise RequestError(
                f'{key}: "{text}" is {number} MiB; do you mean {number}Gi? For {number} MiB write {number}Mi'
            )


def _read_conditions(
    annotations: Mapping[str, str], labels: Mapping[str, str], compile_pattern: CompilePattern
) -> tuple[GpuRequest, bool]:
    """What the GPUs must be like, and whether anything is said about that."""
    share = _read_share(_first(annotations, SHARE))
    like = GpuRequest(
        count=0,
        memory_each_mib=_read_memory(_first(annotations, MEMORY_EACH, labels, GENIUS_MEMORY_EACH)),
        memory_total_mib=_read_memory(_first(annotations, MEMORY_TOTAL, labels, GENIUS_MEMORY_TOTAL)),
        include=_read_pattern(_first(annotations, MODEL, labels, _GENIUS_MODEL), compile_pattern),
        exclude=_read_pattern(_first(annotations, MODEL_EXCLUDE), compile_pattern),
        milli=share % WHOLE_MILLI,  # all of a GPU is a whole one
        uuids=_read_uuids(_first(annotations, UUID)),
        uuids_exclude=_read_uuids(_first(annotations, UUID_EXCLUDE)),
    )
    if like.milli and like.memory_total_mib:
        raise RequestError(
            f'{SHARE}: "{like.milli}" is a share of one GPU, and total memory is for several; use {MEMORY_EACH} with it'
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
    if quantity.denominator != 1 or not 0 <= quantity <= MAX_UNITS:
        raise _unreadable(said, "not a number of GPUs", 'a whole number of GPUs such as "2"')
    if units and quantity != units:
        raise RequestError(
            f'{key}: "{shorten(text)}" disagrees with the {units} GPUs of the pod\'s resources; '
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
        meant = meant_size(said[1]) if str(error).startswith("unknown") else ""
        raise _unreadable(said, str(error), right, meant) from None
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
        raise _unreadable(said, "not a share", f'thousandths of a GPU such as "500", from 1 to {WHOLE_MILLI}')
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
        raise _unreadable(said, "not a list of UUIDs", 'UUIDs with commas between them such as "GPU-8dcd427f,GPU-f2a1"')
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


def _unreadable(said: tuple[str, str], fault: str, right: str, meant: str = "") -> RequestError:
    """What is wrong, and what is right; or what the very value may have been meant to be."""
    key, text = said
    return RequestError(f"{key}: {wrong(text, fault)}; {f'do you mean {meant}?' if meant else f'write {right}'}")
