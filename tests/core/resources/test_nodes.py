"""What a node offers, from allocatable resources and the labels of GPU Feature Discovery."""

from collections.abc import Mapping

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from extender.core.resources.gpu_models import UNKNOWN_MODEL
from extender.core.resources.nodes import MAX_GPUS_PER_NODE, NO_GPUS, GpuUnit, LeftOut, nominal_mib, read_node
from tests.core.builders import NodeState, cluster_of
from tests.nvidia import COUNT_LABEL, GPU_RESOURCE, MEMORY_LABEL, PRODUCT_LABEL, REPLICAS_LABEL, SHARED_GPU_RESOURCE

A100_LABELS = {PRODUCT_LABEL: "NVIDIA-A100-SXM4-80GB", COUNT_LABEL: "8", MEMORY_LABEL: "81920"}


def test_memory_is_the_nominal_size_of_the_card() -> None:
    for reported, nominal in (
        (40536, 40960),  # 424 missing <= 2 % of 40960 = 819
        (81559, 81920),
        (15360, 15360),
        (11019, 11019),  # 245 missing > 2 % of 11264 = 225
        (10040, 10240),  # 200 missing <= 2 % of 10240 = 204.8
        (10035, 10035),
        (0, 0),
    ):
        assert nominal_mib(reported, 0.02) == nominal
    assert nominal_mib(40959, 0.0) == 40959


def test_whole_gpus() -> None:
    offer = read_node({"cpu": "8", GPU_RESOURCE: "8"}, A100_LABELS)
    assert [(gpu.model.name, gpu.memory_mib) for gpu in offer.gpus] == [("a100-sxm4-80gb", 81920)] * 8
    assert (offer.unit, offer.units_per_gpu, offer.allocatable_units) == (GpuUnit.WHOLE, 1, 8)
    assert (offer.withheld_units, offer.warnings) == (0, ())
    offer = read_node({GPU_RESOURCE: "6"}, A100_LABELS)  # two are unhealthy
    assert (len(offer.gpus), offer.allocatable_units, offer.withheld_units) == (8, 6, 2)
    for allocatable in ({}, {"cpu": "4", "memory": "8Gi"}, {GPU_RESOURCE: "0"}):
        assert read_node(allocatable, A100_LABELS) == NO_GPUS


def test_model_and_memory() -> None:
    labels, aliases = {PRODUCT_LABEL: "Tesla-V100-SXM2-32GB"}, {"v": ["V100-SXM2-32GB"]}
    (gpu,) = read_node({GPU_RESOURCE: "1"}, labels, aliases=aliases).gpus
    assert gpu.memory_mib == 32768  # by the product, without a label
    assert "v" in gpu.model.names
    (gpu,) = read_node({GPU_RESOURCE: "1"}, {}).gpus
    assert (gpu.model, gpu.memory_mib) == (UNKNOWN_MODEL, 0)


def test_units_by_resource_count_and_replicas() -> None:
    whole, as_gpu, replica = GpuUnit.WHOLE, GpuUnit.REPLICA_AS_GPU, GpuUnit.REPLICA
    cases: tuple[tuple[dict[str, str | int], str, str, GpuUnit, int, int, int], ...] = (
        # allocatable, labels of count and replicas; unit, GPUs, units of each and in all
        ({SHARED_GPU_RESOURCE: "8"}, "2", "4", replica, 2, 4, 8),
        ({SHARED_GPU_RESOURCE: "8", GPU_RESOURCE: "0"}, "2", "4", replica, 2, 4, 8),
        ({SHARED_GPU_RESOURCE: "8"}, "2", "", replica, 2, 4, 8),
        ({SHARED_GPU_RESOURCE: "7"}, "2", "", replica, 2, 4, 7),  # one withheld
        ({GPU_RESOURCE: "8"}, "2", "4", as_gpu, 2, 4, 8),
        ({GPU_RESOURCE: "8"}, "", "4", as_gpu, 2, 4, 8),
        ({GPU_RESOURCE: "4"}, "2", "", as_gpu, 2, 2, 4),  # a multiple of the GPUs
        ({GPU_RESOURCE: "10"}, "1", "1", as_gpu, 1, 10, 10),  # whatever the label of replicas says
        ({GPU_RESOURCE: "5"}, "2", "", whole, 5, 1, 5),  # the kubelet is right
        ({GPU_RESOURCE: "4"}, "", "1", whole, 4, 1, 4),
        ({GPU_RESOURCE: "4"}, "", "0", whole, 4, 1, 4),
        ({GPU_RESOURCE: 4}, "", "", whole, 4, 1, 4),
        ({GPU_RESOURCE: "4e0"}, "", "", whole, 4, 1, 4),
    )
    for allocatable, count, replicas, unit, num_gpus, each, units in cases:
        labels = {COUNT_LABEL: count} if count else {}
        offer = read_node(allocatable, labels | ({REPLICAS_LABEL: replicas} if replicas else {}))
        assert (offer.unit, len(offer.gpus), offer.units_per_gpu) == (unit, num_gpus, each), allocatable
        assert (offer.allocatable_units, offer.withheld_units) == (units, num_gpus * each - units)
        assert offer.warnings == ()


def test_slices_by_installed_devices() -> None:
    for units, capacity, labels, num_gpus, each, withheld in (
        ("12", "16", {COUNT_LABEL: "4"}, 4, 4, 4),
        ("8", "8", {COUNT_LABEL: "8", REPLICAS_LABEL: "4"}, 8, 1, 0),  # a stale label
        ("8", "32", {COUNT_LABEL: "8", REPLICAS_LABEL: "4"}, 8, 4, 24),
        ("2", "2", {REPLICAS_LABEL: "2"}, 1, 2, 0),
        ("6", "8", {COUNT_LABEL: "8"}, 8, 1, 2),
    ):
        offer = read_node({GPU_RESOURCE: units}, labels, capacity={GPU_RESOURCE: capacity})
        assert (len(offer.gpus), offer.units_per_gpu, offer.withheld_units) == (num_gpus, each, withheld)


def test_invalid_values_are_ignored_with_a_warning_that_names_them() -> None:
    most = MAX_GPUS_PER_NODE
    cases: tuple[tuple[Mapping[str, str], Mapping[str, str], str, int], ...] = (
        *(({GPU_RESOURCE: text}, {}, GPU_RESOURCE, 0) for text in ("many", "-1", "500m", "1e10", "9" * 10_000)),
        *(({GPU_RESOURCE: "2"}, {MEMORY_LABEL: text}, MEMORY_LABEL, 2) for text in ("lots", str(2**31 - 1))),
        ({GPU_RESOURCE: "2"}, {COUNT_LABEL: "zwei"}, COUNT_LABEL, 2),
        *(({GPU_RESOURCE: "2"}, {REPLICAS_LABEL: text}, REPLICAS_LABEL, 2) for text in ("٤", "2000000000")),
        ({SHARED_GPU_RESOURCE: "2000000000"}, {COUNT_LABEL: "2"}, "GPUs on one node", most),
        ({GPU_RESOURCE: "65"}, {}, "65 GPUs on one node", most),
    )
    for allocatable, labels, key, num_gpus in cases:
        offer = read_node(allocatable, labels)
        assert len(offer.gpus) == num_gpus
        assert offer.left_out is (LeftOut.TOO_MANY if num_gpus == most else LeftOut.NOTHING)
        assert any(key in warning and len(warning) < 200 for warning in offer.warnings)


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
