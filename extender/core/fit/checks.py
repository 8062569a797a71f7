"""The table of checks that a node must pass: code, test, sentence, and remedies of each.

Sentences have few distinct values and stay the same between attempts: kube-scheduler groups equal texts in its event,
and a changing text makes it requeue the pod again and again.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from extender.core.clusters import Ints, Longs, Mask, num_true
from extender.core.fit.device_fits import DeviceFitting, SearchResult
from extender.core.fit.fittings import (
    Fitting,
    GpuFitting,
    MigFitting,
    most_memory_mib,
    nth_largest,
    share_mib,
    uuid_mask,
)
from extender.core.fit.reasons import Kind, Reason, Remedy
from extender.core.resources.nodes import LEFT_OUT_WORDS, GpuUnit, LeftOut
from extender.core.resources.quantities import format_mib
from extender.core.resources.requests import AskedUnit, GpuRequest, named
from extender.core.vendors.registry import SEVERAL, VENDORS

_NO_UNIT: Final = int(GpuUnit.NONE)  # an int, because comparing with enum members is slow
_OTHER_VENDOR: Final = 2**24
"""Added to a vendor's number to mark it as such: no node has as many GPUs."""
Failure = tuple[Mask, Longs]
"""(R,) where a check fails, and (R,) the number for its sentence."""
_Sentence = Callable[[GpuRequest, int], str]
_Remedies = Callable[[GpuRequest, str, int], Iterable[Remedy]]
"""(request, name of the nearest node, number of its failure) to remedies."""


class Change(StrEnum):
    """The condition of a request that may be relaxed."""

    COUNT = "count"
    MEMORY_EACH = "memoryEach"
    MEMORY_TOTAL = "memoryTotal"
    SHARE = "share"
    MODEL = "model"
    UUID = "uuid"


@dataclass(frozen=True, slots=True)
class Missing:
    """How to compute what other pods would have to release."""

    unit: str
    """What is counted: GPUs, milli or MiB."""
    asked: Callable[[GpuRequest, Ints], Longs]
    """(request, (R, G) memory of the GPUs) to (R,) the amount that the failure's number falls short of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A row of the table."""

    reason: int
    """Code; checks run in the order of their codes."""
    name: str = ""
    """Name in JSON and metrics."""
    gpus: Callable[[GpuFitting], Failure | None] | None = None
    """The test for requests that count GPUs; returns None where the request lacks the condition."""
    mig: Callable[[MigFitting], Failure | None] | None = None
    devices: Callable[[DeviceFitting], Failure | None] | None = None
    """The test for ResourceClaims."""
    by_state: bool = True
    """Whether nodes that differ only in name and identity get equal results."""
    resolvable: bool = False
    """Whether it passes when other pods end; only then is the node a candidate for preemption."""
    says: _Sentence
    """The sentence; the number is the units that pass, or what the check counts."""
    gpu: Callable[[GpuFitting, int, int], str] = lambda fitting, row, slot: "in use"
    """Why the check excludes a GPU, by row and index."""
    change: Change | None = None
    """The condition that may be relaxed."""
    relaxed: Callable[[GpuRequest], tuple[str, GpuRequest] | None] = lambda request: None
    """A description of the request without this condition, and that request; None where it lacks the condition."""
    missing: Missing | None = None
    none_has: str = ""
    """Text for nodes with none at all: "has {}GPUs"."""
    of_kind: bool = False
    """Whether the number counts GPUs of the requested kind."""
    remedies: _Remedies = lambda request, node, number: ()
    """What to change about nodes."""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", Reason(self.reason).name)


# Tests


def _too_few(fitting: GpuFitting, left: Mask) -> Failure:
    """Where fewer units are left than needed."""
    number = fitting.units(left)
    return number < fitting.needed, number


def _left_out(fitting: MigFitting) -> Failure:
    """Where Kerf uses none of the node's GPUs."""
    left_out = fitting.rows_of(fitting.cluster.left_out).astype(np.int64)
    return (left_out != LeftOut.NOTHING) & (left_out != LeftOut.TOO_MANY), left_out


