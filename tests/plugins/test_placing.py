"""Pods of HAMi and gpushare through filter and bind, with a simulation of their plugins."""

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.core.fit.reasons import Reason
from extender.core.resources.requests import RequestError
from extender.kube.memory import Manifest
from extender.plugins.kerf import _GIVEN, ASSIGNED_GPUS, GPUS, REPORT
from extender.plugins.nvidia import gpushare, hami
from extender.plugins.nvidia.hami import _MODE, _NO_USE_UUID, _USE_TYPE, _USE_UUID
from extender.scheduling.binding import BindError
from tests.ledger.builders import Clock, node_manifest, pod_manifest
from tests.plugins.plugins import LOCK, gpushare_allocate, hami_allocate
from tests.plugins.rigs import A, B, Rig, asking, gpushare_node, hami_node, sharing


def annotations_of(pod: Manifest) -> dict[str, str]:
    found: dict[str, str] = pod["metadata"]["annotations"]
    return found


def described(name: str, gpus: int, **fields: Any) -> Manifest:
    """A node of NVIDIA's plugin whose annotations describe GPUs A and B."""
    manifest = node_manifest(name, gpus)
    listed = [{"index": index, "uuid": uuid, "memory_mib": 15360} for index, uuid in enumerate((A, B))]
    manifest["metadata"]["annotations"] = {GPUS: msgspec.json.encode(listed).decode(), **fields}
    return manifest


def served(rig: Rig, num_devices: int = 1) -> dict[str, str]:
    """Have HAMi's plugin serve a container on n1."""
    return hami_allocate(rig.plugin_node("n1"), num_devices)


def run(rig: Rig, manifest: Manifest) -> str:
    """Bind a pod and have HAMi serve it; returns the devices that are written on it."""
    written = annotations_of(rig.run(manifest))[hami.ALLOCATED]
    served(rig)
    return written


def test_a_hami_pod_gets_its_part_and_the_plugin_serves_just_that() -> None:
    rig = Rig(hami_node("n1", (A, 15360), (B, 15360)))
    annotations = annotations_of(rig.run(sharing("a", 4000, 30)))
    assert annotations[ASSIGNED_GPUS] == "0"
    assert annotations[hami.TO_ALLOCATE] == annotations[hami.ALLOCATED] == f"{A},NVIDIA,4000,30:;"
    assert annotations_of(rig.cluster.node("n1"))[LOCK].endswith(",default,a")
    assert served(rig) == {
        "container": "main",
        "NVIDIA_VISIBLE_DEVICES": A,
        "CUDA_DEVICE_SM_LIMIT": "30",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "4000m",
    }
    assert LOCK not in annotations_of(rig.cluster.node("n1"))
    assert annotations_of(rig.cluster.pod("default", "a"))[hami.BIND_PHASE] == "success"
    assert run(rig, sharing("b", 11000)) == f"{A},NVIDIA,11000,0:;"  # best fit: on the same GPU
    assert (rig.free_mib("n1"), rig.free_milli("n1")) == ([360, 15360], [700, 1000])
    assert rig.run(pod_manifest("c", 1))["metadata"]["annotations"][hami.ALLOCATED] == f"{B},NVIDIA,15360,100:;"
    assert rig.refused(pod_manifest("d", 1)) == {Reason.BUSY}, "a whole GPU has one holder"


@given(st.lists(st.tuples(st.integers(100, 16000), st.integers(0, 100), st.booleans()), max_size=12))
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
        served(rig)
        text = annotations_of(rig.cluster.pod("default", f"p{index}"))[hami.ALLOCATED]
        uuid, _, taken_mib, taken_cores = text.removesuffix(":;").split(",")
        placed[uuid].append((int(taken_mib), int(taken_cores)))
    free = rig.free_mib("n1")
    rig.restart()
    assert rig.free_mib("n1") == free
    for uuid, capacity in ((A, 15360), (B, 8192)):
        assert sum(mib for mib, _ in placed[uuid]) <= capacity
        assert sum(cores for _, cores in placed[uuid]) <= 100
        assert len(placed[uuid]) <= 4
        assert len(placed[uuid]) == 1 or all(cores < 100 for _, cores in placed[uuid])


