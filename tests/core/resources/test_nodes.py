"""What a node offers, from allocatable resources and GPU Feature Discovery labels."""

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.fit.fits import fit
from extender.core.resources.gpu_models import UNKNOWN_MODEL
from extender.core.resources.nodes import MAX_GPUS_PER_NODE, NO_GPUS, GpuUnit, LeftOut, nominal_mib, read_node
from extender.core.resources.requests import AskedUnit, GpuRequest
from tests.core.builders import NodeState, cluster_of
from tests.nvidia import COUNT_LABEL, GPU_RESOURCE, MEMORY_LABEL, PRODUCT_LABEL, REPLICAS_LABEL, SHARED_GPU_RESOURCE

A100_LABELS = {PRODUCT_LABEL: "NVIDIA-A100-SXM4-80GB", COUNT_LABEL: "8", MEMORY_LABEL: "81920"}


@pytest.mark.parametrize(
    ("reported", "nominal"),
    [
        pytest.param(40536, 40960, id="A100 of 40 GiB: 424 missing <= 2 % of 40960 = 819"),
        pytest.param(81559, 81920, id="H100 of 80 GiB: 361 missing <= 1638"),
        pytest.param(32510, 32768, id="V100 of 32 GiB: 258 missing <= 655"),
        pytest.param(15360, 15360, id="T4 is 15 GiB exactly"),
        pytest.param(11019, 11019, id="245 missing > 2 % of 11264 = 225"),
        pytest.param(10040, 10240, id="200 missing <= 2 % of 10240 = 204.8"),
        pytest.param(10035, 10035, id="205 missing > 204.8"),
        pytest.param(0, 0, id="unknown"),
    ],
)
def test_memory_is_the_size_the_card_is_sold_as(reported: int, nominal: int) -> None:
    assert nominal_mib(reported, 0.02) == nominal


def test_without_tolerance_memory_is_what_is_reported() -> None:
    assert nominal_mib(40959, 0.0) == 40959


def test_whole_gpus() -> None:
    offer = read_node({"cpu": "8", GPU_RESOURCE: "8"}, A100_LABELS)
    assert [(gpu.model.name, gpu.memory_mib) for gpu in offer.gpus] == [("a100-sxm4-80gb", 81920)] * 8
    assert (offer.unit, offer.units_per_gpu, offer.allocatable_units) == (GpuUnit.WHOLE, 1, 8)
    assert (offer.withheld_units, offer.warnings) == (0, ())


def test_unhealthy_gpus_are_installed_but_withheld() -> None:
    offer = read_node({GPU_RESOURCE: "6"}, A100_LABELS)
    assert (len(offer.gpus), offer.allocatable_units, offer.withheld_units) == (8, 6, 8 - 6)


@pytest.mark.parametrize(
    ("allocatable", "labels", "unit", "num_gpus", "units_per_gpu", "units"),
    [
        pytest.param(
            {SHARED_GPU_RESOURCE: "8"}, {COUNT_LABEL: "2", REPLICAS_LABEL: "4"}, GpuUnit.REPLICA, 2, 4, 8, id="renamed"
        ),
        pytest.param(
            {GPU_RESOURCE: "8"}, {COUNT_LABEL: "2", REPLICAS_LABEL: "4"}, GpuUnit.REPLICA_AS_GPU, 2, 4, 8, id="as GPUs"
        ),
        pytest.param(
            {GPU_RESOURCE: "8"}, {REPLICAS_LABEL: "4"}, GpuUnit.REPLICA_AS_GPU, 2, 4, 8, id="count from replicas: 8 / 4"
        ),
        pytest.param(
            {SHARED_GPU_RESOURCE: "8"}, {COUNT_LABEL: "2"}, GpuUnit.REPLICA, 2, 4, 8, id="replicas from count: 8 / 2"
        ),
        pytest.param(
            {SHARED_GPU_RESOURCE: "7"}, {COUNT_LABEL: "2"}, GpuUnit.REPLICA, 2, 4, 7, id="one withheld: ceil(7 / 2)"
        ),
        pytest.param(
            {SHARED_GPU_RESOURCE: "8", GPU_RESOURCE: "0"},
            {COUNT_LABEL: "2", REPLICAS_LABEL: "4"},
            GpuUnit.REPLICA,
            2,
            4,
            8,
            id="the whole resource left at 0",
        ),
        pytest.param({GPU_RESOURCE: "4"}, {REPLICAS_LABEL: "1"}, GpuUnit.WHOLE, 4, 1, 4, id="one replica is whole"),
        pytest.param({GPU_RESOURCE: "4"}, {REPLICAS_LABEL: "0"}, GpuUnit.WHOLE, 4, 1, 4, id="no replicas is whole"),
        pytest.param({GPU_RESOURCE: 4}, {}, GpuUnit.WHOLE, 4, 1, 4, id="a number in JSON"),
        pytest.param({GPU_RESOURCE: "5"}, {COUNT_LABEL: "2"}, GpuUnit.WHOLE, 5, 1, 5, id="the kubelet is believed"),
        pytest.param(
            {GPU_RESOURCE: "4"},
            {COUNT_LABEL: "2"},
            GpuUnit.REPLICA_AS_GPU,
            2,
            2,
            4,
            id="a multiple of the GPUs: slices",
        ),
        pytest.param(
            {GPU_RESOURCE: "10"},
            {COUNT_LABEL: "1", REPLICAS_LABEL: "1"},
            GpuUnit.REPLICA_AS_GPU,
            1,
            10,
            10,
            id="ten slices of one, whatever the label of replicas says",
        ),
        pytest.param({GPU_RESOURCE: "4e0"}, {}, GpuUnit.WHOLE, 4, 1, 4, id="canonicalised"),
    ],
)
def test_units(
    allocatable: Mapping[str, str | int | float],
    labels: Mapping[str, str],
    unit: GpuUnit,
    num_gpus: int,
    units_per_gpu: int,
    units: int,
) -> None:
    offer = read_node(allocatable, labels)
    assert (offer.unit, len(offer.gpus), offer.units_per_gpu) == (unit, num_gpus, units_per_gpu)
    assert (offer.allocatable_units, offer.withheld_units) == (units, num_gpus * units_per_gpu - units)
    assert offer.warnings == ()


