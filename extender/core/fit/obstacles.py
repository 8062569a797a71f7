"""What keeps a request from each single GPU, in few words."""

import numpy as np

from extender.core.clusters import WHOLE_MILLI, Cluster, Mask, Rows
from extender.core.fit.fits import model_mask, share_mib, uuid_mask
from extender.core.fit.reasons import Reason
from extender.core.fit.results import Fit
from extender.core.resources.quantities import format_mib
from extender.core.resources.requests import GpuRequest


def obstacles(cluster: Cluster, request: GpuRequest, rows: Rows, checked: Fit) -> list[list[str]]:
    """R lists of G texts, "" where a GPU has room for the request or there is none; `checked` is the fit on the rows.

    A GPU without room names what it fails first, in the order of the checks of `fit`.
    """
    installed = cluster.taken(cluster.gpu_model, rows) >= 0  # (R, G)
    blocked = installed & (~checked.room | (checked.reason == Reason.NOT_THIS_KIND)[:, None])
    texts = np.full(blocked.shape, "", dtype=object)
    if request.devices is not None:
        return _of_devices(cluster, rows, installed)
    if request.mig or not blocked.any():
        return [list(row) for row in texts]
    memory = cluster.taken(cluster.gpu_memory_mib, rows)
    of_unit = memory // cluster.taken(cluster.units_per_gpu, rows)[:, None]
    healthy = cluster.taken(cluster.gpu_healthy, rows)
    of_uuid = cluster.taken(uuid_mask(cluster, request), rows)
    model = cluster.taken(cluster.gpu_model, rows)
    of_model = model_mask(cluster, request)[model]
    milli = cluster.taken(cluster.gpu_free_milli, rows)
    mib = cluster.taken(cluster.gpu_free_mib, rows)
    other_kind = checked.reason == Reason.NOT_THIS_KIND
    enough_mib = share_mib(request, memory)
    for row, slot in np.argwhere(blocked).tolist():
        shares = checked.shares[row]
        if other_kind[row]:
            text = "not of the requested kind"
        elif not healthy[row, slot]:
            text = "unhealthy"
        elif not of_uuid[row, slot]:
            text = "another UUID"
        elif not of_model[row, slot]:
            text = "another model" if cluster.models[model[row, slot]].names else "model unknown"
        elif not memory[row, slot] and request.memory_each_mib:
            text = "memory unknown"
        elif of_unit[row, slot] < request.memory_each_mib:
            text = f"too small: {_mib(of_unit[row, slot])} of {format_mib(request.memory_each_mib)}"
        elif shares and milli[row, slot] < max(request.milli, 1):
            text = f"{milli[row, slot]} of {max(request.milli, 1)} milli free"
        elif shares and mib[row, slot] < enough_mib[row, slot]:
            text = f"{_mib(mib[row, slot])} of {_mib(enough_mib[row, slot])} free"
        else:
            text = "in use"
        texts[row, slot] = text
    return [list(row) for row in texts]


def _of_devices(cluster: Cluster, rows: Rows, installed: Mask) -> list[list[str]]:
    """Where claims ask, what is gone of each GPU: which device of it would do, is not a matter of the GPU."""
    healthy, milli = cluster.taken(cluster.gpu_healthy, rows), cluster.taken(cluster.gpu_free_milli, rows)
    some = np.where(milli < WHOLE_MILLI, "partly in use", "")
    texts = np.where(healthy, np.where(milli <= 0, "in use", some), "unhealthy")
    found: list[list[str]] = np.where(installed, texts, "").tolist()
    return found


def _mib(mib: np.int32) -> str:
    return format_mib(int(mib))
