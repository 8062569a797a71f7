"""The node itself: pods run on it, devices are given and told of, and nothing is left of it."""

import subprocess
import sys
import time
from collections.abc import Mapping
from glob import glob
from pathlib import Path

import pytest

from tests.controlplane import ControlPlane, objects, wait_until
from tests.controlplane.api import Object
from tests.realnode import Node, gpus, replicas
from tests.realnode.machine import Place, taken_place

pytestmark = [pytest.mark.controlplane, pytest.mark.e2e]

GPU, SHARED, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.5gb"
VISIBLE = "NVIDIA_VISIBLE_DEVICES"
READY_WITHIN_S = 15.0


def asking(name: str, **resources: int) -> Object:
    """A pod of one container that asks for resources of NVIDIA's, by the last part of their names."""
    limits = {f"nvidia.com/{key.replace('_', '.')}": str(number) for key, number in resources.items()}
    return with_limits(objects.pod(name), limits)


def with_limits(pod: Object, *limits: Mapping[str, str]) -> Object:
    """The pod with a container for each set of limits."""
    (container,) = pod["spec"]["containers"]
    pod["spec"]["containers"] = [
        container | {"name": f"main-{number}" if number else "main", "resources": {"limits": dict(limit)}}
        for number, limit in enumerate(limits)
    ]
    return pod


def test_a_pod_gets_the_gpus_that_its_plugin_prefers(node: Node) -> None:
    eight = gpus(8)
    with node.device_plugin({GPU: eight}) as plugin:
        said = node.run(objects.pod("first", gpus=2))
        # The last two: not the lowest indices.
        assert set(said["main"][VISIBLE].split(",")) == {eight[6].id, eight[7].id}
        assert {"default/first": {"main": {GPU: sorted([eight[6].id, eight[7].id])}}} == {
            pod: {name: {GPU: sorted(given[GPU])} for name, given in containers.items()}
            for pod, containers in node.pod_resources().items()
        }
        assert said["main"]["KUBERNETES_SERVICE_HOST"] == "10.0.0.1"
        (asked,) = plugin.calls("GetPreferredAllocation")
        (question,) = asked["request"]["container_requests"]
        assert question["allocation_size"] == 2
        assert set(question["available_deviceIDs"]) == {device.id for device in eight}


def test_replicas_are_spread_over_the_gpus(node: Node) -> None:
    two = gpus(2)
    with node.device_plugin({SHARED: replicas(two, 4)}):
        given = [node.run(asking(name, gpu_shared=1))["main"][VISIBLE] for name in ("a", "b", "c")]
        assert given[:2] == [two[1].id, two[0].id]
        ids = [containers["main"][SHARED] for containers in node.pod_resources().values()]
        assert all(len(of) == 1 and "::" in of[0] for of in ids)


def test_containers_get_devices_of_several_resources(node: Node) -> None:
    whole, slices = gpus(2), gpus(2, node=1)
    with node.device_plugin({GPU: whole, MIG: slices}):
        said = node.run(with_limits(objects.pod("both"), {GPU: "1"}, {MIG: "1"}, {"cpu": "10m"}))
        assert said["main"][VISIBLE] == whole[1].id
        assert said["main-1"][VISIBLE] == slices[1].id
        assert VISIBLE not in said["main-2"]


def test_cdi_devices_reach_the_container(node: Node) -> None:
    two = gpus(2)
    with node.device_plugin({GPU: two}, "-device-list-strategy=cdi-cri"):
        said = node.run(objects.pod("cdi", gpus=1))["main"]
        assert VISIBLE not in said
        assert said["CDI_" + two[1].id.replace("-", "_")] == "1"


def test_a_sick_device_is_given_to_nobody_until_it_is_well(node: Node) -> None:
    two = gpus(2)
    with node.device_plugin({GPU: two}) as plugin:
        plugin.set_healthy(two[1].id, healthy=False)
        node.wait_offered(plugin.resources)
        assert node.run(objects.pod("p", gpus=1))["main"][VISIBLE] == two[0].id
        plugin.set_healthy(two[1].id, healthy=True)
        node.wait_offered(plugin.resources)
        assert node.run(objects.pod("q", gpus=1))["main"][VISIBLE] == two[1].id