def _no_gpus(fitting: GpuFitting) -> Failure:
    none, left_out = fitting.unit == _NO_UNIT, fitting.left_out
    if not left_out.any():
        return none, fitting.num_installed
    fails = (left_out != LeftOut.NOTHING) & ((left_out != LeftOut.TOO_MANY) | (fitting.num_installed < fitting.needed))
    return fails | none, np.where(fails, left_out, fitting.num_installed)


def _other_kind(fitting: GpuFitting) -> Failure:
    accepted = fitting.accepted()
    fitting.keep(accepted[:, None])
    if not SEVERAL:
        return ~accepted, fitting.num_installed
    vendor = fitting.rows_of(fitting.cluster.vendor).astype(np.int64)
    own = vendor == fitting.request.vendor
    return ~accepted, np.where(own, fitting.num_installed, _OTHER_VENDOR + vendor)


def _too_few_installed(fitting: GpuFitting) -> Failure:
    return fitting.num_installed < fitting.needed, fitting.num_installed


def _unhealthy(fitting: GpuFitting) -> Failure:
    fitting.keep(fitting.rows_of(fitting.cluster.gpu_healthy))
    failed, fitting.num_healthy = _too_few(fitting, fitting.left)
    return failed, fitting.num_healthy


def _wrong_uuid(fitting: GpuFitting) -> Failure | None:
    request = fitting.request
    if not request.uuids and not request.uuids_exclude:
        return None
    fitting.keep(fitting.rows_of(uuid_mask(fitting.cluster, request)))
    return _too_few(fitting, fitting.left)


def _wrong_model(fitting: GpuFitting) -> Failure | None:
    """Where too few GPUs match even if those of unknown model do."""
    if fitting.request.include is None and fitting.request.exclude is None:
        return None
    return _without(fitting, fitting.of_model, lambda: fitting.nameless)


def _model_unknown(fitting: GpuFitting) -> Failure | None:
    if fitting.request.include is None and fitting.request.exclude is None:
        return None
    fitting.keep(fitting.of_model)
    return fitting.too_few


def _too_small(fitting: GpuFitting) -> Failure | None:
    """Where too few GPUs match even if those of unknown memory do."""
    if not fitting.request.memory_each_mib:
        return None
    return _without(fitting, fitting.of_size, lambda: fitting.memory == 0)


def _without(fitting: GpuFitting, known: Mask, maybe: Callable[[], Mask]) -> Failure:
    """Where too few GPUs are `known` to match or `maybe` match; excludes all others.

    The next check excludes those that only may match.
    """
    failed, number = fitting.too_few = _too_few(fitting, fitting.left & known)
    if fitting.excluded_by is None and not failed.any():
        return failed, number
    fitting.keep(known | maybe())
    return failed & (fitting.units(fitting.left) < fitting.needed), number


def _total_too_small(fitting: GpuFitting) -> Failure | None:
    if not fitting.request.memory_total_mib:
        return None
    total, unknown = fitting.total_mib
    return (total < fitting.request.memory_total_mib) & ~unknown, total


def _memory_unknown(fitting: GpuFitting) -> Failure | None:
    if fitting.request.memory_each_mib:
        fitting.keep(fitting.of_size)
        return fitting.too_few
    if not fitting.request.memory_total_mib:
        return None
    total, unknown = fitting.total_mib
    return (total < fitting.request.memory_total_mib) & unknown, total


def _set_aside(fitting: Fitting) -> Failure:
    num_failed = fitting.rows_of(fitting.cluster.set_aside)
    return num_failed > 0, num_failed


def _kept_for_move(fitting: Fitting) -> Failure:
    closed = fitting.rows_of(fitting.cluster.closed)
    return closed, fitting.num_healthy if isinstance(fitting, GpuFitting) else np.zeros(len(closed), np.int64)