def test_kerfs_own_annotation_leaves_a_plugins_numbers_alone() -> None:
    node = hami_node("n1", (A, 15109), count=1)
    gpus = [{"index": 0, "uuid": A, "memory_mib": 15360, "model": "Tesla T4", "link": 0}]
    annotations_of(node)[GPUS] = msgspec.json.encode(gpus).decode()
    rig = Rig(node)
    run(rig, sharing("a", 15109))
    assert (rig.free_mib("n1"), rig.free_milli("n1")) == ([0], [0])


def two_containers(name: str, *resources: dict[str, str], spread: bool = False) -> Manifest:
    """A pod of containers `one` and `two`."""
    manifest = asking(name, {}, annotations={"hami.io/gpu-scheduler-policy": "spread"} if spread else None)
    manifest["spec"]["containers"] = [
        {"name": called, "resources": {"limits": asked, "requests": asked}}
        for called, asked in zip(("one", "two"), resources, strict=True)
    ]
    return manifest


HALF = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "16000"}


def test_containers_are_spread_over_gpus_if_they_say_so() -> None:
    """Two containers of 16 GB each on two GPUs of 24 GB."""
    rig = Rig(hami_node("n1", (A, 24576), (B, 24576)))
    assert rig.refused(two_containers("together", HALF, HALF)) == {Reason.TOO_SMALL}
    request = rig.filter(two_containers("again", HALF, HALF)).decision.request
    assert str(request) == "1 GPU with 32000 MiB for 2 containers together"
    rig.run(two_containers("apart", HALF, HALF, spread=True))
    calls = [served(rig) for _ in range(2)]
    assert [(call["container"], call["NVIDIA_VISIBLE_DEVICES"]) for call in calls] == [("one", A), ("two", B)]
    assert {call["CUDA_DEVICE_MEMORY_LIMIT_0"] for call in calls} == {"16000m"}
    assert rig.free_mib("n1") == [8576, 8576]
    rig.restart()
    assert rig.free_mib("n1") == [8576, 8576]
    assert rig.refused(two_containers("on-one", HALF, HALF, spread=True)) == {Reason.MEMORY_BUSY}


def test_a_whole_gpu_beside_a_part_of_another() -> None:
    rig = Rig(hami_node("n1", (A, 24576), (B, 24576)))
    rig.run(two_containers("p", {"nvidia.com/gpu": "1"}, HALF))
    calls = [served(rig) for _ in range(2)]
    assert [(call["NVIDIA_VISIBLE_DEVICES"], call["CUDA_DEVICE_SM_LIMIT"]) for call in calls] == [(A, "100"), (B, "0")]
    rig.restart()
    assert rig.free_milli("n1") == [0, 0], "what the second needs less is booked, too"


def test_parts_by_percent_and_by_kerfs_own_annotations() -> None:
    rig = Rig(hami_node("n1", (A, 15360)))
    asked = {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "33", "nvidia.com/gpucores": "20"}
    assert run(rig, asking("a", asked)) == f"{A},NVIDIA,5068,20:;"
    share = {"kerf.dev/gpu-share": "500", "kerf.dev/gpu-memory-each": "4Gi"}
    assert run(rig, pod_manifest("b", 1, annotations=share)) == f"{A},NVIDIA,4096,50:;"
    assert (rig.free_mib("n1"), rig.free_milli("n1")) == ([15360 - 5068 - 4096], [300])


def test_hamis_choice_of_types_and_uuids_is_kept() -> None:
    rig = Rig(hami_node("n1", (A, 15360), (B, 15360)))
    assert run(rig, sharing("a", 1000, annotations={_USE_UUID: B})).startswith(B)
    assert run(rig, pod_manifest("b", 1, annotations={_NO_USE_UUID: B, _USE_TYPE: "a100,tesla t4"})).startswith(A)
    assert rig.refused(sharing("c", 1000, annotations={_USE_TYPE: "A100"})) == {Reason.WRONG_MODEL}
    with pytest.raises(RequestError, match="vgpu-mode"):
        rig.filter(sharing("d", 1000, annotations={_MODE: "mig"}))


