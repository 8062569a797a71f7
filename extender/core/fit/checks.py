"""The checks that a node has to pass, one row each: what it fails as, how that is found, what is said of it, and what
would help. Whatever tells why a node does not do, or what would make it do, reads the row that refused it.

Sentences name what is required and what is here, in few stable buckets: kube-scheduler groups equal texts into one
line of its event, and a text that changes from try to try keeps the pod spinning through its queue.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from extender.core.clusters import Ints, Longs, Mask, num_true
from extender.core.fit.device_fits import DeviceFitting, Found
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

_NO_UNIT: Final = int(GpuUnit.NONE)  # a member of an enum is looked up by Python
_OTHER_VENDOR: Final = 2**24
"""From here on a number is a vendor's: no node has as many GPUs."""
Failure = tuple[Mask, Longs]
"""(R,) where a check fails, and (R,) the number to tell."""
_Says = Callable[[GpuRequest, int], str]
_Remedies = Callable[[GpuRequest, str, int], Iterable[Remedy]]
"""Of a request, the name of the node that comes nearest, and the number that it failed with."""


class Change(StrEnum):
    """What of a request may be less."""

    COUNT = "count"
    MEMORY_EACH = "memoryEach"
    MEMORY_TOTAL = "memoryTotal"
    SHARE = "share"
    MODEL = "model"
    UUID = "uuid"


@dataclass(frozen=True, slots=True)
class Missing:
    """What others have that the request lacks, on a node that fails for that."""

    unit: str
    """What is counted: GPUs, milli or MiB."""
    asked: Callable[[GpuRequest, Ints], Longs]
    """(R,) what the number is held against; of the request and (R, G) memory of the GPUs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A row of the table."""

    reason: int
    """Its code in arrays. Checks are made in the order of these."""
    name: str = ""
    """In JSON and metrics."""
    gpus: Callable[[GpuFitting], Failure | None] | None = None
    """Where GPUs asked by number fail it; None where the request does not ask for that."""
    mig: Callable[[MigFitting], Failure | None] | None = None
    devices: Callable[[DeviceFitting], Failure | None] | None = None
    """Likewise for ResourceClaims."""
    by_state: bool = True
    """Whether it comes to the same on nodes that are equal but for their name and identity."""
    resolvable: bool = False
    """Whether it passes when other pods go: only that makes a node a candidate for preemption."""
    says: _Says
    """The sentence. The number is that of units here that pass, or what the check counts."""
    gpu: Callable[[GpuFitting, int, int], str] = lambda fitting, row, slot: "in use"
    """What a GPU lacks that the check takes away, by row and index."""
    change: Change | None = None
    """What of the request would have to be less."""
    relaxed: Callable[[GpuRequest], tuple[str, GpuRequest] | None] = lambda request: None
    """A request without this condition, and what it is in words; None where it has none."""
    missing: Missing | None = None
    none_has: str = ""
    """What is said of nodes that have none at all: "has {}GPUs"."""
    of_kind: bool = False
    """Whether the number counts GPUs of the kind that is asked for."""
    remedies: _Remedies = lambda request, node, number: ()
    """What of the nodes would have to be another way; of the node that comes nearest, and the number that it has."""

    def __post_init__(self) -> None:
        if not self.name:
            object.__setattr__(self, "name", Reason(self.reason).name)


# How each is found


def _too_few(fitting: GpuFitting, left: Mask) -> Failure:
    """Where fewer units are left than are needed."""
    number = fitting.units(left)
    return number < fitting.needed, number


def _left_out(fitting: MigFitting) -> Failure:
    """Where a node gives nothing, whatever it has."""
    left_out = fitting.rows_of(fitting.cluster.left_out).astype(np.int64)
    return (left_out != LeftOut.NOTHING) & (left_out != LeftOut.TOO_MANY), left_out


def _no_gpus(fitting: GpuFitting) -> Failure:
    none, left_out = fitting.unit == _NO_UNIT, fitting.left_out
    if not left_out.any():
        return none, fitting.num_installed
    told = (left_out != LeftOut.NOTHING) & ((left_out != LeftOut.TOO_MANY) | (fitting.num_installed < fitting.needed))
    return told | none, np.where(told, left_out, fitting.num_installed)


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
    """Not even with those whose model is not known there would be enough."""
    if fitting.request.include is None and fitting.request.exclude is None:
        return None
    return _without(fitting, fitting.of_model, lambda: fitting.nameless)


