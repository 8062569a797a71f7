"""Client of the kubelet's PodResources API."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import grpc
from grpc import aio

from extender.core.vendors.registry import DEFAULT
from extender.parts.agent.kubelet_api.podresources_v1_pb2 import (
    AllocatableResourcesRequest,
    AllocatableResourcesResponse,
    ListPodResourcesRequest,
    ListPodResourcesResponse,
)

PREFIX: Final = f"{DEFAULT.domain}/"
"""Prefix of the vendor's resources."""
OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),  # else the socket's path, which Go's servers refuse
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # else a new connection waits for the back-off of a failed one
)
_SERVICE: Final = "/v1.PodResourcesLister"
_TIMEOUT_S: Final = 5.0
_PAUSE_S: Final = 0.02
_MAX_TRIES: Final = 5

Devices = Mapping[str, tuple[str, ...]]
"""Device IDs by resource."""
Listing = Mapping[str, Mapping[str, Devices]]
"""Devices of containers, also those without any, by `namespace/name` of the pod and the container's name."""


class KubeletError(Exception):
    """The kubelet does not answer, or answers with an error."""


def channel(socket: Path) -> aio.Channel:
    """A connection to a Unix socket."""
    return aio.insecure_channel(f"unix:{socket}", options=OPTIONS)


class PodResources:
    """Reads the kubelet's allocations."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._channel: aio.Channel | None = None
        self._lock = asyncio.Lock()

    async def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            await self._channel.close()

    async def listing(self) -> Listing:
        """The kubelet's active pods and the devices of their containers. Raises KubeletError.

        A pod is listed as soon as the kubelet starts to admit it, before it has devices.
        """
        answer: ListPodResourcesResponse = await self._call(
            "List", ListPodResourcesRequest(), ListPodResourcesResponse.FromString
        )
        return {
            f"{pod.namespace}/{pod.name}": {container.name: _devices(container) for container in pod.containers}
            for pod in answer.pod_resources
        }

    async def allocatable(self) -> dict[str, dict[str, int]]:
        """Healthy devices by resource, each with its NUMA node, -1 for none. Raises KubeletError."""
        answer: AllocatableResourcesResponse = await self._call(
            "GetAllocatableResources", AllocatableResourcesRequest(), AllocatableResourcesResponse.FromString
        )
        found: dict[str, dict[str, int]] = {}
        for devices in answer.devices:
            if devices.resource_name.startswith(PREFIX):
                nodes = [node.ID for node in devices.topology.nodes]
                of_resource = found.setdefault(devices.resource_name, {})
                of_resource.update(dict.fromkeys(devices.device_ids, nodes[0] if nodes else -1))
        return found

    async def _call(self, method: str, request: Any, decode: Any) -> Any:
        async with self._lock:  # replacing a broken connection would end concurrent calls
            return await self._try(method, request, decode)

    async def _try(self, method: str, request: Any, decode: Any) -> Any:
        why = ""
        for _ in range(_MAX_TRIES):
            if self._channel is None:
                self._channel = channel(self._socket)
            call = self._channel.unary_unary(
                f"{_SERVICE}/{method}", request_serializer=type(request).SerializeToString, response_deserializer=decode
            )
            try:
                return await call(request, timeout=_TIMEOUT_S)
            except aio.AioRpcError as error:
                why = error.details() or error.code().name
                if error.code() is grpc.StatusCode.UNAVAILABLE:  # reconnect, as the kubelet may have restarted
                    before, self._channel = self._channel, None
                    await before.close()
                elif error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:  # it is limited to 100 calls a second
                    break
            await asyncio.sleep(_PAUSE_S)
        raise KubeletError(f"{method} of {self._socket}: {why}")


def _devices(container: Any) -> dict[str, tuple[str, ...]]:
    """Device IDs by resource; the kubelet lists a resource once for each NUMA node."""
    found: dict[str, tuple[str, ...]] = {}
    for devices in container.devices:
        if devices.resource_name.startswith(PREFIX):
            found[devices.resource_name] = (*found.get(devices.resource_name, ()), *devices.device_ids)
    return found
