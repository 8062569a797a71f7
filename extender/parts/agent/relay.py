"""One device plugin, as the kubelet sees it: all calls go on to the plugin untouched, but for preferred devices.

What goes on is bytes: fields and methods that this version knows nothing of go on as well.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NoReturn

import grpc
from grpc import aio

from extender.parts.agent.choice import Call
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
"""What the kubelet keeps open for as long as it knows of the plugin."""
_TIMEOUT_S: Final = 5.0
_Context = aio.ServicerContext[bytes, bytes]


class Relay(grpc.GenericRpcHandler):
    """Stands at a socket of its own in the place of a plugin."""

    def __init__(self, resource: str, plugin: Path, socket: Path, prefer: Callable[[Call], Awaitable[Answer]]) -> None:
        self._resource = resource
        self._prefer = prefer
        self._plugin_prefers = False
        """Whether the plugin has an idea of its own of which devices are best."""
        self._closed = False
        self.dropped = False
        """Whether the kubelet has let go of it, although it goes on."""
        self._plugin = channel(plugin)
        self.socket = socket
        self._server = aio.server(options=OPTIONS)
        self._server.add_generic_rpc_handlers((self,))
        self._server.add_insecure_port(f"unix:{socket}")

    async def start(self) -> None:
        """Answer from now on."""
        await self._server.start()

    async def close(self) -> None:
        """End: the kubelet takes the devices for sick from now on, as when a plugin ends."""
        self._closed = True
        await self._server.stop(None)
        await self._plugin.close()
        self.socket.unlink(missing_ok=True)

    def service(self, handler_call_details: Any) -> Any:
        """How a method is answered (grpc.GenericRpcHandler)."""
        method = handler_call_details.method
        if method == f"{_SERVICE}GetPreferredAllocation":
            return grpc.unary_unary_rpc_method_handler(self._preferred)
        if method == f"{_SERVICE}GetDevicePluginOptions":
            return grpc.unary_unary_rpc_method_handler(self._options)

        async def pass_on(requests: AsyncIterator[bytes], context: _Context) -> AsyncIterator[bytes]:
            ask: aio.StreamStreamMultiCallable[bytes, bytes] = self._plugin.stream_stream(method)
            call = ask(requests)
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
        """The plugin's, and that it has a preference."""
        options = DevicePluginOptions.FromString(await self._ask("GetDevicePluginOptions", request, context))
        self._plugin_prefers = options.get_preferred_allocation_available
        options.get_preferred_allocation_available = True
        return options.SerializeToString()

    async def _preferred(self, request: bytes, context: _Context) -> bytes:
        """Kerf's choice; where it has made none, or none that can be had, the plugin's."""
        asked = PreferredAllocationRequest.FromString(request)
        if len(asked.container_requests) != 1:  # the kubelet asks container by container
            return await self._ask("GetPreferredAllocation", request, context)
        (container,) = asked.container_requests
        answer = await self._prefer(
            Call(
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
        return await self._ask("GetPreferredAllocation", asked.SerializeToString(), context)

    async def _ask(self, method: str, request: bytes, context: _Context) -> bytes:
        ask: aio.UnaryUnaryMultiCallable[bytes, bytes] = self._plugin.unary_unary(f"{_SERVICE}{method}")
        try:
            return await ask(request, timeout=_TIMEOUT_S)
        except aio.AioRpcError as error:
            await _abort(context, error)


def _response(devices: list[str]) -> bytes:
    response = PreferredAllocationResponse()
    response.container_responses.add().deviceIDs.extend(devices)
    return response.SerializeToString()


async def _abort(context: _Context, error: aio.AioRpcError) -> NoReturn:
    """End a call as it has ended elsewhere."""
    await context.abort(error.code(), error.details() or "")
