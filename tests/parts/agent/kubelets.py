"""A kubelet's device manager and its PodResources API, at real sockets: as pkg/kubelet/cm/devicemanager/manager.go has
it, without NUMA nodes."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from grpc import aio

from extender.parts.agent.kubelet_api import deviceplugin_v1beta1_pb2 as plugins
from extender.parts.agent.kubelet_api import podresources_v1_pb2 as resources
from tests.parts.agent.pods import asked, containers, init_containers, key

Pod = dict[str, Any]
Taken = dict[tuple[str, str, str], set[str]]
"""Devices by UID, container and resource."""


class AdmissionError(Exception):
    """A pod that the kubelet refuses."""


async def ask(channel: aio.Channel, method: str, request: bytes) -> bytes:
    """One call, in bytes."""
    call: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
    return await call(request, timeout=5.0)


@dataclass
class Endpoint:
    """A plugin that is registered."""

    name: str
    channel: aio.Channel
    preference: bool
    devices: dict[str, str] = field(default_factory=dict)
    """Health by ID."""
    stream: asyncio.Task[None] | None = None

    async def call(self, method: str, request: Any, answer: type) -> Any:
        found = await ask(self.channel, f"/v1beta1.DevicePlugin/{method}", request.SerializeToString())
        return answer.FromString(found)  # type: ignore[attr-defined]


class Kubelet:
    """One that can be killed and started again; what it has given it remembers, as by its checkpoint."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "kubelet.sock"
        self.pod_resources = folder / "pod-resources.sock"
        self.taken: Taken = {}
        self.pods: dict[str, Pod] = {}
        """By UID, those that are listed."""
        self.endpoints: dict[str, Endpoint] = {}
        self.registered: list[plugins.RegisterRequest] = []
        self.refuses = ""
        """Why it refuses plugins."""
        self.mixes_up = False
        """As before 1.37: with a connection ends whichever plugin of the resource is registered by then."""
        self.num_lists = 0
        self.busy = 0
        """How many lists it refuses for now."""
        self._servers: list[aio.Server] = []

    async def start(self) -> None:
        """As a kubelet starts: with a folder without sockets."""
        for name in self.folder.glob("*"):
            if name.is_socket():
                name.unlink()
        self._servers = [
            await self._serve(self.socket, {"/v1beta1.Registration/Register": self._register}),
            await self._serve(
                self.pod_resources,
                {
                    "/v1.PodResourcesLister/List": self._list,
                    "/v1.PodResourcesLister/GetAllocatableResources": self._allocatable,
                },
            ),
        ]

    async def stop(self) -> None:
        """Abruptly."""
        for server in self._servers:
            await server.stop(None)
        for endpoint in self.endpoints.values():
            if endpoint.stream is not None:
                endpoint.stream.cancel()
            await endpoint.channel.close()
        self.endpoints = {}

    async def admit(self, pod: Pod) -> dict[str, dict[str, set[str]]]:
        """Give a pod its devices; by container and resource. Raises AdmissionError."""
        uid = pod["metadata"]["uid"]
        self.pods[uid] = pod
        reusable: dict[str, set[str]] = {}
        try:
            for container in (*init_containers(pod), *containers(pod)):
                for resource, number in asked(container).items():
                    await self._give(uid, container["name"], resource, number, reusable.get(resource, set()))
                    devices = self.taken[uid, container["name"], resource]
                    passing = container in init_containers(pod) and container.get("restartPolicy") != "Always"
                    if passing:
                        reusable[resource] = reusable.get(resource, set()) | devices
                    else:
                        reusable[resource] = reusable.get(resource, set()) - devices
        except (AdmissionError, aio.AioRpcError) as error:
            del self.pods[uid]
            self.release(uid)
            raise AdmissionError(str(error)) from None
        return self.given(uid)

    def given(self, uid: str) -> dict[str, dict[str, set[str]]]:
        """What a pod's containers have."""
        found: dict[str, dict[str, set[str]]] = {}
        for (of, container, resource), devices in self.taken.items():
            if of == uid:
                found.setdefault(container, {})[resource] = devices
        return found

    def release(self, uid: str) -> None:
        """A pod has ended."""
        self.pods.pop(uid, None)
        for entry in [entry for entry in self.taken if entry[0] == uid]:
            del self.taken[entry]

    def allocatable(self, resource: str) -> int:
        """How many healthy devices there are."""
        endpoint = self.endpoints.get(resource)
        return sum(health == "Healthy" for health in endpoint.devices.values()) if endpoint else 0

    async def _give(self, uid: str, container: str, resource: str, number: int, reusable: set[str]) -> None:
        endpoint = self.endpoints.get(resource)
        if endpoint is None:
            raise AdmissionError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        given = set(sorted(reusable)[:number])
        used = {device for (_, _, of), devices in self.taken.items() if of == resource for device in devices}
        available = {device for device, health in endpoint.devices.items() if health == "Healthy"} - used
        if len(available) < number - len(given):
            raise AdmissionError(f"requested number of devices unavailable for {resource}")
        if len(given) < number and endpoint.preference:
            request = plugins.PreferredAllocationRequest()
            request.container_requests.add(
                available_deviceIDs=available | given, must_include_deviceIDs=given, allocation_size=number
            )
            answer = await endpoint.call("GetPreferredAllocation", request, plugins.PreferredAllocationResponse)
            for preferred in answer.container_responses[:1]:
                wanted = [device for device in preferred.deviceIDs if device in available]
                given.update(wanted[: number - len(given)])
        given.update(sorted(available - given)[: number - len(given)])
        allocate = plugins.AllocateRequest()
        allocate.container_requests.add(devices_ids=given)
        await endpoint.call("Allocate", allocate, plugins.AllocateResponse)
        self.taken[uid, container, resource] = given

    async def _register(self, request: bytes, context: Any) -> bytes:
        asked = plugins.RegisterRequest.FromString(request)
        self.registered.append(asked)
        if asked.version != "v1beta1" or self.refuses:
            await context.abort(grpc.StatusCode.UNKNOWN, self.refuses or f"version {asked.version} is not supported")
        endpoint = Endpoint(asked.endpoint, aio.insecure_channel(f"unix:{self.folder / asked.endpoint}"), False)
        options = await endpoint.call("GetDevicePluginOptions", plugins.Empty(), plugins.DevicePluginOptions)
        endpoint.preference = options.get_preferred_allocation_available
        self.endpoints[asked.resource_name] = endpoint
        endpoint.stream = asyncio.create_task(self._watch(asked.resource_name, endpoint))
        return b""

    async def _watch(self, resource: str, endpoint: Endpoint) -> None:
        watch: aio.UnaryStreamMultiCallable[bytes, bytes] = endpoint.channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch"
        )
        stream = watch(b"")
        with contextlib.suppress(aio.AioRpcError):
            async for answer in stream:
                listed = plugins.ListAndWatchResponse.FromString(answer)
                endpoint.devices = {device.ID: device.health for device in listed.devices}
        if self.mixes_up:
            await asyncio.sleep(0.05)  # it is busy
            endpoint = self.endpoints.get(resource, endpoint)
        await self.let_go(endpoint)

    async def let_go(self, endpoint: Endpoint) -> None:
        """Know no more of a plugin than the names of its devices."""
        endpoint.devices = dict.fromkeys(endpoint.devices, "Unhealthy")
        await endpoint.channel.close()

    async def _list(self, request: bytes, context: Any) -> bytes:
        self.num_lists += 1
        if self.busy > 0:
            self.busy -= 1
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        answer = resources.ListPodResourcesResponse()
        for uid, pod in self.pods.items():
            namespace, name = key(pod)
            listed = answer.pod_resources.add(namespace=namespace, name=name)
            sidecars = [item for item in init_containers(pod) if item.get("restartPolicy") == "Always"]
            for container in (*sidecars, *containers(pod)):
                of_container = listed.containers.add(name=container["name"])
                for (of, its, resource), devices in self.taken.items():
                    if (of, its) == (uid, container["name"]):
                        of_container.devices.add(resource_name=resource, device_ids=sorted(devices))
        return answer.SerializeToString()

    async def _allocatable(self, request: bytes, context: Any) -> bytes:
        answer = resources.AllocatableResourcesResponse()
        for resource, endpoint in self.endpoints.items():
            for device, health in endpoint.devices.items():
                if health == "Healthy":
                    answer.devices.add(resource_name=resource, device_ids=[device])
        return answer.SerializeToString()

    async def _serve(self, socket: Path, methods: dict[str, Callable[[bytes, Any], Awaitable[bytes]]]) -> aio.Server:
        server = aio.server()
        server.add_generic_rpc_handlers((Methods(methods),))
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        return server


