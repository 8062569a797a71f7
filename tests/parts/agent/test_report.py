"""What the agent writes on its node."""

import asyncio
import json
import logging
import random
from pathlib import Path

import pytest

from extender.kube.client import ApiError
from extender.parts.agent.inventory import Gpu, Inventory
from extender.parts.agent.nvidia import _link_groups
from extender.parts.agent.report import _MAX_BYTES, _reported_uuids, _text_of
from tests.parts.agent.pods import GPU, gpu_pod
from tests.parts.agent.rigs import UUIDS, Rig, in_rig, running, until

DRIVER = """\
Model: \t\t NVIDIA A100-SXM4-40GB
IRQ:   \t\t 42
GPU UUID: \t GPU-{number}
Video BIOS: \t ??.??.??.??.??
"""


def test_the_same_is_the_same_text() -> None:
    entries = {f"uid-{number}": {"main": {GPU: (f"GPU-{number}",)}} for number in range(20)}
    shuffled = dict(random.sample(list(entries.items()), 20))
    assert _text_of([], entries) == _text_of([], shuffled)
    assert json.loads(_text_of([Gpu(0, "GPU-0", healthy=False)], {})) == {
        "version": 1,
        "gpus": [{"index": 0, "uuid": "GPU-0", "healthy": False}],
        "given": {},
    }


def test_what_is_too_long_loses_the_longest_pods_and_says_how_many() -> None:
    honest = {f"uid-{number}": {"main": {GPU: UUIDS}} for number in range(100)}
    greedy = {f"evil-{number}": {"c" * 60 + str(i): {GPU: ("x" * 60,) * 10} for i in range(30)} for number in range(9)}
    text = _text_of([Gpu(0, "GPU-0")], {**greedy, **honest})  # type: ignore[dict-item]
    report = json.loads(text)
    assert len(text) <= _MAX_BYTES
    assert honest.keys() <= report["given"].keys()
    assert report["left_out"] == 109 - len(report["given"]) > 0


@in_rig()
async def test_the_report_follows(rig: Rig) -> None:
    one, two = gpu_pod("one", 2, "GPU-c,GPU-a"), gpu_pod("two", 1, "GPU-b")
    await rig.place(one)
    await rig.place(two)
    both = {
        one["metadata"]["uid"]: {"main": {GPU: ["GPU-a", "GPU-c"]}},
        two["metadata"]["uid"]: {"main": {GPU: ["GPU-b"]}},
    }
    await until(lambda: rig.report().get("given") == both)
    assert [gpu["uuid"] for gpu in rig.report()["gpus"]] == UUIDS
    rig.kubelet.release(one["metadata"]["uid"])
    rig.cluster.delete(one)
    await until(lambda: rig.report().get("given") == {two["metadata"]["uid"]: both[two["metadata"]["uid"]]})


@in_rig()
async def test_a_kubelet_that_lists_nothing_has_not_taken_everything_back(rig: Rig) -> None:
    one, two = gpu_pod("one", 1, "GPU-c"), gpu_pod("two", 1, "GPU-b")
    await rig.place(one)
    await rig.place(two)
    await until(lambda: len(rig.report().get("given", ())) == 2)
    listed, rig.kubelet.pods = rig.kubelet.pods, {}
    rig.cluster.delete(two)
    await until(lambda: rig.report()["given"].keys() == {one["metadata"]["uid"]})
    rig.kubelet.pods = listed
    rig.kubelet.release(one["metadata"]["uid"])
    rig.kubelet.pods[one["metadata"]["uid"]] = one
    await until(lambda: not rig.report()["given"])


@in_rig()
async def test_what_does_not_change_is_not_written(rig: Rig) -> None:

    async def seen_twice() -> None:
        lists = rig.kubelet.num_lists
        await until(lambda: rig.kubelet.num_lists > lists + 2)

    await until(lambda: rig.report().get("steers"))
    await seen_twice()
    version = rig.cluster.node("n")["metadata"]["resourceVersion"]
    rig.cluster.apply(gpu_pod("none", 0))
    await seen_twice()
    assert rig.cluster.node("n")["metadata"]["resourceVersion"] == version


def test_what_is_down_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    async def refuse(path: str, body: bytes) -> bytes:
        raise ApiError(403, "Forbidden", "not of its own node")

    async def failed() -> None:
        caplog.clear()
        await until(lambda: "the report was not written" in caplog.text)

    async def run() -> None:
        async with running() as rig:
            await until(rig.report)
            await rig.kubelet.stop()
            await failed()
            await rig.kubelet.start()
            await until(lambda: rig.kubelet.allocatable(GPU))
            patch, rig.cluster.patch = rig.cluster.patch, refuse  # type: ignore[method-assign]
            pod = gpu_pod("one", 1, "GPU-c")
            await rig.place(pod)
            await failed()
            rig.cluster.patch = patch  # type: ignore[method-assign]
            await until(lambda: pod["metadata"]["uid"] in rig.report()["given"])

    with caplog.at_level(logging.WARNING):
        asyncio.run(run())


# GPUs


def written(root: Path, count: int) -> Path:
    """The driver's and the system's files of a machine with so many GPUs."""
    for number in range(count):
        bus = f"0000:{number + 7:02x}:00.0"
        folder = root / "proc/driver/nvidia/gpus" / bus
        folder.mkdir(parents=True)
        (folder / "information").write_text(DRIVER.format(number=number))
        device = root / "sys/bus/pci/devices" / bus
        device.mkdir(parents=True)
        (device / "numa_node").write_text(f"{number // 2}\n")
    return root


