"""What the kubelet says of devices: its PodResources API."""

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
"""What the resources of the vendor's device plugin begin with."""
OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),  # else the socket's path, which Go's servers refuse
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),  # else a new connection waits as long as one before it that has failed
)
_SERVICE: Final = "/v1.PodResourcesLister"
_TIMEOUT_S: Final = 5.0
_PAUSE_S: Final = 0.02
_MAX_TRIES: Final = 5

Devices = Mapping[str, tuple[str, ...]]
"""Device IDs by resource."""
Listing = Mapping[str, Mapping[str, Devices]]
"""What containers have, by `namespace/name` of their pod and their own name; of containers without devices too."""


class KubeletError(Exception):
    """The kubelet does not answer, or not with what was asked."""


def channel(socket: Path) -> aio.Channel:
    """A connection to whoever listens at a socket of this machine."""
    return aio.insecure_channel(f"unix:{socket}", options=OPTIONS)


class PodResources:
    """The kubelet, asked what it has given."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket
        self._channel: aio.Channel | None = None
        self._turn = asyncio.Lock()

    async def close(self) -> None:
        """Let go of the connection."""
        if self._channel is not None:
            await self._channel.close()

    async def listing(self) -> Listing:
        """Every pod that the kubelet has taken up and not ended, and what its containers have. Raises KubeletError.

        A pod is named from the moment on at which the kubelet turns to it, before it has devices.
        """
        answer: ListPodResourcesResponse = await self._call(
            "List", ListPodResourcesRequest(), ListPodResourcesResponse.FromString
        )
        return {
            f"{pod.namespace}/{pod.name}": {container.name: _devices(container) for container in pod.containers}
            for pod in answer.pod_resources
        }

    async def allocatable(self) -> dict[str, dict[str, int]]:
        """Healthy devices by resource, each with its NUMA node, -1 where it has none. Raises KubeletError."""
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
        async with self._turn:  # whoever finds the connection broken closes it, and with it what goes on
            return await self._ask(method, request, decode)

    async def _ask(self, method: str, request: Any, decode: Any) -> Any:
        why = ""
        for _ in range(_MAX_TRIES):
            if self._channel is None:
                self._channel = channel(self._socket)
            ask = self._channel.unary_unary(
                f"{_SERVICE}/{method}", request_serializer=type(request).SerializeToString, response_deserializer=decode
            )
            try:
                return await ask(request, timeout=_TIMEOUT_S)
            except aio.AioRpcError as error:
                why = error.details() or error.code().name
                if error.code() is grpc.StatusCode.UNAVAILABLE:  # it may have begun anew: a new connection finds it
                    before, self._channel = self._channel, None
                    await before.close()
                elif error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:  # it answers 100 times a second, in all
                    break
            await asyncio.sleep(_PAUSE_S)
        raise KubeletError(f"{method} of {self._socket}: {why}")


def _devices(container: Any) -> dict[str, tuple[str, ...]]:
    """A resource comes once for each NUMA node."""
    found: dict[str, tuple[str, ...]] = {}
    for devices in container.devices:
        if devices.resource_name.startswith(PREFIX):
            found[devices.resource_name] = (*found.get(devices.resource_name, ()), *devices.device_ids)
    return found
