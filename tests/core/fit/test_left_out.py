"""Nodes of which nothing is given, or not all, and GPUs of which something is not known: said in the reason."""

from dataclasses import replace

import numpy as np
import pytest

from extender.core.fit.checks import sentence
from extender.core.fit.fits import fit
from extender.core.fit.reasons import Reason
from extender.core.fit.relaxations import obstacles
from extender.core.resources.nodes import MAX_GPUS_PER_NODE, LeftOut, read_node
from extender.core.resources.requests import GpuRequest
from tests.core.builders import NodeState, all_rows, cluster_of, node, pattern
from tests.nvidia import GPU_RESOURCE

T4, NAMELESS = ("Tesla-T4", 15360), ("", 0)
NO_MEMORY = ("NVIDIA-GB10", 0)


def why(state: NodeState, request: GpuRequest) -> str:
    cluster = cluster_of({"n": state})
    checked = fit(cluster, request, all_rows(cluster))
    return sentence(Reason(checked.reason[0]), request, int(checked.available[0]))


@pytest.mark.parametrize("left_out", [LeftOut.UNREADABLE, LeftOut.PLUGIN_GONE, LeftOut.ONE_BY_ONE])
@pytest.mark.parametrize(
    "request_", [GpuRequest(1), GpuRequest(1, mig=(("1g.5gb", 1),)), GpuRequest(1, memory_total_mib=1)]
)
def test_what_is_left_out_fits_nothing_and_says_why(left_out: LeftOut, request_: GpuRequest) -> None:
    state = node(T4, T4)
    state = replace(state, offer=replace(state.offer, left_out=left_out))
    told = why(state, request_)
    assert "not available here" in told
    assert "kerf install check" in told
    assert why(node(T4, T4), GpuRequest(1)) == "fits"


def test_a_node_of_500_gpus_gives_64_and_says_so() -> None:
    """The virtual node of another cluster."""
    offer = read_node({GPU_RESOURCE: "500"}, {})
    assert (len(offer.gpus), offer.left_out) == (MAX_GPUS_PER_NODE, LeftOut.TOO_MANY)
    told = f"not available here: Kerf counts at most {MAX_GPUS_PER_NODE} GPUs per node (kerf install check)"
    assert why(NodeState(offer), GpuRequest(8)) == why(NodeState(offer), GpuRequest(64)) == "fits"
    assert why(NodeState(offer), GpuRequest(65)) == f"needs 65 GPUs, {told}"
    full = NodeState(offer, held=frozenset(range(60)))
    assert why(full, GpuRequest(4)) == "fits"
    assert why(full, GpuRequest(8)) == f"needs 8 GPUs, {told}"
    assert "model" in why(full, GpuRequest(1, include=pattern("t4")))


@pytest.mark.parametrize(
    ("state", "request_", "text", "obstacle"),
    [
        pytest.param(
            node(NO_MEMORY, NO_MEMORY),
            GpuRequest(1, memory_each_mib=65536),
            "needs 1 GPU with 64 GiB, the memory of the GPUs here is not known",
            "memory unknown",
            id="memory of each",
        ),
        pytest.param(
            node(NO_MEMORY),
            GpuRequest(0, memory_total_mib=65536),
            "needs GPUs with 64 GiB in total, the memory of the GPUs here is not known",
            "",
            id="memory in total",
        ),
        pytest.param(
            node(NAMELESS),
            GpuRequest(1, include=pattern("t4")),
            "needs 1 GPU of model t4, the model of the GPUs here is not known",
            "model unknown",
            id="model",
        ),
        pytest.param(
            node(T4, NO_MEMORY),
            GpuRequest(2, memory_each_mib=16384),
            "needs 2 GPUs with 16 GiB, best here: 0 of that size",
            "too small: 15 GiB of 16 GiB",
            id="whatever the unknown one has, it is not enough",
        ),
        pytest.param(
            node(T4, NAMELESS),
            GpuRequest(1, include=pattern("a100"), memory_each_mib=1),
            "needs 1 GPU of model a100 with 1 MiB, the model of the GPUs here is not known",
            "another model",
            id="one might do",
        ),
    ],
)
def test_what_is_not_known_is_said_so(state: NodeState, request_: GpuRequest, text: str, obstacle: str) -> None:
    cluster = cluster_of({"n": state})
    checked = fit(cluster, request_, all_rows(cluster))
    assert not checked.fits[0]
    assert why(state, request_) == text
    assert obstacles(cluster, request_, np.array([0]))[0][0] == obstacle
