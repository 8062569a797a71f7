"""Which devices containers get with the agent between plugin and kubelet, and what it does when one of them ends."""

import asyncio
import time

import pytest
from grpc import StatusCode, aio

from extender.parts.agent.kubelet_api import deviceplugin_v1beta1_pb2 as plugins
from tests.parts.agent.kubelets import AdmissionError, Plugin, ask
from tests.parts.agent.pods import GPU, container, gpu_pod
from tests.parts.agent.rigs import UUIDS, Rig, running, until


def test_a_container_has_the_gpus_that_kerf_assigned() -> None:
    async def run() -> None:
        async with running() as rig:
            assert await rig.place(gpu_pod("a", 2, "GPU-c,GPU-a")) == {"main": {GPU: {"GPU-c", "GPU-a"}}}
            assert await rig.place(gpu_pod("b", 1, "GPU-b")) == {"main": {GPU: {"GPU-b"}}}
            assert not rig.plugin.asked

    asyncio.run(run())


def test_by_index_where_the_node_tells_no_uuids() -> None:
    async def run() -> None:
        async with running() as rig:
            by_index = {"kerf.dev/assigned-gpus": "0,5"}
            assert await rig.place(gpu_pod("a", 2, annotations=by_index)) == {"main": {GPU: {"GPU-a", "GPU-f"}}}

    asyncio.run(run())


def test_without_an_assignment_the_plugin_picks_but_not_what_is_promised() -> None:
    async def run() -> None:
        async with running() as rig:
            rig.cluster.apply(gpu_pod("later", 1, "GPU-h"))
            assert await rig.place(gpu_pod("a", 2)) == {"main": {GPU: {"GPU-g", "GPU-f"}}}

    asyncio.run(run())


def test_what_is_promised_is_given_where_nothing_else_is_left() -> None:
    async def run() -> None:
        async with running(["GPU-a", "GPU-b"]) as rig:
            rig.cluster.apply(gpu_pod("later", 1, "GPU-b"))
            assert await rig.place(gpu_pod("a", 2)) == {"main": {GPU: {"GPU-a", "GPU-b"}}}

    asyncio.run(run())


def test_what_can_not_be_had_is_the_plugin_s_choice() -> None:
    async def run() -> None:
        async with running() as rig:
            rig.plugin.tell("GPU-a", "Unhealthy")
            await until(lambda: rig.kubelet.allocatable(GPU) == 7)
            assert await rig.place(gpu_pod("a", 2, "GPU-a,GPU-b")) == {"main": {GPU: {"GPU-b", "GPU-h"}}}
            assert rig.agent.preference.num_left == 1

    asyncio.run(run())


@pytest.mark.parametrize("kerfs", [True, False])
def test_a_plugin_without_an_idea_of_its_own(kerfs: bool) -> None:
    async def run() -> None:
        async with running(prefers=False) as rig:
            given = await rig.place(gpu_pod("a", 2, "GPU-g,GPU-x" if kerfs else ""))
            assert len(given["main"][GPU]) == 2
            assert not kerfs or "GPU-g" in given["main"][GPU]

    asyncio.run(run())


def test_several_containers_share_out_what_the_pod_was_assigned() -> None:
    async def run() -> None:
        async with running() as rig:
            pod = gpu_pod("a", assigned="GPU-e,GPU-b,GPU-d", containers=[container("x", 1), container("y", 2)])
            assert await rig.place(pod) == {"x": {GPU: {"GPU-e"}}, "y": {GPU: {"GPU-b", "GPU-d"}}}

    asyncio.run(run())


