"""GPU requests in a pod's annotations and labels.

Precedence: a `kerf.dev/...` annotation overrides the Genius label of the same meaning. A number of GPUs that disagrees
with the pod's resources is an error: the kubelet allocates what the resources say.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Final

from extender.core.clusters import WHOLE_MILLI
from extender.core.keys import stray_keys
from extender.core.resources.gpu_models import CompilePattern, ModelPattern
from extender.core.resources.nodes import resource_of
from extender.core.resources.pod_resources import MAX_UNITS, RequestedGpus
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
"""Written together with the gate: the ResourceClaim that Kerf creates for the pod, as JSON."""
MARKER: Final = "kerf.dev/gpu"
"""A resource without capacity: it makes kube-scheduler call Kerf for pods that request by annotation or label alone."""

GENIUS_COUNT: Final = "genius/gpu-number"
GENIUS_MEMORY_EACH: Final = "genius/gpu-memory-each"
GENIUS_MEMORY_TOTAL: Final = "genius/gpu-memory-total"
_GENIUS_MODEL: Final = "genius/gpu-model"
GENIUS_PRIORITY: Final = "genius/priority"

_CONDITIONS: Final = frozenset({SHARE, MEMORY_EACH, MEMORY_TOTAL, MODEL, MODEL_EXCLUDE, UUID, UUID_EXCLUDE})
_CONDITION_LABELS: Final = frozenset({GENIUS_MEMORY_EACH, GENIUS_MEMORY_TOTAL, _GENIUS_MODEL})
"""Keys that constrain which GPUs match: most pods have none of them."""

_AMOUNTS: Final = frozenset({COUNT, MEMORY_EACH, MEMORY_TOTAL})
_AMOUNT_LABELS: Final = frozenset({GENIUS_COUNT, GENIUS_MEMORY_EACH, GENIUS_MEMORY_TOTAL})
"""Keys whose value "0" requests nothing."""
_SIZES: Final = (MEMORY_EACH, MEMORY_TOTAL)
"""Keys whose value is a memory size."""
ASKING: Final = _CONDITIONS | {COUNT}
ASKING_LABELS: Final = _CONDITION_LABELS | {GENIUS_COUNT}
"""Keys that request GPUs without any resource."""

_MAX_MEMORY_MIB: Final = 2**40
_LEAST_PLAIN_MIB: Final = 256
"""A smaller plain number was probably meant in GiB: no GPU has so little memory."""
_MAX_PATTERN_CHARS: Final = 256
_MAX_UUIDS_CHARS: Final = 4096
_MAX_UUIDS: Final = 128
_UUID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,127}")
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,10}")  # int() takes underscores and digits of any script
_ANY_GPU: Final = GpuRequest(0)
"""A request without conditions."""


def read_request(
    asked: RequestedGpus,
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    compile_pattern: CompilePattern,
) -> PodRequest:
    """A pod's request, from its resources (`asked`), annotations and labels.

    Raises RequestError with a message for the pod's author.
    """
    if POLICY not in annotations and ASKING.isdisjoint(annotations) and ASKING_LABELS.isdisjoint(labels):
        return _by_resources(asked)
    return _read_request(asked, annotations, labels, compile_pattern)


@lru_cache(maxsize=1024)
def _by_resources(asked: RequestedGpus) -> PodRequest:
    """The request of most pods, which have none of the keys."""
    return _read_request(asked, {}, {}, re.compile)


def _read_request(
    asked: RequestedGpus,
    annotations: Mapping[str, str],
    labels: Mapping[str, str],
    compile_pattern: CompilePattern,
) -> PodRequest:
    units, unit, mig, vendor = asked.units, asked.unit, asked.mig, VENDORS[asked.vendor]
    if mig and units:
        raise RequestError(
            f'{resource_of(mig[0][0], vendor)}: "{mig[0][1]}" together with {units} GPUs of another resource is '
            "not supported; request only one"
        )
    if mig:
        units, unit = sum(count for _, count in mig), AskedUnit.MIG
    count = _read_count(units, annotations, labels)
    wanted, has_conditions = _ANY_GPU, False
    if not (_CONDITIONS.isdisjoint(annotations) and _CONDITION_LABELS.isdisjoint(labels)):
        wanted, has_conditions = _read_conditions(annotations, labels, compile_pattern)
    if mig and has_conditions:
        raise RequestError(
            f'{resource_of(mig[0][0], vendor)}: "{mig[0][1]}" defines the device completely; '
            "remove the annotations and labels that describe a GPU"
        )
    if wanted.milli and unit is AskedUnit.SHARED:
        raise RequestError(
            f'{SHARE}: "{wanted.milli}" together with {vendor.shared_resource}: time slices have no size; '
            "remove one of them"
        )
    if count == 0 and has_conditions:
        raise RequestError(f'{COUNT}: "0" requests no GPU, but other keys describe one; remove one of them')
    if count is None:
        if not has_conditions:
            return NO_REQUEST
        count = 0 if wanted.memory_total_mib else 1
    if count == 0 and not wanted.memory_total_mib:
        return NO_REQUEST
    gpus = replace(wanted, count=count, unit=unit if units else AskedUnit.WHOLE, mig=mig, vendor=asked.vendor)
    return PodRequest(gpus, annotations.get(POLICY, "").strip())


def requests_by_metadata(annotations: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """Whether annotations or labels request GPUs, even if their values can't be parsed."""

    def requests_any(source: Mapping[str, str], keys: frozenset[str], amounts: frozenset[str]) -> bool:
        texts = ((key, source[key].strip()) for key in keys.intersection(source))
        return any(text and not (text == "0" and key in amounts) for key, text in texts)

    return requests_any(annotations, ASKING, _AMOUNTS) or requests_any(labels, ASKING_LABELS, _AMOUNT_LABELS)