@pytest.mark.parametrize(
    ("units", "capacity", "labels", "num_gpus", "each", "withheld"),
    [
        pytest.param("12", "16", {COUNT_LABEL: "4"}, 4, 4, 4, id="one of four unhealthy: 16 slices are installed"),
        pytest.param(
            "8", "8", {COUNT_LABEL: "8", REPLICAS_LABEL: "4"}, 8, 1, 0, id="a label of slices that are no more"
        ),
        pytest.param("8", "32", {COUNT_LABEL: "8", REPLICAS_LABEL: "4"}, 8, 4, 24, id="six of eight unhealthy"),
        pytest.param("2", "2", {REPLICAS_LABEL: "2"}, 1, 2, 0, id="GPUs that nobody counts"),
        pytest.param("6", "8", {COUNT_LABEL: "8"}, 8, 1, 2, id="two withheld"),
    ],
)
def test_slices_are_told_by_what_is_installed(
    units: str, capacity: str, labels: Mapping[str, str], num_gpus: int, each: int, withheld: int
) -> None:
    offer = read_node({GPU_RESOURCE: units}, labels, capacity={GPU_RESOURCE: capacity})
    assert (len(offer.gpus), offer.units_per_gpu, offer.withheld_units) == (num_gpus, each, withheld)


def test_ten_slices_of_a_gpu_have_a_tenth_of_its_memory_each() -> None:
    labels = {PRODUCT_LABEL: "NVIDIA-A10G", COUNT_LABEL: "1", MEMORY_LABEL: "23028", REPLICAS_LABEL: "1"}
    cluster = cluster_of({"n": NodeState(read_node({GPU_RESOURCE: "10"}, labels))})

    def fits(request: GpuRequest) -> bool:
        return bool(fit(cluster, request, np.array([0])).fits[0])

    assert fits(GpuRequest(10))
    assert not fits(GpuRequest(11))
    assert fits(GpuRequest(1, memory_each_mib=2302))
    assert not fits(GpuRequest(1, memory_each_mib=2303))
    assert not fits(GpuRequest(4, memory_total_mib=80 * 1024))
    assert not fits(GpuRequest(1, AskedUnit.WHOLE))


@pytest.mark.parametrize(
    "allocatable",
    [
        pytest.param({}, id="nothing allocatable"),
        pytest.param({"cpu": "4", "memory": "8Gi"}, id="a CPU node"),
        pytest.param({GPU_RESOURCE: "0"}, id="all GPUs unhealthy"),
    ],
)
def test_a_node_without_gpus_offers_none_whatever_its_labels(allocatable: Mapping[str, str]) -> None:
    assert read_node(allocatable, A100_LABELS) == NO_GPUS