@pytest.mark.parametrize(
    ("init", "main", "assigned"),
    [
        ([container("i", 2)], [container("m", 1)], 2),
        ([container("i", 1)], [container("m", 3)], 3),
        ([container("i", 1), container("j", 2)], [container("m", 3), container("k", 1)], 4),
        ([container("s", 1, restartPolicy="Always")], [container("m", 2)], 3),
        ([container("i", 2), container("s", 1, restartPolicy="Always")], [container("m", 2)], 3),
        ([container("s", 1, restartPolicy="Always"), container("i", 2)], [container("m", 2)], 3),
        ([container("i", 2)], [container("m")], 2),
    ],
)
def test_init_and_sidecar_containers(
    init: list[dict[str, object]], main: list[dict[str, object]], assigned: int
) -> None:
    async def run() -> None:
        async with running() as rig:
            uuids = UUIDS[1 : 1 + assigned]
            given = await rig.place(gpu_pod("a", assigned=",".join(uuids), init=init, containers=main))
            assert {device for of in given.values() for device in of[GPU]} == set(uuids)
            # It is over with that pod: the next one is not taken for it.
            assert await rig.place(gpu_pod("b", 1, "GPU-a")) == {"main": {GPU: {"GPU-a"}}}

    asyncio.run(run())


def test_replicas_of_a_shared_gpu() -> None:
    async def run() -> None:
        devices = [f"GPU-{letter}::{number}" for letter in "abc" for number in range(12)]
        shared = "nvidia.com/gpu.shared"
        async with running(devices, resource=shared) as rig:
            for number in range(12):
                given = await rig.place(gpu_pod(f"p{number}", 1, "GPU-b", resource=shared))
                assert given == {"main": {shared: {f"GPU-b::{number}"}}}
            given = await rig.place(gpu_pod("two", 2, "GPU-c,GPU-a", resource=shared))
            assert given == {"main": {shared: {"GPU-c::0", "GPU-a::0"}}}

    asyncio.run(run())


def test_other_resources_are_the_plugin_s_and_the_kubelet_s() -> None:
    async def run() -> None:
        mig = "nvidia.com/mig-1g.5gb"
        async with running(["MIG-a", "MIG-b"], resource=mig) as rig:
            assert rig.kubelet.endpoints[mig].name == rig.plugin.socket.name
            pod = gpu_pod("a", 1, "GPU-a", resource=mig)
            assert await rig.place(pod) == {"main": {mig: {"MIG-b"}}}
            await until(lambda: rig.report().get("given") == {pod["metadata"]["uid"]: {"main": {mig: ["MIG-b"]}}})

    asyncio.run(run())


@pytest.mark.parametrize(
    "annotations",
    [
        {"kerf.dev/assigned-gpus": "0,0"},
        {"kerf.dev/assigned-gpus": "-1,nan"},
        {"kerf.dev/assigned-gpus": "9" * 100_000},
        {"kerf.dev/assigned-uuids": "," * 9_000},
        {"kerf.dev/assigned-uuids": "GPU-\x00\ud7ff,☃"},
        {"kerf.dev/assigned-uuids": "GPU-a::1,GPU-zz"},
    ],
)
def test_whatever_a_pod_says(annotations: dict[str, str]) -> None:
    async def run() -> None:
        async with running() as rig:
            given = await rig.place(gpu_pod("evil", 2, annotations=annotations))
            assert len(given["main"][GPU]) == 2
            assert len((await rig.place(gpu_pod("b", 1, "GPU-c")))["main"][GPU]) == 1

    asyncio.run(run())


def test_the_api_server_may_be_later_than_the_kubelet() -> None:
    async def run() -> None:
        async with running() as rig:
            await until(rig.report)
            pod = gpu_pod("a", 1, "GPU-c")
            admitted = asyncio.create_task(rig.kubelet.admit(pod))
            await asyncio.sleep(0.1)
            rig.cluster.apply(pod)
            assert await admitted == {"main": {GPU: {"GPU-c"}}}

    asyncio.run(run())


def test_pods_of_which_the_api_server_never_tells_are_waited_for_once() -> None:
    async def run() -> None:
        async with running() as rig:
            await until(rig.report)
            assert len((await rig.kubelet.admit(gpu_pod("static", 1)))["main"][GPU]) == 1
            rig.kubelet.pods["x"] = gpu_pod("unheard", 0)
            began = time.monotonic()
            assert await rig.place(gpu_pod("a", 1, "GPU-c")) == {"main": {GPU: {"GPU-c"}}}
            assert time.monotonic() - began < 0.2

    asyncio.run(run())