def check_metadata(annotations: Mapping[str, str], labels: Mapping[str, str], *, asks: bool) -> None:
    """Raise RequestError for likely misspelt keys and likely mistaken values of a pod without a node.

    `asks`: whether the pod requests GPUs or waits for Kerf; otherwise only keys close to one of Kerf's count.
    """
    for unknown in stray_keys(annotations, labels):
        if asks or unknown.meant:
            raise RequestError(str(unknown))
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
    """The conditions on the GPUs, and whether there are any."""
    share = _read_share(_first(annotations, SHARE))
    wanted = GpuRequest(
        count=0,
        memory_each_mib=_read_memory(_first(annotations, MEMORY_EACH, labels, GENIUS_MEMORY_EACH)),
        memory_total_mib=_read_memory(_first(annotations, MEMORY_TOTAL, labels, GENIUS_MEMORY_TOTAL)),
        include=_read_pattern(_first(annotations, MODEL, labels, _GENIUS_MODEL), compile_pattern),
        exclude=_read_pattern(_first(annotations, MODEL_EXCLUDE), compile_pattern),
        milli=share % WHOLE_MILLI,  # all of a GPU is a whole one
        uuids=_read_uuids(_first(annotations, UUID)),
        uuids_exclude=_read_uuids(_first(annotations, UUID_EXCLUDE)),
    )
    if wanted.milli and wanted.memory_total_mib:
        raise RequestError(
            f'{SHARE}: "{wanted.milli}" is a share of one GPU, and total memory is for several; '
            f"use {MEMORY_EACH} with it"
        )
    return wanted, bool(share) or wanted != _ANY_GPU


_Pair = tuple[str, str] | None
"""A key and its value."""


def _first(annotations: Mapping[str, str], key: str, labels: Mapping[str, str] | None = None, label: str = "") -> _Pair:
    """The annotation, else the label of the same meaning, else None; empty values are ignored."""
    for source, name in ((annotations, key), (labels or {}, label)):
        text = source.get(name, "").strip()
        if text:
            return name, text
    return None


