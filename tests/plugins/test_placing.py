"""Pods of HAMi and gpushare through filter and bind, with their plugins' side played, beside pods that are there."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.fit.reasons import Reason
from extender.core.resources.requests import RequestError
from extender.plugins import kerf
from extender.plugins.kerf import _GIVEN, ASSIGNED_GPUS, REPORT
from extender.plugins.nvidia import gpushare, hami
from extender.plugins.nvidia import hami as hami_nodes
from extender.plugins.nvidia.hami import _MODE, _NO_USE_UUID, _USE_TYPE, _USE_UUID
from extender.scheduling.binding import BindError
from tests.ledger.builders import Clock, node_manifest, pod_manifest
from tests.plugins.plugins import LOCK, gpushare_allocate, hami_allocate
from tests.plugins.rigs import A, B, Rig, asking, gpushare_node, hami_node, sharing


def test_a_hami_pod_gets_its_part_and_the_plugin_serves_just_that() -> None:
    rig = Rig(hami_node("n1", (A, 15360), (B, 15360)))

    first = rig.run(sharing("a", 4000, 30))

    annotations = first["metadata"]["annotations"]
    assert annotations[ASSIGNED_GPUS] == "0"
    assert annotations[hami.TO_ALLOCATE] == annotations[hami.ALLOCATED] == f"{A},NVIDIA,4000,30:;"
    assert rig.cluster.node("n1")["metadata"]["annotations"][LOCK].endswith(",default,a")
    environment = hami_allocate(rig.plugin_node("n1"), 1)
    assert environment["NVIDIA_VISIBLE_DEVICES"] == A
    assert environment["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4000m"
    assert LOCK not in rig.cluster.node("n1")["metadata"]["annotations"]
    assert rig.cluster.pod("default", "a")["metadata"]["annotations"][hami.BIND_PHASE] == "success"

    second = rig.run(sharing("b", 11000))  # best fit: on the same GPU
    assert second["metadata"]["annotations"][hami.ALLOCATED] == f"{A},NVIDIA,11000,0:;"
    assert rig.free_mib("n1") == [15360 - 4000 - 11000, 15360]
    assert rig.free_milli("n1") == [700, 1000]


def test_no_gpu_is_booked_over_its_memory() -> None:
    rig = Rig(hami_node("n1", (A, 15360)))
    for index in range(3):
        rig.run(sharing(f"p{index}", 5000))
        hami_allocate(rig.plugin_node("n1"), 1)

    assert rig.refused(sharing("p3", 5000)) == {Reason.MEMORY_BUSY}
    assert rig.free_mib("n1") == [360]
    rig.restart()
    assert rig.free_mib("n1") == [360]


def test_a_plugin_that_shares_a_gpu_among_two_is_not_sent_a_third() -> None:
    rig = Rig(hami_node("n1", (A, 15360), count=2))
    for name in ("a", "b"):
        rig.run(sharing(name, 1000))
        hami_allocate(rig.plugin_node("n1"), 1)

    assert rig.refused(sharing("c", 1000)) == {Reason.COMPUTE_BUSY}


def test_kerfs_own_annotation_leaves_a_plugins_numbers_alone() -> None:
    node = hami_node("n1", (A, 15109), count=1)
    gpus = [{"index": 0, "uuid": A, "memory_mib": 15360, "model": "Tesla T4", "link": 0}]
    node["metadata"]["annotations"]["kerf.dev/gpus"] = msgspec.json.encode(gpus).decode()
    rig = Rig(node)

    rig.run(sharing("a", 15109))

    hami_allocate(rig.plugin_node("n1"), 1)
    assert rig.free_mib("n1") == [0]
    assert rig.free_milli("n1") == [0]


def two_containers(name: str, *resources: dict[str, str], spread: bool = False) -> Any:
    """A pod of containers `one` and `two`."""
    manifest = asking(name, {}, annotations={"hami.io/gpu-scheduler-policy": "spread"} if spread else None)
    manifest["spec"]["containers"] = [
        {"name": called, "resources": {"limits": asked, "requests": asked}}
        for called, asked in zip(("one", "two"), resources, strict=True)
    ]
    return manifest


HALF = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "16000"}


def test_containers_that_have_no_room_on_one_gpu_are_spread_where_they_say_so() -> None:
    """Two containers of 16 GB each on two GPUs of 24 GB."""
    rig = Rig(hami_node("n1", (A, 24576), (B, 24576)))
    assert rig.refused(two_containers("together", HALF, HALF)) == {Reason.TOO_SMALL}
    request = rig.filter(two_containers("again", HALF, HALF)).decision.request
    assert str(request) == "1 GPU with 32000 MiB for 2 containers together"

    rig.run(two_containers("apart", HALF, HALF, spread=True))

    served = [hami_allocate(rig.plugin_node("n1"), 1) for _ in range(2)]
    assert [(one["container"], one["NVIDIA_VISIBLE_DEVICES"]) for one in served] == [("one", A), ("two", B)]
    assert {one["CUDA_DEVICE_MEMORY_LIMIT_0"] for one in served} == {"16000m"}
    for _ in range(2):
        assert rig.free_mib("n1") == [8576, 8576]
        rig.restart()
    one = rig.refused(two_containers("on-one", HALF, HALF, spread=True))
    assert one == {Reason.MEMORY_BUSY}


def test_two_containers_of_two_gpus_each_have_the_same_two() -> None:
    rig = Rig(hami_node("n1", (A, 24576), (B, 24576)))
    rig.run(two_containers("p", *({"nvidia.com/gpu": "2", "nvidia.com/gpumem": mib} for mib in ("10000", "8000"))))
    served = [hami_allocate(rig.plugin_node("n1"), 2) for _ in range(2)]
    assert {one["NVIDIA_VISIBLE_DEVICES"] for one in served} == {f"{A},{B}"}
    assert [one["CUDA_DEVICE_MEMORY_LIMIT_1"] for one in served] == ["10000m", "8000m"]
    assert rig.free_mib("n1") == [6576, 6576]


def test_a_whole_gpu_beside_a_part_of_another() -> None:
    rig = Rig(hami_node("n1", (A, 24576), (B, 24576)))
    rig.run(two_containers("p", {"nvidia.com/gpu": "1"}, HALF))
    served = [hami_allocate(rig.plugin_node("n1"), 1) for _ in range(2)]
    assert [one["NVIDIA_VISIBLE_DEVICES"] for one in served] == [A, B]
    assert [one["CUDA_DEVICE_SM_LIMIT"] for one in served] == ["100", "0"]
    for _ in range(2):
        assert rig.free_milli("n1") == [0, 0]  # what it needs less is booked, too
        rig.restart()


def test_a_part_in_percent_is_of_the_very_gpu() -> None:
    rig = Rig(hami_node("n1", (A, 15360)))
    asked = {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "33", "nvidia.com/gpucores": "20"}

    bound = rig.run(asking("a", asked))

    assert bound["metadata"]["annotations"][hami.ALLOCATED] == f"{A},NVIDIA,5068,20:;"
    assert rig.free_mib("n1") == [15360 - 5068]


def test_whole_gpus_on_hamis_nodes_are_alone_on_them() -> None:
    rig = Rig(hami_node("n1", (A, 15360), (B, 15360)))
    rig.run(sharing("a", 1000))
    hami_allocate(rig.plugin_node("n1"), 1)

    bound = rig.run(pod_manifest("b", 1))

    assert bound["metadata"]["annotations"][hami.ALLOCATED] == f"{B},NVIDIA,15360,100:;"
    assert rig.refused(pod_manifest("c", 1)) == {Reason.BUSY}


def test_kerfs_own_annotations_ask_for_parts_on_hamis_nodes() -> None:
    rig = Rig(hami_node("n1", (A, 15360)))
    share = {"kerf.dev/gpu-share": "500", "kerf.dev/gpu-memory-each": "4Gi"}

    bound = rig.run(pod_manifest("a", 1, annotations=share))

    assert bound["metadata"]["annotations"][hami.ALLOCATED] == f"{A},NVIDIA,4096,50:;"
    assert (rig.free_mib("n1"), rig.free_milli("n1")) == ([15360 - 4096], [500])


def test_hamis_choice_of_types_and_uuids_is_kept() -> None:
    rig = Rig(hami_node("n1", (A, 15360), (B, 15360)))

    bound = rig.run(sharing("a", 1000, annotations={_USE_UUID: B}))
    assert bound["metadata"]["annotations"][ASSIGNED_GPUS] == "1"
    hami_allocate(rig.plugin_node("n1"), 1)
    bound = rig.run(pod_manifest("b", 1, annotations={_NO_USE_UUID: B, _USE_TYPE: "a100,tesla t4"}))
    assert bound["metadata"]["annotations"][ASSIGNED_GPUS] == "0"
    assert rig.refused(sharing("c", 1000, annotations={_USE_TYPE: "A100"})) == {Reason.WRONG_MODEL}
    with pytest.raises(RequestError, match="vgpu-mode"):
        rig.filter(sharing("d", 1000, annotations={_MODE: "mig"}))


def test_parts_are_only_had_where_a_plugin_hands_them_out() -> None:
    rig = Rig(node_manifest("n0", 4), hami_node("n1", (A, 15360)))

    assert rig.filter(sharing("a", 4000)).node == "n1"
    rig = Rig(node_manifest("n0", 4))
    assert rig.refused(sharing("a", 4000)) == {Reason.NOT_THIS_KIND}


class Ticking(Clock):
    """Half a second passes between two looks at it."""

    def __call__(self) -> float:
        self.now += 0.5
        return self.now


def test_a_pod_that_waits_for_the_lock_too_long_is_not_bound() -> None:
    rig = Rig(hami_node("n1", (A, 15360)), clock=Ticking())
    rig.run(sharing("a", 1000))
    pod = rig.cluster.pod("default", "a")
    pod["status"]["phase"] = "Pending"  # the plugin has not served it yet

    placement = rig.filter(sharing("b", 1000))
    with pytest.raises(BindError, match="is locked for pod default/a"):
        asyncio.run(rig.binder.bind(placement.pod, "n1", ""))

    assert rig.free_mib("n1") == [14360]
    assert "nodeName" not in rig.cluster.pod("default", "b")["spec"]


def test_a_refused_binding_lets_the_lock_go() -> None:
    rig = Rig(hami_node("n1", (A, 15360)))
    placement = rig.filter(sharing("a", 1000))
    rig.cluster.pod("default", "a")["spec"]["nodeName"] = "elsewhere"  # somebody else was faster

    with pytest.raises(BindError, match="elsewhere"):
        asyncio.run(rig.binder.bind(placement.pod, "n1", ""))

    assert LOCK not in rig.cluster.node("n1")["metadata"]["annotations"]


def test_gpushare_pods_share_gpus_by_memory_and_the_plugin_serves_just_that() -> None:
    rig = Rig(gpushare_node("n1", 2, 15))

    bound = [
        rig.run(asking(name, {gpushare.MEMORY_RESOURCE: str(gib)})) for name, gib in (("a", 8), ("b", 8), ("c", 7))
    ]

    assert [pod["metadata"]["annotations"][gpushare.INDEX] for pod in bound] == ["0", "1", "0"]
    assert bound[0]["metadata"]["annotations"][gpushare.GPU_MEMORY] == "15"
    assert rig.free_mib("n1") == [0, 7 * 1024]
    assert gpushare_allocate(rig.plugin_node("n1"), 7, 2)["pod"] == "c"
    assert rig.cluster.pod("default", "c")["metadata"]["annotations"][gpushare.ASSIGNED] == "true"
    assert rig.refused(asking("d", {gpushare.MEMORY_RESOURCE: "8"})) == {Reason.MEMORY_BUSY}


def test_gpushare_pods_of_one_size_are_served_in_the_order_of_the_decisions() -> None:
    """Bindings are written side by side; the plugin goes by the times that they carry."""
    rig = Rig(gpushare_node("n1", 2, 15))
    first = rig.filter(asking("a", {gpushare.MEMORY_RESOURCE: "8"}))
    rig.clock.now += 0.2
    second = rig.filter(asking("b", {gpushare.MEMORY_RESOURCE: "8"}))
    for placement in (second, first):
        asyncio.run(rig.binder.bind(placement.pod, "n1", ""))
        rig.clock.now += 0.2
    rig.sync()

    assert gpushare_allocate(rig.plugin_node("n1"), 8, 2)["pod"] == "a"
    assert gpushare_allocate(rig.plugin_node("n1"), 8, 2)["pod"] == "b"


def test_pods_that_others_have_placed_are_counted() -> None:
    placed_by_hami = {
        hami.ALLOCATED: f"{A},NVIDIA,4000,50:;",
        hami.TO_ALLOCATE: ";",
        hami.BIND_PHASE: "success",
        hami.ASSIGNED_NODE: "n1",
    }
    placed_by_gpushare = {gpushare.INDEX: "1", gpushare.POD_MEMORY: "5", gpushare.ASSIGNED: "true"}
    rig = Rig(
        hami_node("n1", (A, 15360), (B, 15360)),
        gpushare_node("n2", 2, 15),
        sharing("a", 4000, 50, node="n1", annotations=placed_by_hami),
        asking("b", {gpushare.MEMORY_RESOURCE: "5"}, node="n2", annotations=placed_by_gpushare),
    )

    assert (rig.free_mib("n1"), rig.free_milli("n1")) == ([11360, 15360], [500, 1000])
    assert rig.free_mib("n2") == [15 * 1024, 10 * 1024]
    assert not rig.warnings


def test_what_can_not_be_read_is_taken() -> None:
    rig = Rig(
        hami_node("n1", (A, 15360), (B, 15360)),
        gpushare_node("n2", 2, 15),
        sharing("a", 4000, node="n1", annotations={hami.ALLOCATED: f"{A},NVIDIA,40"}),
        asking("b", {gpushare.MEMORY_RESOURCE: "5"}, node="n2", annotations={gpushare.INDEX: "zero"}),
        sharing("c", 4000, node="n1"),  # placed by a scheduler that knows nothing of HAMi
    )

    assert rig.untracked("n1") == 2
    assert rig.untracked("n2") == 1
    assert len(rig.warnings) >= 2
    rig.cluster.delete(gpushare_node("n2", 2, 15))  # kube-scheduler offers no node without `nvidia.com/gpu`
    rig.restart()
    assert rig.refused(sharing("d", 100)) == {Reason.BUSY}


def test_a_node_whose_register_can_not_be_read_offers_nothing() -> None:
    node = hami_node("n1", (A, 15360))
    node["metadata"]["annotations"][hami_nodes.REGISTER] = '[{"id":'
    rig = Rig(node)

    assert rig.warnings
    assert rig.filter(sharing("a", 100)).node is None
    assert rig.filter(pod_manifest("b", 1)).node is None


def test_what_the_kubelet_really_gave_beats_what_was_assigned() -> None:
    gpus = [{"index": 0, "uuid": A, "memory_mib": 15360}, {"index": 1, "uuid": B, "memory_mib": 15360}]
    node = node_manifest("n1", 2)
    node["metadata"]["annotations"] = {"kerf.dev/gpus": msgspec.json.encode(gpus).decode()}
    rig = Rig(node)
    assert rig.run(pod_manifest("a", 1))["metadata"]["annotations"][ASSIGNED_GPUS] == "0"
    assert rig.free_milli("n1") == [0, 1000]

    node["metadata"]["annotations"][_GIVEN] = msgspec.json.encode({"default/a": [B]}).decode()
    rig.cluster.apply(node)
    rig.sync()
    assert rig.free_milli("n1") == [1000, 0]
    rig.restart()
    assert rig.free_milli("n1") == [1000, 0]

    node["metadata"]["annotations"][_GIVEN] = '{"default/a": ["GPU-of-another-node"]}'
    rig.cluster.apply(node)
    rig.sync()
    assert rig.free_milli("n1") == [0, 1000]


def test_what_the_kubelet_gave_tells_the_gpu_of_a_pod_that_nobody_assigned() -> None:
    gpus = [{"index": 0, "uuid": A, "memory_mib": 15360}, {"index": 1, "uuid": B, "memory_mib": 15360}]
    node = node_manifest("n1", 2)
    node["metadata"]["annotations"] = {
        "kerf.dev/gpus": msgspec.json.encode(gpus).decode(),
        _GIVEN: msgspec.json.encode({"default/a": [B]}).decode(),
    }
    rig = Rig(node, pod_manifest("a", 1, node="n1"))

    assert (rig.free_milli("n1"), rig.untracked("n1")) == ([1000, 0], 0)


@given(
    st.lists(
        st.tuples(st.integers(100, 16000), st.integers(0, 100), st.booleans()),
        max_size=12,
    )
)
def test_no_sequence_of_pods_books_a_gpu_over_its_capacity(asked: list[tuple[int, int, bool]]) -> None:
    rig = Rig(hami_node("n1", (A, 15360), (B, 8192), count=4))
    placed: dict[str, list[tuple[int, int]]] = {A: [], B: []}
    for index, (mib, cores, whole) in enumerate(asked):
        manifest = pod_manifest(f"p{index}", 1) if whole else sharing(f"p{index}", mib, cores)
        placement = rig.filter(manifest)
        if placement.node is None:
            continue
        asyncio.run(rig.binder.bind(placement.pod, placement.node, ""))
        rig.sync()
        hami_allocate(rig.plugin_node("n1"), 1)
        text = rig.cluster.pod("default", f"p{index}")["metadata"]["annotations"][hami.ALLOCATED]
        uuid, _, taken_mib, taken_cores = text.removesuffix(":;").split(",")
        placed[uuid].append((int(taken_mib), int(taken_cores)))

    for uuid, capacity in ((A, 15360), (B, 8192)):
        assert sum(mib for mib, _ in placed[uuid]) <= capacity
        assert sum(cores for _, cores in placed[uuid]) <= 100
        assert len(placed[uuid]) <= 4
        assert len(placed[uuid]) == 1 or all(cores < 100 for _, cores in placed[uuid])


# Pods that ask by annotation alone beside those that NVIDIA's plugin serves.


def by_word(name: str, **annotations: str) -> dict[str, Any]:
    """A pod that asks by annotation alone."""
    said = {f"kerf.dev/{key.replace('_', '-')}": value for key, value in annotations.items()}
    return pod_manifest(name, annotations=said or {"kerf.dev/gpu-count": "1"})


def test_on_a_node_whose_plugin_picks_by_itself_nobody_is_beside_pods_it_does_not_know() -> None:
    rig = Rig(node_manifest("n1", 4), node_manifest("n2", 4))
    assert rig.run(by_word("a"))["spec"]["nodeName"] == "n1"
    assert rig.run(by_word("b", gpu_share="500"))["spec"]["nodeName"] == "n1"
    assert rig.run(pod_manifest("c", 1))["spec"]["nodeName"] == "n2"
    assert rig.run(by_word("d"))["spec"]["nodeName"] == "n1"
    assert rig.refused(pod_manifest("e", 4)) == {Reason.KEPT_APART, Reason.BUSY}
    assert rig.refused(by_word("f", gpu_count="2")) == {Reason.KEPT_APART, Reason.BUSY}
    rig.restart()
    assert rig.refused(by_word("f", gpu_count="2")) == {Reason.KEPT_APART, Reason.BUSY}
    for name in "abd":
        rig.ledger.remove_pod(f"uid-{name}")
    assert rig.filter(pod_manifest("e", 4)).node == "n1"


def test_a_pod_that_came_past_kerf_keeps_others_from_being_bound_beside_it() -> None:
    rig = Rig(node_manifest("n1", 4))
    placement = rig.filter(by_word("a"))
    assert placement.node == "n1"
    rig.cluster.apply(pod_manifest("foreign", 1, node="n1"))
    rig.sync()
    with pytest.raises(BindError):
        asyncio.run(rig.binder.bind(placement.pod, "n1", ""))


def test_beside_a_plugin_that_is_steered_or_none_at_all_both_kinds_have_room() -> None:
    gpus = [{"index": index, "uuid": f"GPU-{index}"} for index in range(2)]
    steered, bare = node_manifest("steered", 2), node_manifest("bare")
    report = {"version": 1, "gpus": gpus, "steers": ["nvidia.com/gpu"]}
    steered["metadata"]["annotations"] = {REPORT: msgspec.json.encode(report).decode()}
    bare["metadata"]["annotations"] = {kerf.GPUS: msgspec.json.encode(gpus).decode()}
    for node in (steered, bare):
        rig = Rig(node)
        rig.run(by_word("a"))
        assert rig.filter(pod_manifest("b", 1)).node == node["metadata"]["name"]