def test_pods_that_were_refused_and_are_listed_still_are_not_taken_for_the_next() -> None:
    async def run() -> None:
        async with running() as rig:
            refused = gpu_pod("refused", 1, "GPU-a", created="2026-01-01T00:00:00Z")
            rig.cluster.apply(refused)
            rig.kubelet.pods[refused["metadata"]["uid"]] = refused
            await asyncio.sleep(0.05)
            assert await rig.place(gpu_pod("b", 1, "GPU-b", created="2026-01-01T00:00:01Z")) == {
                "main": {GPU: {"GPU-b"}}
            }

    asyncio.run(run())


def test_a_kubelet_that_is_asked_too_much_is_asked_again() -> None:
    async def run() -> None:
        async with running() as rig:
            rig.kubelet.busy = 2
            assert await rig.place(gpu_pod("a", 1, "GPU-c")) == {"main": {GPU: {"GPU-c"}}}

    asyncio.run(run())


async def refused(channel: aio.Channel, method: str) -> StatusCode:
    """How a call is refused."""
    with pytest.raises(aio.AioRpcError) as told:
        await ask(channel, method, b"")
    return told.value.code()


def test_what_it_does_not_know_goes_on_untouched() -> None:
    async def run() -> None:
        async with running() as rig:
            plugin = rig.kubelet.endpoints[GPU].channel
            options = await ask(plugin, "/v1beta1.DevicePlugin/GetDevicePluginOptions", b"")
            assert options.endswith(b"\x98\x06\x07")
            assert plugins.DevicePluginOptions.FromString(options).pre_start_required
            assert await ask(plugin, "/v1beta1.DevicePlugin/OfTheFuture", b"abc") == b"cba"
            with pytest.raises(aio.AioRpcError, match="not this one"):
                await ask(plugin, "/v1beta1.DevicePlugin/PreStartContainer", b"")
            # INTERNAL where gRPC met the end of the call before it had sent all of its own.
            codes = {await refused(plugin, "/v1beta1.DevicePlugin/OfNobody") for _ in range(20)}
            assert codes - {StatusCode.INTERNAL} == {StatusCode.UNIMPLEMENTED}
            request = plugins.AllocateRequest()
            request.container_requests.add(devices_ids=["GPU-a"])
            raw = request.SerializeToString() + b"\x98\x06\x07"
            await ask(plugin, "/v1beta1.DevicePlugin/Allocate", raw)
            assert rig.plugin.allocated == [raw]

    asyncio.run(run())


def test_another_version_is_the_kubelet_s_to_refuse() -> None:
    async def run() -> None:
        async with running(version="v1beta2") as rig:
            assert rig.plugin.complaint == "version v1beta2 is not supported"
            (asked,) = rig.kubelet.registered
            assert (asked.version, asked.endpoint) == ("v1beta2", rig.plugin.socket.name)

    asyncio.run(run())


def test_a_plugin_that_the_kubelet_refuses_hears_why() -> None:
    async def run() -> None:
        async with running() as rig:
            rig.kubelet.refuses = "not today"
            other = Plugin(rig.folder, ["GPU-z"], "nvidia.com/gpu.shared")
            await other.start()
            try:
                await until(lambda: other.complaint)
                assert other.complaint == "not today"
                await until(lambda: not list(rig.folder.glob("kerf-nvidia.com-gpu.shared-*")))
            finally:
                await other.stop()

    asyncio.run(run())


def test_devices_that_become_sick_are_told_at_once() -> None:
    async def run() -> None:
        async with running() as rig:
            await until(lambda: len(rig.report().get("gpus", ())) == len(UUIDS))
            rig.plugin.tell("GPU-a", "Unhealthy")
            await until(lambda: rig.kubelet.endpoints[GPU].devices["GPU-a"] == "Unhealthy", within_s=1.0)
            await until(lambda: [gpu for gpu in rig.report()["gpus"] if not gpu.get("healthy", True)])

    asyncio.run(run())


