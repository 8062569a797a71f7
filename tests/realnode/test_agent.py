"""The node agent on a real node: containers have what the Binding wrote, and the report says who has what."""

import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.controlplane import ControlPlane, wait_until
from tests.controlplane.api import Object
from tests.controlplane.objects import pod
from tests.e2e.clusters import KerfCluster, assigned_gpus
from tests.realnode import Node, gpus, replicas
from tests.realnode.agent import NodeAgent, install
from tests.realnode.fixtures import kerf_places
from tests.realnode.plugin import DevicePlugin

pytestmark = [pytest.mark.controlplane, pytest.mark.e2e]

GPU = "nvidia.com/gpu"
EIGHT = gpus(8)
UUIDS = [device.id for device in EIGHT]
AGAIN_WITHIN_S = 5.0


@dataclass
class Steered:
    """A node with a plugin behind an agent, and Kerf."""

    cluster: KerfCluster
    node: Node
    agent: NodeAgent
    plugin: DevicePlugin

    def report(self) -> dict[str, Any]:
        """What the node's annotation says."""
        node = self.cluster.plane.request("GET", f"/api/v1/nodes/{self.node.name}")
        text = node["metadata"].get("annotations", {}).get("kerf.dev/node-report", "{}")
        found: dict[str, Any] = json.loads(text)
        return found

    def told(self, uid: str) -> set[str]:
        """UUIDs of a pod's GPUs as the report has them, once it has."""
        wait_until(lambda: uid in self.report().get("given", {}), 20.0, f"{uid} is reported")
        return set(self.report()["given"][uid]["main"][GPU])

    def decided(self, name: str) -> set[str]:
        """UUIDs of the GPUs that the Binding wrote."""
        return {UUIDS[index] for index in assigned_gpus(self.cluster.bound(name))}

    def seen(self, name: str) -> set[str]:
        """UUIDs of the GPUs that its container sees."""
        return set(self.node.environments(name)["main"]["NVIDIA_VISIBLE_DEVICES"].split(","))

    def phase(self, name: str) -> str:
        """Pending, Running, Failed, ..."""
        found: str = self.cluster.pod(name)["status"]["phase"]
        return found


@pytest.fixture(scope="module")
def cluster(node_plane: ControlPlane) -> Iterator[KerfCluster]:
    install(node_plane)
    with kerf_places(node_plane) as cluster:
        yield cluster


@contextlib.contextmanager
def steering(cluster: KerfCluster, node: Node, steer: bool = True) -> Iterator[Steered]:
    agent = NodeAgent(cluster.plane, node, *(["--steer"] if steer else []))
    agent.start()
    try:
        to = agent.socket if steer else None
        with node.device_plugin({GPU: EIGHT}, kubelet_socket=to) as plugin:
            node.wait_offered(plugin.resources)
            yield Steered(cluster, node, agent, plugin)
    finally:
        agent.stop()


@pytest.fixture
def steered(cluster: KerfCluster, node: Node) -> Iterator[Steered]:
    with steering(cluster, node) as found:
        yield found


def holders(node: Node) -> dict[str, list[str]]:
    """Pods by the device that they have, by the kubelet."""
    found: dict[str, list[str]] = {}
    for name, containers in node.pod_resources().items():
        for devices in containers.values():
            for device in devices.get(GPU, ()):
                found.setdefault(device, []).append(name)
    return found


@dataclass
class Tally:
    """Of pods that have run."""

    total: int = 0
    exact: int = 0
    """Whose container had the very GPUs that the Binding wrote."""
    told: int = 0
    """Of which the report said what the container had."""
    shared: int = 0
    """GPUs that two had at once."""