def _model_unknown(fitting: GpuFitting) -> Failure | None:
    if fitting.request.include is None and fitting.request.exclude is None:
        return None
    fitting.keep(fitting.of_model)
    return fitting.too_few


def _too_small(fitting: GpuFitting) -> Failure | None:
    """Not even with those whose memory is not known there would be enough."""
    if not fitting.request.memory_each_mib:
        return None
    return _without(fitting, fitting.of_size, lambda: fitting.memory == 0)


def _without(fitting: GpuFitting, known: Mask, maybe: Callable[[], Mask]) -> Failure:
    """Where fewer than needed are known to do, and those that may do would not be enough either: what does not do is
    taken away. The next check takes those away that only may."""
    failed, number = fitting.too_few = _too_few(fitting, fitting.left & known)
    if fitting.lost is None and not failed.any():
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
    """Where the device plugin picks GPUs by itself, and pods are that it serves beside those of which it knows
    nothing: it would give away the GPUs of the latter."""
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
    """(R, G) GPUs that have less compute free than a share takes: one without any left serves nobody."""
    return fitting.shares[:, None] & (fitting.free_milli < max(fitting.request.milli, 1))


def _lacks_memory(fitting: GpuFitting) -> Mask:
    """(R, G) GPUs that have less memory free than a share takes."""
    return fitting.shares[:, None] & (fitting.free_mib < fitting.share_mib)


def _with_room(fitting: GpuFitting) -> Mask:
    """(R, G) GPUs left that nobody holds, or that may be shared."""
    room: Mask = fitting.left & (fitting.idle | fitting.shares[:, None] if fitting.gives_shares else fitting.idle)
    return room


def _available(fitting: GpuFitting, room: Mask) -> Longs:
    """(R,) units of the GPUs with room, whatever those of unknown index hold."""
    if not fitting.gives_shares:
        return fitting.free_units(room)
    shares = num_true(room & ~fitting.idle) + np.maximum(num_true(room & fitting.idle) - fitting.untracked, 0)
    return np.where(fitting.shares, shares, fitting.free_units(room))


def _compute_busy(fitting: GpuFitting) -> Failure | None:
    return _lacking(fitting, _lacks_compute(fitting), fitting.free_milli) if fitting.gives_shares else None


def _memory_busy(fitting: GpuFitting) -> Failure | None:
    return _lacking(fitting, _lacks_memory(fitting), fitting.free_mib) if fitting.gives_shares else None


def _lacking(fitting: GpuFitting, lacks: Mask, free: Ints) -> Failure | None:
    """Where too few GPUs are left for shares without those that lack something: what the last one needed has free."""
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
    """Where there are fewer of a kind of devices than its count: the last such kind is told."""
    failed, number = np.zeros(len(fitting.rows), np.bool_), np.zeros(len(fitting.rows), np.int64)
    for count, here in devices:
        failed, number = failed | (here < count), np.where(here < count, here, number)
    return failed, number


def _found(found: Found) -> Callable[[DeviceFitting], Failure]:
    return lambda fitting: (fitting.found == found, np.zeros(len(fitting.rows), np.int64))


# What is said of it


_BEST: Final = "best here: "


def _needs(here: _Says, of_devices: str = "", joint: str = ",") -> _Says:
    """A sentence that begins with what is needed; `of_devices` is what is here for ResourceClaims."""

    def says(request: GpuRequest, number: int) -> str:
        words = of_devices if request.devices is not None and of_devices else here(request, number)
        return f"needs {request}{joint} {words}"

    return says


def _counted(what: str, of_devices: str = "") -> _Says:
    return _needs(lambda request, number: f"{_BEST}{number} {what}", of_devices)


def _of_memory(what: str) -> _Says:
    return _needs(lambda request, number: f"{_BEST}{format_mib(number)} {what}")


def _words(words: str) -> _Says:
    return _needs(lambda request, number: words)


def _of_left_out(request: GpuRequest, number: int) -> str:
    """Of a node that gives no GPUs, or not as many as it has."""
    left_out = LeftOut(number)
    return f"none given here: {LEFT_OUT_WORDS[left_out]} (kerf install check)" if left_out else "no GPUs here"


def _of_set_aside(request: GpuRequest, number: int) -> str:
    return f"set aside: {number} {'pod' if number == 1 else 'pods'} failed here soon after their start"


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


# What would help


