"""Which devices containers get with the agent between plugin and kubelet, and what it does when one of them ends."""

import asyncio
import time

import pytest
from grpc import StatusCode, aio

from extender.parts.agent.kubelet_api import deviceplugin_v1beta1_pb2 as plugins
from tests.parts.agent.kubelets import AdmissionError, Plugin, ask
from tests.parts.agent.pods import GPU, container, gpu_pod
from tests.parts.agent.rigs import UUIDS, Rig, in_rig, running, until


@in_rig()
async def test_a_container_has_the_gpus_that_kerf_assigned(rig: Rig) -> None:
    by_index = {"kerf.dev/assigned-gpus": "0,5"}  # where the node tells no UUIDs
    assert await rig.place(gpu_pod("c", 2, annotations=by_index)) == {"main": {GPU: {"GPU-a", "GPU-f"}}}
    assert await rig.place(gpu_pod("a", 2, "GPU-c,GPU-e")) == {"main": {GPU: {"GPU-c", "GPU-e"}}}
    assert await rig.place(gpu_pod("b", 1, "GPU-b")) == {"main": {GPU: {"GPU-b"}}}
    assert not rig.plugin.asked


@in_rig(prefers=False)
async def test_a_plugin_without_an_idea_of_its_own(rig: Rig) -> None:
    given = await rig.place(gpu_pod("a", 2, "GPU-g,GPU-x"))
    assert len(given["main"][GPU]) == 2
    assert "GPU-g" in given["main"][GPU]
    assert len((await rig.place(gpu_pod("any", 2)))["main"][GPU]) == 2


@in_rig()
async def test_without_an_assignment_the_plugin_picks_but_not_what_is_promised(rig: Rig) -> None:
    rig.cluster.apply(gpu_pod("later", 1, "GPU-h"))
    assert await rig.place(gpu_pod("a", 2)) == {"main": {GPU: {"GPU-g", "GPU-f"}}}


@in_rig(["GPU-a", "GPU-b"])
async def test_what_is_promised_is_given_where_nothing_else_is_left(rig: Rig) -> None:
    rig.cluster.apply(gpu_pod("later", 1, "GPU-b"))
    assert await rig.place(gpu_pod("a", 2)) == {"main": {GPU: {"GPU-a", "GPU-b"}}}


@in_rig()
async def test_what_can_not_be_had_is_the_plugin_s_choice(rig: Rig) -> None:
    rig.plugin.tell("GPU-a", "Unhealthy")
    await until(lambda: rig.kubelet.allocatable(GPU) == 7)
    assert await rig.place(gpu_pod("a", 2, "GPU-a,GPU-b")) == {"main": {GPU: {"GPU-b", "GPU-h"}}}
    assert rig.agent.preference.num_left == 1


@in_rig()
async def test_several_containers_share_out_what_the_pod_was_assigned(rig: Rig) -> None:
    pod = gpu_pod("a", assigned="GPU-e,GPU-b,GPU-d", containers=[container("x", 1), container("y", 2)])
    assert await rig.place(pod) == {"x": {GPU: {"GPU-e"}}, "y": {GPU: {"GPU-b", "GPU-d"}}}


def test_init_and_sidecar_containers() -> None:
    sidecar = container("s", 1, restartPolicy="Always")

    async def run() -> None:
        for init, main, assigned in (
            ([container("i", 2)], [container("m", 1)], 2),
            ([container("i", 1)], [container("m", 3)], 3),
            ([container("i", 1), container("j", 2)], [container("m", 3), container("k", 1)], 4),
            ([sidecar], [container("m", 2)], 3),
            ([container("i", 2), sidecar], [container("m", 2)], 3),
            ([sidecar, container("i", 2)], [container("m", 2)], 3),
            ([container("i", 2)], [container("m")], 2),
        ):
            async with running() as rig:
                uuids = UUIDS[1 : 1 + assigned]
                given = await rig.place(gpu_pod("a", assigned=",".join(uuids), init=init, containers=main))
                assert {device for of in given.values() for device in of[GPU]} == set(uuids)
                # It is over with that pod: the next one is not taken for it.
                assert await rig.place(gpu_pod("b", 1, "GPU-a")) == {"main": {GPU: {"GPU-a"}}}

    asyncio.run(run())


SHARED, MIG = "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"


