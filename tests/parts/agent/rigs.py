"""An agent between a kubelet and a plugin, all at real sockets, with an API server in memory."""

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from extender.kube.memory import MemoryCluster
from extender.parts.agent.agent import Agent, Options
from extender.parts.agent.inventory import Inventory
from tests.parts.agent.kubelets import Kubelet, Plugin
from tests.parts.agent.pods import Pod

NODE = {"kind": "Node", "metadata": {"name": "n"}, "status": {}}
UUIDS = [f"GPU-{letter}" for letter in "abcdefgh"]


async def until(condition: Callable[[], object], what: str = "", within_s: float = 10.0) -> None:
    """Wait for something that other tasks bring about."""
    try:
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110 - any condition will do
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(what or "it does not come about") from None


@dataclass
class Rig:
    """All of it."""

    folder: Path
    cluster: MemoryCluster
    kubelet: Kubelet
    plugin: Plugin
    agent: Agent
    options: Options
    task: asyncio.Task[None]

    def report(self) -> dict[str, Any]:
        """What the node's annotation says, {} before it is there."""
        text = self.cluster.node("n")["metadata"].get("annotations", {}).get("kerf.dev/node-report")
        return msgspec.json.decode(text) if text else {}

    async def place(self, pod: Pod) -> dict[str, dict[str, set[str]]]:
        """Kerf binds a pod, and the kubelet admits it."""
        self.cluster.apply(pod)
        return await self.kubelet.admit(pod)

    async def kill_agent(self) -> None:
        """Without any farewell but that its connections break."""
        await end(self.task)

    async def start_agent(self) -> None:
        """A new process, as it were."""
        self.agent = Agent(self.options, self.cluster, inventory(self.folder))
        self.task = asyncio.create_task(self.agent.run())


def inventory(folder: Path) -> Inventory:
    """Of a machine without GPUs."""
    return Inventory(folder, library=("false",))


async def end(task: asyncio.Task[None]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


@contextlib.asynccontextmanager
async def running(
    devices: list[str] | None = None, *, steer: bool = True, resource: str = "nvidia.com/gpu", **plugin: Any
) -> AsyncIterator[Rig]:
    """A rig whose plugin is registered."""
    with tempfile.TemporaryDirectory(prefix="kerf-") as name:  # short: a socket's path has 107 characters
        folder = Path(name)
        kubelet = Kubelet(folder)
        await kubelet.start()
        socket = "kerf.sock" if steer else "kubelet.sock"
        of_node = Plugin(folder, devices if devices is not None else UUIDS, resource, socket)
        for key, value in plugin.items():
            setattr(of_node, key, value)
        await of_node.start()
        options = Options("n", steer, folder, kubelet.pod_resources, health_port=0)
        cluster = MemoryCluster([NODE])
        agent = Agent(options, cluster, inventory(folder))
        rig = Rig(folder, cluster, kubelet, of_node, agent, options, asyncio.create_task(agent.run()))
        try:
            await until(lambda: of_node.complaint or kubelet.allocatable(resource), "the plugin is registered")
            yield rig
        finally:
            await end(rig.task)
            await rig.plugin.stop()
            await kubelet.stop()


def in_rig(
    devices: list[str] | None = None, **options: Any
) -> Callable[[Callable[[Rig], Awaitable[None]]], Callable[[], None]]:
    """Runs a test in a rig; see `running`."""

    def decorated(test: Callable[[Rig], Awaitable[None]]) -> Callable[[], None]:
        async def run() -> None:
            async with running(devices, **options) as rig:
                await test(rig)

        def in_a_loop() -> None:
            asyncio.run(run())

        in_a_loop.__name__, in_a_loop.__module__, in_a_loop.__doc__ = test.__name__, test.__module__, test.__doc__
        return in_a_loop

    return decorated