def _kept_apart(fitting: GpuFitting) -> Failure:
    """Where a device plugin that picks GPUs might hand out those of annotation-only pods."""
    cluster = fitting.cluster
    others = cluster.num_served if fitting.request.unit is AskedUnit.WHOLE else cluster.num_unserved
    return fitting.rows_of(cluster.plugin_picks) & (fitting.rows_of(others) > 0), fitting.num_installed


def _not_counted(fitting: GpuFitting) -> Failure | None:
    cut = fitting.left_out == LeftOut.TOO_MANY
    if not cut.any():
        return None
    room = _with_room(fitting)
    if fitting.gives_shares:
        room = room & ~_lacks_compute(fitting) & ~_lacks_memory(fitting)
    return cut & (_available(fitting, room) < fitting.needed), fitting.left_out


def _lacks_compute(fitting: GpuFitting) -> Mask:
    """(R, G) GPUs with less free compute than a share takes, or with none."""
    return fitting.shares[:, None] & (fitting.free_milli < max(fitting.request.milli, 1))


def _lacks_memory(fitting: GpuFitting) -> Mask:
    """(R, G) GPUs with less free memory than a share takes."""
    return fitting.shares[:, None] & (fitting.free_mib < fitting.share_mib)


def _with_room(fitting: GpuFitting) -> Mask:
    """(R, G) remaining GPUs without bookings, or all remaining ones where the request gets shares."""
    room: Mask = fitting.left & (fitting.idle | fitting.shares[:, None] if fitting.gives_shares else fitting.idle)
    return room


def _available(fitting: GpuFitting, room: Mask) -> Longs:
    """(R,) units of the GPUs with room, minus the untracked ones."""
    if not fitting.gives_shares:
        return fitting.free_units(room)
    shares = num_true(room & ~fitting.idle) + np.maximum(num_true(room & fitting.idle) - fitting.untracked, 0)
    return np.where(fitting.shares, shares, fitting.free_units(room))


def _compute_busy(fitting: GpuFitting) -> Failure | None:
    return _lacking(fitting, _lacks_compute(fitting), fitting.free_milli) if fitting.gives_shares else None


def _memory_busy(fitting: GpuFitting) -> Failure | None:
    return _lacking(fitting, _lacks_memory(fitting), fitting.free_mib) if fitting.gives_shares else None


def _lacking(fitting: GpuFitting, lacks: Mask, free: Ints) -> Failure | None:
    """Where too few GPUs don't lack something for shares; the number is what the last GPU needed has free."""
    before = fitting.left
    fitting.keep(~lacks)
    few = fitting.shares & (num_true(fitting.left) < fitting.needed)
    return (few, nth_largest(np.where(before, free, 0), fitting.needed)) if few.any() else None


def _busy(fitting: GpuFitting) -> Failure:
    fitting.keep(_with_room(fitting))
    fitting.available = _available(fitting, fitting.left)
    return fitting.available < fitting.needed, fitting.available


def _total_busy(fitting: GpuFitting) -> Failure | None:
    request = fitting.request
    if not request.memory_total_mib:
        return None
    free, fitting.taken = most_memory_mib(fitting.memory, fitting.per_gpu, fitting.left, fitting.untracked, request)
    return free < request.memory_total_mib, free


def _mig_installed(fitting: MigFitting) -> Failure:
    return _fewer(fitting, ((count, installed) for count, installed, _ in fitting.devices))


def _mig_busy(fitting: MigFitting) -> Failure:
    return _fewer(fitting, ((count, free) for count, _, free in reversed(fitting.devices)))


def _fewer(fitting: MigFitting, devices: Iterable[tuple[int, Longs]]) -> Failure:
    """Where there are fewer devices of a profile than requested; the number is that of the last such profile."""
    failed, number = np.zeros(len(fitting.rows), np.bool_), np.zeros(len(fitting.rows), np.int64)
    for count, available in devices:
        failed, number = failed | (available < count), np.where(available < count, available, number)
    return failed, number


