"""A proxy for one device plugin: passes all calls of the kubelet on, and answers those for preferred devices.

Calls are passed on as bytes, so that unknown fields and methods pass too.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NoReturn

import grpc
from grpc import aio

from extender.parts.agent.choice import PreferenceRequest
from extender.parts.agent.kubelet import OPTIONS, channel
from extender.parts.agent.kubelet_api.deviceplugin_v1beta1_pb2 import (
    DevicePluginOptions,
    PreferredAllocationRequest,
    PreferredAllocationResponse,
)
from extender.parts.agent.preference import Answer

logger = logging.getLogger(__name__)

_SERVICE: Final = "/v1beta1.DevicePlugin/"
_WATCH: Final = f"{_SERVICE}ListAndWatch"
"""The call that the kubelet keeps open while the plugin is registered."""
_TIMEOUT_S: Final = 5.0
_Context = aio.ServicerContext[bytes, bytes]


class Relay(grpc.GenericRpcHandler):
    """Serves a separate socket in place of a plugin."""

    def __init__(
        self, resource: str, plugin: Path, socket: Path, prefer: Callable[[PreferenceRequest], Awaitable[Answer]]
    ) -> None:
        self._resource = resource
        self._prefer = prefer
        self._plugin_prefers = False
        """Whether the plugin implements GetPreferredAllocation."""
        self._closed = False
        self.dropped = False
        """Whether the kubelet ended its watch although the relay is not closed."""
        self._plugin = channel(plugin)
        self.socket = socket
        self._server = aio.server(options=OPTIONS)
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(f"unix:{socket}")

    async def start(self) -> None:
        """Start serving."""
        await self._server.start()

    async def close(self) -> None:
        """Stop serving; the kubelet then counts the devices as unhealthy, as when a plugin ends."""
        self._closed = True
        await self._server.stop(None)
        await self._plugin.close()
        self.socket.unlink(missing_ok=True)

    def service(self, handler_call_details: Any) -> Any:
        """The handler of a method (grpc.GenericRpcHandler)."""
        method = handler_call_details.method
        if method == f"{_SERVICE}GetPreferredAllocation":
            return grpc.unary_unary_rpc_method_handler(self._preferred)
        if method == f"{_SERVICE}GetDevicePluginOptions":
            return grpc.unary_unary_rpc_method_handler(self._options)

        async def pass_on(requests: AsyncIterator[bytes], context: _Context) -> AsyncIterator[bytes]:
            method_of_plugin: aio.StreamStreamMultiCallable[bytes, bytes] = self._plugin.stream_stream(method)
            call = method_of_plugin(requests)
            try:
                async for answer in call:
                    yield answer
            except aio.AioRpcError as error:
                await _abort(context, error)
            except asyncio.CancelledError:
                self.dropped = self.dropped or (method == _WATCH and not self._closed)
                raise
            finally:
                call.cancel()

        return grpc.stream_stream_rpc_method_handler(pass_on)

    async def _options(self, request: bytes, context: _Context) -> bytes:
        """The plugin's options, with a preferred allocation available."""
        options = DevicePluginOptions.FromString(await self._call("GetDevicePluginOptions", request, context))
        self._plugin_prefers = options.get_preferred_allocation_available
        options.get_preferred_allocation_available = True
        return options.SerializeToString()

    async def _preferred(self, request: bytes, context: _Context) -> bytes:
        """Kerf's choice of devices; the plugin's if Kerf has made none or it is not available."""
        allocation = PreferredAllocationRequest.FromString(request)
        if len(allocation.container_requests) != 1:  # the kubelet sends a request for each container
            return await self._call("GetPreferredAllocation", request, context)
        (container,) = allocation.container_requests
        answer = await self._prefer(
            PreferenceRequest(
                self._resource,
                list(container.available_deviceIDs),
                list(container.must_include_deviceIDs),
                container.allocation_size,
            )
        )
        if len(answer.devices) == container.allocation_size:
            return _response(answer.devices)
        if not self._plugin_prefers:
            rest = (device for device in answer.rest if device not in answer.devices)
            return _response([*answer.devices, *rest][: container.allocation_size])
        del container.available_deviceIDs[:], container.must_include_deviceIDs[:]
        container.available_deviceIDs.extend(answer.rest)
        container.must_include_deviceIDs.extend(answer.devices)
        return await self._call("GetPreferredAllocation", allocation.SerializeToString(), context)

    async def _call(self, method: str, request: bytes, context: _Context) -> bytes:
        call: aio.UnaryUnaryMultiCallable[bytes, bytes] = self._plugin.unary_unary(f"{_SERVICE}{method}")
        try:
            return await call(request, timeout=_TIMEOUT_S)
        except aio.AioRpcError as error:
            await _abort(context, error)


def _response(devices: list[str]) -> bytes:
    response = PreferredAllocationResponse()
    response.container_responses.add().deviceIDs.extend(devices)
    return response.SerializeToString()


async def _abort(context: _Context, error: aio.AioRpcError) -> NoReturn:
    """End a call with the status of the plugin's call."""
    await context.abort(error.code(), error.details() or "")