def test_a_plugin_that_was_killed_comes_back(node: Node) -> None:
    two = gpus(2)
    with node.device_plugin({GPU: two}) as plugin:
        node.run(objects.pod("before", gpus=1))
        plugin.kill()
        wait_until(lambda: int(node.status()["allocatable"][GPU]) == 0, 20.0, "no device is offered")
        plugin.start()
        node.wait_offered(plugin.resources)
        assert node.run(objects.pod("after", gpus=1))["main"][VISIBLE] == two[0].id
        assert set(node.pod_resources()) == {"default/before", "default/after"}


@pytest.mark.parametrize("kill", [False, True])
def test_a_kubelet_that_starts_again_knows_its_pods_and_the_plugin_registers(node: Node, kill: bool) -> None:
    two = gpus(2)
    with node.device_plugin({GPU: two}) as plugin:
        node.run(objects.pod("before", gpus=1))
        given = node.pod_resources()
        node.restart_kubelet(kill)
        wait_until(lambda: len(plugin.calls("Register")) == 2, 20.0, "the plugin has registered again")
        node.wait_offered(plugin.resources)
        # A kubelet that has just started tells of no pod before it has heard of them.
        wait_until(lambda: node.pod_resources() == given, 20.0, "it knows what it has given to whom")
        assert node.run(objects.pod("after", gpus=1))["main"][VISIBLE] == two[0].id


def test_a_pod_that_ends_gives_its_devices_back(node: Node, node_plane: ControlPlane) -> None:
    with node.device_plugin({GPU: gpus(1)}):
        pod = objects.pod("short", gpus=1)
        pod["spec"] |= {"restartPolicy": "Never"}
        pod["spec"]["containers"][0]["args"] = ["-after=100ms", "-exit=3"]
        with pytest.raises(AssertionError, match=r"'exitCode': 3"):
            node.run(pod)
            wait_until(lambda: node.environments("short") and False, 20.0, "it has failed")
        assert node.run(objects.pod("next", gpus=1))["main"][VISIBLE]


def test_two_nodes_are_ready_soon_and_run_side_by_side(tmp_path: Path, node_plane: ControlPlane) -> None:
    began = time.monotonic()
    with Node(node_plane, "second") as second:
        assert time.monotonic() - began <= READY_WITHIN_S
        with Node(node_plane, "third") as third:
            for number, node in enumerate((second, third)):
                of_node = gpus(1, node=number)
                with node.device_plugin({GPU: of_node}):
                    assert node.run(objects.pod(f"on-{node.name}", gpus=1))["main"][VISIBLE] == of_node[0].id
            assert second.folder != third.folder
        assert not third.folder.exists()


KILLED = """
import os, pathlib, sys
from tests.controlplane import ControlPlane, objects
from tests.realnode import SERVER_FLAGS, Node
plane = ControlPlane(pathlib.Path(sys.argv[1]), flags=SERVER_FLAGS)
plane.start()
node = Node(plane).__enter__()
node.run(objects.pod("p"))
print(node.folder.name, flush=True)
os.kill(os.getpid(), 9)
"""


@pytest.mark.usefixtures("node_machine")
def test_a_run_that_was_killed_leaves_no_process_and_its_place_is_used_again(tmp_path: Path) -> None:
    result = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False, capture_output=True, text=True)
    assert result.returncode == -9, result.stderr
    place = Place(int(result.stdout))
    wait_until(lambda: not Path("/sys/class/net", place.interface).exists(), 10.0, "its network has gone")
    with taken_place(place.number):
        # `glob`, not `Path.glob`: cgroups of other nodes come and go while it looks.
        processes = glob(f"/sys/fs/cgroup/**/{place.cgroup}/**/cgroup.procs", recursive=True)  # noqa: PTH207
        left = [path for path in processes if Path(path).read_text()]
        assert left == []
        place.prepare()
        place.clear()
        assert not place.folder.exists()
        assert not list(Path("/sys/fs/cgroup").glob(f"*/{place.cgroup}"))


def test_what_the_machine_lacks_is_said(tmp_path: Path) -> None:
    """No program is found in an empty folder."""
    script = "from tests.realnode import lacking; print(lacking())"
    command = [sys.executable, "-c", script]
    said = subprocess.run(command, check=True, capture_output=True, text=True, env={"PATH": str(tmp_path)}).stdout
    assert "runc" in said
    assert "iproute2" in said


def test_whoever_asks_at_the_same_time_is_told_the_same() -> None:
    """Files of tests run side by side, and each asks."""
    script = "from tests.realnode.machine import lacking; print({lacking.__wrapped__() for _ in range(10)})"
    asking = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(3)]
    assert len({process.communicate()[0] for process in asking}) == 1