def _without_model(request: GpuRequest) -> tuple[str, GpuRequest] | None:
    patterns = ((word, pattern) for word, pattern in (("", request.include), ("not ", request.exclude)) if pattern)
    words = " and ".join(f"{word}model {pattern.text}" for word, pattern in patterns)
    return (f"any model instead of {words}", replace(request, include=None, exclude=None)) if words else None


def _without_uuids(request: GpuRequest) -> tuple[str, GpuRequest] | None:
    if not request.uuids and not request.uuids_exclude:
        return None
    return "any GPU instead of the requested UUIDs", replace(request, uuids=frozenset(), uuids_exclude=frozenset())


def _do(kind: Kind, text: str, command: str = "kerf top {0}") -> _Remedies:
    """One remedy: a text with the node's name as it may be shown, and a command with the name itself."""
    return lambda request, node, number: [Remedy(kind, text.format(named(node)), command.format(node))]


def _another(request: GpuRequest, node: str, number: int) -> Iterable[Remedy]:
    """No empty node of those here would do either."""
    return [Remedy(Kind.NODES, f"add a node with {request}: none of those that it may go to has that")]


def _give(request: GpuRequest, node: str, number: int) -> Iterable[Remedy]:
    if number:
        return [Remedy(Kind.NODES, "see why nodes give none of their GPUs", "kerf install check")]
    return _another(request, node, number)


_DESCRIBE: Final = _do(
    Kind.NODES,
    "have the GPUs of {0} described: by GPU Feature Discovery, or the annotation kerf.dev/gpus",
    "kerf install check",
)


def _apart(request: GpuRequest) -> list[Remedy]:
    found = [
        Remedy(Kind.NODES, "label a node for shares and pods that ask by annotation alone, and have these select it")
    ]
    if guide := VENDORS[request.vendor].plugin_guide:
        led = "turn the node agent on: it leads the device plugin to other GPUs, and both kinds share a node"
        found.append(Remedy(Kind.NODES, f"{led} ({guide})"))
    return found


def _separate(request: GpuRequest, node: str, number: int) -> Iterable[Remedy]:
    """Of pods by annotation alone and pods of the device plugin, which keep each other from a node."""
    look = f"kerf top {node}"
    if request.unit is AskedUnit.WHOLE:
        resource = VENDORS[request.vendor].resource
        return [*_apart(request), Remedy(Kind.WAIT, f"wait for pods with {resource} on {named(node)} to end", look)]
    return [
        Remedy(Kind.WAIT, f"wait for pods that ask by annotation alone on {named(node)} to end", look),
        *_apart(request),
    ]


# The table


def _each(number: Callable[[GpuRequest], int]) -> Callable[[GpuRequest, Ints], Longs]:
    return lambda request, memory: np.full(len(memory), number(request), np.int64)