class Methods(grpc.GenericRpcHandler):
    """Unary methods by name, in bytes."""

    def __init__(self, methods: dict[str, Callable[[bytes, Any], Awaitable[bytes]]]) -> None:
        self._methods = methods

    def service(self, handler_call_details: Any) -> Any:
        method = self._methods.get(handler_call_details.method)
        return grpc.unary_unary_rpc_method_handler(method) if method else None


class Plugin:
    """As NVIDIA's: registers at its kubelet's socket, and again when that is made anew; its own preference is the
    last devices as they sort."""

    def __init__(
        self, folder: Path, devices: Iterable[str], resource: str = "nvidia.com/gpu", kubelet_socket: str = "kerf.sock"
    ) -> None:
        self.folder = folder
        self.health = dict.fromkeys(devices, "Healthy")
        self.resource = resource
        self.version = "v1beta1"
        self.prefers = True
        self.asked: list[plugins.PreferredAllocationRequest] = []
        self.allocated: list[bytes] = []
        self.complaint = ""
        """Why it was not registered."""
        self._kubelet = folder / kubelet_socket
        self.socket = folder / f"nvidia-{resource.partition('/')[2]}.sock"
        self._changed = asyncio.Event()
        self._server: aio.Server | None = None
        self._looking: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Serve, and register as often as need be."""
        self._looking = asyncio.create_task(self._look())

    async def stop(self) -> None:
        """Abruptly."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        if self._server is not None:
            await self._server.stop(None)

    def tell(self, device: str, health: str) -> None:
        """A device has become sick, or well."""
        self.health[device] = health
        self._changed.set()
        self._changed = asyncio.Event()

    async def _look(self) -> None:
        seen = None
        while True:
            with contextlib.suppress(FileNotFoundError):
                found = self._kubelet.stat()
                if (found.st_ino, found.st_ctime_ns) != seen:
                    seen = found.st_ino, found.st_ctime_ns
                    await self.begin()
            await asyncio.sleep(0.02)

    async def begin(self) -> None:
        if self._server is not None:
            await self._server.stop(None)
        self.socket.unlink(missing_ok=True)
        self._server = aio.server()
        self._server.add_generic_rpc_handlers((self._Handlers(self),))
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()
        request = plugins.RegisterRequest(version=self.version, endpoint=self.socket.name, resource_name=self.resource)
        request.options.get_preferred_allocation_available = self.prefers
        async with aio.insecure_channel(f"unix:{self._kubelet}") as channel:
            try:
                await ask(channel, "/v1beta1.Registration/Register", request.SerializeToString())
            except aio.AioRpcError as error:
                self.complaint = error.details() or ""

    class _Handlers(grpc.GenericRpcHandler):
        def __init__(self, plugin: "Plugin") -> None:
            self._plugin = plugin

        def service(self, handler_call_details: Any) -> Any:
            name = handler_call_details.method.removeprefix("/v1beta1.DevicePlugin/")
            if name == "ListAndWatch":
                return grpc.unary_stream_rpc_method_handler(self._plugin.list_and_watch)
            method = {
                "GetDevicePluginOptions": self._plugin.options,
                "GetPreferredAllocation": self._plugin.preferred,
                "Allocate": self._plugin.allocate,
                "PreStartContainer": self._plugin.pre_start,
                "OfTheFuture": self._plugin.of_the_future,
            }.get(name)
            return grpc.unary_unary_rpc_method_handler(method) if method else None

    async def list_and_watch(self, request: bytes, context: Any) -> Any:
        """All devices, and again after each change."""
        while True:
            changed = self._changed
            answer = plugins.ListAndWatchResponse()
            for device, health in self.health.items():
                answer.devices.add(ID=device, health=health)
            yield answer.SerializeToString()
            await changed.wait()

    async def options(self, request: bytes, context: Any) -> bytes:
        """With a field that nobody knows yet."""
        options = plugins.DevicePluginOptions(get_preferred_allocation_available=self.prefers, pre_start_required=True)
        return options.SerializeToString() + b"\x98\x06\x07"  # field 99: 7

    async def preferred(self, request: bytes, context: Any) -> bytes:
        """The last ones."""
        asked = plugins.PreferredAllocationRequest.FromString(request)
        self.asked.append(asked)
        answer = plugins.PreferredAllocationResponse()
        for container in asked.container_requests:
            must = list(container.must_include_deviceIDs)
            others = sorted(set(container.available_deviceIDs) - set(must), reverse=True)
            answer.container_responses.add(deviceIDs=[*must, *others][: container.allocation_size])
        return answer.SerializeToString()

    async def allocate(self, request: bytes, context: Any) -> bytes:
        """An environment variable, as NVIDIA's gives it."""
        self.allocated.append(request)
        answer = plugins.AllocateResponse()
        for container in plugins.AllocateRequest.FromString(request).container_requests:
            answer.container_responses.add(envs={"NVIDIA_VISIBLE_DEVICES": ",".join(sorted(container.devices_ids))})
        return answer.SerializeToString()

    async def pre_start(self, request: bytes, context: Any) -> bytes:
        """Refused."""
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not this one")
        return b""

    async def of_the_future(self, request: bytes, context: Any) -> bytes:
        """A method that no version knows."""
        return request[::-1]