def gpus(inventory: Inventory, *devices: str) -> list[Gpu]:
    return asyncio.run(inventory.gpus({GPU: dict.fromkeys(devices, 1)}, 1.0))


def test_by_the_driver_s_files(tmp_path: Path) -> None:
    found = gpus(Inventory(written(tmp_path, 4), library=("false",)), "GPU-0", "GPU-1", "GPU-3")
    model = "NVIDIA A100-SXM4-40GB"
    assert found == [Gpu(n, f"GPU-{n}", model, healthy=n != 2, numa=n // 2) for n in range(4)]


def test_by_the_library(tmp_path: Path) -> None:
    printed = [{"index": 0, "uuid": "GPU-7", "model": "H100", "memory_mib": 81559, "bus": "0000:07:00.0", "link": 0}]
    library = ("echo", json.dumps(printed))
    assert gpus(Inventory(written(tmp_path, 1), library)) == [Gpu(0, "GPU-7", "H100", 81559, True, 0, 0)]


def test_a_library_that_says_nothing_of_use(tmp_path: Path) -> None:
    for library in (("echo", "nonsense"), ("true",), ("sh", "-c", "echo '[]'; exit 1")):
        found = gpus(Inventory(tmp_path, library), "GPU-b", "GPU-a::1", "MIG-x")
        assert [gpu.uuid for gpu in found] == ["GPU-a", "GPU-b"]


def test_gpus_keep_their_numbers_while_no_plugin_offers_them(tmp_path: Path) -> None:
    inventory = Inventory(tmp_path, library=("false",))
    before = gpus(inventory, "GPU-a", "GPU-b")
    assert gpus(inventory) == [Gpu(0, "GPU-a"), Gpu(1, "GPU-b")]
    assert before == [Gpu(0, "GPU-a", numa=1), Gpu(1, "GPU-b", numa=1)]


def test_an_agent_that_starts_while_a_gpu_is_sick_leaves_the_others_their_numbers(tmp_path: Path) -> None:
    for told, offered, numbered in (
        (["GPU-a", "GPU-b", "GPU-c"], ["GPU-c", "GPU-b"], "abc"),
        (["GPU-a", "GPU-b"], ["GPU-b", "GPU-c"], "bc"),  # another GPU: the machine has changed
        (["GPU-a", "GPU-b"], [], "ab"),
        ([], ["GPU-b"], "b"),
    ):
        inventory = Inventory(tmp_path, library=("false",))
        inventory.recall(told)
        found = gpus(inventory, *offered)
        assert [(gpu.index, gpu.uuid) for gpu in found] == [(i, f"GPU-{letter}") for i, letter in enumerate(numbered)]
        assert [gpu.uuid for gpu in found if gpu.healthy] == (sorted(offered) or [gpu.uuid for gpu in found])


def test_gpus_of_the_last_report_are_forgotten_once_another_is_there(tmp_path: Path) -> None:
    inventory = Inventory(tmp_path, library=("false",))
    inventory.recall(["GPU-a", "GPU-b"])
    assert [gpu.uuid for gpu in gpus(inventory)] == ["GPU-a", "GPU-b"]  # no plugin is registered yet
    assert gpus(inventory, "GPU-c") == [Gpu(0, "GPU-c", numa=1)]


def test_what_the_last_report_has_told() -> None:
    written = _text_of([Gpu(0, "GPU-b"), Gpu(1, "GPU-a", "T4", 15360, False)], {})
    odd = ('{"version": 2, "more": 1}', "", "{", "[]", '{"gpus": 7}', '{"gpus": [{"index": "x"}]}')
    for annotations, told in (
        ({"kerf.dev/node-report": written}, ["GPU-b", "GPU-a"]),
        *(({"kerf.dev/node-report": text}, []) for text in odd),
        ({"other": "x"}, []),
        (None, []),
    ):
        assert _reported_uuids(json.dumps({"metadata": {"name": "n", "annotations": annotations}}).encode()) == told
    assert _reported_uuids(b"{") == []


@in_rig()
async def test_the_last_report_is_read_when_the_agent_starts_again(rig: Rig) -> None:
    await until(lambda: len(rig.report().get("gpus", ())) == len(UUIDS))
    await rig.kill_agent()
    rig.plugin.tell(UUIDS[0], "Unhealthy")
    await rig.start_agent()
    await until(lambda: rig.report()["gpus"][0].get("healthy") is False)
    assert [(gpu["index"], gpu["uuid"]) for gpu in rig.report()["gpus"]] == list(enumerate(UUIDS))


class Library:
    """Of NVML what link groups are made of."""

    NVML_P2P_CAPS_INDEX_NVLINK, NVML_P2P_STATUS_OK = 2, 0
    NVMLError = OSError

    def __init__(self, *pairs: str) -> None:
        self._pairs = {frozenset(pair) for pair in pairs}

    def nvmlDeviceGetP2PStatus(self, one: str, other: str, what: int) -> int:  # noqa: N802
        if "x" in (one, other):
            raise self.NVMLError("not supported")
        return 0 if {one, other} in self._pairs else 5


def test_link_groups() -> None:
    for handles, pairs, groups in (
        ("abcd", ["ab", "cd"], [0, 0, 1, 1]),
        ("abcd", ["ab", "bc", "ac"], [0, 0, 0, -1]),
        ("abcd", ["ad", "cd"], [0, -1, 0, 0]),
        ("axc", ["ac"], [0, -1, 0]),
        ("ab", [], [-1, -1]),
        ("abcd", ["bd", "ac"], [0, 1, 0, 1]),
    ):
        assert _link_groups(Library(*pairs), list(handles)) == groups