BUILT_IN: Final = (
    Check(
        reason=Reason.NO_GPUS,
        gpus=_no_gpus,
        mig=_left_out,
        devices=_found(Found.NO_DEVICES),
        says=_needs(_of_left_out, "no devices here that Kerf allocates"),
        none_has="has {}GPUs",
        remedies=_give,
    ),
    Check(
        reason=Reason.NOT_THIS_KIND,
        gpus=_other_kind,
        devices=_found(Found.UNDECIDED),
        says=_needs(_of_other_kind, "which can't be decided here: a selector fails, or the search takes too long"),
        gpu=lambda fitting, row, slot: "not of the requested kind",
        remedies=_another,
    ),
    Check(
        reason=Reason.TOO_FEW_INSTALLED,
        gpus=_too_few_installed,
        mig=_mig_installed,
        devices=_found(Found.NEVER),
        says=_counted("installed", "the devices here do not meet it"),
        change=Change.COUNT,
        none_has="has {}such devices",
        of_kind=True,
        remedies=_another,
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
        remedies=_another,
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
        remedies=_another,
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
        remedies=_another,
    ),
    Check(
        reason=Reason.TOTAL_TOO_SMALL,
        gpus=_total_too_small,
        says=_of_memory("installed"),
        change=Change.MEMORY_TOTAL,
        remedies=_another,
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
        says=_words("what is free here is kept for a move that makes room"),
        remedies=_do(Kind.WAIT, "wait: room on {0} is kept for pods that move", ""),
    ),
    Check(
        reason=Reason.NOT_COUNTED,
        name=Reason.NO_GPUS.name,
        gpus=_not_counted,
        says=_needs(_of_left_out),
        change=Change.COUNT,
        remedies=_give,
    ),
    Check(
        reason=Reason.KEPT_APART,
        resolvable=True,
        gpus=_kept_apart,
        says=_needs(_of_kept_apart, joint=";"),
        remedies=_separate,
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
        devices=_found(Found.TAKEN),
        says=_counted("free", "the devices here that would do are taken"),
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
"""In the order of their codes."""
_OTHERS: Final = (
    Check(reason=Reason.FITS, says=lambda request, number: "fits"),
    Check(reason=Reason.UNKNOWN_NODE, says=lambda request, number: "node not known to Kerf yet"),
    Check(
        reason=Reason.OCCUPIED,
        says=_words("free by bookings but in use by unknown processes, or faulty"),
        remedies=_do(Kind.NODES, "find what uses GPUs of {0} without a booking, or is faulty there"),
    ),
)
"""What is not found by a check of the table."""


class _Table:
    """Checks by kind of request, in the order of their codes."""

    def __init__(self, checks: Iterable[Check]) -> None:
        """Raises ValueError where two have the same code."""
        self.only(checks)

    def add(self, check: Check) -> None:
        """One more. Raises ValueError where another one has its code."""
        self.only((*self.checks, check))

    def only(self, checks: Iterable[Check]) -> None:
        """These, and no others. Raises ValueError where two have the same code."""
        self.checks = tuple(sorted(checks, key=lambda check: check.reason))
        self._by_code = {check.reason: check for check in (*self.checks, *_OTHERS)}
        if len(self._by_code) < len(self.checks) + len(_OTHERS):
            raise ValueError("two checks have the same code")
        self.gpus = [(check.reason, check.gpus) for check in self.checks if check.gpus is not None]
        self.mig = [(check.reason, check.mig) for check in self.checks if check.mig is not None]
        self.devices = [(check.reason, check.devices) for check in self.checks if check.devices is not None]
        self.by_state = all(check.by_state for check in self.checks)
        self.is_resolvable = np.zeros(np.iinfo(np.uint8).max + 1, np.bool_)
        """By code."""
        self.is_resolvable[[check.reason for check in self.checks if check.resolvable]] = True
        self.could_fit = self.is_resolvable.copy()
        """By code: whether it fits, or would if other pods went."""
        self.could_fit[Reason.FITS] = True

    def __getitem__(self, code: int) -> Check:
        """Also what FITS, UNKNOWN_NODE and OCCUPIED stand for."""
        return self._by_code[code]

    def nearest(self, reason: npt.NDArray[np.uint8]) -> int:
        """What keeps a request from the nodes that come nearest: (R,) reasons, R > 0, none of them FITS.

        The later a check fails, the closer it was; of what is only taken now, that on most nodes.
        """
        passing = reason[reason >= Reason.KEPT_APART]
        return self[int(np.bincount(passing).argmax() if len(passing) else reason.max())].reason

    @property
    def names(self) -> list[str]:
        """Of all that a node may fail, each once."""
        return list(dict.fromkeys(check.name for code, check in sorted(self._by_code.items()) if code != Reason.FITS))


TABLE: Final = _Table(BUILT_IN)


def resolvable(reason: npt.NDArray[np.uint8]) -> Mask:
    """Which of some reasons go away when other pods do, in the same shape."""
    passing: Mask = TABLE.is_resolvable[reason]
    return passing


def could_fit(reason: npt.NDArray[np.uint8]) -> Mask:
    """Which of some reasons let a request fit now or when other pods go, in the same shape."""
    could: Mask = TABLE.could_fit[reason]
    return could


def sentence(reason: int, request: GpuRequest, number: int) -> str:
    """A reason in words, with the number behind it."""
    return TABLE[reason].says(request, number)


def nearest_sentence(node: str, reason: int, request: GpuRequest, number: int) -> str:
    """Of all nodes in one: the one that comes nearest, named as it may be shown, and what keeps the request from it:
    "needs 8 GPUs of model h100; h100-1 is nearest with 6 free"."""
    words = sentence(reason, request, number)
    here = words.removeprefix(f"needs {request}").lstrip(",; ")
    if here == words:
        return f"{words} ({node})"
    nearest = f"needs {request}; {node} is nearest"
    return f"{nearest} with {here.removeprefix(_BEST)}" if here.startswith(_BEST) else f"{nearest}: {here}"