@in_rig([f"GPU-{letter}::{number}" for letter in "abc" for number in range(12)], resource=SHARED)
async def test_replicas_of_a_shared_gpu(rig: Rig) -> None:
    for number in range(12):
        given = await rig.place(gpu_pod(f"p{number}", 1, "GPU-b", resource=SHARED))
        assert given == {"main": {SHARED: {f"GPU-b::{number}"}}}
    given = await rig.place(gpu_pod("two", 2, "GPU-c,GPU-a", resource=SHARED))
    assert given == {"main": {SHARED: {"GPU-c::0", "GPU-a::0"}}}


@in_rig(["MIG-a", "MIG-b"], resource=MIG)
async def test_other_resources_are_the_plugin_s_and_the_kubelet_s(rig: Rig) -> None:
    assert rig.kubelet.endpoints[MIG].name == rig.plugin.socket.name
    pod = gpu_pod("a", 1, "GPU-a", resource=MIG)
    assert await rig.place(pod) == {"main": {MIG: {"MIG-b"}}}
    await until(lambda: rig.report().get("given") == {pod["metadata"]["uid"]: {"main": {MIG: ["MIG-b"]}}})


@in_rig()
async def test_whatever_a_pod_says(rig: Rig) -> None:
    for annotations in (
        {"kerf.dev/assigned-gpus": "0,0"},
        {"kerf.dev/assigned-gpus": "-1,nan"},
        {"kerf.dev/assigned-gpus": "9" * 100_000},
        {"kerf.dev/assigned-uuids": "," * 9_000},
        {"kerf.dev/assigned-uuids": "GPU-\x00\ud7ff,☃"},
        {"kerf.dev/assigned-uuids": "GPU-a::1,GPU-zz"},
    ):
        pods = [gpu_pod("evil", 2, annotations=annotations), gpu_pod("b", 1, "GPU-c")]
        assert [len((await rig.place(pod))["main"][GPU]) for pod in pods] == [2, 1]
        for pod in pods:
            rig.kubelet.release(pod["metadata"]["uid"])
            rig.cluster.delete(pod)


@in_rig()
async def test_the_api_server_may_be_later_than_the_kubelet(rig: Rig) -> None:
    await until(rig.report)
    pod = gpu_pod("a", 1, "GPU-c")
    admitted = asyncio.create_task(rig.kubelet.admit(pod))
    await asyncio.sleep(0.1)
    rig.cluster.apply(pod)
    assert await admitted == {"main": {GPU: {"GPU-c"}}}


@in_rig()
async def test_pods_of_which_the_api_server_never_tells_are_waited_for_once(rig: Rig) -> None:
    await until(rig.report)
    assert len((await rig.kubelet.admit(gpu_pod("static", 1)))["main"][GPU]) == 1
    rig.kubelet.pods["x"] = gpu_pod("unheard", 0)
    began = time.monotonic()
    assert await rig.place(gpu_pod("a", 1, "GPU-c")) == {"main": {GPU: {"GPU-c"}}}
    assert time.monotonic() - began < 0.2


@in_rig()
async def test_pods_that_were_refused_and_are_listed_still_are_not_taken_for_the_next(rig: Rig) -> None:
    refused = gpu_pod("refused", 1, "GPU-a", created="2026-01-01T00:00:00Z")
    rig.cluster.apply(refused)
    rig.kubelet.pods[refused["metadata"]["uid"]] = refused
    await until(lambda: rig.agent._pods.get(refused["metadata"]["uid"]))  # noqa: SLF001 - it has heard of it
    assert await rig.place(gpu_pod("b", 1, "GPU-b", created="2026-01-01T00:00:01Z")) == {"main": {GPU: {"GPU-b"}}}


@in_rig()
async def test_a_kubelet_that_is_asked_too_much_is_asked_again(rig: Rig) -> None:
    rig.kubelet.busy = 2
    assert await rig.place(gpu_pod("a", 1, "GPU-c")) == {"main": {GPU: {"GPU-c"}}}


async def refused(channel: aio.Channel, method: str) -> StatusCode:
    """How a call is refused."""
    with pytest.raises(aio.AioRpcError) as told:
        await ask(channel, method, b"")
    return told.value.code()


@in_rig()
async def test_what_it_does_not_know_goes_on_untouched(rig: Rig) -> None:
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


@in_rig(version="v1beta2")
async def test_another_version_is_the_kubelet_s_to_refuse(rig: Rig) -> None:
    assert rig.plugin.complaint == "version v1beta2 is not supported"
    (asked,) = rig.kubelet.registered
    assert (asked.version, asked.endpoint) == ("v1beta2", rig.plugin.socket.name)