def test_parts_exist_only_where_a_plugin_hands_them_out() -> None:
    assert Rig(node_manifest("n0", 4), hami_node("n1", (A, 15360))).filter(sharing("a", 4000)).node == "n1"
    assert Rig(node_manifest("n0", 4)).refused(sharing("a", 4000)) == {Reason.NOT_THIS_KIND}


class Ticking(Clock):
    """Half a second passes between two looks at it."""

    def __call__(self) -> float:
        self.now += 0.5
        return self.now


def test_a_pod_that_waits_for_the_lock_too_long_is_not_bound() -> None:
    rig = Rig(hami_node("n1", (A, 15360)), clock=Ticking())
    rig.run(sharing("a", 1000))
    rig.cluster.pod("default", "a")["status"]["phase"] = "Pending"  # the plugin has not served it yet
    placement = rig.filter(sharing("b", 1000))
    with pytest.raises(BindError, match="default/a"):
        asyncio.run(rig.binder.bind(placement.pod, "n1", ""))
    assert rig.free_mib("n1") == [14360]
    assert "nodeName" not in rig.cluster.pod("default", "b")["spec"]


def test_a_refused_binding_releases_the_lock() -> None:
    rig = Rig(hami_node("n1", (A, 15360)))
    placement = rig.filter(sharing("a", 1000))
    rig.cluster.pod("default", "a")["spec"]["nodeName"] = "elsewhere"  # another scheduler was faster
    with pytest.raises(BindError, match="elsewhere"):
        asyncio.run(rig.binder.bind(placement.pod, "n1", ""))
    assert LOCK not in annotations_of(rig.cluster.node("n1"))


def gib(name: str, number: int, **options: Any) -> Manifest:
    """A pod of gpushare."""
    return asking(name, {gpushare.MEMORY_RESOURCE: str(number)}, **options)


def test_gpushare_pods_share_gpus_by_memory_and_the_plugin_serves_just_that() -> None:
    rig = Rig(gpushare_node("n1", 2, 15))
    written = [annotations_of(rig.run(gib(name, number))) for name, number in (("a", 8), ("b", 8), ("c", 7))]
    assert [annotations[gpushare.INDEX] for annotations in written] == ["0", "1", "0"]
    assert written[0][gpushare.GPU_MEMORY] == "15"
    assert rig.free_mib("n1") == [0, 7 * 1024]
    assert gpushare_allocate(rig.plugin_node("n1"), 7, 2)["pod"] == "c"
    assert annotations_of(rig.cluster.pod("default", "c"))[gpushare.ASSIGNED] == "true"
    assert rig.refused(gib("d", 8)) == {Reason.MEMORY_BUSY}


def test_gpushare_pods_of_one_size_are_served_in_the_order_of_the_decisions() -> None:
    """Bindings are written concurrently; the plugin goes by their times."""
    rig = Rig(gpushare_node("n1", 2, 15))
    first = rig.filter(gib("a", 8))
    rig.clock.now += 0.2
    second = rig.filter(gib("b", 8))
    for placement in (second, first):
        asyncio.run(rig.binder.bind(placement.pod, "n1", ""))
        rig.clock.now += 0.2
    rig.sync()
    assert [gpushare_allocate(rig.plugin_node("n1"), 8, 2)["pod"] for _ in range(2)] == ["a", "b"]


