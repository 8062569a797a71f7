"""Choice of the GPUs that a pod gets on a node."""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec
import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster, Mask
from extender.core.fit.fittings import share_mib
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import GpuRequest

_WITH_INDICES: Final = frozenset({int(GpuUnit.WHOLE), int(GpuUnit.PART)})
"""Units whose GPUs Kerf chooses."""


class _Slot(msgspec.Struct, frozen=True):
    """A GPU with room for the request."""

    index: int
    memory_mib: int
    free_milli: int
    free_mib: int
    idle: bool
    link: int
    numa: int


def choose_among(
    cluster: Cluster, row: int, request: GpuRequest, room: Mask, *, shares: bool, spreads: bool
) -> tuple[int, ...] | None:
    """Indices of the GPUs for a request on one node, chosen among those with `room` (G,); None when it does not fit.

    Whole GPUs come from one link group if possible, else from one NUMA node, else from anywhere. Among these, the
    smallest sufficient GPUs win, then the group with the fewest free GPUs, then the lowest indices.
    A share (`shares`) goes on the partly used GPU that it fills best, or with `spreads` on the emptiest one.
    Time slices come from the GPUs with the most slices left.
    The result is empty where the device plugin picks: MIG devices, and time slices that Kerf does not steer or that
    would need several slices of one GPU.
    """
    if cluster.slices_led[row] and not request.mig:
        return _slices(cluster, row, request, room)
    if request.mig or cluster.unit.item(row) not in _WITH_INDICES:
        return ()
    slots = _slots(cluster, row, room.tolist())
    if shares:
        return _shared(slots, request, spreads, int(cluster.untracked_units[row]))
    return _whole(slots, request)


def crossed_groups(cluster: Cluster, row: int, gpus: Sequence[int]) -> str:
    """Whether GPUs of one node span several groups: "numa", else "link", "" when they are together or unknown."""
    for name, groups in (("numa", cluster.gpu_numa[row]), ("link", cluster.gpu_link[row])):
        if len({group for group in groups[list(gpus)].tolist() if group >= 0}) > 1:
            return name
    return ""


def _slots(cluster: Cluster, row: int, room: list[bool]) -> list[_Slot]:
    free_milli, free_mib, memory_mib = (
        array[row] for array in (cluster.gpu_free_milli, cluster.gpu_free_mib, cluster.gpu_memory_mib)
    )
    idle = (free_milli == WHOLE_MILLI) & (free_mib == memory_mib)  # for one row; `gpu_idle` computes all N
    columns = (memory_mib, free_milli, free_mib, idle, cluster.gpu_link[row], cluster.gpu_numa[row])
    values = zip(*[column.tolist() for column in columns], strict=True)
    return [_Slot(index, *one) for index, (one, has_room) in enumerate(zip(values, room, strict=True)) if has_room]


def _slices(cluster: Cluster, row: int, request: GpuRequest, room: Mask) -> tuple[int, ...]:
    """One time slice on each of `request.count` GPUs, those with the most slices left; () where too few have one."""
    held = cluster.gpu_slices[row]
    with_slices = np.flatnonzero(room & (held < cluster.units_per_gpu[row]))
    emptiest = with_slices[np.argsort(held[with_slices], kind="stable")][: request.count]
    return tuple(sorted(emptiest.tolist())) if len(emptiest) == request.count else ()


def _shared(slots: list[_Slot], request: GpuRequest, spreads: bool, untracked: int) -> tuple[int, ...] | None:
    """The GPUs for shares: partly used ones first by best fit, or the emptiest first. None where too few have room.

    `untracked` units of unknown index may be on any idle GPU, so that many idle GPUs are not used.
    """
    num_idle = max(sum(slot.idle for slot in slots) - untracked, 0)
    asked_mib = share_mib(request, np.array([slot.memory_mib for slot in slots], np.int32)).tolist()
    mib_of = dict(zip((slot.index for slot in slots), asked_mib, strict=True))

    def leaves(slot: _Slot) -> tuple[int, int]:
        left = (slot.free_milli - request.milli, slot.free_mib - mib_of[slot.index])
        return left if request.milli else left[::-1]

    if spreads:
        ordered = sorted(slots, key=lambda slot: (*(-left for left in leaves(slot)), slot.index))
    else:
        ordered = sorted(slots, key=lambda slot: (slot.idle, *leaves(slot), slot.index))
    chosen: list[int] = []
    for slot in ordered:
        if len(chosen) == request.count:
            break
        if slot.idle and num_idle == 0:
            continue
        num_idle -= slot.idle
        chosen.append(slot.index)
    return tuple(sorted(chosen)) if len(chosen) == request.count else None


def _whole(slots: list[_Slot], request: GpuRequest) -> tuple[int, ...] | None:
    """The GPUs for a request of whole GPUs, None where too few have room."""
    counts = [request.count] if request.count else range(1, len(slots) + 1)
    for count in counts:
        for groups in _groupings(slots, count):
            choices = [choice for group in groups if (choice := _smallest(group, count, request)) is not None]
            if choices:
                *_, indices = min(choices)
                return tuple(sorted(indices))
    return None


def _groupings(slots: list[_Slot], count: int) -> Iterator[list[list[_Slot]]]:
    """The GPUs by link group, then by NUMA node, then all together."""
    for groups in ([slot.link for slot in slots], [slot.numa for slot in slots]):
        known = sorted(set(groups) - {-1})
        if known and (count > 1 or -1 not in groups):
            yield [[slot for slot, own in zip(slots, groups, strict=True) if own == group] for group in known]
    yield [slots]


def _smallest(group: list[_Slot], count: int, request: GpuRequest) -> tuple[int, int, int, tuple[int, ...]] | None:
    """A sort key (smaller is better) ending with the indices of the smallest sufficient GPUs; None where none are."""
    smallest_first = sorted(group, key=lambda slot: (slot.memory_mib, slot.index))
    # Windows over the sorted sizes: the first with enough memory spares the largest GPUs.
    for start in range(len(smallest_first) - count + 1):
        window = smallest_first[start : start + count]
        total_mib = sum(slot.memory_mib for slot in window)
        if total_mib >= request.memory_total_mib:
            return window[-1].memory_mib, total_mib, len(group), tuple(slot.index for slot in window)
    return None