@in_rig()
async def test_a_plugin_that_the_kubelet_refuses_hears_why(rig: Rig) -> None:
    rig.kubelet.refuses = "not today"
    other = Plugin(rig.folder, ["GPU-z"], "nvidia.com/gpu.shared")
    await other.start()
    try:
        await until(lambda: other.complaint)
        assert other.complaint == "not today"
        await until(lambda: not list(rig.folder.glob("kerf-nvidia.com-gpu.shared-*")))
    finally:
        await other.stop()


@in_rig()
async def test_devices_that_become_sick_are_told_at_once(rig: Rig) -> None:
    await until(lambda: len(rig.report().get("gpus", ())) == len(UUIDS))
    rig.plugin.tell("GPU-a", "Unhealthy")
    await until(lambda: rig.kubelet.endpoints[GPU].devices["GPU-a"] == "Unhealthy", within_s=1.0)
    await until(lambda: [gpu for gpu in rig.report()["gpus"] if not gpu.get("healthy", True)])


OLD = gpu_pod("old", 1, "GPU-c")


async def again(rig: Rig) -> None:
    """All is as before within five seconds: what runs has what it had, and a new pod gets what it was assigned."""
    await until(lambda: rig.kubelet.allocatable(GPU) == len(UUIDS), "the devices are back", within_s=5.0)
    assert await rig.place(gpu_pod("new", 2, "GPU-f,GPU-d")) == {"main": {GPU: {"GPU-f", "GPU-d"}}}
    assert rig.kubelet.given(OLD["metadata"]["uid"]) == {"main": {GPU: {"GPU-c"}}}


@in_rig()
async def test_the_plugin_ends(rig: Rig) -> None:
    await rig.place(OLD)
    await rig.plugin.stop()
    await until(lambda: rig.kubelet.allocatable(GPU) == 0, "the kubelet hears of it", within_s=1.0)
    with pytest.raises(AdmissionError):
        await rig.place(gpu_pod("refused", 1, "GPU-d"))
    rig.plugin = Plugin(rig.folder, UUIDS)
    await rig.plugin.start()
    await again(rig)


@in_rig()
async def test_the_agent_ends(rig: Rig) -> None:
    await rig.place(OLD)
    await rig.kill_agent()
    await until(lambda: rig.kubelet.allocatable(GPU) == 0, "the kubelet hears of it", within_s=1.0)
    (rig.folder / "kerf-left-behind-7.sock").touch()
    await rig.start_agent()
    await again(rig)
    assert not (rig.folder / "kerf-left-behind-7.sock").exists()


@in_rig()
async def test_the_kubelet_ends(rig: Rig) -> None:
    await rig.place(OLD)
    await rig.kubelet.stop()
    await asyncio.sleep(0.3)
    await rig.kubelet.start()
    await again(rig)


def test_a_plugin_registers_again_without_an_end() -> None:
    async def run() -> None:
        for mixes_up in (False, True):
            async with running() as rig:
                await rig.place(OLD)
                rig.kubelet.mixes_up = mixes_up
                before = rig.kubelet.endpoints[GPU]
                await rig.plugin.begin()
                assert before.stream is not None
                await before.stream  # the kubelet has noticed
                await again(rig)
                assert rig.kubelet.endpoints[GPU].name != before.name
                assert len(rig.kubelet.registered) == 2

    asyncio.run(run())


@in_rig()
async def test_the_kubelet_lets_go_of_a_plugin_that_goes_on(rig: Rig) -> None:
    await rig.place(OLD)
    await rig.kubelet.let_go(rig.kubelet.endpoints[GPU])
    assert rig.kubelet.allocatable(GPU) == 0
    await again(rig)


@in_rig()
async def test_somebody_removes_the_agent_s_socket(rig: Rig) -> None:
    await rig.place(OLD)
    num_registered = len(rig.kubelet.registered)
    (rig.folder / "kerf.sock").unlink()
    await until(lambda: len(rig.kubelet.registered) > num_registered, within_s=5.0)
    await again(rig)


@in_rig(steer=False)
async def test_reporting_alone_stands_in_nobody_s_way(rig: Rig) -> None:
    pod = gpu_pod("a", 2, "GPU-c,GPU-a")
    assert await rig.place(pod) == {"main": {GPU: {"GPU-h", "GPU-g"}}}
    assert not (rig.folder / "kerf.sock").exists()
    given = {pod["metadata"]["uid"]: {"main": {GPU: ["GPU-g", "GPU-h"]}}}
    await until(lambda: rig.report().get("given") == given)
