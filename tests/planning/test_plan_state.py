"""A plan books what a live placement books: the same GPUs, as much of each, and so the same nodes for the next pod."""

from typing import Any

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from extender.core.clusters import Cluster
from extender.kube import objects
from extender.kube.objects import Node
from extender.planning.plan_state import PlanState
from extender.queueing.node_view import view_of
from extender.queueing.pods.batches import plan_pod
from extender.queueing.pods.objects import decode_node, decode_pod
from extender.queueing.pods.restrictions import RestrictionKinds
from tests.ledger.builders import node_manifest
from tests.plugins.rigs import A, B, Rig, asking, gpushare_node, hami_node

Manifest = dict[str, Any]

hami_shares = st.builds(
    lambda percent, cores, count: {
        "nvidia.com/gpu": str(count),
        "nvidia.com/gpumem-percentage": str(percent),
        **({"nvidia.com/gpucores": str(cores)} if cores else {}),
    },
    st.sampled_from([10, 25, 33, 50, 60, 99, 100]),
    st.sampled_from([0, 20, 60, 100]),
    st.integers(1, 2),
)
hami_sizes = st.builds(
    lambda mib, cores: {"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(mib), "nvidia.com/gpucores": str(cores)},
    st.sampled_from([1, 4000, 9000, 16000]),
    st.sampled_from([0, 30, 100]),
)
whole_gpus = st.builds(lambda count: {"nvidia.com/gpu": str(count)}, st.integers(1, 2))
gpushare_sizes = st.builds(lambda units: {"aliyun.com/gpu-mem": str(units)}, st.integers(1, 16))
annotated = st.fixed_dictionaries(
    {},
    optional={
        "kerf.dev/gpu-share": st.sampled_from(["0.5", "500"]),
        "kerf.dev/gpu-memory-each": st.sampled_from(["1Gi", "9000"]),
    },
)
asks = st.one_of(hami_shares, hami_sizes, whole_gpus, gpushare_sizes, st.just(dict[str, str]()))


def cluster_nodes() -> list[Manifest]:
    return [
        hami_node("h-0", (A, 16000), (B, 24000), count=100),
        hami_node("h-1", ("GPU-c", 15360), count=100),
        gpushare_node("s-0", 2, 16),
        node_manifest("w-0", 2),
    ]


def booked(cluster: Cluster) -> dict[str, list[Any]]:
    free = (cluster.gpu_free_milli, cluster.gpu_free_mib, cluster.untracked_units)
    arrays = (*free, cluster.num_served, cluster.num_unserved)
    return {name: [array[row].tolist() for array in arrays] for name, row in cluster.row_of.items()}


def assert_planned_as_placed(nodes: list[Manifest], pods: list[Manifest]) -> None:
    rig = Rig(*nodes)
    described: list[Node] = [decode_node(manifest) for manifest in nodes]
    kinds = RestrictionKinds()
    batch = [plan_pod(decode_pod(manifest), kinds) for manifest in pods]
    state = PlanState(view_of(rig.ledger.snapshot(rig.clock()), described, kinds), batch)
    for position, manifest in enumerate(pods):
        placement = rig.filter(manifest)
        row = state.best_row(position)
        assert (None if row is None else state.cluster.node_names[row]) == placement.node
        if row is not None:
            assert state.put(position, row) == placement.decision.gpus
        assert booked(state.cluster) == booked(rig.ledger.snapshot(rig.clock()))


def pod(number: int, resources: dict[str, str], annotations: dict[str, str]) -> Manifest:
    return asking(f"p{number}", resources, annotations=annotations)


def test_pods_that_nvidias_plugin_does_not_know_get_nodes_without_its_own() -> None:
    asked: list[tuple[dict[str, str], dict[str, str]]] = [
        ({}, {"kerf.dev/gpu-count": "1"}),
        ({"nvidia.com/gpu": "1"}, {}),
        ({}, {"kerf.dev/gpu-share": "500"}),
        ({"nvidia.com/gpu": "2"}, {}),
        ({"nvidia.com/gpu": "2"}, {}),
    ]
    nodes = [node_manifest("w-0", 4), node_manifest("w-1", 4)]
    assert_planned_as_placed(nodes, [pod(number, *asks) for number, asks in enumerate(asked)])


@given(pods=st.lists(st.tuples(asks, annotated), min_size=1, max_size=12))
@example(pods=[({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "60"}, {})] * 4)  # each on a GPU of its own
def test_a_plan_books_what_a_live_placement_books(pods: list[tuple[dict[str, str], dict[str, str]]]) -> None:
    readable = []
    for number, (resources, annotations) in enumerate(pods):
        manifest = pod(number, resources, annotations)
        try:
            asks_gpus = plan_pod(decode_pod(manifest), RestrictionKinds()).gpus is not None
        except ValueError:
            continue  # contradicts itself: nobody places it
        if not asks_gpus:
            continue
        msgspec.convert(manifest, objects.Pod)
        readable.append(manifest)
    assert_planned_as_placed(cluster_nodes(), readable)