async def again(rig: Rig) -> None:
    """All is as before within five seconds: what runs has what it had, and a new pod gets what it was assigned."""
    await until(lambda: rig.kubelet.allocatable(GPU) == len(UUIDS), "the devices are back", within_s=5.0)
    assert await rig.place(gpu_pod("new", 2, "GPU-f,GPU-d")) == {"main": {GPU: {"GPU-f", "GPU-d"}}}


def test_the_plugin_ends() -> None:
    async def run() -> None:
        async with running() as rig:
            old = gpu_pod("old", 1, "GPU-c")
            before = await rig.place(old)
            await rig.plugin.stop()
            await until(lambda: rig.kubelet.allocatable(GPU) == 0, "the kubelet hears of it", within_s=1.0)
            with pytest.raises(AdmissionError):
                await rig.place(gpu_pod("refused", 1, "GPU-d"))
            rig.plugin = Plugin(rig.folder, UUIDS)
            await rig.plugin.start()
            await again(rig)
            assert rig.kubelet.given(old["metadata"]["uid"]) == before

    asyncio.run(run())


def test_the_agent_ends() -> None:
    async def run() -> None:
        async with running() as rig:
            old = gpu_pod("old", 1, "GPU-c")
            before = await rig.place(old)
            await rig.kill_agent()
            await until(lambda: rig.kubelet.allocatable(GPU) == 0, "the kubelet hears of it", within_s=1.0)
            (rig.folder / "kerf-left-behind-7.sock").touch()
            await rig.start_agent()
            await again(rig)
            assert rig.kubelet.given(old["metadata"]["uid"]) == before
            assert not (rig.folder / "kerf-left-behind-7.sock").exists()

    asyncio.run(run())


def test_the_kubelet_ends() -> None:
    async def run() -> None:
        async with running() as rig:
            old = gpu_pod("old", 1, "GPU-c")
            before = await rig.place(old)
            await rig.kubelet.stop()
            await asyncio.sleep(0.3)
            await rig.kubelet.start()
            await again(rig)
            assert rig.kubelet.given(old["metadata"]["uid"]) == before

    asyncio.run(run())


@pytest.mark.parametrize("mixes_up", [False, True])
def test_a_plugin_registers_again_without_an_end(mixes_up: bool) -> None:
    async def run() -> None:
        async with running() as rig:
            rig.kubelet.mixes_up = mixes_up
            before = rig.kubelet.endpoints[GPU].name
            await rig.plugin.begin()
            await asyncio.sleep(0.3)  # longer than it takes the kubelet to notice
            await again(rig)
            assert rig.kubelet.endpoints[GPU].name != before
            assert len(rig.kubelet.registered) == 2

    asyncio.run(run())


def test_the_kubelet_lets_go_of_a_plugin_that_goes_on() -> None:
    async def run() -> None:
        async with running() as rig:
            old = gpu_pod("old", 1, "GPU-c")
            before = await rig.place(old)
            await rig.kubelet.let_go(rig.kubelet.endpoints[GPU])
            assert rig.kubelet.allocatable(GPU) == 0
            await again(rig)
            assert rig.kubelet.given(old["metadata"]["uid"]) == before

    asyncio.run(run())


def test_somebody_removes_the_agent_s_socket() -> None:
    async def run() -> None:
        async with running() as rig:
            num_registered = len(rig.kubelet.registered)
            (rig.folder / "kerf.sock").unlink()
            await until(lambda: len(rig.kubelet.registered) > num_registered, within_s=5.0)
            await again(rig)

    asyncio.run(run())


def test_reporting_alone_stands_in_nobody_s_way() -> None:
    async def run() -> None:
        async with running(steer=False) as rig:
            pod = gpu_pod("a", 2, "GPU-c,GPU-a")
            assert await rig.place(pod) == {"main": {GPU: {"GPU-h", "GPU-g"}}}
            assert not (rig.folder / "kerf.sock").exists()
            given = {pod["metadata"]["uid"]: {"main": {GPU: ["GPU-g", "GPU-h"]}}}
            await until(lambda: rig.report().get("given") == given)

    asyncio.run(run())
