"""The node agent on a real node: containers have what the Binding wrote, and the report says who has what."""

import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
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
from tests.realnode.plugin import DevicePlugin, Resources

pytestmark = [pytest.mark.controlplane, pytest.mark.e2e]

GPU = "nvidia.com/gpu"
EIGHT = gpus(8)
UUIDS = [device.id for device in EIGHT]
OFFERED: Resources = {GPU: EIGHT}
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

    def gpus_told(self) -> list[tuple[str, int | None]]:
        """UUIDs and NUMA nodes of the GPUs as the report has them now."""
        return [(gpu["uuid"], gpu.get("numa")) for gpu in self.report().get("gpus", ())]

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
def steering(
    cluster: KerfCluster,
    node: Node,
    steer: bool = True,
    resources: Resources = OFFERED,
    plugin_arguments: Sequence[str] = (),
) -> Iterator[Steered]:
    agent = NodeAgent(cluster.plane, node, *(["--steer"] if steer else []))
    agent.start()
    try:
        to = agent.socket if steer else None
        with node.device_plugin(resources, *plugin_arguments, kubelet_socket=to) as plugin:
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


def waves(steered: Steered, number: int, seed: int = 1, **spec: Any) -> Tally:
    """Waves of four pods of mixed sizes, deleted as the next wave comes; `spec` is of all of them."""
    rng, tally = random.Random(seed), Tally()
    before: list[str] = []
    for wave in range(number):
        names = [f"w{wave}-{number}" for number in range(4)]
        for name in names:
            steered.cluster.submit(name, gpus=rng.choice([1, 1, 2]), **spec)
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
        assert [uuid for uuid, _ in steered.gpus_told()] == UUIDS
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
    with steering(cluster, node, resources={shared: replicas(EIGHT[:2], 4)}) as steered:
        wait_until(lambda: steered.report().get("replicas") == {shared: 4}, 20.0, "the slices are reported")
        names = [f"s{number}" for number in range(8)]
        for name in names:
            asking: Object = pod(name)
            asking["spec"]["containers"][0]["resources"] = {"limits": {shared: "1"}}
            cluster.create(asking)
        decided = {name: steered.decided(name) for name in names}
        assert {name: steered.seen(name) for name in names} == decided
        assert Counter(uuid for uuids in decided.values() for uuid in uuids) == dict.fromkeys(UUIDS[:2], 4)


def kill_agent(steered: Steered) -> None:
    steered.agent.kill()
    steered.agent.start()


def kill_plugin(steered: Steered) -> None:
    steered.plugin.kill()
    steered.plugin.start()


def kill_kubelet(steered: Steered) -> None:
    steered.node.restart_kubelet(kill=True)


@dataclass
class Old:
    """A pod that runs before somebody is killed, and must not notice."""

    steered: Steered
    has: set[str]
    uid: str

    def goes_on_and_new_ones_are_steered(self, num_registered: int) -> None:
        """The plugin registers again, soon; a new pod has what was decided, this one what it had, and nobody both."""
        steered, began = self.steered, time.monotonic()
        wait_until(
            lambda: len(steered.plugin.calls("Register")) > num_registered, 20.0, "the plugin has registered again"
        )
        steered.node.wait_offered(steered.plugin.resources)
        took_s = time.monotonic() - began
        steered.cluster.submit("new", gpus=3)
        assert steered.seen("new") == steered.decided("new")
        assert steered.seen("old") == self.has
        assert not {device: pods for device, pods in holders(steered.node).items() if len(pods) > 1}
        assert steered.told(self.uid) == self.has
        assert took_s <= AGAIN_WITHIN_S


@pytest.fixture
def old(steered: Steered) -> Old:
    steered.cluster.submit("old", gpus=2)
    has, uid = steered.seen("old"), steered.cluster.pod("old")["metadata"]["uid"]
    assert steered.told(uid) == has
    return Old(steered, has, uid)


@pytest.mark.parametrize("kill", [kill_agent, kill_plugin, kill_kubelet])
def test_whatever_is_killed_running_pods_stay_and_new_ones_are_admitted(
    steered: Steered, old: Old, kill: Callable[[Steered], None]
) -> None:
    num_registered = len(steered.plugin.calls("Register"))
    kill(steered)
    old.goes_on_and_new_ones_are_steered(num_registered)


@pytest.mark.parametrize("kill", [kill_agent, kill_plugin, kill_kubelet])
def test_whatever_is_killed_while_a_pod_is_admitted(
    steered: Steered, old: Old, kill: Callable[[Steered], None]
) -> None:
    """That pod's GPUs are what Kerf decided, or it is refused, as where a plugin ends that no agent stands before."""
    num_registered = len(steered.plugin.calls("Register"))
    with steered.plugin.held("Allocate") as waits:
        steered.cluster.submit("midst", gpus=2)
        wait_until(waits, 20.0, "the pod is being admitted")
        kill(steered)
    old.goes_on_and_new_ones_are_steered(num_registered)
    wait_until(lambda: steered.phase("midst") != "Pending", 20.0, "the pod runs or was refused")
    assert steered.phase("midst") == "Failed" or steered.seen("midst") == steered.decided("midst")


@pytest.mark.parametrize("call", ["GetDevicePluginOptions", "ListAndWatch"])
@pytest.mark.parametrize("kill", [kill_agent, kill_kubelet])
def test_whoever_is_killed_while_a_plugin_registers(
    steered: Steered, old: Old, kill: Callable[[Steered], None], call: str
) -> None:
    with steered.plugin.held(call) as waits:
        kill_plugin(steered)
        wait_until(waits, 20.0, "the kubelet asks the new plugin")
        num_registered = len(steered.plugin.calls("Register"))
        kill(steered)
    old.goes_on_and_new_ones_are_steered(num_registered)


def test_cdi_names_reach_the_container_and_numa_nodes_the_report(cluster: KerfCluster, node: Node) -> None:
    lying = [replace(device, numa=index // 4) for index, device in enumerate(EIGHT)]
    arguments = ["-device-list-strategy=cdi-cri"]
    with steering(cluster, node, resources={GPU: lying}, plugin_arguments=arguments) as steered:
        cluster.submit("cdi", gpus=3)
        decided = steered.decided("cdi")
        said = node.environments("cdi")["main"]
        assert {name.removeprefix("CDI_").replace("_", "-") for name in said if name.startswith("CDI_")} == decided
        numa = {device.id: device.numa for device in lying}
        # Until this agent has looked again, what it or the one before has written of the same GPUs stands.
        wait_until(lambda: dict(steered.gpus_told()) == numa, 20.0, "the NUMA nodes are reported")