def waves(steered: Steered, number: int, seed: int = 1) -> Tally:
    """Waves of four pods of mixed sizes, deleted as the next wave comes."""
    rng, tally = random.Random(seed), Tally()
    before: list[str] = []
    for wave in range(number):
        names = [f"w{wave}-{number}" for number in range(4)]
        for name in names:
            steered.cluster.submit(name, gpus=rng.choice([1, 1, 2]))
        for name in before:
            steered.cluster.delete_pod(name, grace_s=1)
        before = names
        for name in names:
            decided, seen = steered.decided(name), steered.seen(name)
            uid = steered.cluster.pod(name)["metadata"]["uid"]
            tally.total += 1
            tally.exact += seen == decided
            tally.told += steered.told(uid) == seen
        tally.shared += sum(len(pods) > 1 for pods in holders(steered.node).values())
    return tally


@pytest.mark.parametrize("steer", [True, False])
def test_pods_in_waves_have_what_was_decided_and_all_is_reported(cluster: KerfCluster, node: Node, steer: bool) -> None:
    with steering(cluster, node, steer) as steered:
        tally = waves(steered, 4)
        assert (tally.told, tally.shared) == (tally.total, 0)
        assert tally.exact == tally.total if steer else tally.exact < tally.total
        assert [gpu["uuid"] for gpu in steered.report()["gpus"]] == UUIDS
        assert steered.agent.rss_mib() <= 60


def test_init_and_several_containers(steered: Steered) -> None:
    manifest = pod("mixed", gpus=1)
    (main,) = manifest["spec"]["containers"]
    two = {"resources": {"limits": {GPU: "2"}}}
    manifest["spec"] |= {
        "initContainers": [main | {"name": "init", "args": ["-after=100ms"], **two}],
        "containers": [main, main | {"name": "other", **two}],
    }
    steered.cluster.create(manifest)
    said = steered.node.environments("mixed")
    visible = {name: set(of["NVIDIA_VISIBLE_DEVICES"].split(",")) for name, of in said.items()}
    assert visible["main"] | visible["other"] == steered.decided("mixed")
    assert visible["init"] < steered.decided("mixed")
    assert {name: len(found) for name, found in visible.items()} == {"init": 2, "main": 1, "other": 2}


def test_time_slices_are_of_the_gpu_that_kerf_chose(cluster: KerfCluster, node: Node) -> None:
    """Eight pods on two GPUs of four slices each, which no label tells of."""
    shared = "nvidia.com/gpu.shared"
    agent = NodeAgent(cluster.plane, node, "--steer")
    agent.start()
    try:
        with node.device_plugin({shared: replicas(EIGHT[:2], 4)}, kubelet_socket=agent.socket) as plugin:
            node.wait_offered(plugin.resources)
            steered = Steered(cluster, node, agent, plugin)
            wait_until(lambda: steered.report().get("replicas") == {shared: 4}, 20.0, "the slices are reported")
            names = [f"s{number}" for number in range(8)]
            for name in names:
                asking: Object = pod(name)
                asking["spec"]["containers"][0]["resources"] = {"limits": {shared: "1"}}
                cluster.create(asking)
            decided = {name: steered.decided(name) for name in names}
            assert {name: steered.seen(name) for name in names} == decided
            assert Counter(uuid for uuids in decided.values() for uuid in uuids) == dict.fromkeys(UUIDS[:2], 4)
    finally:
        agent.stop()


def kill_agent(steered: Steered) -> None:
    steered.agent.kill()
    steered.agent.start()


def kill_plugin(steered: Steered) -> None:
    steered.plugin.kill()
    steered.plugin.start()


def kill_kubelet(steered: Steered) -> None:
    steered.node.restart_kubelet(kill=True)


@pytest.mark.parametrize("kill", [kill_agent, kill_plugin, kill_kubelet])
def test_whatever_is_killed_running_pods_stay_and_new_ones_are_admitted(
    steered: Steered, kill: Callable[[Steered], None]
) -> None:
    steered.cluster.submit("old", gpus=2)
    before = steered.seen("old")
    uid = steered.cluster.pod("old")["metadata"]["uid"]
    assert steered.told(uid) == before
    registered = len(steered.plugin.calls("Register"))
    kill(steered)
    began = time.monotonic()
    wait_until(lambda: len(steered.plugin.calls("Register")) > registered, 20.0, "the plugin has registered again")
    steered.node.wait_offered(steered.plugin.resources)
    took_s = time.monotonic() - began
    steered.cluster.submit("new", gpus=3)
    assert steered.seen("new") == steered.decided("new")
    assert steered.seen("old") == before
    assert not {device: pods for device, pods in holders(steered.node).items() if len(pods) > 1}
    assert steered.told(uid) == before
    assert took_s <= AGAIN_WITHIN_S


