"""The sample cluster of the demo: what the README promises of it."""

import pytest

from extender.demo.cluster import sample_cluster
from tests.api.services import running

OBJECTS = list(sample_cluster())
NODES = [item["metadata"]["name"] for item in OBJECTS if item["kind"] == "Node"]
PENDING = {
    item["metadata"]["name"]: item for item in OBJECTS if item["kind"] == "Pod" and item["status"]["phase"] == "Pending"
}


def test_it_has_some_dozens_of_heterogeneous_nodes_and_pods_running() -> None:
    assert list(sample_cluster(1e9)) == list(sample_cluster(1e9))
    assert len(NODES) == len(set(NODES)) == 38
    labels = [item["metadata"]["labels"] for item in OBJECTS if item["kind"] == "Node"]
    assert len({label.get("nvidia.com/gpu.product", "") for label in labels}) == 7
    assert sum(item["kind"] == "Pod" and item["status"]["phase"] == "Running" for item in OBJECTS) > 20


def test_no_node_of_it_is_over_committed_and_every_gpu_is_accounted_for() -> None:
    with running(OBJECTS) as kerf:
        assert kerf.metric("kerf_nodes") == len(NODES)
        running_units = sum(
            int(item["spec"]["containers"][0]["resources"]["limits"].get("nvidia.com/gpu", 0))
            for item in OBJECTS
            if item["kind"] == "Pod" and item["spec"].get("nodeName")
        )
        assert kerf.metric("kerf_gpu_units_free") == kerf.metric("kerf_gpu_units") - running_units
        # Units of unknown index would mean that two pods of the sample hold the same GPU.
        assert not kerf.service.placer.snapshot().untracked_units.any()


@pytest.mark.parametrize("name", sorted(PENDING.keys() - {"train-2"}))
def test_each_pending_pod_but_one_finds_a_place(name: str) -> None:
    with running(OBJECTS) as kerf:
        chosen = kerf.filter(PENDING[name], NODES)["NodeNames"]
        assert kerf.bind(PENDING[name], chosen[0]) == ""
        if name == "train-0":
            assert len(chosen) == 1 and chosen[0].startswith("a100")
            assert kerf.gpus_of(PENDING[name]).count(",") == 1
