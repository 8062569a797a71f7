"""Clusters and mixes drawn from a description: what is asked for is what comes."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import yaml

from model.workloads.mixes import DEMO, Description, MixError, drawn, read_mixes
from model.workloads.traces import NodeList, PodList, read_nodes, read_pods, write_trace

DESCRIPTION = read_mixes(DEMO)
SMALL: dict[str, Any] = {
    "base": {
        "gpus": 64,
        "nodes": [{"model": "A100", "gpus": 8, "cores": 96, "memory_gib": 512}],
        "pods": {"ones": {"gpus": 1}, "without": {"gpus": 0}},
        "cpu_load": 0.5,
        "cpu_pods": 0.25,
    },
    "kinds": {"usual": {}},
}


def cpu_parts(nodes: NodeList, pods: PodList) -> tuple[float, float]:
    """CPU asked for by all pods, and by those without GPUs, for each arrived GPU load, by what there is."""
    load = pods.asked_milli.sum() / nodes.gpu_milli
    total = nodes.cpu_milli.sum() * load
    return pods.cpu_milli.sum() / total, pods.cpu_milli[pods.num_gpus == 0].sum() / total


def test_every_pod_has_a_node_that_could_host_it() -> None:
    for kind in DESCRIPTION.kinds:
        nodes, pods = drawn(DESCRIPTION.mix(kind), 1)
        assert 1.3 <= pods.asked_milli.sum() / nodes.gpu_milli < 1.35
        asks = zip(pods.cpu_milli, pods.memory_mib, pods.num_gpus, pods.gpu_spec, strict=True)
        for cpu, memory, gpus, spec in set(asks):
            allowed = np.array([not spec or model in spec.split("|") for model in nodes.models])
            enough = (nodes.cpu_milli >= cpu) & (nodes.memory_mib >= memory) & (nodes.num_gpus >= gpus)
            assert (allowed & enough).any()
        assert ((pods.num_gpus <= 1) | (pods.gpu_milli == 1000)).all()
        assert ((pods.gpu_milli > 0) == (pods.num_gpus > 0)).all()
        assert pods.duration_s is not None and (pods.duration_s >= 1).all()
        assert pods.submitted_s is not None and (np.diff(pods.submitted_s) >= 0).all()


def test_the_same_seed_is_the_same_cluster_and_another_seed_is_another() -> None:
    one, again, other = (drawn(DESCRIPTION.mix("usual"), seed) for seed in (7, 7, 8))
    assert one[0].names == again[0].names and (one[1].cpu_milli == again[1].cpu_milli).all()
    assert len(one[1].names) != len(other[1].names)


def test_what_is_a_number_is_that() -> None:
    nodes, pods = drawn(msgspec.convert(SMALL, Description).mix("usual"), 3)
    assert (len(nodes.names), set(nodes.cpu_milli), set(nodes.memory_mib)) == (8, {96_000}, {512 * 1024})
    cpu, without = cpu_parts(nodes, pods)
    assert cpu == pytest.approx(0.5, abs=0.1)
    assert without == pytest.approx(0.125, abs=0.05)


def test_a_bad_description_is_refused_with_what_is_wrong(tmp_path: Path) -> None:
    path = tmp_path / "mixes.yaml"

    def fault(kind: Any) -> str:
        path.write_text(yaml.safe_dump({**SMALL, "kinds": kind and {"odd": kind}}))
        with pytest.raises(MixError) as error:
            read_mixes(path)
        assert str(path) in str(error.value)
        return str(error.value)

    assert "no kinds" in fault({})
    assert "kind odd: Object contains unknown field `gpu`" in fault({"gpu": 3})
    assert "milli: write a number of 0 or more, or [low, high]" in fault({"pods": {"ones": {"milli": [900, 100]}}})
    assert "cpu_pods: write a number from 0 to 1" in fault({"cpu_pods": 1.5})
    assert "hours: write a range above 0" in fault({"pods": {"ones": {"hours": [0, 1]}}})
    assert "must not be empty" in fault({"nodes": []})
    assert "kind odd: " in fault({"pods": [1]})


def test_what_no_node_can_host_is_left_out_and_nothing_left_is_told(tmp_path: Path) -> None:
    path = tmp_path / "mixes.yaml"
    some, large = {"large": {"gpus": 16}}, {"ones": {"weight": 0}, "large": {"gpus": 16}}
    path.write_text(yaml.safe_dump({**SMALL, "kinds": {"usual": {"pods": some}, "none": {"pods": large}}}))
    described = read_mixes(path)
    assert set(drawn(described.mix("usual"), 1)[1].num_gpus) == {0, 1}
    with pytest.raises(MixError, match="no node can host"):
        drawn(described.mix("none"), 1)
    with pytest.raises(MixError, match="no kind 'odd' of mixes; there are none, usual"):
        described.mix("odd")


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    nodes, pods = drawn(DESCRIPTION.mix("choosy"), 5)
    write_trace(tmp_path, "choosy", nodes, pods)
    read, again = read_nodes(tmp_path), read_pods(tmp_path, "choosy")
    assert (read.names, read.models) == (nodes.names, nodes.models)
    for name in ("cpu_milli", "memory_mib", "num_gpus"):
        assert (getattr(read, name) == getattr(nodes, name)).all()
    for name in ("cpu_milli", "memory_mib", "num_gpus", "gpu_milli", "submitted_s", "duration_s"):
        assert (getattr(again, name) == getattr(pods, name)).all()
    assert again.gpu_spec == pods.gpu_spec
