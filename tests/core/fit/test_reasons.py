"""Reasons are sentences with what is needed and what is here, in few stable buckets."""

import numpy as np
import pytest

from extender.core.fit.checks import TABLE, sentence
from extender.core.fit.reasons import Reason
from extender.core.resources.requests import AskedUnit, GpuRequest
from tests.core.builders import pattern

TWO = GpuRequest(2, memory_each_mib=40960)


@pytest.mark.parametrize(
    ("reason", "request_", "available", "text"),
    [
        pytest.param(Reason.FITS, TWO, 3, "fits", id="fits"),
        pytest.param(Reason.UNKNOWN_NODE, TWO, 0, "node not known to Kerf yet", id="unknown node"),
        pytest.param(Reason.SET_ASIDE, TWO, 7, "quarantined: 7 pods failed here soon after starting", id="set aside"),
        pytest.param(Reason.SET_ASIDE, TWO, 1, "quarantined: 1 pod failed here soon after starting", id="one aside"),
        pytest.param(
            Reason.KEPT_FOR_MOVE,
            TWO,
            2,
            "needs 2 GPUs with 40 GiB, free capacity here is reserved for a move that makes room",
            id="kept for a move",
        ),
        pytest.param(
            Reason.OCCUPIED,
            TWO,
            2,
            "needs 2 GPUs with 40 GiB, free by bookings but in use by unknown processes, or faulty",
            id="occupied",
        ),
        pytest.param(Reason.NO_GPUS, TWO, 0, "needs 2 GPUs with 40 GiB, no GPUs here", id="no GPUs"),
        pytest.param(
            Reason.NOT_THIS_KIND,
            GpuRequest(2, AskedUnit.SHARED),
            8,
            "needs 2 GPU replicas, only whole GPUs here",
            id="asks slices",
        ),
        pytest.param(
            Reason.NOT_THIS_KIND,
            GpuRequest(2, AskedUnit.WHOLE),
            8,
            "needs 2 GPUs, only time-sliced GPUs here",
            id="asks whole",
        ),
        pytest.param(
            Reason.NOT_THIS_KIND,
            GpuRequest(1, AskedUnit.WHOLE, milli=500),
            8,
            "needs 500 milli of a GPU, only time-sliced GPUs here",
            id="asks a share by annotation alone",
        ),
        pytest.param(
            Reason.NOT_THIS_KIND, GpuRequest(1), 8, "needs 1 GPU, only time-sliced GPUs here", id="asks one by number"
        ),
        pytest.param(
            Reason.NOT_THIS_KIND, GpuRequest(1), 2**24, "needs 1 GPU, only NVIDIA GPUs here", id="another vendor's"
        ),
        pytest.param(Reason.TOO_FEW_INSTALLED, GpuRequest(3), 2, "needs 3 GPUs, best here: 2 installed", id="few (G2)"),
        pytest.param(
            Reason.WRONG_MODEL,
            GpuRequest(1, include=pattern("a100")),
            0,
            "needs 1 GPU of model a100, best here: 0 of that model",
            id="wrong model (G5)",
        ),
        pytest.param(Reason.TOO_SMALL, TWO, 1, "needs 2 GPUs with 40 GiB, best here: 1 of that size", id="small (G3)"),
        pytest.param(Reason.BUSY, TWO, 1, "needs 2 GPUs with 40 GiB, best here: 1 free", id="busy"),
        pytest.param(
            Reason.TOTAL_TOO_SMALL,
            GpuRequest(0, AskedUnit.WHOLE, memory_total_mib=81920),
            40960,
            "needs GPUs with 80 GiB in total, best here: 40 GiB installed",
            id="total too small (G4)",
        ),
        pytest.param(
            Reason.TOTAL_BUSY,
            GpuRequest(2, memory_total_mib=81920),
            11000,
            "needs 2 GPUs with 80 GiB in total, best here: 11000 MiB free",
            id="total busy",
        ),
        pytest.param(
            Reason.UNHEALTHY, GpuRequest(2), 1, "needs 2 GPUs, best here: 1 healthy", id="broken ones are not offered"
        ),
        pytest.param(
            Reason.WRONG_UUID,
            GpuRequest(1, uuids=frozenset({"GPU-b", "GPU-a"})),
            0,
            "needs 1 GPU of UUID GPU-a or 1 more, best here: 0 of that UUID",
            id="another UUID",
        ),
        pytest.param(
            Reason.COMPUTE_BUSY,
            GpuRequest(1, AskedUnit.WHOLE, 4096, milli=500),
            300,
            "needs 500 milli of a GPU with 4 GiB, best here: 300 milli of one GPU free",
            id="share, compute",
        ),
        pytest.param(
            Reason.MEMORY_BUSY,
            GpuRequest(2, AskedUnit.WHOLE, 4096, milli=500),
            1024,
            "needs 500 milli of each of 2 GPUs with 4 GiB, best here: 1 GiB of one GPU free",
            id="share, memory",
        ),
        pytest.param(
            Reason.NOT_THIS_KIND,
            GpuRequest(1, milli=500),
            8,
            "needs 500 milli of a GPU, nvidia.com/gpu means whole GPUs or time slices here",
            id="share in the name of a whole GPU",
        ),
        pytest.param(
            Reason.NOT_THIS_KIND,
            GpuRequest(1, AskedUnit.CLAIM),
            8,
            "needs 1 GPU, no GPUs for ResourceClaims here",
            id="asks by ResourceClaim",
        ),
        pytest.param(
            Reason.NOT_THIS_KIND,
            GpuRequest(1, AskedUnit.PART, 4096),
            8,
            "needs 1 GPU with 4 GiB, no device plugin here that shares GPUs",
            id="asks a part",
        ),
        pytest.param(
            Reason.KEPT_APART,
            GpuRequest(1),
            8,
            "needs 1 GPU; pods here have GPUs by annotation alone, and the device plugin could hand out the same GPUs",
            id="beside pods that the plugin does not know",
        ),
        pytest.param(
            Reason.KEPT_APART,
            GpuRequest(1, AskedUnit.WHOLE, milli=500),
            8,
            "needs 500 milli of a GPU; this node serves nvidia.com/gpu pods, "
            "and the device plugin could hand out the same GPUs",
            id="beside pods that the plugin serves",
        ),
        pytest.param(
            Reason.BUSY,
            GpuRequest(2, AskedUnit.MIG, mig=(("1g.5gb", 2),)),
            1,
            "needs 2 x mig-1g.5gb, best here: 1 free",
            id="MIG",
        ),
    ],
)
def test_sentence(reason: Reason, request_: GpuRequest, available: int, text: str) -> None:
    assert sentence(reason, request_, available) == text