def _found(found: SearchResult) -> Callable[[DeviceFitting], Failure]:
    return lambda fitting: (fitting.found == found, np.zeros(len(fitting.rows), np.int64))


# Sentences


_BEST: Final = "best here: "


def _needs(fault: _Sentence, of_devices: str = "", joint: str = ",") -> _Sentence:
    """A sentence that starts with the request; `of_devices` replaces the fault for ResourceClaims."""

    def says(request: GpuRequest, number: int) -> str:
        words = of_devices if request.devices is not None and of_devices else fault(request, number)
        return f"needs {request}{joint} {words}"

    return says


def _counted(what: str, of_devices: str = "") -> _Sentence:
    return _needs(lambda request, number: f"{_BEST}{number} {what}", of_devices)


def _of_memory(what: str) -> _Sentence:
    return _needs(lambda request, number: f"{_BEST}{format_mib(number)} {what}")


def _words(words: str) -> _Sentence:
    return _needs(lambda request, number: words)


def _of_left_out(request: GpuRequest, number: int) -> str:
    left_out = LeftOut(number)
    return f"not available here: {LEFT_OUT_WORDS[left_out]} (kerf install check)" if left_out else "no GPUs here"


def _of_set_aside(request: GpuRequest, number: int) -> str:
    return f"quarantined: {number} {'pod' if number == 1 else 'pods'} failed here soon after starting"


def _of_other_kind(request: GpuRequest, number: int) -> str:
    if number >= _OTHER_VENDOR:
        return f"only {VENDORS[number - _OTHER_VENDOR].title} GPUs here"
    if request.unit is AskedUnit.SHARED:
        return "only whole GPUs here"
    if request.milli and request.unit is AskedUnit.GPU:
        return f"{VENDORS[request.vendor].resource} means whole GPUs or time slices here"
    if request.unit is AskedUnit.CLAIM:
        return "no GPUs for ResourceClaims here"
    if request.unit is AskedUnit.PART:
        return "no device plugin here that shares GPUs"
    return "only time-sliced GPUs here"


def _of_small(fitting: GpuFitting, row: int, slot: int) -> str:
    unit = int(fitting.memory[row, slot]) // int(fitting.per_gpu[row])
    return f"too small: {format_mib(unit)} of {format_mib(fitting.request.memory_each_mib)}"


def _of_little_memory(fitting: GpuFitting, row: int, slot: int) -> str:
    free, share = int(fitting.free_mib[row, slot]), int(fitting.share_mib[row, slot])
    return f"{format_mib(free)} of {format_mib(share)} free"


def _of_kept_apart(request: GpuRequest, number: int) -> str:
    if request.unit is AskedUnit.WHOLE:
        resource = VENDORS[request.vendor].resource
        return f"this node serves {resource} pods, and the device plugin could hand out the same GPUs"
    return "pods here have GPUs by annotation alone, and the device plugin could hand out the same GPUs"


# Remedies


def _without_model(request: GpuRequest) -> tuple[str, GpuRequest] | None:
    patterns = ((word, pattern) for word, pattern in (("", request.include), ("not ", request.exclude)) if pattern)
    words = " and ".join(f"{word}model {pattern.text}" for word, pattern in patterns)
    return (f"any model instead of {words}", replace(request, include=None, exclude=None)) if words else None


def _without_uuids(request: GpuRequest) -> tuple[str, GpuRequest] | None:
    if not request.uuids and not request.uuids_exclude:
        return None
    return "any GPU instead of the requested UUIDs", replace(request, uuids=frozenset(), uuids_exclude=frozenset())


def _do(kind: Kind, text: str, command: str = "kerf top {0}") -> _Remedies:
    """A single remedy: `text` with the node's printable name, `command` with the exact name."""
    return lambda request, node, number: [Remedy(kind, text.format(named(node)), command.format(node))]


def _add_node(request: GpuRequest, node: str, number: int) -> Iterable[Remedy]:
    """For requests that fit on no node even if empty."""
    return [Remedy(Kind.NODES, f"add a node with {request}: no node it may run on has that")]


