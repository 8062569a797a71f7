"""Why a pod fits on no node, in one sentence: which node comes nearest, and with what."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.clusters import Cluster
from extender.core.evaluations import Memo
from extender.core.fit.fits import fit
from extender.core.policies.registry import POLICIES
from extender.core.resources.nodes import GpuUnit
from extender.core.resources.requests import AskedUnit, GpuRequest
from extender.explain.sentences.nearest import in_short, nearest_of
from tests.core.builders import NodeState, all_rows, cluster_of, node, pattern

T4, A100, H100 = ("Tesla-T4", 15360), ("NVIDIA-A100-SXM4-80GB", 81920), ("NVIDIA-H100-80GB-HBM3", 81920)
EIGHT_H100 = GpuRequest(8, include=pattern("h100"))


def said(cluster: Cluster, request: GpuRequest) -> str:
    checked = fit(cluster, request, all_rows(cluster))
    return in_short(cluster, request, None, all_rows(cluster), checked)


@pytest.mark.parametrize(
    ("states", "request_", "sentence"),
    [
        pytest.param(
            {"t4-0": node(*[T4] * 4), "a100-0": node(*[A100] * 8), "h100-0": node(*[H100] * 8, held=range(8)),
             "h100-1": node(*[H100] * 8, held=[2, 5])},
            EIGHT_H100, "needs 8 GPUs of model h100; h100-1 is nearest with 6 free", id="taken now",
        ),
        pytest.param(
            {"t4-0": node(*[T4] * 4), "a100-0": node(*[A100] * 8), "h100-0": node(H100, H100, held=[0]),
             "h100-1": node(*[H100] * 4)},
            EIGHT_H100, "needs 8 GPUs of model h100; h100-1 is nearest with 4 installed", id="never so many",
        ),
        pytest.param(
            {"t4-0": node(*[T4] * 4), "a100-0": node(*[A100] * 8)},
            EIGHT_H100, "needs 8 GPUs of model h100; none of 2 nodes offers it GPUs of that model", id="no such model",
        ),
        pytest.param(
            {"a": node(T4)}, GpuRequest(1, memory_each_mib=40960),
            "needs 1 GPU with 40 GiB; the only node offers it no GPUs of that size", id="too small",
        ),
        pytest.param({"a": node(), "b": node()}, GpuRequest(1), "needs 1 GPU; none of 2 nodes has GPUs", id="none"),
        pytest.param(
            {"a": node(A100, unit=GpuUnit.PART, used={0: (800, 1024)})},
            GpuRequest(1, AskedUnit.WHOLE, milli=500),
            "needs 500 milli of a GPU; a is nearest with 200 milli of one GPU free", id="a share",
        ),
        pytest.param(
            {"a": node(*[T4] * 2, broken=[0])}, GpuRequest(2), "needs 2 GPUs; a is nearest with 1 healthy", id="sick",
        ),
        pytest.param(
            {"a": node(*[T4] * 2, picks=True, served=1, held=[0]), "b": node()},
            GpuRequest(1, AskedUnit.WHOLE, milli=500),
            "needs 500 milli of a GPU; a is nearest: this node serves nvidia.com/gpu pods, and the device plugin could "
            "hand out the same GPUs", id="kept apart",
        ),
        pytest.param(
            {"a": node(*[A100] * 2, aside=3), "b": node(T4)}, GpuRequest(2),
            "quarantined: 3 pods failed here soon after starting (a)", id="set aside",
        ),
        pytest.param(
            {"a": node(A100, mig={"1g.5gb": 2})}, GpuRequest(3, AskedUnit.MIG, mig=(("1g.5gb", 3),)),
            "needs 3 x mig-1g.5gb; a is nearest with 2 installed", id="MIG",
        ),
    ],
)  # fmt: skip
def test_sentence(states: Mapping[str, NodeState], request_: GpuRequest, sentence: str) -> None:
    cluster = cluster_of(states)
    assert said(cluster, request_) == sentence


def test_of_no_known_candidates() -> None:
    cluster = cluster_of({"a": node(T4)})
    rows = all_rows(cluster)[:0]
    assert in_short(cluster, GpuRequest(1), None, rows, fit(cluster, GpuRequest(1), rows)) == (
        "Kerf does not know any of its candidate nodes yet"
    )


@given(
    st.lists(st.tuples(st.sampled_from([T4, A100, H100]), st.integers(0, 8), st.integers(0, 255)), min_size=1),
    st.integers(1, 9), st.booleans(),
)  # fmt: skip
def test_the_nearest_is_the_one_that_lacks_least_counted_gpu_by_gpu(
    drawn: list[tuple[tuple[str, int], int, int]], asked: int, of_model: bool
) -> None:
    states = {
        f"n-{number}": node(*[product] * count, held=[gpu for gpu in range(count) if bits >> gpu & 1])
        for number, (product, count, bits) in enumerate(drawn)
    }
    cluster, request = cluster_of(states), GpuRequest(asked, include=pattern("h100") if of_model else None)
    rows = all_rows(cluster)
    evaluation = Memo().evaluate(cluster, request, POLICIES["tightest"]).evaluation
    if evaluation.fits.any():
        return
    sentence = in_short(cluster, request, None, rows, evaluation)
    alike = {
        name: [gpu for gpu, one in enumerate(state.offer.gpus) if not of_model or "h100" in one.model.name]
        for name, state in states.items()
    }
    free = {name: len(set(gpus) - states[name].held) for name, gpus in alike.items()}
    enough = {name: number for name, number in free.items() if len(alike[name]) >= asked}
    most = max((len(gpus) for gpus in alike.values()), default=0)
    if enough:
        best = max(enough.values())
        first = min(name for name, number in enough.items() if number == best)
        assert sentence == f"needs {request}; {first} is nearest with {best} free"
    elif most:
        first = min(name for name, gpus in alike.items() if len(gpus) == most)
        assert sentence == f"needs {request}; {first} is nearest with {most} installed"
        assert nearest_of(cluster, request, None, rows).words == sentence
    else:
        assert "none of" in sentence or "the only node" in sentence
        assert sentence == nearest_of(cluster, request, None, rows).words
    assert np.array_equal(evaluation.reason, fit(cluster, request, rows).reason)