@pytest.mark.parametrize("kill", [kill_agent, kill_plugin, kill_kubelet])
def test_whatever_is_killed_while_a_pod_is_admitted(steered: Steered, kill: Callable[[Steered], None]) -> None:
    """Its GPUs are what Kerf decided, or it has none, as when the plugin alone is killed; whatever comes next is as
    always."""
    steered.cluster.submit("old", gpus=2)
    before = steered.seen("old")
    registered = len(steered.plugin.calls("Register"))
    with steered.plugin.held("Allocate") as waits:
        steered.cluster.submit("midst", gpus=2)
        wait_until(waits, 20.0, "the pod is being admitted")
        kill(steered)
    began = time.monotonic()
    wait_until(lambda: len(steered.plugin.calls("Register")) > registered, 20.0, "the plugin has registered again")
    steered.node.wait_offered(steered.plugin.resources)
    took_s = time.monotonic() - began
    steered.cluster.submit("new", gpus=3)
    assert steered.seen("new") == steered.decided("new")
    assert steered.seen("old") == before
    wait_until(lambda: steered.phase("midst") != "Pending", 20.0, "the pod runs or was refused")
    assert steered.phase("midst") == "Failed" or steered.seen("midst") == steered.decided("midst")
    assert not {device: pods for device, pods in holders(steered.node).items() if len(pods) > 1}
    assert took_s <= AGAIN_WITHIN_S


@pytest.mark.parametrize("call", ["GetDevicePluginOptions", "ListAndWatch"])
@pytest.mark.parametrize("kill", [kill_agent, kill_kubelet])
def test_whoever_is_killed_while_a_plugin_registers(
    steered: Steered, kill: Callable[[Steered], None], call: str
) -> None:
    steered.cluster.submit("old", gpus=2)
    before = steered.seen("old")
    with steered.plugin.held(call) as waits:
        kill_plugin(steered)
        wait_until(waits, 20.0, "the kubelet asks the new plugin")
        registered = len(steered.plugin.calls("Register"))
        kill(steered)
    wait_until(lambda: len(steered.plugin.calls("Register")) > registered, 20.0, "the plugin has registered again")
    steered.node.wait_offered(steered.plugin.resources)
    steered.cluster.submit("new", gpus=3)
    assert steered.seen("new") == steered.decided("new")
    assert steered.seen("old") == before


def test_cdi_devices_behind_an_agent_and_where_they_lie(cluster: KerfCluster, node: Node) -> None:
    """The plugin's CDI names reach the container, and its NUMA nodes the report."""
    agent = NodeAgent(cluster.plane, node, "--steer")
    agent.start()
    try:
        lying = [replace(device, numa=index // 4) for index, device in enumerate(EIGHT)]
        arguments = ("-device-list-strategy=cdi-cri",)
        with node.device_plugin({GPU: lying}, *arguments, kubelet_socket=agent.socket) as plugin:
            node.wait_offered(plugin.resources)
            steered = Steered(cluster, node, agent, plugin)
            cluster.submit("cdi", gpus=3)
            decided = steered.decided("cdi")
            said = node.environments("cdi")["main"]
            seen = {name.removeprefix("CDI_").replace("_", "-") for name in said if name.startswith("CDI_")}
            assert seen == decided
            numa = {gpu["uuid"]: gpu.get("numa") for gpu in steered.report()["gpus"]}
            assert numa == {device.id: device.numa for device in lying}
    finally:
        agent.stop()