def _find_left_out(request: GpuRequest, node: str, number: int) -> Iterable[Remedy]:
    if number:
        return [Remedy(Kind.NODES, "find out why nodes offer none of their GPUs", "kerf install check")]
    return _add_node(request, node, number)


_DESCRIBE: Final = _do(
    Kind.NODES,
    "describe the GPUs of {0} with GPU Feature Discovery or the annotation kerf.dev/gpus",
    "kerf install check",
)


def _separate_nodes(request: GpuRequest) -> list[Remedy]:
    remedies = [Remedy(Kind.NODES, "label a node for shares and annotation-only pods, and make those pods select it")]
    if guide := VENDORS[request.vendor].plugin_guide:
        agent = "turn on the node agent: it steers the device plugin to other GPUs, so that both kinds can share a node"
        remedies.append(Remedy(Kind.NODES, f"{agent} ({guide})"))
    return remedies


def _separate_pods(request: GpuRequest, node: str, number: int) -> Iterable[Remedy]:
    """For annotation-only pods and pods of the device plugin, which exclude each other from a node."""
    annotation_only = request.unit is AskedUnit.WHOLE
    others = f"pods with {VENDORS[request.vendor].resource}" if annotation_only else "annotation-only pods"
    wait = Remedy(Kind.WAIT, f"wait for {others} on {named(node)} to end", f"kerf top {node}")
    return [*_separate_nodes(request), wait] if annotation_only else [wait, *_separate_nodes(request)]


# The table


def _each(number: Callable[[GpuRequest], int]) -> Callable[[GpuRequest, Ints], Longs]:
    return lambda request, memory: np.full(len(memory), number(request), np.int64)