def test_every_reason_has_a_sentence() -> None:
    assert all(sentence(reason, TWO, 1) for reason in Reason)


@pytest.mark.parametrize(
    ("reasons", "nearest"),
    [
        pytest.param([Reason.NO_GPUS, Reason.WRONG_MODEL, Reason.TOO_FEW_INSTALLED], Reason.WRONG_MODEL, id="never"),
        pytest.param([Reason.TOO_SMALL, Reason.TOO_SMALL, Reason.BUSY], Reason.BUSY, id="taken now"),
        pytest.param([Reason.BUSY, Reason.OCCUPIED, Reason.BUSY], Reason.BUSY, id="one node is odd"),
        pytest.param([Reason.KEPT_APART, Reason.KEPT_APART, Reason.BUSY], Reason.KEPT_APART, id="most are kept apart"),
    ],
)
def test_the_nearest_reason_is_what_most_lack_that_would_do(reasons: list[Reason], nearest: Reason) -> None:
    assert TABLE.nearest(np.array(reasons, np.uint8)) is nearest


def test_only_what_other_pods_can_free_is_resolvable() -> None:
    by_pods = {Reason.COMPUTE_BUSY, Reason.MEMORY_BUSY, Reason.BUSY, Reason.TOTAL_BUSY, Reason.KEPT_APART}
    assert by_pods == {check.reason for check in TABLE.checks if check.resolvable}
