"""Standing between the vendor's device plugin and the kubelet.

The plugin is told that the kubelet is at the agent's socket (`--kubelet-socket`), registers there, and the agent
registers at the kubelet. Nothing is remembered on disk: a plugin watches for its kubelet's socket to be made anew, and
registers again, so whatever begins anew, agent or kubelet, the agent makes its socket anew. A kubelet that starts
removes all sockets of the folder, the plugin's too: that is what plugins watch for.
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
from extender.parts.agent.choice import Call
from extender.parts.agent.kubelet import OPTIONS, channel
from extender.parts.agent.kubelet_api.deviceplugin_v1beta1_pb2 import RegisterRequest
from extender.parts.agent.preference import Answer
from extender.parts.agent.relay import Relay

logger = logging.getLogger(__name__)

_KUBELET_SOCKET: Final = "kubelet.sock"
_AGENT_SOCKET: Final = "kerf.sock"
_STEERED: Final = DEFAULT.resources
"""Resources of which Kerf chooses the very GPUs. All others are the plugin's and the kubelet's."""
_REGISTER: Final = "/v1beta1.Registration/Register"
_VERSION: Final = "v1beta1"
_LOOK_S: Final = 0.25
_TIMEOUT_S: Final = 10.0
_NOTICES_S: Final = 0.2
"""Until the kubelet has noticed that a connection has ended."""
_Context = aio.ServicerContext[bytes, bytes]
_Identity = tuple[int, int]


class Steering(Background):
    """The kubelet to device plugins, and their plugins to the kubelet."""

    def __init__(self, folder: Path, prefer: Callable[[Call], Awaitable[Answer]]) -> None:
        """`folder` is the kubelet's for device plugins."""
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
        """Those whose plugins are registered."""
        return sorted(self._relays)

    async def run(self) -> None:
        """Begin anew with each socket of the kubelet, until cancelled."""
        self._sweep()
        while True:
            kubelet = await self._changed_from(None)
            try:
                await self._offer()
                await self._changed_from(kubelet)
                logger.info("the kubelet has begun anew, or let go of a plugin: plugins have to register again")
            finally:
                await self._withdraw()

    async def _changed_from(self, kubelet: _Identity | None) -> _Identity | None:
        """Wait until the kubelet's socket is another one, or the agent's is gone, and tell which it is then.

        By looking: a folder is watched by the system's own means, each with traps of its own, at no gain that anybody
        would notice.
        """
        while True:
            found = _identity(self._folder / _KUBELET_SOCKET)
            gone = kubelet is not None and not (self._folder / _AGENT_SOCKET).exists()
            if found != kubelet or gone or any(relay.dropped for relay in self._relays.values()):
                return found
            await asyncio.sleep(_LOOK_S)

    def _sweep(self) -> None:
        """Remove what an agent has left that ended abruptly."""
        for left in self._folder.glob("kerf-*.sock"):
            left.unlink(missing_ok=True)

    async def _offer(self) -> None:
        """Let plugins register. The socket comes by its name when somebody listens at it: they look for that."""
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
        """In the background: whoever is cancelled meanwhile would leave half a relay."""
        task = asyncio.create_task(relay.close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def _register(self, request: bytes, context: _Context) -> bytes:
        """A plugin registers: so does the agent, in its place."""
        asked = RegisterRequest.FromString(request)
        if asked.version != _VERSION or asked.resource_name not in _STEERED:
            logger.info("%s, API version %s: left to the kubelet", asked.resource_name, asked.version)
            return await self._tell_kubelet(request, context)
        async with self._registering:
            return await self._stand_in(asked, context)

    async def _stand_in(self, asked: RegisterRequest, context: _Context) -> bytes:
        before = self._relays.pop(asked.resource_name, None)
        if before is not None:
            # First the end of the old one: kubelets before 1.37 end with a connection whatever plugin of the resource
            # they know by then (pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go, runClient).
            self._close(before)
            await asyncio.gather(*self._closing)
            await asyncio.sleep(_NOTICES_S)
        # Another name each time: the kubelet does not take one again of which it has yet to notice the end.
        name = f"kerf-{asked.resource_name.replace('/', '-')}-{next(self._numbers)}.sock"
        relay = Relay(asked.resource_name, self._folder / asked.endpoint, self._folder / name, self._prefer)
        asked.endpoint = name
        asked.options.get_preferred_allocation_available = True
        try:
            await relay.start()
            answer = await self._tell_kubelet(asked.SerializeToString(), context)
        except BaseException:
            self._close(relay)
            raise
        self._relays[asked.resource_name] = relay
        logger.info("the plugin of %s is registered, by way of %s", asked.resource_name, name)
        return answer

    async def _tell_kubelet(self, request: bytes, context: _Context) -> bytes:
        async with channel(self._folder / _KUBELET_SOCKET) as kubelet:
            register: aio.UnaryUnaryMultiCallable[bytes, bytes] = kubelet.unary_unary(_REGISTER)
            try:
                return await register(request, timeout=_TIMEOUT_S, wait_for_ready=True)
            except aio.AioRpcError as error:
                logger.warning("the kubelet refuses a registration: %s", error.details())
                await context.abort(error.code(), error.details() or "")


class _Registration(grpc.GenericRpcHandler):
    """The kubelet's service for plugins."""

    def __init__(self, register: Callable[[bytes, _Context], Awaitable[bytes]]) -> None:
        self._register = register

    def service(self, handler_call_details: Any) -> Any:
        """How a method is answered (grpc.GenericRpcHandler)."""
        if handler_call_details.method == _REGISTER:
            return grpc.unary_unary_rpc_method_handler(self._register)
        return None


def _identity(socket: Path) -> _Identity | None:
    """What tells a socket from another one of the same name; None where there is none."""
    with contextlib.suppress(FileNotFoundError):
        found = socket.stat()
        return found.st_ino, found.st_ctime_ns
    return None
