"""A proxy between the vendor's device plugin and the kubelet.

The plugin is started with the agent's socket as `--kubelet-socket`, registers there, and the agent registers at the
kubelet in its place. There is no state on disk: a plugin registers again when its kubelet's socket is recreated, so the
agent recreates its socket whenever agent or kubelet restart. A starting kubelet removes all sockets of the folder,
including the plugin's.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import grpc
from grpc import aio

from extender.core.vendors.registry import DEFAULT
from extender.kube.background import Background
from extender.parts.agent.choice import PreferenceRequest
from extender.parts.agent.kubelet import OPTIONS, channel
from extender.parts.agent.kubelet_api.deviceplugin_v1beta1_pb2 import RegisterRequest
from extender.parts.agent.preference import Answer
from extender.parts.agent.relay import Relay

logger = logging.getLogger(__name__)

_KUBELET_SOCKET: Final = "kubelet.sock"
_AGENT_SOCKET: Final = "kerf.sock"
_STEERED: Final = DEFAULT.resources
"""Resources whose devices Kerf chooses; others are left to the plugin and the kubelet."""
_REGISTER: Final = "/v1beta1.Registration/Register"
_VERSION: Final = "v1beta1"
_POLL_S: Final = 0.25
_TIMEOUT_S: Final = 10.0
_NOTICES_S: Final = 0.2
"""Time in which the kubelet notices that a connection has ended."""
_Context = aio.ServicerContext[bytes, bytes]
_Identity = tuple[int, int]


class Steering(Background):
    """Acts as the kubelet towards device plugins, and as the plugins towards the kubelet."""

    def __init__(self, folder: Path, prefer: Callable[[PreferenceRequest], Awaitable[Answer]]) -> None:
        """`folder` is the kubelet's folder for device plugins."""
        super().__init__("steering")
        self._folder = folder
        self._prefer = prefer
        self._relays: dict[str, Relay] = {}  # by resource
        self._numbers = itertools.count()
        self._closing: set[asyncio.Task[None]] = set()
        self._registering = asyncio.Lock()
        self.offered = False
        """Whether plugins can register."""

    @property
    def resources(self) -> list[str]:
        """Resources whose plugins are registered."""
        return sorted(self._relays)

    async def run(self) -> None:
        """Offer registration again with each new socket of the kubelet, until cancelled."""
        self._sweep()
        while True:
            kubelet = await self._changed_from(None)
            try:
                await self._offer()
                await self._changed_from(kubelet)
                logger.info("the kubelet has restarted or dropped a plugin: plugins have to register again")
            finally:
                await self._withdraw()

    async def _changed_from(self, kubelet: _Identity | None) -> _Identity | None:
        """Wait until the kubelet's socket differs from `kubelet`, the agent's is gone, or the kubelet dropped a relay.

        Returns the kubelet's socket. Polls, as inotify is more fragile and no faster in practice.
        """
        while True:
            found = _identity(self._folder / _KUBELET_SOCKET)
            removed = kubelet is not None and not (self._folder / _AGENT_SOCKET).exists()
            if found != kubelet or removed or any(relay.dropped for relay in self._relays.values()):
                return found
            await asyncio.sleep(_POLL_S)

    def _sweep(self) -> None:
        """Remove sockets left by an agent that ended abruptly."""
        for socket in self._folder.glob("kerf-*.sock"):
            socket.unlink(missing_ok=True)

    async def _offer(self) -> None:
        """Let plugins register. The socket gets its final name once it is served, as plugins watch for that name."""
        new, socket = self._folder / "kerf-new.sock", self._folder / _AGENT_SOCKET
        self._server = aio.server(options=OPTIONS)
        self._server.add_generic_rpc_handlers((_Registration(self._register),))
        self._server.add_insecure_port(f"unix:{new}")
        await self._server.start()
        new.rename(socket)
        self.offered = True
        logger.info("device plugins may register at %s", socket)

    async def _withdraw(self) -> None:
        self.offered = False
        await self._server.stop(None)
        relays, self._relays = self._relays, {}
        for relay in relays.values():
            self._close(relay)
        await asyncio.gather(*self._closing)
        (self._folder / _AGENT_SOCKET).unlink(missing_ok=True)

    def _close(self, relay: Relay) -> None:
        """Close a relay in a task, so that a cancelled caller does not leave it half closed."""
        task = asyncio.create_task(relay.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _register(self, request: bytes, context: _Context) -> bytes:
        """Handle a plugin's registration: register the agent at the kubelet in its place."""
        plugin = RegisterRequest.FromString(request)
        if plugin.version != _VERSION or plugin.resource_name not in _STEERED:
            logger.info("%s, API version %s: left to the kubelet", plugin.resource_name, plugin.version)
            return await self._register_at_kubelet(request, context)
        async with self._registering:
            return await self._register_relay(plugin, context)

    async def _register_relay(self, plugin: RegisterRequest, context: _Context) -> bytes:
        before = self._relays.pop(plugin.resource_name, None)
        if before is not None:
            # Close the old relay first: when a connection ends, kubelets before 1.37 stop whichever plugin of the
            # resource is registered by then (pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go, runClient).
            self._close(before)
            await asyncio.gather(*self._closing)
            await asyncio.sleep(_NOTICES_S)
        # A new name each time: the kubelet refuses a name until it has noticed that its last connection ended.
        name = f"kerf-{plugin.resource_name.replace('/', '-')}-{next(self._numbers)}.sock"
        relay = Relay(plugin.resource_name, self._folder / plugin.endpoint, self._folder / name, self._prefer)
        plugin.endpoint = name
        plugin.options.get_preferred_allocation_available = True
        try:
            await relay.start()
            answer = await self._register_at_kubelet(plugin.SerializeToString(), context)
        except BaseException:
            self._close(relay)
            raise
        self._relays[plugin.resource_name] = relay
        logger.info("the plugin of %s is registered, through %s", plugin.resource_name, name)
        return answer

    async def _register_at_kubelet(self, request: bytes, context: _Context) -> bytes:
        async with channel(self._folder / _KUBELET_SOCKET) as kubelet:
            register: aio.UnaryUnaryMultiCallable[bytes, bytes] = kubelet.unary_unary(_REGISTER)
            try:
                return await register(request, timeout=_TIMEOUT_S, wait_for_ready=True)
            except aio.AioRpcError as error:
                logger.warning("the kubelet refuses a registration: %s", error.details())
                await context.abort(error.code(), error.details() or "")


class _Registration(grpc.GenericRpcHandler):
    """The kubelet's registration service for plugins."""

    def __init__(self, register: Callable[[bytes, _Context], Awaitable[bytes]]) -> None:
        self._register = register

    def service(self, handler_call_details: Any) -> Any:
        """How a method is answered (grpc.GenericRpcHandler)."""
        if handler_call_details.method == _REGISTER:
            return grpc.unary_unary_rpc_method_handler(self._register)
        return None


def _identity(socket: Path) -> _Identity | None:
    """Inode and ctime, which identify a socket among those of the same name; None if there is none."""
    with contextlib.suppress(FileNotFoundError):
        found = socket.stat()
        return found.st_ino, found.st_ctime_ns
    return None