def test_what_can_not_be_parsed_counts_as_held() -> None:
    rig = Rig(
        hami_node("n1", (A, 15360), (B, 15360)),
        gpushare_node("n2", 2, 15),
        sharing("a", 4000, node="n1", annotations={hami.ALLOCATED: f"{A},NVIDIA,40"}),
        gib("b", 5, node="n2", annotations={gpushare.INDEX: "zero"}),
        sharing("c", 4000, node="n1"),  # placed by a scheduler that does not know HAMi
    )
    assert (rig.untracked("n1"), rig.untracked("n2")) == (2, 1)
    assert len(rig.warnings) >= 2
    rig.cluster.delete(gpushare_node("n2", 2, 15))  # kube-scheduler offers no node without `nvidia.com/gpu`
    rig.restart()
    assert rig.refused(sharing("d", 100)) == {Reason.BUSY}
    node = hami_node("n1", (A, 15360))
    annotations_of(node)[hami.REGISTER] = '[{"id":'
    rig = Rig(node)
    assert rig.warnings
    assert (rig.filter(sharing("a", 100)).node, rig.filter(pod_manifest("b", 1)).node) == (None, None)


def test_what_the_kubelet_gave_takes_precedence_over_what_was_assigned() -> None:
    node = described("n1", 2)
    rig = Rig(node)
    assert annotations_of(rig.run(pod_manifest("a", 1)))[ASSIGNED_GPUS] == "0"
    assert rig.free_milli("n1") == [0, 1000]
    for uuid, free in ((B, [1000, 0]), ("GPU-of-another-node", [0, 1000])):
        annotations_of(node)[_GIVEN] = msgspec.json.encode({"default/a": [uuid]}).decode()
        rig.cluster.apply(node)
        rig.sync()
        assert rig.free_milli("n1") == free
        rig.restart()
        assert rig.free_milli("n1") == free
    given = {_GIVEN: msgspec.json.encode({"default/a": [B]}).decode()}
    rig = Rig(described("n1", 2, **given), pod_manifest("a", 1, node="n1"))  # assigned nothing
    assert (rig.free_milli("n1"), rig.untracked("n1")) == ([1000, 0], 0)


# Pods that request GPUs by annotation only, beside those that NVIDIA's plugin serves


def by_annotation(name: str, key: str = "gpu-count", value: str = "1") -> Manifest:
    return pod_manifest(name, annotations={f"kerf.dev/{key}": value})


def test_on_a_node_whose_plugin_picks_by_itself_nobody_is_beside_pods_it_does_not_know() -> None:
    rig = Rig(node_manifest("n1", 4), node_manifest("n2", 4))
    assert rig.run(by_annotation("a"))["spec"]["nodeName"] == "n1"
    assert rig.run(by_annotation("b", "gpu-share", "500"))["spec"]["nodeName"] == "n1"
    assert rig.run(pod_manifest("c", 1))["spec"]["nodeName"] == "n2"
    assert rig.run(by_annotation("d"))["spec"]["nodeName"] == "n1"
    assert rig.refused(pod_manifest("e", 4)) == {Reason.KEPT_APART, Reason.BUSY}
    assert rig.refused(by_annotation("f", value="2")) == {Reason.KEPT_APART, Reason.BUSY}
    rig.restart()
    assert rig.refused(by_annotation("f", value="2")) == {Reason.KEPT_APART, Reason.BUSY}
    for name in "abd":
        rig.ledger.remove_pod(f"uid-{name}")
    assert rig.filter(pod_manifest("e", 4)).node == "n1"


def test_a_pod_placed_by_another_scheduler_keeps_others_from_being_bound_beside_it() -> None:
    rig = Rig(node_manifest("n1", 4))
    placement = rig.filter(by_annotation("a"))
    assert placement.node == "n1"
    rig.cluster.apply(pod_manifest("foreign", 1, node="n1"))
    rig.sync()
    with pytest.raises(BindError):
        asyncio.run(rig.binder.bind(placement.pod, "n1", ""))


def test_beside_a_plugin_that_is_steered_or_none_at_all_both_kinds_have_room() -> None:
    report = {"version": 1, "gpus": [{"index": 0, "uuid": A}, {"index": 1, "uuid": B}], "steers": ["nvidia.com/gpu"]}
    steered = node_manifest("n1", 2)
    steered["metadata"]["annotations"] = {REPORT: msgspec.json.encode(report).decode()}
    for node in (steered, described("n1", 0)):
        rig = Rig(node)
        rig.run(by_annotation("a"))
        assert rig.filter(pod_manifest("b", 1)).node == "n1"
