"""One node: namespaces with a container runtime and a kubelet in them, and the words that tests think in."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.controlplane.api import ApiError, Object
from tests.controlplane.binaries import find_kubelet, find_program
from tests.controlplane.commands import Command
from tests.controlplane.plane import ControlPlane
from tests.controlplane.processes import Process, answers, clean_environment, start_process, wait_until
from tests.realnode import images, machine, settings
from tests.realnode.plugin import DevicePlugin, Resources

SERVER_FLAGS = ("--bind-address=0.0.0.0",)
"""What the API server of a plane with nodes needs: they reach the machine by another address than loopback."""
WITHIN_S = 60.0
"""How long to wait for what should take a second or two."""

Given = dict[str, dict[str, dict[str, list[str]]]]
"""Pod -> container -> resource -> device IDs."""


class Node:
    """Starts on entry, ends on exit with all that runs on it; what it writes lies in `folder` until then.

    `labels` are the node's; `plane` has been started with SERVER_FLAGS.
    """

    def __init__(self, plane: ControlPlane, name: str = "real-0", labels: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._plane = plane
        self._labels = dict(labels or {})
        self._open = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as opening:
            self._place = opening.enter_context(machine.taken_place())
            self._place.prepare()
            opening.callback(self._place.clear)
            self._holder = self._start_namespaces()
            opening.callback(self._holder.kill)
            self._place.connect(self._holder.pid)
            self.containerd = self._start_containerd()
            opening.callback(self.containerd.kill)
            self._load_guest()
            opening.callback(self._leave)
            self.kubelet = self._start_kubelet()
            opening.callback(self.stop_kubelet, kill=True)
            self._open = opening.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open.close()

    def _leave(self) -> None:
        """Take the node and its pods out of the cluster: nobody else would end them."""
        if self._plane.running:
            self._delete_pods(grace_s=0)
            with contextlib.suppress(ApiError):  # the kubelet never came up
                self._plane.request("DELETE", f"/api/v1/nodes/{self.name}")

    @property
    def folder(self) -> Path:
        """Logs, and what the node has in /var/lib, /var/log and /run as `lib`, `log` and `run`."""
        return self._place.folder

    @property
    def address(self) -> str:
        """Where it is reached from the machine."""
        return self._place.address

    @property
    def plugin_folder(self) -> Path:
        """Where the kubelet looks for sockets of device plugins: the node's /var/lib/kubelet/device-plugins."""
        return self.folder / "lib" / "kubelet" / "device-plugins"

    @property
    def kubelet_socket(self) -> Path:
        """Where device plugins register."""
        return self.plugin_folder / "kubelet.sock"

    @property
    def pod_resources_socket(self) -> Path:
        """The kubelet's PodResources API."""
        return self.folder / "lib" / "kubelet" / "pod-resources" / "kubelet.sock"

    def run(self, pod: Object, timeout_s: float = WITHIN_S) -> dict[str, dict[str, str]]:
        """Create a pod on this node, without a scheduler, and return the environment of each of its containers."""
        placed = pod | {"spec": {"nodeName": self.name} | pod["spec"]}
        self._plane.request("POST", f"/api/v1/namespaces/{_namespace(pod)}/pods", placed)
        return self.environments(pod["metadata"]["name"], _namespace(pod), timeout_s)

    def environments(
        self, name: str, namespace: str = "default", timeout_s: float = WITHIN_S
    ) -> dict[str, dict[str, str]]:
        """Wait until a pod runs or has run, and return what its containers (init containers too) have said."""
        path = f"/api/v1/namespaces/{namespace}/pods/{name}"

        def started() -> Object | None:
            pod: Object = self._plane.request("GET", path)
            phase = pod["status"].get("phase")
            if phase == "Failed":
                raise AssertionError(f"pod {name}: {pod['status']}")
            return pod if phase in ("Running", "Succeeded") else None

        try:
            pod = wait_until(started, timeout_s, f"pod {name} runs")
        except TimeoutError as error:
            error.add_note(f"{self._plane.request('GET', path)['status']}\n{self.kubelet.tail()}")
            raise
        assert pod is not None
        logs = self.folder / "log" / "pods" / f"{namespace}_{name}_{pod['metadata']['uid']}"
        containers = [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]
        return {name: _said(logs / name) for name in (container["name"] for container in containers)}

    @contextlib.contextmanager
    def device_plugin(
        self, resources: Resources, *arguments: str, kubelet_socket: Path | None = None
    ) -> Iterator[DevicePlugin]:
        """A device plugin, ready when the node offers its resources; it registers at the kubelet, or elsewhere.

        One at a time. With a socket elsewhere nothing is waited for: whoever listens there has the say.
        """
        to = f"-kubelet-socket={kubelet_socket or self.kubelet_socket}"
        plugin = DevicePlugin(self.folder, self.plugin_folder, resources, to, *arguments)
        plugin.start()
        try:
            if kubelet_socket is None:
                self.wait_offered(resources)
            yield plugin
        finally:
            plugin.stop()

    def wait_offered(self, resources: Resources) -> None:
        """Wait until the node offers just the healthy ones of these devices."""
        offered = {name: {device.id for device in devices if device.healthy} for name, devices in resources.items()}

        def seen() -> bool:
            # What the API server has may be of a kubelet before this one.
            if any(self._offered().get(name, set()) != ids for name, ids in offered.items()):
                return False
            allocatable = self.status()["allocatable"]
            return all(int(allocatable.get(name, 0)) == len(ids) for name, ids in offered.items())

        wait_until(seen, WITHIN_S, f"{self.name} offers {offered}")

    def status(self) -> Object:
        """What the kubelet reports."""
        found: Object = self._plane.request("GET", f"/api/v1/nodes/{self.name}")["status"]
        return found

    def pod_resources(self) -> Given:
        """The devices of each container as the kubelet's PodResources API has them, pods as "namespace/name"."""
        given: Given = {}
        for pod in self._told("List").get("pod_resources", ()):
            containers = given.setdefault(f"{pod['namespace']}/{pod['name']}", {})
            for container in pod["containers"]:
                devices = containers.setdefault(container["name"], {})
                # An entry for each NUMA node.
                for part in container.get("devices", ()):
                    devices.setdefault(part["resource_name"], []).extend(part["device_ids"])
        return given

    def _offered(self) -> dict[str, set[str]]:
        """The devices of each resource that the kubelet can give."""
        offered: dict[str, set[str]] = {}
        for part in self._told("GetAllocatableResources").get("devices", ()):
            offered.setdefault(part["resource_name"], set()).update(part["device_ids"])
        return offered

    def _told(self, call: str) -> Object:
        """An answer of the kubelet's PodResources API."""
        program = str(find_program("podresources"))
        answer: Object = json.loads(machine.run([program, call, str(self.pod_resources_socket)]))
        return answer

    def restart_kubelet(self, kill: bool = False) -> None:
        """End the kubelet, by SIGTERM or kill -9, and start it; its pods run on."""
        self.stop_kubelet(kill)
        self.start_kubelet()

    def stop_kubelet(self, kill: bool = False) -> None:
        """End it."""
        self.kubelet.kill() if kill else self.kubelet.stop(grace_s=10.0)

    def start_kubelet(self) -> None:
        """Start it again; return when it serves."""
        self.kubelet = self._start_kubelet()

    def clean(self, namespace: str = "") -> None:
        """Delete all pods of the node, or of a namespace there; return when the kubelet has none of them left."""
        if not self.kubelet.running:
            self.start_kubelet()
        self._delete_pods(namespace)
        wait_until(lambda: not self._pods(namespace), WITHIN_S, "all pods are gone")

        def holders() -> list[str]:
            return [pod for pod in self.pod_resources() if pod.startswith(namespace)]

        wait_until(lambda: not holders(), WITHIN_S, "the kubelet has given no device to anybody")

    def serve_api(self) -> None:
        """Pods find the API server at the address of the Service `kubernetes`, as by kube-proxy."""
        to = f"{self._place.gateway}:{self._plane.url.rpartition(':')[2]}"
        for chain in ("PREROUTING", "OUTPUT"):
            rule = f"-d {settings.API_ADDRESS} -p tcp --dport 443 -j DNAT --to-destination {to}"
            self.inside("iptables", "-t", "nat", "-A", chain, *rule.split())

    def inside(self, *command: str) -> str:
        """What a command prints that runs on the node."""
        return machine.run([*machine.entering(self._holder.pid), *command])

    def load_image(self, archive: Path) -> None:
        """Give the node the images of an archive."""
        ctr = str(machine.find_containerd() / "ctr")
        self.inside(ctr, "--address", settings.RUNTIME_SOCKET, "-n", "k8s.io", "images", "import", str(archive))

    def _pods(self, namespace: str = "") -> list[Object]:
        scope = f"namespaces/{namespace}/" if namespace else ""
        path = f"/api/v1/{scope}pods?fieldSelector=spec.nodeName={self.name}"
        pods: list[Object] = self._plane.request("GET", path)["items"]
        return pods

    def _delete_pods(self, namespace: str = "", grace_s: int = 1) -> None:
        for pod in self._pods(namespace):
            metadata = pod["metadata"]
            path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
            with contextlib.suppress(ApiError):  # gone by itself
                self._plane.request("DELETE", f"{path}?gracePeriodSeconds={grace_s}")

    def _start_namespaces(self) -> Process:
        """The first process of the node's namespaces: all that runs on the node ends with it."""
        unshare = ["unshare", *machine.NAMESPACES, "--mount-proc", "--fork", "--kill-child"]
        command: Command = [*unshare, "sh", Path(__file__).with_name("init.sh"), self.folder, self.name]
        holder = start_process(self.name, command, self.folder / "init.log", forks=True)
        holder.wait_ready((self.folder / "ready").exists)
        return holder

    def _start(self, name: str, command: Sequence[str | Path]) -> Process:
        """Start a command on the node."""
        path = os.pathsep.join([str(machine.find_containerd()), os.environ["PATH"]])
        inside = [*machine.entering(self._holder.pid), *command]
        return start_process(name, inside, self.folder / f"{name}.log", env=clean_environment(PATH=path), forks=True)

    def _start_containerd(self) -> Process:
        config = self.folder / "containerd.toml"
        config.write_text(settings.containerd(str(self.folder), str(machine.cni_folder())))
        (self.folder / "cni" / "pods.conflist").write_text(json.dumps(settings.network(self._place.pods)))
        started = self._start("containerd", ["containerd", "--config", config])
        started.wait_ready((self.folder / "run" / "containerd" / "containerd.sock").is_socket)
        return started

    def _load_guest(self) -> None:
        archive = self.folder / "guest.tar"
        images.image_of_program(archive, settings.PAUSE, find_program("guest"))
        self.load_image(archive)

    def _start_kubelet(self) -> Process:
        (self.folder / "resolv.conf").touch()
        config, kubeconfig = self.folder / "kubelet.json", self.folder / "kubeconfig.json"
        config.write_text(json.dumps(settings.kubelet(str(self.folder), f"/{self._place.cgroup}")))
        server = f"https://{self._place.gateway}:{self._plane.url.rpartition(':')[2]}"
        certificate, token = str(self._plane.certificate), self._plane.token("admin")
        kubeconfig.write_text(json.dumps(settings.kubeconfig(server, certificate, token, self.name)))
        command: Command = [
            *(find_kubelet(), f"--config={config}", f"--kubeconfig={kubeconfig}", f"--hostname-override={self.name}"),
            *(f"--node-ip={self.address}", f"--node-labels={','.join(f'{k}={v}' for k, v in self._labels.items())}"),
        ]
        kubelet = self._start("kubelet", command)
        kubelet.wait_ready(self._is_ready)
        return kubelet

    def _is_ready(self) -> bool:
        """Whether the kubelet serves, and the API server knows that."""
        if not answers(f"http://{self.address}:10248/healthz") or not self.pod_resources_socket.is_socket():
            return False
        if not self._plane.exists(f"/api/v1/nodes/{self.name}"):
            return False
        return any(c["type"] == "Ready" and c["status"] == "True" for c in self.status().get("conditions", ()))


def _namespace(pod: Object) -> str:
    return str(pod["metadata"].get("namespace", "default"))


def _said(logs: Path) -> dict[str, str]:
    """What a container's newest start has printed: a line of a time, a stream, F for a whole line, and JSON."""

    def first_line() -> str:
        newest = max(logs.glob("*.log"), key=lambda path: int(path.stem), default=None)
        return newest.read_text().partition("\n")[0] if newest else ""

    line = wait_until(first_line, 10.0, f"{logs} has a log")
    said: dict[str, str] = json.loads(line.split(" ", 3)[3])
    return said