def _read_count(units: int, annotations: Mapping[str, str], labels: Mapping[str, str]) -> int | None:
    entry = _first(annotations, COUNT, labels, GENIUS_COUNT)
    if entry is None:
        return units or None
    key, text = entry
    try:
        quantity = parse_quantity(text)
    except ValueError as error:
        raise _invalid(entry, str(error), 'a whole number of GPUs such as "2"') from None
    if quantity.denominator != 1 or not 0 <= quantity <= MAX_UNITS:
        raise _invalid(entry, "not a number of GPUs", 'a whole number of GPUs such as "2"')
    if units and quantity != units:
        raise RequestError(
            f'{key}: "{shorten(text)}" disagrees with the {units} GPUs of the pod\'s resources; '
            "remove it or make them equal"
        )
    return int(quantity)


def _read_memory(entry: _Pair) -> int:
    """MiB of a memory key, 0 without one. A plain number is MiB, anything else a quantity of bytes."""
    if entry is None:
        return 0
    expected = 'a size such as "16Gi", or a plain number of MiB such as "16384"'
    try:
        quantity = parse_quantity(entry[1])
    except ValueError as error:
        suggestion = meant_size(entry[1]) if str(error).startswith("unknown") else ""
        raise _invalid(entry, str(error), expected, suggestion) from None
    if quantity < 0:
        raise _invalid(entry, "negative", expected)
    plain = is_plain_number(entry[1])
    if 0 < quantity < MIB and not plain:
        raise _invalid(entry, "less than 1 MiB", expected)
    mib = -(-quantity.numerator // quantity.denominator) if plain else mib_of_bytes(quantity)
    if mib > _MAX_MEMORY_MIB:
        raise _invalid(entry, "more memory than any node has", expected)
    return mib


def _read_share(entry: _Pair) -> int:
    """Milli of a GPU's compute, 0 without the key."""
    if entry is None:
        return 0
    text = entry[1]
    if not (text.isascii() and text.isdecimal() and len(text) <= 4 and 1 <= int(text) <= WHOLE_MILLI):
        raise _invalid(entry, "not a share", f'thousandths of a GPU such as "500", from 1 to {WHOLE_MILLI}')
    return int(text)


def _read_uuids(entry: _Pair) -> frozenset[str]:
    if entry is None:
        return frozenset()
    if len(entry[1]) > _MAX_UUIDS_CHARS:
        raise _invalid(entry, f"longer than {_MAX_UUIDS_CHARS} characters", "the UUIDs of a few GPUs")
    uuids = [part.strip() for part in entry[1].split(",")]
    if len(uuids) > _MAX_UUIDS:
        raise _invalid(entry, f"more than {_MAX_UUIDS} UUIDs", "the UUIDs of a few GPUs")
    if not all(_UUID.fullmatch(uuid) for uuid in uuids):
        raise _invalid(entry, "not a list of UUIDs", 'UUIDs with commas between them such as "GPU-8dcd427f,GPU-f2a1"')
    return frozenset(uuids)


def _read_pattern(entry: _Pair, compile_pattern: CompilePattern) -> ModelPattern | None:
    if entry is None:
        return None
    expected = 'a regular expression on the model\'s name such as "a100|h100"'
    text = entry[1]
    if len(text) > _MAX_PATTERN_CHARS:
        raise _invalid(entry, f"longer than {_MAX_PATTERN_CHARS} characters", expected)
    try:
        return ModelPattern(text, compile_pattern(f"(?i){text}"))
    except ValueError as error:
        raise _invalid(entry, f"not a regular expression ({error})", expected) from None


def read_priority(labels: Mapping[str, str], of_class: int | None) -> int:
    """The label `genius/priority` if present, else the value of the pod's PriorityClass (`spec.priority`).

    Raises RequestError with a message for the pod's author.
    """
    entry = _first({}, "", labels, GENIUS_PRIORITY)
    if entry is None:
        return of_class or 0
    if not _WHOLE_NUMBER.fullmatch(entry[1]):
        raise _invalid(entry, "not a number", 'a whole number such as "10"')
    return int(entry[1])


def _invalid(entry: tuple[str, str], fault: str, expected: str, suggestion: str = "") -> RequestError:
    """An error that names the fault and either the value that was probably meant or a valid form."""
    key, text = entry
    advice = f"do you mean {suggestion}?" if suggestion else f"write {expected}"
    return RequestError(f"{key}: {wrong(text, fault)}; {advice}")