BUILT_IN: Final = (
    Check(
        reason=Reason.NO_GPUS,
        gpus=_no_gpus,
        mig=_left_out,
        devices=_found(SearchResult.NO_DEVICES),
        says=_needs(_of_left_out, "no devices here that Kerf allocates"),
        none_has="has {}GPUs",
        remedies=_find_left_out,
    ),
    Check(
        reason=Reason.NOT_THIS_KIND,
        gpus=_other_kind,
        devices=_found(SearchResult.UNDECIDED),
        says=_needs(_of_other_kind, "which can't be decided here: a selector fails, or the search takes too long"),
        gpu=lambda fitting, row, slot: "not of the requested kind",
        remedies=_add_node,
    ),
    Check(
        reason=Reason.TOO_FEW_INSTALLED,
        gpus=_too_few_installed,
        mig=_mig_installed,
        devices=_found(SearchResult.NEVER),
        says=_counted("installed", "the devices here do not satisfy it"),
        change=Change.COUNT,
        none_has="has {}such devices",
        of_kind=True,
        remedies=_add_node,
    ),
    Check(
        reason=Reason.UNHEALTHY,
        gpus=_unhealthy,
        says=_counted("healthy"),
        gpu=lambda fitting, row, slot: "unhealthy",
        change=Change.COUNT,
        of_kind=True,
        remedies=_do(Kind.NODES, "repair the unhealthy GPUs of {0}"),
    ),
    Check(
        reason=Reason.WRONG_UUID,
        gpus=_wrong_uuid,
        says=_counted("of that UUID"),
        gpu=lambda fitting, row, slot: "another UUID",
        change=Change.UUID,
        relaxed=_without_uuids,
        none_has="offers it {}GPUs of that UUID",
        of_kind=True,
        remedies=_add_node,
    ),
    Check(
        reason=Reason.WRONG_MODEL,
        gpus=_wrong_model,
        says=_counted("of that model"),
        gpu=lambda fitting, row, slot: "another model",
        change=Change.MODEL,
        relaxed=_without_model,
        none_has="offers it {}GPUs of that model",
        of_kind=True,
        remedies=_add_node,
    ),
    Check(
        reason=Reason.MODEL_UNKNOWN,
        gpus=_model_unknown,
        says=_words("the model of the GPUs here is not known"),
        gpu=lambda fitting, row, slot: "model unknown",
        change=Change.MODEL,
        remedies=_DESCRIBE,
    ),
    Check(
        reason=Reason.TOO_SMALL,
        gpus=_too_small,
        says=_counted("of that size"),
        gpu=_of_small,
        change=Change.MEMORY_EACH,
        none_has="offers it {}GPUs of that size",
        of_kind=True,
        remedies=_add_node,
    ),
    Check(
        reason=Reason.TOTAL_TOO_SMALL,
        gpus=_total_too_small,
        says=_of_memory("installed"),
        change=Change.MEMORY_TOTAL,
        remedies=_add_node,
    ),
    Check(
        reason=Reason.MEMORY_UNKNOWN,
        gpus=_memory_unknown,
        says=_words("the memory of the GPUs here is not known"),
        gpu=lambda fitting, row, slot: "memory unknown",
        remedies=_DESCRIBE,
    ),
    Check(
        reason=Reason.SET_ASIDE,
        gpus=_set_aside,
        mig=_set_aside,
        devices=_set_aside,
        says=_of_set_aside,
        remedies=_do(Kind.NODES, "find out why pods fail on {0}"),
    ),
    Check(
        reason=Reason.KEPT_FOR_MOVE,
        gpus=_kept_for_move,
        mig=_kept_for_move,
        devices=_kept_for_move,
        says=_words("free capacity here is reserved for a move that makes room"),
        remedies=_do(Kind.WAIT, "wait: room on {0} is reserved for pods being moved", ""),
    ),
    Check(
        reason=Reason.NOT_COUNTED,
        name=Reason.NO_GPUS.name,
        gpus=_not_counted,
        says=_needs(_of_left_out),
        change=Change.COUNT,
        remedies=_find_left_out,
    ),
    Check(
        reason=Reason.KEPT_APART,
        resolvable=True,
        gpus=_kept_apart,
        says=_needs(_of_kept_apart, joint=";"),
        remedies=_separate_pods,
    ),
    Check(
        reason=Reason.COMPUTE_BUSY,
        resolvable=True,
        gpus=_compute_busy,
        says=_needs(lambda request, number: f"{_BEST}{number} milli of one GPU free"),
        gpu=lambda fitting, row, slot: f"{fitting.free_milli[row, slot]} of {max(fitting.request.milli, 1)} milli free",
        change=Change.SHARE,
        missing=Missing("milli", _each(lambda request: request.milli or 1)),
    ),
    Check(
        reason=Reason.MEMORY_BUSY,
        resolvable=True,
        gpus=_memory_busy,
        says=_of_memory("of one GPU free"),
        gpu=_of_little_memory,
        change=Change.MEMORY_EACH,
        missing=Missing(
            "MiB", lambda request, memory: share_mib(request, memory.max(axis=1, initial=0)).astype(np.int64)
        ),
    ),
    Check(
        reason=Reason.BUSY,
        resolvable=True,
        gpus=_busy,
        mig=_mig_busy,
        devices=_found(SearchResult.TAKEN),
        says=_counted("free", "all matching devices here are taken"),
        change=Change.COUNT,
        missing=Missing("GPUs", _each(lambda request: max(request.count, 1))),
        remedies=_do(Kind.NODES, "add a node like {0}", "kerf what-if --waiting --add-node auto"),
    ),
    Check(
        reason=Reason.TOTAL_BUSY,
        resolvable=True,
        gpus=_total_busy,
        says=_of_memory("free"),
        change=Change.MEMORY_TOTAL,
        missing=Missing("MiB", _each(lambda request: request.memory_total_mib)),
    ),
)
_OTHERS: Final = (
    Check(reason=Reason.FITS, says=lambda request, number: "fits"),
    Check(reason=Reason.UNKNOWN_NODE, says=lambda request, number: "node not known to Kerf yet"),
    Check(
        reason=Reason.OCCUPIED,
        says=_words("free by bookings but in use by unknown processes, or faulty"),
        remedies=_do(Kind.NODES, "find what uses GPUs of {0} without a booking, or which of them are faulty"),
    ),
)
"""Reasons that no check of the table finds."""