def test_memory_comes_from_the_product_where_the_label_is_missing() -> None:
    offer = read_node({GPU_RESOURCE: "1"}, {PRODUCT_LABEL: "Tesla-V100-SXM2-32GB"})
    assert offer.gpus[0].memory_mib == 32768


def test_an_unlabelled_node_has_gpus_of_unknown_model_and_memory() -> None:
    offer = read_node({GPU_RESOURCE: "2"}, {})
    assert [(gpu.model, gpu.memory_mib) for gpu in offer.gpus] == [(UNKNOWN_MODEL, 0)] * 2


def test_aliases_reach_the_model() -> None:
    offer = read_node({GPU_RESOURCE: "1"}, {PRODUCT_LABEL: "Tesla-T4"}, aliases={"small": ["t4"]})
    assert "small" in offer.gpus[0].model.names


@pytest.mark.parametrize(
    ("allocatable", "labels", "key", "num_gpus"),
    [
        pytest.param({GPU_RESOURCE: "many"}, {}, GPU_RESOURCE, 0, id="units are no number"),
        pytest.param({GPU_RESOURCE: "-1"}, {}, GPU_RESOURCE, 0, id="negative units"),
        pytest.param({GPU_RESOURCE: "500m"}, {}, GPU_RESOURCE, 0, id="half a GPU"),
        pytest.param({GPU_RESOURCE: "1e10"}, {}, GPU_RESOURCE, 0, id="absurd units"),
        pytest.param({GPU_RESOURCE: "2"}, {MEMORY_LABEL: "lots"}, MEMORY_LABEL, 2, id="memory is no number"),
        pytest.param({GPU_RESOURCE: "2"}, {MEMORY_LABEL: str(2**31 - 1)}, MEMORY_LABEL, 2, id="absurd memory"),
        pytest.param({GPU_RESOURCE: "2"}, {COUNT_LABEL: "zwei"}, COUNT_LABEL, 2, id="count is no number"),
        pytest.param({GPU_RESOURCE: "2"}, {REPLICAS_LABEL: "٤"}, REPLICAS_LABEL, 2, id="replicas in another script"),
        pytest.param({GPU_RESOURCE: "2"}, {REPLICAS_LABEL: "2000000000"}, REPLICAS_LABEL, 2, id="absurd replicas"),
        pytest.param(
            {SHARED_GPU_RESOURCE: "2000000000"}, {COUNT_LABEL: "2"}, "GPUs on one node", MAX_GPUS_PER_NODE, id="slices"
        ),
        pytest.param({GPU_RESOURCE: "65"}, {}, "65 GPUs on one node", MAX_GPUS_PER_NODE, id="more GPUs than any node"),
    ],
)
def test_garbage_is_ignored_with_a_warning_that_names_it(
    allocatable: Mapping[str, str], labels: Mapping[str, str], key: str, num_gpus: int
) -> None:
    offer = read_node(allocatable, labels)
    assert len(offer.gpus) == num_gpus
    assert offer.left_out is (LeftOut.TOO_MANY if num_gpus == MAX_GPUS_PER_NODE else LeftOut.NOTHING)
    assert any(key in warning for warning in offer.warnings)


def test_a_warning_quotes_only_the_beginning_of_a_long_value() -> None:
    (warning,) = read_node({GPU_RESOURCE: "9" * 10_000}, {}).warnings
    assert len(warning) < 200


VALUES = st.text(max_size=8) | st.integers(-5, 2**34).map(str) | st.sampled_from(["4k", "1e3", "500m", "1E", "-0", "8"])
KEYS = [PRODUCT_LABEL, COUNT_LABEL, MEMORY_LABEL, REPLICAS_LABEL]


@given(
    allocatable=st.dictionaries(
        st.sampled_from([GPU_RESOURCE, SHARED_GPU_RESOURCE, "cpu"]), VALUES | st.integers() | st.floats()
    ),
    labels=st.dictionaries(st.sampled_from(KEYS), VALUES),
)
def test_no_node_raises_and_every_offer_fits_the_arrays(
    allocatable: dict[str, str | int | float], labels: dict[str, str]
) -> None:
    offer = read_node(allocatable, labels)
    assert len(offer.gpus) <= MAX_GPUS_PER_NODE
    assert offer.withheld_units >= 0
    assert offer.allocatable_units + offer.withheld_units == len(offer.gpus) * offer.units_per_gpu
    cluster = cluster_of({"n": NodeState(offer)})
    assert np.count_nonzero(cluster.gpu_model[0] >= 0) == len(offer.gpus)
