"""Why a node does not fit: codes for the arrays, sentences for people.

A sentence names what is required and what is here, in few stable buckets: kube-scheduler groups equal texts into one
line of its event, and a text that changes from try to try keeps the pod spinning through its queue.
"""

from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from extender.core.resources.nodes import GPU_RESOURCE, LEFT_OUT_WORDS, LeftOut
from extender.core.resources.quantities import format_mib
from extender.core.resources.requests import AskedUnit, GpuRequest


class Reason(IntEnum):
    """What a node fails first. The order is that of the checks, but for the last three: what can never fit comes
    before what is busy."""

    FITS = 0
    UNKNOWN_NODE = 1
    NO_GPUS = 2
    NOT_THIS_KIND = 3
    TOO_FEW_INSTALLED = 4
    UNHEALTHY = 5
    WRONG_UUID = 6
    WRONG_MODEL = 7
    TOO_SMALL = 8
    TOTAL_TOO_SMALL = 9
    COMPUTE_BUSY = 10
    MEMORY_BUSY = 11
    BUSY = 12
    TOTAL_BUSY = 13
    OCCUPIED = 14
    KEPT_APART = 15
    SET_ASIDE = 16
    MODEL_UNKNOWN = 17
    MEMORY_UNKNOWN = 18
    KEPT_FOR_MOVE = 19


RESOLVABLE: Final = frozenset(
    {Reason.COMPUTE_BUSY, Reason.MEMORY_BUSY, Reason.BUSY, Reason.TOTAL_BUSY, Reason.KEPT_APART}
)
"""Reasons that go away when other pods do: only these make a node a candidate for preemption."""
_IS_RESOLVABLE: Final = np.isin(np.arange(len(Reason)), list(RESOLVABLE))

_BEST: Final = "best here: "
_HERE: Final = {
    Reason.TOO_FEW_INSTALLED: "installed",
    Reason.UNHEALTHY: "healthy",
    Reason.WRONG_UUID: "of that UUID",
    Reason.WRONG_MODEL: "of that model",
    Reason.TOO_SMALL: "of that size",
    Reason.BUSY: "free",
}


_NOT_FOR_ANYBODY: Final = {
    Reason.OCCUPIED: "free by bookings but in use by unknown processes, or faulty",
    Reason.KEPT_FOR_MOVE: "what is free here is kept for a move that makes room",
}
_WHOEVER_ASKS: Final = {
    Reason.FITS: "fits",
    Reason.UNKNOWN_NODE: "node not known to Kerf yet",
    Reason.SET_ASIDE: "set aside",
}
_NOT_KNOWN: Final = {
    Reason.MODEL_UNKNOWN: "the model of the GPUs here is not known",
    Reason.MEMORY_UNKNOWN: "the memory of the GPUs here is not known",
}
_OF_DEVICES: Final = {
    Reason.NO_GPUS: "no devices here that Kerf allocates",
    Reason.NOT_THIS_KIND: "which can't be decided here: a selector fails, or the search takes too long",
    Reason.TOO_FEW_INSTALLED: "the devices here do not meet it",
    Reason.BUSY: "the devices here that would do are taken",
}
"""Of what is asked by ResourceClaims; what exactly is in the way, `device_obstacles` tells."""


def resolvable(reason: npt.NDArray[np.uint8]) -> npt.NDArray[np.bool_]:
    """Which of some reasons are among RESOLVABLE, in the same shape."""
    return _IS_RESOLVABLE[reason]


def nearest_reason(reason: npt.NDArray[np.uint8]) -> Reason:
    """What keeps a request from the nodes that come nearest: (R,) reasons, R > 0, none of them FITS.

    The later a check fails, the closer it was; of what is only taken now, or not known, that on most nodes.
    """
    taken = reason[reason >= Reason.COMPUTE_BUSY]
    return Reason(int(np.bincount(taken).argmax() if len(taken) else reason.max()))


def sentence(reason: Reason, request: GpuRequest, available: int) -> str:
    """The reason in words.

    `available` is the number of units here that meet the failed condition; for MEMORY_BUSY and the two TOTAL reasons
    it is memory in MiB, for COMPUTE_BUSY milli of one GPU, for NO_GPUS the LeftOut.
    """
    if reason in _WHOEVER_ASKS:
        return _set_aside_words(available) if reason is Reason.SET_ASIDE else _WHOEVER_ASKS[reason]
    if request.devices is not None and reason in _OF_DEVICES:
        return f"needs {request}, {_OF_DEVICES[reason]}"
    if reason in _NOT_KNOWN:
        return f"needs {request}, {_NOT_KNOWN[reason]}"
    joint = ";" if reason is Reason.KEPT_APART else ","
    return f"needs {request}{joint} {_of_number(reason, request, available)}"


def nearest_sentence(node: str, reason: Reason, request: GpuRequest, available: int) -> str:
    """Of all nodes in one: the one that comes nearest, named as it may be shown, and what keeps the request from it:
    "needs 8 GPUs of model h100; h100-1 is nearest with 6 free". `available` as in `sentence`."""
    words = sentence(reason, request, available)
    here = words.removeprefix(f"needs {request}").lstrip(",; ")
    if here == words:
        return f"{words} ({node})"
    nearest = f"needs {request}; {node} is nearest"
    return f"{nearest} with {here.removeprefix(_BEST)}" if here.startswith(_BEST) else f"{nearest}: {here}"


def _of_number(reason: Reason, request: GpuRequest, available: int) -> str:
    """What is here of what is needed."""
    match reason:
        case Reason.NO_GPUS:
            return _left_out_words(LeftOut(available))
        case Reason.NOT_THIS_KIND | Reason.KEPT_APART:
            return (_apart if reason is Reason.KEPT_APART else _other_kind)(request)
        case Reason.COMPUTE_BUSY:
            return f"{_BEST}{available} milli of one GPU free"
        case Reason.MEMORY_BUSY:
            return f"{_BEST}{format_mib(available)} of one GPU free"
        case Reason.OCCUPIED | Reason.KEPT_FOR_MOVE:
            return _NOT_FOR_ANYBODY[reason]
        case Reason.TOTAL_TOO_SMALL:
            return f"{_BEST}{format_mib(available)} installed"
        case Reason.TOTAL_BUSY:
            return f"{_BEST}{format_mib(available)} free"
        case _:
            return f"{_BEST}{available} {_HERE[reason]}"


def _set_aside_words(num_pods: int) -> str:
    """Of a node that takes no pods because so many have failed on it."""
    return f"set aside: {num_pods} {'pod' if num_pods == 1 else 'pods'} failed here soon after their start"


def _left_out_words(left_out: LeftOut) -> str:
    """Of a node that gives no GPUs, or not as many as it has."""
    return f"none given here: {LEFT_OUT_WORDS[left_out]} (kerf install check)" if left_out else "no GPUs here"


def _apart(request: GpuRequest) -> str:
    if request.unit is AskedUnit.WHOLE:
        return f"this node serves {GPU_RESOURCE} pods, and the device plugin could hand out the same GPUs"
    return "pods here have GPUs by annotation alone, and the device plugin could hand out the same GPUs"


def _other_kind(request: GpuRequest) -> str:
    if request.unit is AskedUnit.SHARED:
        return "only whole GPUs here"
    if request.milli and request.unit is AskedUnit.GPU:
        return f"{GPU_RESOURCE} means whole GPUs or time slices here"
    if request.unit is AskedUnit.CLAIM:
        return "no GPUs for ResourceClaims here"
    if request.unit is AskedUnit.PART:
        return "no device plugin here that shares GPUs"
    return "only time-sliced GPUs here"