class _Table:
    """Checks by kind of request, in the order of their codes."""

    def __init__(self, checks: Iterable[Check]) -> None:
        """Raises ValueError where two have the same code."""
        self.only(checks)

    def add(self, check: Check) -> None:
        """Add a check. Raises ValueError where another one has its code."""
        self.only((*self.checks, check))

    def only(self, checks: Iterable[Check]) -> None:
        """Replace all checks. Raises ValueError where two have the same code."""
        self.checks = tuple(sorted(checks, key=lambda check: check.reason))
        self._by_code = {check.reason: check for check in (*self.checks, *_OTHERS)}
        if len(self._by_code) < len(self.checks) + len(_OTHERS):
            raise ValueError("two checks have the same code")
        self.gpus = [(check.reason, check.gpus) for check in self.checks if check.gpus is not None]
        self.mig = [(check.reason, check.mig) for check in self.checks if check.mig is not None]
        self.devices = [(check.reason, check.devices) for check in self.checks if check.devices is not None]
        self.by_state = all(check.by_state for check in self.checks)
        self.by_gpus = self.by_state and set(self.checks) <= set(BUILT_IN)
        """Whether results depend on nodes' GPUs alone: a package's filter may look at CPU and main memory."""
        self.is_resolvable = np.zeros(np.iinfo(np.uint8).max + 1, np.bool_)
        """By code."""
        self.is_resolvable[[check.reason for check in self.checks if check.resolvable]] = True
        self.could_fit = self.is_resolvable.copy()
        """By code: whether the request fits, or would if other pods ended."""
        self.could_fit[Reason.FITS] = True

    def __getitem__(self, code: int) -> Check:
        """The check of a code, including FITS, UNKNOWN_NODE and OCCUPIED."""
        return self._by_code[code]

    def nearest(self, reason: npt.NDArray[np.uint8]) -> int:
        """The reason of the nodes closest to fitting, from (R,) reasons, R > 0, none of them FITS.

        The later a check fails, the closer; among reasons that pass when pods end, the most frequent.
        """
        passing = reason[reason >= Reason.KEPT_APART]
        return self[int(np.bincount(passing).argmax() if len(passing) else reason.max())].reason

    @property
    def names(self) -> list[str]:
        """Names of all reasons but FITS, without duplicates."""
        return list(dict.fromkeys(check.name for code, check in sorted(self._by_code.items()) if code != Reason.FITS))


TABLE: Final = _Table(BUILT_IN)


def resolvable(reason: npt.NDArray[np.uint8]) -> Mask:
    """Which reasons pass when other pods end, in the same shape."""
    mask: Mask = TABLE.is_resolvable[reason]
    return mask


def could_fit(reason: npt.NDArray[np.uint8]) -> Mask:
    """Which reasons let a request fit now or when other pods end, in the same shape."""
    mask: Mask = TABLE.could_fit[reason]
    return mask


def sentence(reason: int, request: GpuRequest, number: int) -> str:
    """The sentence of a reason, with the number behind it."""
    return TABLE[reason].says(request, number)


def nearest_sentence(node: str, reason: int, request: GpuRequest, number: int) -> str:
    """A summary of all nodes by the nearest one (a printable name) and its fault.

    "needs 8 GPUs of model h100; h100-1 is nearest with 6 free".
    """
    words = sentence(reason, request, number)
    fault = words.removeprefix(f"needs {request}").lstrip(",; ")
    if fault == words:
        return f"{words} ({node})"
    nearest = f"needs {request}; {node} is nearest"
    return f"{nearest} with {fault.removeprefix(_BEST)}" if fault.startswith(_BEST) else f"{nearest}: {fault}"
